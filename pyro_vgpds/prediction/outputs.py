# SPDX-License-Identifier: Apache-2.0
"""What all predictions offer, whatever their distribution: moments, intervals, draws, densities, tables and files."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import check_choice, check_kind, check_number, find_output, is_whole
from pyro_vgpds.data.dates import format_times, read_zone
from pyro_vgpds.data.parts import sequence_names, to_stamps
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.tables import write_table
from pyro_vgpds.formatting import counted
from pyro_vgpds.prediction.marginals import Marginals
from pyro_vgpds.threads import threads_for
from pyro_vgpds.types import ArrayLike, PathLike

if TYPE_CHECKING:
    import pandas

__all__ = ["Outputs", "Parts"]


class Parts(NamedTuple):
    """The sequences that the frames of a prediction belong to, one after the other."""

    lengths: tuple[int, ...]  #: number of frames of each
    names: list[str]  #: of the training sequence, or the number of a new one

    @classmethod
    def of(cls, data: Sequences) -> Parts:
        """Those of the training frames."""
        return cls(data.lengths, sequence_names(data))


class Outputs(Marginals):
    """A distribution of the outputs at T times, (T, D), in the units of the data.

    :param t: the times, (T,).
    :param data: the sequences that it was made from, for the names of the outputs and the dates.
    :param include_noise: whether it is of the outputs, or of the function without their noise.
    :param parts: the sequences that the frames belong to. Default: one.
    :ivar parts: the same: ``parts.lengths`` and ``parts.names``.

    >>> ahead = post.forecast([2.6, 2.7], sequence=0)
    >>> ahead.shape, ahead.stddev.shape, ahead.columns
    ((2, 5), torch.Size([2, 5]), None)
    """

    def __init__(self, t: Tensor, data: Sequences, include_noise: bool, parts: Parts | None = None) -> None:
        self.t, self.data, self.include_noise = t, data, include_noise
        self.parts = Parts((len(t),), ["0"]) if parts is None else parts
        self._moments: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def sample(self, num_samples: int = 1) -> Tensor:
        """Joint draws (num_samples, T, D).

        :param num_samples: number of draws.
        """

    @abstractmethod
    def _make_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, (T, D) each."""

    @property
    def shape(self) -> tuple[int, int]:
        """(T, D)."""
        return len(self.t), self.data.num_base_outputs

    @property
    def work(self) -> float:
        """Multiply-adds of all outputs, roughly, which the number of threads depends on."""
        return 100.0 * self.shape[0] * self.shape[1]

    @property
    def columns(self) -> list[str] | None:
        """Names of the outputs, if the data have names."""
        return self.data.base_columns

    def kind_of(self, output: int) -> str:
        """What an output is: ``"continuous"``, ``"count"`` or ``"yes/no"``; a rate is continuous.

        :param output: its index.
        """
        find_output("output", output, None, self.shape[1])
        return "continuous"

    @property
    def dates(self) -> np.ndarray | None:
        """The times as dates, if the data have dates; of UTC if the data have a time zone, as numpy has none."""
        return None if self.data.time_origin is None else to_stamps(self.t, self.data)

    def __repr__(self) -> str:
        (times, outputs), dates = self.shape, self.dates
        first, last = (
            f"{self.t[i]:.6g}" if dates is None else format_times(dates[[i]], self.data.time_zone)[0] for i in (0, -1)
        )
        of = counted(outputs, "output") + ("" if self.include_noise else " without noise")
        return f"{type(self).__name__}({counted(times, 'time')} from {first} to {last}, {of})"

    @property
    def mean(self) -> Tensor:
        """(T, D)."""
        return self._kept()[0]

    @property
    def variance(self) -> Tensor:
        """(T, D)."""
        return self._kept()[1]

    def _kept(self) -> tuple[Tensor, Tensor]:
        if self._moments is None:
            with threads_for(self.work):
                self._moments = self._make_moments()
        return self._moments

    @property
    def stddev(self) -> Tensor:
        """(T, D)."""
        return self.variance.sqrt()

    def select(self, rows: slice) -> Outputs:
        """Some of the T frames, such as those of one of several sequences.

        :param rows: which frames.
        :raises ValueError: if they select no frame.

        >>> ahead.select(slice(1, None))
        Selection(1 time from 2.7 to 2.7, 5 outputs)
        """
        return Selection(self, rows)

    def split(self) -> list[Outputs]:
        """The prediction of each sequence, if it was made for several. ``parts.names`` has their names, also those of
        the result.

        >>> first, second = post.impute().split()
        >>> first.shape, second.shape
        ((25, 5), (23, 5))
        """
        found = []
        for end, n, name in zip(itertools.accumulate(self.parts.lengths), *self.parts, strict=True):
            found.append(self.select(slice(end - n, end)))
            found[-1].parts = Parts((n,), [name])
        return found

    def _labels(self) -> list[str] | None:
        """The name of the sequence of each frame; None if there is only one sequence."""
        if len(self.parts.lengths) == 1:
            return None
        return [name for name, n in zip(self.parts.names, self.parts.lengths, strict=True) for _ in range(n)]

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Arrays ``t`` (or dates), ``mean`` and ``variance``.

        >>> sorted(ahead.to_numpy())
        ['latent_mean', 'latent_variance', 'mean', 't', 'variance']
        """
        return {
            "t": to_stamps(self.t, self.data),
            "mean": self.mean.cpu().numpy(),
            "variance": self.variance.cpu().numpy(),
        }

    def to_pandas(self, what: str = "mean") -> pandas.DataFrame:
        """A DataFrame of times (or dates, in the time zone of the data) by outputs. If there are several sequences, the
        index has the levels ``sequence`` and ``time``.

        :param what: ``"mean"``, ``"variance"`` or ``"stddev"``.
        :raises ValueError: if it is another name.
        :raises ImportError: if pandas is not installed.

        >>> ahead.to_pandas("stddev").index.tolist()
        [2.6, 2.7]
        """
        check_choice("what", what, ("mean", "variance", "stddev"))
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pyro_vgpds[data].") from None
        times, labels = pandas.Index(to_stamps(self.t, self.data)), self._labels()
        if self.data.time_zone is not None:
            zone = read_zone(self.data.time_zone)  # by its name, if it has one, to get a zone of pandas' own kind
            times = times.tz_localize("UTC").tz_convert(getattr(zone, "key", zone))
        if labels is None:
            index = times.rename("time")
        else:
            index = pandas.MultiIndex.from_arrays([labels, times], names=["sequence", "time"])
        return pandas.DataFrame(getattr(self, what).cpu().numpy(), index=index, columns=self.columns)

    def to_file(
        self,
        path: PathLike | TextIO,
        interval: float = 0.95,
        *,
        sequence: Sequence[str] | None = None,
        frame_shape: tuple[int, int] | None = None,
        fps: float | None = None,
    ) -> None:
        """Write means and intervals to a csv, npz or video file. A file of the same name is replaced.

        :param path: the file name, whose suffix gives the format, or a text stream for csv.
        :param interval: probability of the intervals. 0 writes none.
        :param sequence: name of the sequence of each row, (T,). Default: those of the training sequences, or the
            numbers of new ones, if there are several sequences.
        :param frame_shape: (H, W) of video frames, required for videos.
        :param fps: frames per second of a video.
        :raises ValueError: if ``interval`` is not in [0, 1), or the suffix is unknown.

        >>> ahead.to_file("ahead.csv", interval=0.9)
        >>> from pathlib import Path
        >>> Path("ahead.csv").read_text()[:28]
        'time,y0,y0 lower,y0 upper,y1'
        """
        check_number("interval", interval, "in [0, 1)", lambda value: 0.0 <= value < 1.0)
        ends = [end.cpu().numpy() for end in self.interval(interval)] if interval != 0 else None
        write_table(
            path,
            to_stamps(self.t, self.data),
            self.mean.cpu().numpy(),
            stddev=self.stddev.cpu().numpy(),
            interval=None if ends is None else (ends[0], ends[1]),
            columns=self.columns,
            sequence=self._labels() if sequence is None else sequence,
            frame_shape=frame_shape,
            fps=fps,
            zone=self.data.time_zone,
        )


class Selection(Outputs):
    """Some frames of another prediction; :meth:`Outputs.select` makes them."""

    def __init__(self, whole: Outputs, rows: slice) -> None:
        _check_rows(rows, len(whole.t))
        super().__init__(whole.t[rows], whole.data, whole.include_noise)
        self.whole, self.rows, self.is_gaussian = whole, rows, whole.is_gaussian

    def kind_of(self, output: int) -> str:
        return self.whole.kind_of(output)

    def with_noise(self, include_noise: bool) -> Selection:
        whole: Any = self.whole
        return Selection(whole.with_noise(include_noise), self.rows)

    def _make_moments(self) -> tuple[Tensor, Tensor]:
        return self.whole.mean[self.rows], self.whole.variance[self.rows]

    def interval(self, probability: float = 0.95) -> tuple[Tensor, Tensor]:
        lower, upper = self.whole.interval(probability)
        return lower[self.rows], upper[self.rows]

    def sample(self, num_samples: int = 1) -> Tensor:
        return self.whole.sample(num_samples)[:, self.rows]

    def _full(self, y: ArrayLike) -> Tensor:
        """``y`` in the frames of the whole prediction, NaN in others."""
        full = torch.full(self.whole.shape, torch.nan, dtype=self.t.dtype, device=self.t.device)
        full[self.rows] = self.checked(y)
        return full

    def log_prob(self, y: ArrayLike) -> Tensor:
        return self.whole.log_prob(self._full(y))

    @property
    def is_whole(self) -> Tensor:
        return self.whole.is_whole

    def log_probs(self, y: ArrayLike) -> Tensor:
        return self.whole.log_probs(self._full(y))[self.rows]

    def cdf(self, y: ArrayLike) -> Tensor:
        return self.whole.cdf(self._full(y))[self.rows]


def _check_rows(rows: slice, count: int) -> None:
    """Raise an error if ``rows`` is not a slice that selects some of ``count`` frames."""
    check_kind("rows", rows, slice, "a slice of frames")
    if any(end is not None and not is_whole(end) for end in (rows.start, rows.stop, rows.step)) or rows.step == 0:
        raise TypeError(f"rows must be a slice of whole numbers, but got {rows}.")
    if not len(range(count)[rows]):
        raise ValueError(f"rows must select at least one of the {count} times, but got {rows}.")
