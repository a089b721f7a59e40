# SPDX-License-Identifier: Apache-2.0
"""The data: times and outputs of one or several sequences, and the little that the bound needs of them."""

from __future__ import annotations

import bisect
import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.data.lags import lagged
from pyro_vgpds.data.times import Times
from pyro_vgpds.formatting import counted

__all__ = ["ColumnGroups", "Sequences"]

_BLOCK = 1 << 19  # numbers of Y that are read at once


@dataclass(frozen=True)
class ColumnGroups:
    """What the bound needs of Y: its columns, grouped by the rows in which they were observed.

    A group of D_c columns that were seen in the same N_c rows enters the bound only through its mask, D_c and its Gram
    matrix Y_c Y_cᵀ, so it is kept as a factor of that with min(N_c, D_c) columns. A Y without gaps is one group.
    :meth:`Sequences.groups <pyro_vgpds.Sequences.groups>` makes them.
    """

    mask: Tensor | None  #: (C, N) of 0 and 1; None for one group that has every row
    columns: Tensor  #: (C,) number of columns, D_c
    rows: Tensor  #: (C,) how many rows, N_c
    square: Tensor  #: (C,) sum of squares of the scaled data
    factor: Tensor  #: (N, R) factors of the Gram matrices side by side, zero in rows that were not observed
    widths: tuple[int, ...]  #: columns of ``factor`` that belong to each group, increasing
    of_column: Tensor  #: (D,) the group of each output, -1 if nothing of it was observed
    log_scale: Tensor  #: the log of the scale, summed over all observed entries: the Jacobian of the scaling
    order: Tensor | None = None  #: (R,) the output of each column of ``factor``, if it holds the columns themselves

    @property
    def num_groups(self) -> int:
        return len(self.widths)

    def runs(self) -> Iterator[tuple[slice, slice, int]]:
        """Groups of the same width: (which groups, which columns of ``factor``, their width)."""
        group = column = 0
        while group < len(self.widths):
            width = self.widths[group]
            count = self.widths.count(width)
            yield slice(group, group + count), slice(column, column + count * width), width
            group, column = group + count, column + count * width

    def split(self, v: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Columns (..., M, R) like those of ``factor``, by groups of the same width: (which groups, their columns
        (..., groups, M, width)).
        """
        for which, columns, width in self.runs():
            yield which, v[..., columns].unflatten(-1, (-1, width)).movedim(-2, -3)


class Sequences:
    """One or several sequences of D outputs at given times.

    :param t: times (N,), increasing; or a list with one array for each sequence. numpy, torch, pandas or lists;
        dates become seconds since the earliest.
    :param y: outputs (N, D) at those times, or a list of them; NaN marks what was not observed. Left out, there are
        only times, as for a draw from the prior. A ``numpy.memmap`` is read in blocks and never copied whole.
    :param columns: names of the outputs; a DataFrame brings its own.
    :param dtype: what everything is computed in.
    :param device: where it is computed.
    :raises ValueError: where shapes disagree, times repeat, go back or are not finite, outputs are infinite, or a
        sequence is empty.
    :raises TypeError: where something is not an array of real numbers.

    Rows or columns in which nothing was observed are allowed and add nothing to the bound; a row without data is a time
    at which the outputs can be imputed. (``VGPDS.from_data`` refuses *training* columns with nothing observed.)

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

    def __init__(
        self,
        t: Any,
        y: Any = None,
        *,
        columns: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        if dtype not in (torch.float64, torch.float32):
            raise TypeError(f"dtype must be torch.float64 or torch.float32, but got {dtype}.")
        self.dtype, self.device = dtype, torch.device(device or "cpu")
        stamps, self.time_origin = read_times(t)
        self.lags: tuple[int, ...] = ()
        self._arrays, names = ([], None) if y is None else _read_outputs(y, stamps, several=is_list(t))
        if not any(isinstance(a, np.memmap) for a in self._arrays):  # a copy: what the caller does to theirs is theirs
            self._arrays = [_to_tensor(a, dtype) for a in self._arrays]
        self.times = Times(torch.from_numpy(np.concatenate(stamps)).to(self.device, dtype), [len(s) for s in stamps])
        _check_resolution(self.times)
        self.columns = list(columns) if columns is not None else names
        if self.columns is not None and self.columns and len(self.columns) != self.num_outputs:
            raise ValueError(f"columns has {len(self.columns)} names, but y has {self.num_outputs} columns.")
        self._groups: dict[bool, tuple[list[Tensor | None], list[int], ColumnGroups]] = {}
        if self._arrays:
            self._scan()
        self._y = self._make_y()

    @classmethod
    def from_frame(cls, frame: Any, time: str | None = None, sequence: str | None = None, **options: Any) -> Sequences:
        """From a pandas DataFrame in which every other column is an output.

        :param frame: the DataFrame.
        :param time: the column of times; left out, the index.
        :param sequence: a column that says which sequence a row is of; left out, there is one sequence.
        :param options: as for :class:`Sequences`.
        :raises ValueError: where there is no such column, or a row names no sequence; else as :class:`Sequences`.

        >>> import pandas
        >>> rows = [["a", 0, 0.1, 2.0], ["a", 1, 0.2, 2.1], ["b", 0, 0.3, 1.9]]
        >>> frame = pandas.DataFrame(rows, columns=["walk", "t", "hip", "knee"])
        >>> Sequences.from_frame(frame, time="t", sequence="walk")
        Sequences(2 sequences, 3 frames, 2 outputs)
        """
        for name, value in (("time", time), ("sequence", sequence)):
            if value is not None and value not in frame.columns:
                raise ValueError(f"{name}={value!r} is not a column; the columns are {list(frame.columns)}.")
        if sequence is not None and bool(frame[sequence].isna().any()):
            raise ValueError(f"sequence={sequence!r} has rows that name no sequence; fill or drop them.")
        parts = [frame] if sequence is None else [part for _, part in frame.groupby(sequence, sort=False)]
        t = [part.index if time is None else part[time] for part in parts]
        y = [part.drop(columns=[name for name in (time, sequence) if name is not None]) for part in parts]
        return cls(t, y, **options)

    def joined(self, other: Sequences) -> Sequences:
        """The sequences of both, these first; nothing is copied.

        :param other: sequences of the same outputs.
        :raises ValueError: where the two have other outputs, dtypes or devices.
        """
        for name in ("num_outputs", "dtype", "device"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"{name} is {getattr(other, name)}, but must be {getattr(self, name)} as before.")
        new = copy.copy(self)
        new.times = Times(torch.cat([self.times.t, other.times.t]), self.lengths + other.lengths)
        new._arrays, new._groups = self._arrays + other._arrays, {}
        if new._arrays:
            new._scan()
        new._y = new._make_y()
        return new

    # sizes

    @property
    def num_sequences(self) -> int:
        """How many sequences there are."""
        return len(self.times.lengths)

    @property
    def num_frames(self) -> int:
        """N, the frames of all sequences."""
        return len(self.times)

    @property
    def num_outputs(self) -> int:
        """D, or 0 where there are only times."""
        return int(self._arrays[0].shape[1]) if self._arrays else 0

    @property
    def num_base_outputs(self) -> int:
        return self.num_outputs // (1 + len(self.lags))

    def lagged(self, lags: Sequence[int]) -> Sequences:
        y = self.read().cpu()
        parts = [lagged(y[s].numpy(), lags) for s in self.times.slices()]
        t = [self.times.t[s] for s in self.times.slices()]
        new = Sequences(t, parts, dtype=self.dtype, device=self.device)
        new.lags, new.time_origin, new.columns = tuple(lags), self.time_origin, self.columns
        return new

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
        several of them (or one in another byte order) a stand-in without storage; :meth:`read` has the numbers.
        """
        return self._y

    def _make_y(self) -> Tensor | None:
        if not self._arrays:
            return None
        if not any(isinstance(a, np.memmap) for a in self._arrays):
            return self.read()
        if len(self._arrays) > 1 or not self._arrays[0].dtype.isnative:
            nan = torch.full((), float("nan"), dtype=self.dtype, device=self.device)
            return nan.expand(self.num_frames, self.num_outputs)
        return _view(self._arrays[0])

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Some outputs of all sequences, (N, stop - start), in ``dtype``.

        :param start: the first column.
        :param stop: the column after the last; left out, all that follow.

        >>> data.read(1).flatten().tolist()
        [2.0, nan, 6.0, 8.0, nan]
        """
        parts = [_to_tensor(a[:, start:stop], self.dtype) for a in self._arrays]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self.device)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of columns, one after the other, each (N, block)."""
        step = max(1, _BLOCK // self.num_frames)
        for start in range(0, self.num_outputs, step):
            stop = min(start + step, self.num_outputs)
            yield slice(start, stop), self.read(start, stop)

    def _scan(self) -> None:
        """One pass over the data: refuses infinities, finds the missing patterns and the columns' means."""
        d, n = self.num_outputs, self.num_frames
        self._pattern = np.zeros(d, dtype=np.int32)  # 0 is "every row observed"
        masks: dict[bytes, int] = {np.packbits(np.ones(n, dtype=bool)).tobytes(): 0}
        self.output_means = torch.zeros(d, dtype=self.dtype, device=self.device)
        self.output_counts = torch.full((d,), n, dtype=torch.long, device=self.device)
        self.output_variances = torch.zeros(d, dtype=self.dtype, device=self.device)
        for where, block in self.blocks():
            if bool(torch.isinf(block).any()):
                row, column = (int(i) for i in torch.isinf(block).nonzero()[0])
                raise ValueError(
                    f"y must be finite or NaN (not observed), but row {row}, column {where.start + column} is infinite."
                )
            missing = torch.isnan(block)
            if bool(missing.any()):
                bits = np.packbits(~missing.cpu().numpy(), axis=0).T
                self._pattern[where] = [masks.setdefault(b.tobytes(), len(masks)) for b in bits]
                self.output_counts[where] = n - missing.sum(0)
            count = self.output_counts[where].to(self.dtype)
            mean = torch.nansum(block, 0) / count
            self.output_means[where] = mean
            self.output_variances[where] = torch.nansum((block - mean).square(), 0) / count
        unpacked = [np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=n) for bits in masks]
        self._masks = np.stack(unpacked).astype(bool)
        self.num_missing = n * d - int(self.output_counts.sum())

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
        given, versions = [mean, scale], [-1 if value is None else value._version for value in (mean, scale)]
        kept = self._groups.get(columns)
        if kept is not None and kept[0][0] is mean and kept[0][1] is scale and kept[1] == versions:
            return kept[2]
        for name, value in (("mean", mean), ("scale", scale)):
            if value is not None and value.shape != (self.num_outputs,):
                raise ValueError(
                    f"{name} must be ({self.num_outputs},), one for each output, but got {tuple(value.shape)}."
                )
        divisor = torch.ones_like(mean) if scale is None else scale.detach()
        mean, divisor = mean.detach().to(self.device, self.dtype), divisor.to(self.device, self.dtype)
        groups = self._make_groups(mean, divisor, columns)
        self._groups[columns] = (given, versions, groups)
        return groups

    def _make_groups(self, mean: Tensor, scale: Tensor, columns: bool) -> ColumnGroups:
        rows_of, columns_of = self._masks.sum(1), np.bincount(self._pattern, minlength=len(self._masks))
        used = np.flatnonzero((columns_of > 0) & (rows_of > 0))
        widths = columns_of if columns else np.minimum(columns_of, rows_of)
        used = used[np.argsort(widths[used], kind="stable")]
        ends = np.cumsum(widths[used])
        start = dict(zip(used.tolist(), (ends - widths[used]).tolist(), strict=True))
        factor = mean.new_zeros(self.num_frames, int(widths[used].sum()))
        order = torch.zeros(factor.shape[1], dtype=torch.long, device=self.device) if columns else None
        wide = [c for c in used.tolist() if widths[c] < columns_of[c]]
        grams = {c: mean.new_zeros(int(rows_of[c]), int(rows_of[c])) for c in wide}
        row_index = {c: torch.from_numpy(np.flatnonzero(self._masks[c])).to(self.device) for c in wide}
        place = _places(self._pattern, columns_of) if len(wide) < len(used) else self._pattern
        for where, block in self.blocks():
            scaled = torch.nan_to_num((block - mean[where]).div_(scale[where]), nan=0.0)
            pattern = self._pattern[where]
            for c in np.intersect1d(pattern, wide):
                part = scaled[:, torch.from_numpy(pattern == c).to(self.device)]
                part = part if rows_of[c] == self.num_frames else part[row_index[c]]
                grams[c].addmm_(part, part.mT)
            narrow = np.flatnonzero(np.isin(pattern, used) & ~np.isin(pattern, wide))
            if len(narrow):
                at = np.array([start[c] for c in pattern[narrow].tolist()]) + place[where][narrow]
                at_index, narrow_index = (torch.from_numpy(a).to(self.device) for a in (at, narrow))
                factor[:, at_index] = scaled[:, narrow_index]
                if order is not None:
                    order[at_index] = narrow_index + where.start
        for c in wide:
            values, vectors = torch.linalg.eigh(grams[c])
            factor[row_index[c], start[c] : start[c] + int(rows_of[c])] = vectors * values.clamp_min(0.0).sqrt()
        of_group = torch.from_numpy(np.repeat(np.arange(len(used)), widths[used])).to(self.device)
        square = mean.new_zeros(len(used)).index_add_(0, of_group, factor.square().sum(0))
        complete = len(used) == 1 and rows_of[used[0]] == self.num_frames
        group = np.full(len(self._masks), -1)
        group[used] = np.arange(len(used))
        return ColumnGroups(
            mask=None if complete else torch.from_numpy(self._masks[used]).to(self.device, self.dtype),
            columns=torch.from_numpy(columns_of[used]).to(self.device, self.dtype),
            rows=torch.from_numpy(rows_of[used]).to(self.device, self.dtype),
            square=square,
            factor=factor,
            widths=tuple(int(w) for w in widths[used]),
            of_column=torch.from_numpy(group[self._pattern]).to(self.device),
            log_scale=(self.output_counts * scale.log()).sum(),
            order=order,
        )

    @property
    def output_scales(self) -> Tensor:
        """Standard deviations (D,) of the observed outputs, 1 for constant ones."""
        deviation = self.output_variances.sqrt()
        rounding = 8.0 * torch.finfo(self.dtype).eps * self.output_means.abs()
        return torch.where(deviation > rounding, deviation, torch.ones_like(deviation))

    def mask(self) -> Tensor:
        """Which outputs were observed, bool (N, D)."""
        return torch.from_numpy(self._masks[self._pattern].T).to(self.device)


def _places(pattern: np.ndarray, columns_of: np.ndarray) -> np.ndarray:
    """Where each column stands among those of its pattern."""
    place = np.empty(len(pattern), dtype=np.int64)
    place[np.argsort(pattern, kind="stable")] = np.arange(len(pattern)) - np.repeat(
        np.cumsum(columns_of) - columns_of, columns_of
    )
    return place


def is_list(value: Any) -> bool:
    """A list of sequences, and not one sequence written as a list of numbers."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and not all(np.ndim(v) == 0 for v in value)


def read_times(t: Any, origin: Any = None, increasing: bool = True) -> tuple[list[np.ndarray], Any]:
    """Times as one array of numbers for each sequence, and the date that they count from, if they are dates.

    :param origin: the date to count from; left out, the earliest.
    :param increasing: refuse times that repeat or go back.
    """
    parts = list(t) if is_list(t) else [t]
    if not parts or (isinstance(t, (list, tuple)) and len(t) == 0):
        raise ValueError("t is empty: there must be at least one sequence with at least one time.")
    raw = [_as_numpy(part, f"t[{i}]" if is_list(t) else "t") for i, part in enumerate(parts)]
    if any(a.dtype.kind == "M" for a in raw):
        if not all(a.dtype.kind == "M" for a in raw):
            raise TypeError("t has dates in some sequences and numbers in others; give one kind.")
        origin = min(a.min() for a in raw if len(a)) if origin is None else origin
        raw = [np.where(np.isnat(a), np.nan, (a - origin) / np.timedelta64(1, "s")) for a in raw]
    else:
        origin = None
    checked = [_check_times(a, f"t[{i}]" if is_list(t) else "t", increasing) for i, a in enumerate(raw)]
    return checked, origin


def _check_times(t: np.ndarray, name: str, increasing: bool) -> np.ndarray:
    if t.ndim != 1:
        hint = " Times come first, then outputs: Sequences(t, y)." if t.ndim == 2 and t.shape[1] > 1 else ""
        raise ValueError(f"{name} must have one dimension, (N,), but its shape is {t.shape}.{hint}")
    if len(t) == 0:
        raise ValueError(f"{name} is empty: a sequence needs at least one time.")
    if t.dtype.kind not in "fiub":
        hint = f" Dates in words become dates by np.array({name}, 'datetime64[s]')." if t.dtype.kind == "U" else ""
        raise TypeError(f"{name} must be numbers or dates, but its dtype is {t.dtype}.{hint}")
    t = t.astype(np.float64)
    if not np.isfinite(t).all():
        i = int(np.flatnonzero(~np.isfinite(t))[0])
        raise ValueError(f"{name} must be finite, but {name}[{i}] is {t[i]}.")
    step = np.diff(t)
    if increasing and (step <= 0).any():
        i = int(np.flatnonzero(step <= 0)[0])
        fault = f"repeats {t[i]}" if step[i] == 0 else f"goes back from {t[i]} to {t[i + 1]}"
        raise ValueError(
            f"{name} must increase, but it {fault} at index {i + 1}. Sort t and y together (order = t.argsort()), "
            "merge frames of the same time, or, where a new sequence begins, give a list with one array for each."
        )
    return t


def _check_resolution(times: Times) -> None:
    """Times that differ must still differ in the dtype of the computation."""
    close = torch.diff(times.t, append=times.t[-1:]) <= 0
    close[torch.tensor(times.starts, device=close.device) - 1] = False  # the last frame of each sequence
    if bool(close.any()):
        i = bisect.bisect_right(times.starts, int(close.nonzero()[0])) - 1
        raise ValueError(
            f"the times of sequence {i} are too close together for {times.t.dtype}: take a later origin, "
            "another unit, or dtype=torch.float64."
        )


def _read_outputs(y: Any, stamps: list[np.ndarray], several: bool) -> tuple[list[Any], list[str] | None]:
    if several and not isinstance(y, (list, tuple)):
        raise ValueError(
            f"t is a list of {len(stamps)} sequences, so y must be a list of as many, but got {type(y).__name__}."
        )
    parts = list(y) if several else [y]
    if len(parts) != len(stamps):
        raise ValueError(f"t has {len(stamps)} sequences, but y has {len(parts)}.")
    arrays: list[Any] = []
    names: list[str] | None = None
    for i, (part, t) in enumerate(zip(parts, stamps, strict=True)):
        name = f"y[{i}]" if several else "y"
        own = [str(c) for c in part.columns] if hasattr(part, "columns") else None
        if i > 0 and own != names:
            raise ValueError(f"{name} has columns {own}, but the sequences before it have {names}.")
        names = own
        array = part.detach() if isinstance(part, Tensor) else _as_numpy(part, name)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2:
            raise ValueError(f"{name} must be (N, D), frames by outputs, but its shape is {tuple(array.shape)}.")
        if len(array) != len(t):
            hint = f" {name}.T has as many rows as there are times." if array.shape[1] == len(t) else ""
            raise ValueError(
                f"{name} has {len(array)} rows, but its times are {len(t)}: each frame needs one time.{hint}"
            )
        if array.shape[1] == 0:
            raise ValueError(f"{name} has no columns: there must be at least one output.")
        if arrays and array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                f"{name} has {array.shape[1]} columns, but the sequences before it have {arrays[0].shape[1]}."
            )
        real = not array.is_complex() if isinstance(array, Tensor) else array.dtype.kind in "fiub"
        if not real:
            raise TypeError(f"{name} must be real numbers, but its dtype is {array.dtype}.")
        arrays.append(array)
    return arrays, names


def _as_numpy(value: Any, name: str) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        return np.ma.filled(value.astype(np.float64), np.nan)
    if isinstance(value, np.ndarray):  # keeps a memmap what it is
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    if array.dtype.kind == "O":
        try:  # pandas writes what is missing in many ways
            array = (
                value.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(value, "to_numpy") else array.astype(float)
            )
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be numbers, but holds objects that are none: {error}") from None
    return array


def _view(array: np.ndarray) -> Tensor:
    """A tensor on the memory of ``array``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # nothing here writes to it
        return torch.from_numpy(array)


def _to_tensor(array: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(array, Tensor):
        return array.to("cpu", dtype, copy=True)
    return torch.from_numpy(np.array(array, dtype=np.float64 if dtype == torch.float64 else np.float32))
