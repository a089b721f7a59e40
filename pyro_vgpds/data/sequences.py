# SPDX-License-Identifier: Apache-2.0
"""The data: times and outputs of one or several sequences.

Longer than 300 lines because the methods of one class and their documentation belong together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import check_device, check_dtype, check_flags, check_kind, check_texts
from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.dataframes import split_frame
from pyro_vgpds.data.groups import ColumnGroups, make_groups, summarise
from pyro_vgpds.data.lags import lagged
from pyro_vgpds.data.reading import (
    Array,
    is_list,
    join_exposures,
    read_exposure,
    read_names,
    read_outputs,
    read_times,
    to_tensor,
    view,
)
from pyro_vgpds.data.times import Times
from pyro_vgpds.formatting import counted
from pyro_vgpds.types import DataLike

if TYPE_CHECKING:
    import pandas

__all__ = ["Sequences"]

_BLOCK = 1 << 19  # numbers of Y that are read at once


class _KeptGroups(NamedTuple):
    """Column groups, and the tensors with their versions that they were made with."""

    mean: Tensor
    scale: Tensor | None
    versions: list[int | None]
    groups: ColumnGroups


class Sequences:
    """One or several sequences of D outputs at given times.

    :param t: times (N,), increasing; or a list with one array for each sequence. numpy, torch, pandas or lists;
        dates of any kind become seconds since the earliest. Their time zone comes back in predictions.
    :param y: outputs (N, D) at those times, or a list of them; NaN marks missing entries. A ``numpy.memmap`` is read in
        blocks and never copied whole. Default: times only, as for a draw from the prior.
    :param columns: names of the outputs. Default: those of a DataFrame, if ``y`` is one.
    :param names: names of the sequences, which predictions take in place of their indices.
    :param exposure: of counts: the population, time or effort by which their rates are multiplied, (D,), (N, D) or a
        list. ``Poisson`` and ``NegativeBinomial`` outputs use it; also an attribute, (D,), (N, D) or None.
    :param dtype: of the numbers in memory, the parameters and the predictions. The bound is computed in float64.
    :param device: of all computations.
    :raises ValueError: if shapes disagree, times repeat, decrease or are not finite, outputs are infinite, a
        sequence is empty, or torch cannot use the device.
    :raises TypeError: if something is not an array of real numbers.

    :ivar time_origin: the date that times count from, UTC, a ``numpy.datetime64``; None if times are numbers.
    :ivar time_zone: name of the time zone of the dates, such as ``"Europe/Berlin"``; None if they have none.
    :ivar lags: the lags of :meth:`lagged`, a tuple; empty by default.
    :ivar names: names of the sequences, a list; None by default.

    Rows or columns in which nothing was observed are allowed and add nothing to the bound; a row without data is a time
    at which the outputs can be imputed. (``VGPDS.from_data`` rejects *training* columns with nothing observed.)

    >>> from pyro_vgpds import Sequences
    >>> nan = float("nan")
    >>> t = [[0.0, 0.1, 0.3], [0.0, 0.2]]
    >>> y = [[[1, 2], [3, nan], [5, 6]], [[7, 8], [9, nan]]]
    >>> data = Sequences(t, y)
    >>> data
    Sequences(2 sequences, 5 frames, 2 outputs, 20 % missing)
    >>> data.lengths, data.num_observed, data.output_means.tolist()
    ((3, 2), 8, [5.0, 5.333333333333333])
    """

    communicator: Communicator = SINGLE_PROCESS  # the processes that have the data together
    most_frames: int = 0  # of one of them
    offset: int = 0  # frames of the processes before this one

    def __init__(
        self,
        t: DataLike,
        y: DataLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        exposure: DataLike | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        check_dtype(dtype)
        self.dtype, self.device = dtype, check_device(device)
        stamps, self.time_origin, self.time_zone = read_times(t)
        self.names = read_names(names, len(stamps))
        self._arrays: list[Array] = []
        own = None
        if y is not None:
            self._arrays, own = read_outputs(y, stamps, several=is_list(t))
        if not self._is_on_disk():  # a copy, which later changes of the caller's array do not reach
            self._arrays = [to_tensor(a, dtype) for a in self._arrays]
        self.times = Times(torch.from_numpy(np.concatenate(stamps)).to(self.device, dtype), [len(s) for s in stamps])
        self.times.check_resolution()
        check_texts("columns", columns, optional=True)
        self.columns = list(columns) if columns is not None else own
        if self.columns is not None and self.columns and len(self.columns) != self.num_outputs:
            raise ValueError(f"columns has {len(self.columns)} names, but y has {self.num_outputs} columns.")
        self.exposure = read_exposure(exposure, self.lengths, self.num_outputs, is_list(t), self.device)
        self.lags: tuple[int, ...] = ()
        self._groups: dict[bool, _KeptGroups] = {}
        if self._arrays:
            self._summarise()
        self._y = self._make_y()

    @classmethod
    def from_frame(
        cls, frame: pandas.DataFrame, time: str | None = None, sequence: str | None = None, **options: Any
    ) -> Sequences:
        """From a pandas DataFrame in which every other column is an output.

        :param frame: the DataFrame.
        :param time: the column of times. Default: the index.
        :param sequence: the column that names the sequence of each row. Default: one sequence.
        :param options: as for :class:`Sequences`.
        :raises ValueError: if a column does not exist or two have the same name, or a row names no sequence; also as
            :class:`Sequences`.
        :raises TypeError: if the times are text: read the file with ``pandas.read_csv(..., parse_dates=...)``; or if
            another column is not numbers.

        >>> import pandas
        >>> rows = [["a", 0, 0.1, 2.0], ["a", 1, 0.2, 2.1], ["b", 0, 0.3, 1.9]]
        >>> frame = pandas.DataFrame(rows, columns=["walk", "t", "hip", "knee"])
        >>> walks = Sequences.from_frame(frame, time="t", sequence="walk")
        >>> walks, walks.names
        (Sequences(2 sequences, 3 frames, 2 outputs), ['a', 'b'])
        """
        t, y, names = split_frame(frame, time, sequence)
        return cls(t[0], y[0], **options) if names is None else cls(t, y, **{"names": names, **options})

    def joined(self, other: Sequences) -> Sequences:
        """The sequences of both, these first; nothing is copied. Columns, lags and time origin are those of the first.

        :param other: sequences of the same outputs.
        :raises ValueError: if outputs, lags, dtypes or devices differ.
        """
        check_kind("other", other, Sequences, "Sequences(t, y)")
        for name in ("num_outputs", "dtype", "device"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"{name} of other is {getattr(other, name)}, but must be {getattr(self, name)}.")
        if other.lags and other.lags != self.lags:
            raise ValueError(f"lags of other are {other.lags}, but must be {self.lags}.")
        new = copy.copy(self)
        new.times = Times(torch.cat([self.times.t, other.times.t]), self.lengths + other.lengths)
        new._arrays, new._groups = self._arrays + other._arrays, {}
        pairs = [(part.exposure, part.num_frames) for part in (self, other)]
        new.exposure = join_exposures(pairs, self.num_outputs)
        new.names = None if self.names is None or other.names is None else [*self.names, *other.names]
        if new._arrays:
            new._summarise()
        new._y = new._make_y()
        return new

    def lagged(self, lags: Sequence[int]) -> Sequences:
        """The same sequences with the outputs of frames before and after as more outputs, see
        :func:`~pyro_vgpds.lagged`.

        :param lags: whole numbers of frames, negative for those before.
        :raises ValueError: if there are no outputs, there are lags already, or a lag is zero or not a whole number.

        >>> wide = data.lagged([-1])
        >>> wide.num_outputs, wide.num_base_outputs, wide.lags
        (4, 2, (-1,))
        """
        if not self._arrays or self.lags:
            fault = f"has the lags {list(self.lags)} already" if self.lags else "has times but no outputs"
            raise ValueError(f"lagged() needs sequences of outputs without lags, but this one {fault}.")
        y = [lagged(part, lags) for part in self.read().cpu().split(self.lengths)]
        names = self.columns and [*self.columns, *(f"{name} (lag {lag:+d})" for lag in lags for name in self.columns)]
        t = list(self.times.t.cpu().split(self.lengths))
        new = Sequences(t, y, columns=names, names=self.names, dtype=self.dtype, device=self.device)
        new.time_origin, new.time_zone, new.lags = self.time_origin, self.time_zone, tuple(int(lag) for lag in lags)
        return new

    # the processes that have the data together

    @property
    def frame_communicator(self) -> Communicator:
        """Those that have other frames."""
        return self.communicator

    @property
    def column_communicator(self) -> Communicator:
        """Those that have other columns of the same frames."""
        return SINGLE_PROCESS

    # sizes

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.times.lengths)

    @property
    def num_frames(self) -> int:
        """N, the frames of all sequences."""
        return len(self.times)

    @property
    def num_outputs(self) -> int:
        """D, or 0 if there are only times."""
        return int(self._arrays[0].shape[1]) if self._arrays else 0

    @property
    def num_base_outputs(self) -> int:
        """Number of outputs without those that :meth:`lagged` added; they come first."""
        return self.num_outputs // (1 + len(self.lags))

    @property
    def base_columns(self) -> list[str] | None:
        """Names of the outputs without those that :meth:`lagged` added, if they have names."""
        return None if self.columns is None else self.columns[: self.num_base_outputs]

    @property
    def num_observed(self) -> int:
        """Entries of ``y`` that are not missing."""
        return self.num_frames * self.num_outputs - self.num_missing

    @property
    def lengths(self) -> tuple[int, ...]:
        """Frames of each sequence."""
        return self.times.lengths

    def __len__(self) -> int:
        return self.num_sequences

    def __repr__(self) -> str:
        text = f"Sequences({counted(self.num_sequences, 'sequence')}, {counted(self.num_frames, 'frame')}"
        if self._arrays:
            text += f", {counted(self.num_outputs, 'output')}"
            if self.num_missing:
                text += f", {100 * self.num_missing / (self.num_frames * self.num_outputs):.3g} % missing"
        return text + ")"

    # the outputs

    @property
    def y(self) -> Tensor | None:
        """All outputs (N, D), sequences one after the other: the value of the model's site ``y``.

        Numbers in memory are in ``dtype``. A memmap stays on disk: this is then a view of it in its own dtype, or for
        several of them (or one in another byte order) a placeholder without storage; :meth:`read` has the numbers.
        """
        return self._y

    def _is_on_disk(self) -> bool:
        return any(isinstance(a, np.memmap) for a in self._arrays)

    def _make_y(self) -> Tensor | None:
        if not self._arrays:
            return None
        if not self._is_on_disk():
            return self.read()
        first = self._arrays[0]
        if len(self._arrays) == 1 and isinstance(first, np.memmap) and first.dtype.isnative:
            return view(first)
        shape = (self.num_frames, self.num_outputs)
        return torch.full((), float("nan"), dtype=self.dtype, device=self.device).expand(shape)

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Some outputs of all sequences, (N, stop - start), in ``dtype``.

        :param start: the first column.
        :param stop: the column after the last. Default: all that follow.

        >>> data.read(1).flatten().tolist()
        [2.0, nan, 6.0, 8.0, nan]
        """
        check_kind("start", start, Integral, "a whole number")
        check_kind("stop", stop, Integral, "a whole number", optional=True)
        parts = [to_tensor(a[:, start:stop], self.dtype) for a in self._arrays]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self.device)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of columns, one after the other, each (N, block)."""
        for start in range(0, self.num_outputs, self.block_width):
            stop = min(start + self.block_width, self.num_outputs)
            yield slice(start, stop), self.read(start, stop)

    @property
    def block_width(self) -> int:
        """The number of columns of a block."""
        return max(1, _BLOCK // max(self.most_frames, self.num_frames))

    def _summarise(self) -> None:
        summary = summarise(self.blocks(), self.num_outputs, self.times.t)
        self.output_means, self.output_variances, self.output_counts, self._patterns = summary
        self.num_missing = self.num_frames * self.num_outputs - int(self.output_counts.sum())

    def groups(self, mean: Tensor, scale: Tensor | None = None, columns: bool = False) -> ColumnGroups:
        """The column groups of ``(y - mean) / scale``, cached until called with another ``mean`` or ``scale``.

        :param mean: (D,), subtracted from the outputs.
        :param scale: (D,), by which the centred outputs are divided. Default: ones.
        :param columns: keep the columns themselves, as one noise for each output needs, and not a shorter factor.
        :raises ValueError: if ``mean`` or ``scale`` is not (D,).

        >>> groups = data.groups(data.output_means)
        >>> groups.columns.tolist(), groups.rows.tolist()  # one column seen in all 5 rows, one in 3
        ([1.0, 1.0], [5.0, 3.0])
        """
        for name, value in (("mean", mean), ("scale", scale)):
            check_kind(name, value, Tensor, "a tensor", optional=name == "scale")
        check_flags(columns=columns)
        versions = [None if value is None else value._version for value in (mean, scale)]
        kept = self._groups.get(columns)
        if kept is not None and kept.mean is mean and kept.scale is scale and kept.versions == versions:
            return kept.groups
        for name, value in (("mean", mean), ("scale", scale)):
            if value is not None and value.shape != (self.num_outputs,):
                fault = f"must be ({self.num_outputs},), one for each output, but got {tuple(value.shape)}"
                raise ValueError(f"{name} {fault}.")
        divisor = torch.ones_like(mean) if scale is None else scale
        centre, divisor = (value.detach().to(self.device, self.dtype) for value in (mean, divisor))
        groups = self._make_groups(centre, divisor, columns)
        self._groups[columns] = _KeptGroups(mean, scale, versions, groups)
        return groups

    def _make_groups(self, mean: Tensor, scale: Tensor, columns: bool) -> ColumnGroups:
        return make_groups(self.blocks(), self._patterns, mean, scale, columns)

    @property
    def output_scales(self) -> Tensor:
        """Standard deviations (D,) of the observed outputs, 1 for constant ones."""
        deviation = self.output_variances.sqrt()
        rounding = 8.0 * torch.finfo(self.dtype).eps * self.output_means.abs()
        return torch.where(deviation > rounding, deviation, torch.ones_like(deviation))

    def mask(self) -> Tensor:
        """Which outputs were observed, bool (N, D)."""
        return torch.from_numpy(self._patterns.masks[self._patterns.of_column].T).to(self.device)
