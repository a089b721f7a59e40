# SPDX-License-Identifier: Apache-2.0
"""The columns of Y grouped by the rows in which they were observed, which is all that the bound needs of Y.

One pass over the outputs finds these rows, and the means and variances.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator

__all__ = ["ColumnGroups", "Patterns", "Summary", "make_groups", "summarise"]

_TRIANGLE = 200, 2048  # rows from and up to which a factor is made triangular, which takes O(N³) once


@dataclass(frozen=True)
class ColumnGroups:
    """The columns of Y, grouped by the rows in which they were observed.

    A group of D_c columns that were observed in the same N_c rows enters the bound only through its mask, D_c and its
    Gram matrix Y_c Y_cᵀ, so it is kept as a factor of that with min(N_c, D_c) columns. A Y without gaps is one group.
    The factor of hundreds of frames with about as many columns, or more, is triangular.
    :meth:`Sequences.groups <pyro_vgpds.Sequences.groups>` makes them.

    >>> from pyro_vgpds import Sequences
    >>> nan = float("nan")
    >>> gaps = Sequences([0.0, 1.0, 2.0], [[1.0, 4.0, 2.0], [2.0, nan, 1.0], [3.0, 5.0, 1.0]])
    >>> groups = gaps.groups(gaps.output_means)
    >>> groups.num_groups, groups.of_column.tolist(), groups.rows.tolist()
    (2, [1, 0, 1], [2.0, 3.0])
    """

    mask: Tensor | None  #: (C, N) of 0 and 1; None for one group that has every row
    columns: Tensor  #: (C,) number of columns, D_c
    rows: Tensor  #: (C,) number of rows, N_c
    square: Tensor  #: (C,) sum of squares of the scaled data
    factor: Tensor  #: (N, R) factors of the Gram matrices side by side, zero in rows that were not observed
    widths: tuple[int, ...]  #: number of columns of ``factor`` that belong to each group, increasing
    of_column: Tensor  #: (D,) the group of each output, -1 if nothing of it was observed
    log_scale: Tensor  #: the log of the scale, summed over all observed entries: the Jacobian of the scaling
    order: Tensor | None = None  #: (R,) the output of each column of ``factor``, if it holds the columns themselves
    joint_squares: Tensor | None = None  #: (R,) ``squares`` of all processes, if there are several

    @functools.cached_property
    def in_double(self) -> ColumnGroups:
        """The same in float64, in which everything is computed; itself if it is."""
        if self.factor.dtype == torch.float64:
            return self
        names = ("columns", "rows", "square", "factor", "log_scale", "joint_squares")
        new = {name: value.double() for name in names if (value := getattr(self, name)) is not None}
        return replace(self, mask=None if self.mask is None else self.mask.double(), **new)

    @functools.cached_property
    def used(self) -> Tensor | None:
        """The number of columns of ``factor`` in each row after which all are zero, (N,), if it is a triangle: then
        products with it take half the time. Otherwise None.
        """
        rows, width = self.factor.shape
        if self.mask is not None or self.order is not None or rows < width or bool(self.factor.triu(1).any()):
            return None
        return torch.arange(1, rows + 1, device=self.factor.device).clamp_max(width)

    @functools.cached_property
    def rows_of_columns(self) -> Tensor:
        """The number of rows in which each column of ``factor`` was observed, (R,)."""
        return self.rows.repeat_interleave(torch.tensor(self.widths, dtype=torch.long, device=self.rows.device))

    @functools.cached_property
    def is_ordered(self) -> bool:
        """Whether the columns of ``factor`` are all outputs in their own order."""
        order = self.order
        return order is not None and order.tolist() == list(range(len(self.of_column)))

    @functools.cached_property
    def squares(self) -> Tensor:
        """The sum of squares of each column of ``factor``, (R,), over all processes."""
        return self.factor.square().sum(0) if self.joint_squares is None else self.joint_squares

    @functools.cached_property
    def counts(self) -> Tensor:
        """The number of rows in which each output was observed, (D,)."""
        return torch.nn.functional.pad(self.rows, (0, 1))[self.of_column]  # an output never seen has group -1

    @functools.cached_property
    def totals(self) -> tuple[float, float]:
        """The number of observed entries, and the sum of their squares."""
        return float(self.rows @ self.columns), float(self.square.sum())

    def taken(self, rows: Tensor) -> ColumnGroups:
        """The groups of some rows, if every column was observed in all of them.

        :param rows: which of them, (n,).
        """
        assert self.mask is None, "every column must be observed in all rows"
        assert self.joint_squares is None, "the rows must be those of one process"
        factor, count = self.factor[rows], torch.full_like(self.rows, len(rows))
        square, log_scale = factor.square().sum().reshape(1), self.log_scale * (count / self.rows)[0]
        return replace(self, rows=count, square=square, factor=factor, log_scale=log_scale)

    @property
    def num_groups(self) -> int:
        """C, the number of groups."""
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
        """Groups of the same width: (which groups, their columns (..., groups, M, width)).

        :param v: columns (..., M, R), in the order of those of ``factor``.
        """
        if len(self.widths) == 1:
            yield slice(0, 1), v.unsqueeze(-3)
            return
        for which, columns, width in self.runs():
            yield which, v[..., columns].unflatten(-1, (-1, width)).movedim(-2, -3)


@dataclass(frozen=True)
class Patterns:
    """The different sets of rows in which columns were observed."""

    masks: np.ndarray  #: (P, N) of bool, the rows of each pattern
    of_column: np.ndarray  #: (D,), the pattern of each column
    communicator: Communicator = SINGLE_PROCESS  #: the processes that have the rows together, and the same patterns

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """(P,), the number of rows of each pattern in all processes."""
        return self.communicator.all_reduce(torch.from_numpy(self.masks.sum(1))).numpy()

    @functools.cached_property
    def num_rows(self) -> int:
        """The number of rows in all processes."""
        return int(self.communicator.all_reduce(torch.tensor([self.masks.shape[1]])))

    def joint(self, communicator: Communicator) -> Patterns:
        """The patterns of rows that several processes have together: those of columns that are alike in all of them."""
        of_column = torch.from_numpy(self.of_column).to(torch.long)
        every = communicator.all_gather_rows(of_column.unsqueeze(0))  # (K, D)
        different, which = every.unique(dim=1, return_inverse=True)  # (K, P), (D,)
        return Patterns(self.masks[different[communicator.rank].numpy()], which.numpy(), communicator)


class Summary(NamedTuple):
    """Statistics of the observed entries of each output, (D,), and the rows in which outputs were observed."""

    means: Tensor
    variances: Tensor
    counts: Tensor
    patterns: Patterns


def summarise(blocks: Iterable[tuple[slice, Tensor]], num_outputs: int, t: Tensor) -> Summary:
    """The summary of blocks of columns (N, block) at the times t (N,); a ValueError if an output is infinite."""
    n = len(t)
    pattern = np.zeros(num_outputs, dtype=np.int32)  # 0 is "every row observed"
    masks: dict[bytes, int] = {np.packbits(np.ones(n, dtype=bool)).tobytes(): 0}
    means, variances = t.new_zeros(num_outputs), t.new_zeros(num_outputs)
    counts = torch.full((num_outputs,), n, dtype=torch.long, device=t.device)
    for where, block in blocks:
        if bool(torch.isinf(block).any()):
            row, column = (int(i) for i in torch.isinf(block).nonzero()[0])
            hint = " or too large for torch.float32: use another unit or dtype=torch.float64"
            raise ValueError(
                f"y must be finite or NaN (not observed), but row {row}, column {where.start + column} is infinite"
                f"{hint if block.dtype == torch.float32 else ''}."
            )
        missing = torch.isnan(block)
        if bool(missing.any()):
            bits = np.packbits(~missing.cpu().numpy(), axis=0).T
            pattern[where] = [masks.setdefault(b.tobytes(), len(masks)) for b in bits]
            counts[where] = n - missing.sum(0)
        count = counts[where].to(block.dtype)
        mean = torch.nansum(block, 0) / count
        means[where] = mean
        variances[where] = torch.nansum((block - mean).square(), 0) / count
    unpacked = [np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=n) for bits in masks]
    return Summary(means, variances, counts, Patterns(np.stack(unpacked).astype(bool), pattern))


def make_groups(
    blocks: Iterable[tuple[slice, Tensor]], patterns: Patterns, mean: Tensor, scale: Tensor, columns: bool
) -> ColumnGroups:
    """Column groups of ``(y - mean) / scale`` by one pass over blocks: (which columns, those columns (N, block)).

    :param columns: keep the columns themselves and not a shorter factor of the Gram matrix.
    """
    found = _Factors(patterns, mean, columns)
    for where, block in blocks:
        found.add(where, torch.nan_to_num((block - mean[where]).div_(scale[where]), nan=0.0))
    factor = found.finish()
    masks, rows, device, communicator = patterns.masks, patterns.rows, mean.device, patterns.communicator
    used, widths = found.used, found.widths
    complete = len(used) == 1 and rows[used[0]] == patterns.num_rows
    if complete and not columns and communicator.size == 1 and factor.dtype == torch.float64:
        factor = _triangle(factor)
    of_group = torch.from_numpy(np.repeat(np.arange(len(used)), widths)).to(device)
    squares = communicator.all_reduce(factor.double().square().sum(0)).to(factor)
    group = np.full(len(masks), -1)
    group[used] = np.arange(len(used))
    return ColumnGroups(
        mask=None if complete else torch.from_numpy(masks[used]).to(mean),
        columns=torch.from_numpy(found.num_columns[used]).to(mean),
        rows=torch.from_numpy(rows[used]).to(mean),
        square=mean.new_zeros(len(used)).index_add_(0, of_group, squares),
        factor=factor,
        widths=tuple(int(w) for w in widths),
        of_column=torch.from_numpy(group[patterns.of_column]).to(device),
        log_scale=(torch.from_numpy(rows[patterns.of_column]).to(device) * scale.log()).sum(),
        order=found.order,
        joint_squares=squares if communicator.size > 1 else None,
    )


class _Factors:
    """Factors of the Gram matrices of all groups, side by side, from one pass over the columns.

    A group has its columns themselves, or a square root of its Gram matrix if that is narrower.

    :ivar used: the patterns that are groups, narrow factors first.
    :ivar widths: of their factors.
    :ivar num_columns: the number of columns of each pattern.
    :ivar order: the output of each column of the factors, if these are the columns; None otherwise.
    """

    def __init__(self, patterns: Patterns, like: Tensor, columns: bool) -> None:
        self.patterns = patterns
        rows, count = patterns.rows, np.bincount(patterns.of_column, minlength=len(patterns.masks))
        used = np.flatnonzero((count > 0) & (rows > 0))
        widths = count if columns else np.minimum(count, rows)
        self.used, self.num_columns = used[np.argsort(widths[used], kind="stable")], count
        self.widths = widths[self.used]
        starts = np.cumsum(self.widths) - self.widths
        self._start = dict(zip(self.used.tolist(), starts.tolist(), strict=True))
        self._factor = like.new_zeros(patterns.masks.shape[1], int(self.widths.sum()))
        self.order = torch.zeros_like(self._factor[0], dtype=torch.long) if columns else None
        self._grams = {c: like.new_zeros(int(rows[c]), int(rows[c])) for c in self._start if widths[c] < count[c]}
        self._rows = {c: torch.from_numpy(np.flatnonzero(patterns.masks[c])).to(like.device) for c in self._grams}

    @functools.cached_property
    def _place(self) -> np.ndarray:
        """The position of each column among those of its pattern."""
        pattern, place = self.patterns.of_column, np.empty(len(self.patterns.of_column), dtype=np.int64)
        first = np.repeat(np.cumsum(self.num_columns) - self.num_columns, self.num_columns)
        place[np.argsort(pattern, kind="stable")] = np.arange(len(pattern)) - first
        return place

    def add(self, where: slice, scaled: Tensor) -> None:
        """Add the centred and scaled columns ``where`` (N, block), zero where they were not observed."""
        pattern, masks, device = self.patterns.of_column[where], self.patterns.masks, scaled.device
        for c in np.intersect1d(pattern, list(self._grams)):
            part = scaled[:, torch.from_numpy(pattern == c).to(device)]
            part = self.patterns.communicator.all_gather_rows(part if masks[c].all() else part[self._rows[c]])
            self._grams[c].addmm_(part, part.mT)
        narrow = np.flatnonzero(np.isin(pattern, self.used) & ~np.isin(pattern, list(self._grams)))
        if len(narrow):
            at = np.array([self._start[c] for c in pattern[narrow].tolist()]) + self._place[where][narrow]
            at_index, narrow_index = (torch.from_numpy(a).to(device) for a in (at, narrow))
            self._factor[:, at_index] = scaled[:, narrow_index]
            if self.order is not None:
                self.order[at_index] = narrow_index + where.start

    def finish(self) -> Tensor:
        """The factors (N, R), after all columns."""
        communicator = self.patterns.communicator
        for c, gram in self._grams.items():
            values, vectors = torch.linalg.eigh(gram)
            root = communicator.broadcast(vectors * values.clamp_min(0.0).sqrt())  # other machines might turn them
            rows = self._rows[c]
            first = sum(communicator.all_gather(len(rows))[: communicator.rank])
            self._factor[rows, self._start[c] : self._start[c] + len(gram)] = root[first : first + len(rows)]
        return self._factor


def _triangle(factor: Tensor) -> Tensor:
    """A lower triangular factor of the same Gram matrix (N, R), if that saves half of the products with it."""
    rows, width = factor.shape
    if not (rows / 2 < width <= rows and _TRIANGLE[0] <= rows <= _TRIANGLE[1]):
        return factor
    return torch.linalg.qr(factor.mT, mode="r").R.mT.contiguous()
