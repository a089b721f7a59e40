# SPDX-License-Identifier: Apache-2.0
"""Sequences in memory-mapped files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from pyro_vgpds.checks import check_number, check_path, is_real
from pyro_vgpds.data.indices import read_lengths
from pyro_vgpds.types import PathLike

__all__ = ["MappedSequences"]


class MappedSequences(Dataset):
    """A dataset of sequences that lie one after the other in ``.npy`` files, which are mapped and never read whole.

    :param y: file of the outputs of all sequences, (N, D).
    :param lengths: the number of frames of each sequence, with sum N.
    :param t: file of the times of all frames, (N,), as numbers that increase within each sequence; or one number, the
        time between two frames of all sequences, which then start at 0.
    :raises ValueError: if a shape does not fit, or ``t`` is not positive.

    >>> import numpy as np
    >>> from pyro_vgpds.data import MappedSequences, SequenceDataset
    >>> np.save("y.npy", np.random.randn(500, 3))
    >>> walks = MappedSequences("y.npy", lengths=[200, 300], t=0.01)
    >>> SequenceDataset(walks)
    SequenceDataset(2 sequences, 500 frames)
    """

    def __init__(self, y: PathLike, lengths: Sequence[int], t: PathLike | float) -> None:
        self.step: float | None = None  #: between two frames, if there are no times
        if is_real(t):
            check_number("t", t, "a positive time between frames, or a file", lambda value: value > 0.0)
            self.step = float(t)  # type: ignore[arg-type]
        self.y, self.t = _mapped("y", y), np.empty(0) if self.step is not None else _mapped("t", t)  # type: ignore[arg-type]
        self.lengths = read_lengths(lengths)
        self._starts = tuple(itertools.accumulate(self.lengths, initial=0))
        if self.y.ndim != 2 or self._starts[-1] != len(self.y) or min(self.lengths, default=0) < 1:
            raise ValueError(
                f"y must be (N, D) and lengths positive numbers with sum N, but y is {self.y.shape} and the sum of "
                f"lengths is {self._starts[-1]}."
            )
        if self.step is None and self.t.shape != (len(self.y),):
            raise ValueError(f"t must be ({len(self.y)},), one time for each frame, but its shape is {self.t.shape}.")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(self._starts[index], self._starts[index + 1])
        t = self.t[rows] if self.step is None else self.step * np.arange(self.lengths[index])
        return np.asarray(t, dtype=np.float64), np.array(self.y[rows])


def _mapped(name: str, path: PathLike) -> np.ndarray:
    check_path(name, path)
    if Path(path).suffix != ".npy":
        raise ValueError(f"{name} must be a .npy file, but got {path}.")
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
