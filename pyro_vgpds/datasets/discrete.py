# SPDX-License-Identifier: Apache-2.0
"""Real data of counts and of yes/no: neurons of a reaching monkey, Bach chorales, weekly influenza cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyro_vgpds.checks import check_choice, check_count, check_list, is_whole
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.datasets.base import DAMAGED, Dataset
from pyro_vgpds.datasets.cache import find_file
from pyro_vgpds.types import PathLike

__all__ = ["CaseCounts", "Chorales", "Reaches", "load_flu", "load_jsb", "load_mc_maze"]

_PARTS = ("train", "valid", "test")
_NOTES = 88
_LOWEST = 21  # MIDI number of the lowest key of a piano
_PITCHES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


@dataclass(frozen=True, repr=False)
class Reaches(Dataset):
    """Spike counts of neurons in reaches of a monkey, one sequence for each trial, with the motion of the hand.

    >>> from pyro_vgpds.datasets import load_mc_maze
    >>> reaches = load_mc_maze()  # doctest: +SKIP
    >>> reaches.training(fold=0)  # doctest: +SKIP
    Sequences(132 sequences, 3300 frames, 162 outputs)
    >>> reaches.partial(fold=0)  # doctest: +SKIP
    Sequences(33 sequences, 825 frames, 162 outputs, 24.7 % missing)
    """

    velocity: list[np.ndarray] = field(kw_only=True)  #: (N_s, 2), mean velocity of the hand in each bin, mm/s
    position: list[np.ndarray] = field(kw_only=True)  #: (N_s, 2), mean position of the hand in each bin, mm
    condition: np.ndarray = field(kw_only=True)  #: (S,), the maze and target of each trial, a whole number
    bin_ms: int = field(kw_only=True)  #: length of a bin in milliseconds

    @property
    def hidden(self) -> np.ndarray:
        """(D,) of bool: neurons that are hidden in test trials, those with index % 4 == 3."""
        return np.arange(self.y[0].shape[1]) % 4 == 3

    def fold(self, fold: int, num_folds: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the training trials and of the test trials, those with index % num_folds == fold.

        :param fold: from 0 to num_folds - 1.
        :param num_folds: number of folds.
        :raises ValueError: if there is no such fold.
        """
        check_count("num_folds", num_folds, 2)
        if not is_whole(fold) or not 0 <= fold < num_folds:
            raise ValueError(f"fold must be a whole number from 0 to {num_folds - 1}, but got {fold!r}.")
        is_test = np.arange(len(self.y)) % num_folds == fold
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)

    def take(self, trials: Sequence[int] | np.ndarray) -> Sequences:
        """Some of the trials, with all neurons.

        :param trials: their indices.
        """
        check_list("trials", trials, "a list of indices")
        if not len(trials) or not all(is_whole(i) and -len(self.t) <= i < len(self.t) for i in trials):
            raise ValueError(f"trials must be indices from 0 to {len(self.t) - 1}, but got {trials!r:.80}.")
        return Sequences([self.t[i] for i in trials], [self.y[i] for i in trials], columns=self.columns)

    def training(self, fold: int) -> Sequences:
        """The training trials of a fold. Parameters and errors as in :meth:`fold`."""
        return self.take(self.fold(fold)[0])

    def partial(self, fold: int) -> Sequences:
        """The test trials of a fold, NaN for the hidden neurons. Parameters and errors as in :meth:`fold`."""
        test = self.fold(fold)[1]
        y = [np.where(self.hidden, np.nan, self.y[i]) for i in test]
        return Sequences([self.t[i] for i in test], y, columns=self.columns)

    def truth(self, fold: int) -> np.ndarray:
        """Counts (N, D) of the hidden neurons in the test trials, NaN for the others. As :meth:`fold`."""
        return np.concatenate([np.where(self.hidden, self.y[i], np.nan) for i in self.fold(fold)[1]])


@dataclass(frozen=True, repr=False)
class Chorales(Dataset):
    """Sequences of 88 notes, 1 if the note sounds and else 0, with the usual split.

    >>> from pyro_vgpds.datasets import load_jsb
    >>> load_jsb().part("test")  # doctest: +SKIP
    Sequences(77 sequences, 4725 frames, 88 outputs)
    """

    parts: dict[str, slice] = field(kw_only=True)  #: the sequences of "train", "valid" and "test"

    def part(self, name: str) -> Sequences:
        """The sequences of one part.

        :param name: "train", "valid" or "test".
        :raises ValueError: if ``name`` is unknown.
        """
        check_choice("name", name, list(self.parts))
        rows = self.parts[name]
        names = None if self.names is None else self.names[rows]
        return Sequences(self.t[rows], self.y[rows], columns=self.columns, names=names)


@dataclass(frozen=True, repr=False)
class CaseCounts(Dataset):
    """Weekly case counts of districts.

    >>> from pyro_vgpds.datasets import load_flu
    >>> cases = load_flu()  # doctest: +SKIP
    >>> cases.exposure.shape, str(cases.dates[0][0])  # doctest: +SKIP
    ((140,), '2001-01-01')
    """

    exposure: np.ndarray = field(kw_only=True)  #: (D,), each district's share of the population; the sum is 1


def load_mc_maze(bin_ms: int = 20, *, data_home: PathLike | None = None, download: bool = False) -> Reaches:
    """Load spike counts of 162 neurons in 165 reaches of a monkey through mazes, half a second each.

    The neurons are of primary motor and premotor cortex. Counts are summed in the bins, and the velocity and position
    of the hand are averaged. Times are the centres of the bins, in seconds from the start of the trial.

    Terms: from yididiyan/ccgpfa; upstream is DANDI 000138 (Neural Latents Benchmark, MC_Maze_Large; Churchland and
    Kaufman), CC-BY-4.0. The file has no pinned URL and has to be copied by hand.

    :param bin_ms: length of a bin in milliseconds, a multiple of 5 that divides 500.
    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: has no effect: the file cannot be downloaded.
    :raises ValueError: if ``bin_ms`` does not fit, or the file is damaged.
    :raises FileNotFoundError: if the file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_mc_maze
    >>> load_mc_maze().sequences()  # doctest: +SKIP
    Sequences(165 sequences, 4125 frames, 162 outputs)
    """
    check_count("bin_ms", bin_ms)
    path = find_file("mc_maze/reaches.npz", data_home, download)
    file = _read(path, {"spikes": 3, "hand_velocity": 3, "hand_position": 3, "condition": 1, "bin_ms": 0})
    spikes, own = file["spikes"], int(file["bin_ms"])
    trials, length, neurons = spikes.shape
    for name in ("hand_velocity", "hand_position"):
        _expect(path, name, file[name], (trials, length, 2))
    _expect(path, "condition", file["condition"], (trials,))
    _check_counts(path, "spikes", spikes)
    if own < 1 or bin_ms % own or (own * length) % bin_ms:
        raise ValueError(f"bin_ms must be a multiple of {own} that divides {own * length}, but got {bin_ms}.")
    every = bin_ms // own

    def bins(values: np.ndarray) -> np.ndarray:
        return values.astype(np.float64).reshape(trials, length // every, every, values.shape[2])

    counts = bins(spikes).sum(2)
    centres = (np.arange(counts.shape[1]) + 0.5) * bin_ms / 1000.0
    return Reaches(
        [centres.copy() for _ in range(trials)],
        list(counts),
        f"monkey reaching: spike counts of {neurons} neurons in bins of {bin_ms} ms, {trials} trials",
        "From github.com/yididiyan/ccgpfa; upstream DANDI 000138, CC-BY-4.0.",
        columns=[f"neuron {i}" for i in range(neurons)],
        velocity=list(bins(file["hand_velocity"]).mean(2)),
        position=list(bins(file["hand_position"]).mean(2)),
        condition=file["condition"].astype(np.int64),
        bin_ms=bin_ms,
    )


def load_jsb(*, data_home: PathLike | None = None, download: bool = False) -> Chorales:
    """Load 382 chorales by J. S. Bach as 88 notes of 0 or 1, one frame for each quarter.

    229 are for training, 76 for validation and 77 for tests. Times are quarters from the start; columns are named as
    the notes, "A0" to "C8". At most four notes sound at once; frames without notes are pauses.

    Terms: from czhuang/JSB-Chorales-dataset, which states no licence: do not redistribute. The file has no pinned URL
    and has to be copied by hand.

    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: has no effect: the file cannot be downloaded.
    :raises ValueError: if the file is damaged.
    :raises FileNotFoundError: if the file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_jsb
    >>> load_jsb().part("train")  # doctest: +SKIP
    Sequences(229 sequences, 13807 frames, 88 outputs)
    """
    path = find_file("jsb/chorales.npz", data_home, download)
    file = _read(path, dict.fromkeys(_PARTS, 2) | {f"{name}_lengths": 1 for name in _PARTS})
    y: list[np.ndarray] = []
    names: list[str] = []
    parts = {}
    for name in _PARTS:
        packed, lengths = file[name], file[f"{name}_lengths"]
        _expect(path, name, packed, (int(lengths.sum()), _NOTES // 8))
        if packed.dtype != np.uint8 or len(lengths) == 0 or lengths.min() < 1:
            raise ValueError(f"{path}: {name} must be bytes (uint8), and {name}_lengths positive.")
        frames = np.unpackbits(packed, axis=1).astype(np.float64)
        parts[name] = slice(len(y), len(y) + len(lengths))
        y += np.split(frames, np.cumsum(lengths)[:-1])
        names += [f"{name} {i}" for i in range(len(lengths))]
    return Chorales(
        [np.arange(float(len(one))) for one in y],
        y,
        f"Bach chorales: {_NOTES} notes in quarters, {len(y)} sequences",
        "From github.com/czhuang/JSB-Chorales-dataset. No licence stated: do not redistribute.",
        columns=[f"{_PITCHES[i % 12]}{i // 12 - 1}" for i in range(_LOWEST, _LOWEST + _NOTES)],
        names=names,
        parts=parts,
    )


def load_flu(*, data_home: PathLike | None = None, download: bool = False) -> CaseCounts:
    """Load weekly influenza cases of 140 districts of Bavaria and Baden-Württemberg, 416 weeks from 2001.

    Times are weeks from the first; ``dates`` has the Monday of each week. The source has 52 weeks in every year and no
    week 53 of 2004, so that the dates there are two weeks apart. ``exposure`` is each district's share of the
    population at the end of 2001. Columns are the official keys of the districts.

    Terms: from the R package surveillance (data of the Robert Koch Institute, SurvStat), GPL-2: do not redistribute the
    file with other licences. It has no pinned URL and has to be copied by hand.

    :param data_home: the data folder; see :func:`~pyro_vgpds.datasets.data_folder`.
    :param download: has no effect: the file cannot be downloaded.
    :raises ValueError: if the file is damaged.
    :raises FileNotFoundError: if the file is missing; the message names the file, its source and the folder.

    >>> from pyro_vgpds.datasets import load_flu
    >>> load_flu().sequences()  # doctest: +SKIP
    Sequences(1 sequence, 416 frames, 140 outputs)
    """
    path = find_file("flu/weekly_counts.npz", data_home, download)
    file = _read(path, {"counts": 2, "population_share": 1, "districts": 1, "first_week": 1})
    counts, share, districts, first = (file[n] for n in ("counts", "population_share", "districts", "first_week"))
    weeks, number = counts.shape
    _expect(path, "population_share", share, (number,))
    _expect(path, "districts", districts, (number,))
    _expect(path, "first_week", first, (2,))
    _check_counts(path, "counts", counts)
    if not (np.isfinite(share).all() and (share > 0).all()):
        raise ValueError(f"{path}: population_share must be positive, but entry {int(np.argmin(share > 0))} is not.")
    return CaseCounts(
        [np.arange(float(weeks))],
        [counts.astype(np.float64)],
        f"weekly influenza cases of {number} districts, {weeks} weeks",
        "From the R package surveillance (fluBYBW; Robert Koch Institute, SurvStat), GPL-2.",
        columns=[str(name) for name in districts],
        dates=[_mondays(int(first[0]), int(first[1]), weeks)],
        exposure=share.astype(np.float64),
    )


def _mondays(year: int, week: int, count: int) -> np.ndarray:
    """The first days of consecutive weeks, if every year has 52."""
    every = [divmod(number, 52) for number in range(week - 1, week - 1 + count)]
    return np.array([_monday(year + years, 1 + weeks) for years, weeks in every])


def _monday(year: int, week: int) -> np.datetime64:
    """The first day of an ISO week: week 1 has the fourth of January."""
    fourth = np.datetime64(f"{year:04d}-01-04", "D")
    weekday = (int(fourth.astype(np.int64)) + 3) % 7  # 1970-01-01 was a Thursday
    return fourth + np.timedelta64(7 * (week - 1) - weekday, "D")


def _read(path: Path, wanted: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The arrays of an npz file, which must have these numbers of axes."""
    try:
        with np.load(path, allow_pickle=False) as content:  # a data file must not be able to run code
            if missing := [name for name in wanted if name not in content]:
                raise ValueError(f"it has no {', '.join(missing)}, only {', '.join(content) or 'nothing'}")
            file = {name: content[name] for name in wanted}
    except (*DAMAGED, AttributeError, TypeError) as error:  # an npy file is an array, which has no names
        raise ValueError(f"{path} cannot be read as a data file: {error}") from error
    for name, axes in wanted.items():
        if file[name].ndim != axes:
            raise ValueError(f"{path}: {name} must have {axes} axes, but has the shape {file[name].shape}.")
        if name != "districts" and file[name].dtype.kind not in "fiu":
            raise ValueError(f"{path}: {name} must be numbers, but has the type {file[name].dtype}.")
    return file


def _expect(path: Path, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{path}: {name} must have the shape {shape}, but has {array.shape}.")


def _check_counts(path: Path, name: str, counts: np.ndarray) -> None:
    bad = ~((counts >= 0) & (counts == np.floor(counts)))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{path}: {name} must be counts 0, 1, 2, ..., but entry {place} is {counts[place]}.")
