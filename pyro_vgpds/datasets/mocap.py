# SPDX-License-Identifier: Apache-2.0
"""Motion capture data in the Acclaim format, as published by the CMU graphics lab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyro_vgpds.checks import check_count, check_list, check_number, check_path, is_whole
from pyro_vgpds.datasets.acclaim import read_amc, read_asf
from pyro_vgpds.datasets.base import Dataset
from pyro_vgpds.datasets.cache import SOURCES, data_folder, find_file
from pyro_vgpds.datasets.skeleton import Skeleton
from pyro_vgpds.types import PathLike

__all__ = ["CMU_TERMS", "Motion", "load_cmu_mocap"]

CMU_TERMS = (
    "The data used in this project was obtained from mocap.cs.cmu.edu. The database was created with funding from NSF "
    "EIA-0196217. Free to use, also in products; not to be resold as data."
)


@dataclass(frozen=True, repr=False)
class Motion(Dataset):
    """Motion of a skeleton: every row of ``channels`` is a pose.

    >>> from pyro_vgpds.datasets import make_gait
    >>> walks = make_gait(num_sequences=2, length=(30, 40))
    >>> walks.positions(1).shape == (len(walks.t[1]), 18, 3)
    True
    """

    skeleton: Skeleton = field(kw_only=True)  #: the skeleton of the channels
    channels: list[np.ndarray] = field(kw_only=True)  #: (N_s, C), angles in degrees

    def positions(self, sequence: int = 0) -> np.ndarray:
        """Positions of the joints in one sequence, (N_s, J, 3).

        :param sequence: index of the sequence.
        """
        count = len(self.channels)
        if not is_whole(sequence) or not -count <= sequence < count:
            raise ValueError(f"sequence must be a whole number from 0 to {count - 1}, but got {sequence!r:.80}.")
        return self.skeleton.positions(self.channels[sequence])


def load_cmu_mocap(
    subject: int | str = "07",
    trials: Sequence[int | str] | None = None,
    *,
    folder: PathLike | None = None,
    every: int = 1,
    fps: float = 120.0,
    data_home: PathLike | None = None,
    download: bool = False,
) -> Motion:
    """Load motion capture of one subject: ``SS.asf`` and ``SS_TT.amc`` files, one sequence for each trial.

    Outputs are the channels (62 in CMU's files) in the order of the skeleton: the root's position, and angles in
    degrees. Times are in seconds, computed from the frame numbers, and start at 0 in every sequence.

    Terms: CMU's data are free to use, acknowledge mocap.cs.cmu.edu and NSF EIA-0196217; see ``dataset.terms``.

    :param subject: the number in the file names, as ``7`` or ``"07"``.
    :param trials: numbers of trials. Default: every trial of the subject in the folder, and with ``download`` those
        that can be downloaded.
    :param folder: the folder of the files. Default: ``cmu07`` (for subject 07) in the data folder.
    :param every: keep every ``every``-th frame, from the first: 4 turns 120 frames per second into 30.
    :param fps: frames per second in the file: 120 in most of CMU's, 60 for some subjects.
    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: download missing files that have a pinned URL.
    :raises FileNotFoundError: if a file is missing or there is no trial; the message names its source and the folder.
    :raises ValueError: if a file cannot be read, or ``every`` or ``fps`` is not positive.

    >>> from pyro_vgpds.datasets import load_cmu_mocap
    >>> load_cmu_mocap("07", trials=[1, 2], every=4).sequences()  # doctest: +SKIP
    Sequences(2 sequences, 162 frames, 62 outputs)
    """
    check_count("every", every)
    check_number("fps", fps, "positive", lambda value: value > 0.0)
    check_path("folder", folder, optional=True)
    check_list("trials", trials, "a list of numbers such as 7 or '07'", optional=True)
    number = _two_digits(subject)
    place = Path(folder) if folder is not None else data_folder(data_home) / f"cmu{number}"

    def find(name: str) -> Path:
        if folder is None and f"cmu{number}/{name}" in SOURCES:
            return find_file(f"cmu{number}/{name}", data_home, download)
        if not (place / name).is_file():
            raise FileNotFoundError(
                f"{name} is not in {place}; mocap.cs.cmu.edu has it under subject {int(number)}. Copy it there, or "
                "pass the folder that has it as folder=."
            )
        return place / name

    skeleton = read_asf(find(f"{number}.asf"))
    names = None if trials is None else [f"{number}_{_two_digits(trial)}" for trial in trials]
    if names is None:
        there = {path.stem for path in place.glob(f"{number}_*.amc")}
        names = sorted(there | (_pinned(number) if download and folder is None else set()))
    if not names:
        raise FileNotFoundError(f"no trial {number}_*.amc in {place}; download some from mocap.cs.cmu.edu.")
    t, channels = [], []
    for name in names:
        frames, rows = read_amc(find(f"{name}.amc"), skeleton)
        t.append((frames[::every] - frames[0]) / fps)
        channels.append(rows[::every])
    return Motion(
        t,
        channels,
        f"CMU subject {number}, {len(names)} trials at {fps / every:g} frames per second",
        CMU_TERMS,
        columns=list(skeleton.channels),
        names=names,
        skeleton=skeleton,
        channels=channels,
    )


def _pinned(number: str) -> set[str]:
    """Trials of a subject that have a pinned URL."""
    start = f"cmu{number}/{number}_"
    return {Path(name).stem for name, source in SOURCES.items() if name.startswith(start) and source.url is not None}


def _two_digits(number: int | str) -> str:
    if not str(number).isdigit():
        raise ValueError(f"subject and trials must be numbers such as 7 or '07', but got {number!r}.")
    return str(number).zfill(2)
