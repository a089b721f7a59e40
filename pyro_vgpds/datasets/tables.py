# SPDX-License-Identifier: Apache-2.0
"""Tables of real data: gene expression, wireless signal strengths, monthly returns."""

from __future__ import annotations

import re

import numpy as np

from pyro_vgpds.checks import check_choice, check_flags
from pyro_vgpds.datasets.base import Dataset, require
from pyro_vgpds.datasets.cache import find_file
from pyro_vgpds.types import PathLike

__all__ = ["load_french", "load_robot_wireless", "load_spellman"]

_EXPERIMENTS = ("alpha", "cdc15", "cdc28", "elu")
_GPMAT_TERMS = "From SheffieldML/GPmat, BSD licence."


def load_spellman(
    experiment: str | None = "cdc15",
    *,
    complete: bool = True,
    data_home: PathLike | None = None,
    download: bool = False,
) -> Dataset:
    """Load gene expression over the cell cycle of yeast (Spellman et al. 1998), one sequence for each experiment.

    Outputs are the log ratios of the genes; times are minutes. The four time series are ``"alpha"`` (18 arrays, every 7
    minutes), ``"cdc15"`` (24, irregular), ``"cdc28"`` (17, every 10) and ``"elu"`` (14, every 30). The file has 77
    arrays of 6178 genes; the other four arrays are not time series.

    Terms: as in SheffieldML/GPmat, BSD licence; cite Spellman et al., Mol. Biol. Cell 9 (1998). Needs
    ``pyro_vgpds[data]`` (pandas).

    :param experiment: one of the four, or None for all of them as four sequences.
    :param complete: keep only genes without missing values (4381 for cdc15). Otherwise all with any value, with NaN.
    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: download the file from a pinned URL if it is missing.
    :raises ValueError: if ``experiment`` is unknown.
    :raises FileNotFoundError: if the file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_spellman
    >>> load_spellman("cdc15", download=True).sequences()  # doctest: +SKIP
    Sequences(1 sequence, 24 frames, 4381 outputs)
    """
    if experiment is not None:
        check_choice("experiment", experiment, list(_EXPERIMENTS))
    check_flags(complete=complete)
    path = find_file("spellman_yeast/combined.csv", data_home, download)
    frame = require("pandas", "data").read_csv(path, index_col=0)
    names = list(_EXPERIMENTS) if experiment is None else [experiment]
    t, y = [], []
    for name in names:
        minutes = {c: float(m[1]) for c in frame.columns if (m := re.fullmatch(rf"{name}_?(\d+)", c))}
        order = sorted(minutes, key=minutes.__getitem__)
        t.append(np.array([minutes[c] for c in order]))
        y.append(frame[order].to_numpy(dtype=np.float64).T)
    seen = ~np.isnan(np.concatenate(y))
    keep = seen.all(0) if complete else seen.any(0)
    return Dataset(
        t,
        [part[:, keep] for part in y],
        f"yeast, {', '.join(names)}: log expression ratios of {int(keep.sum())} genes",
        _GPMAT_TERMS + " Spellman et al., Mol. Biol. Cell 9 (1998).",
        columns=[str(gene) for gene in frame.index[keep]],
        names=names,
    )


def load_robot_wireless(*, data_home: PathLike | None = None, download: bool = False) -> Dataset:
    """Load signal strengths (dBm) of 30 wireless access points along a robot's path through a building, 394 x 30.

    53 % of the entries are NaN: the access point was not received. Times are seconds from the start; ``latent`` are the
    true positions (394, 2), in metres.

    Terms: as in SheffieldML/GPmat, BSD licence; the data are those of Ferris, Fox and Lawrence (2007). Needs
    ``pyro_vgpds[data]`` (pandas).

    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: download the file from a pinned URL if it is missing.
    :raises FileNotFoundError: if the file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_robot_wireless
    >>> load_robot_wireless(download=True).sequences()  # doctest: +SKIP
    Sequences(1 sequence, 394 frames, 30 outputs, 53.4 % missing)
    """
    path = find_file("robot_wireless/uw-floor.txt", data_home, download)
    pandas = require("pandas", "data")
    lines = pandas.read_csv(path, sep=" ", header=None, names=["t", "mac", "x", "y", "dbm"])
    strengths = lines.pivot_table(index="t", columns="mac", values="dbm")
    positions = lines.groupby("t")[["x", "y"]].first()
    seconds = strengths.index.to_numpy(dtype=np.float64)
    return Dataset(
        [seconds - seconds[0]],
        [strengths.to_numpy(dtype=np.float64)],
        f"wireless signal strengths of {strengths.shape[1]} access points along a robot's path",
        _GPMAT_TERMS,
        columns=[str(mac) for mac in strengths.columns],
        latent=[positions.to_numpy(dtype=np.float64)],
    )


def load_french(*, data_home: PathLike | None = None, download: bool = False) -> Dataset:
    """Load monthly returns of 35 portfolios and factors since 1949 (K. French's library), 819 x 35.

    Times are months from the first; ``dates`` has the first day of each month.

    Terms: as in the package linearmodels 7.1, NCSA licence. Needs ``pyro_vgpds[data]`` (pandas). The file has no pinned
    URL and has to be copied by hand.

    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: has no effect: the file cannot be downloaded.
    :raises FileNotFoundError: if the file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_french
    >>> load_french().sequences()  # doctest: +SKIP
    Sequences(1 sequence, 819 frames, 35 outputs)
    """
    path = find_file("french/french.csv.bz2", data_home, download)
    frame = require("pandas", "data").read_csv(path, index_col=0, parse_dates=True)
    dates = frame.index.to_numpy().astype("datetime64[D]")
    months = dates.astype("datetime64[M]").astype(np.int64)
    return Dataset(
        [(months - months[0]).astype(np.float64)],
        [frame.to_numpy(dtype=np.float64)],
        f"monthly returns of {frame.shape[1]} portfolios and factors",
        "From the package linearmodels 7.1, NCSA licence; data of Kenneth French's library.",
        columns=[str(c) for c in frame.columns],
        dates=[dates],
    )
