# SPDX-License-Identifier: Apache-2.0
"""Sequences whose outputs several processes have together, each of them some columns of all frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator, ProcessError
from pyro_vgpds.data.groups import ColumnGroups, make_groups, summarise
from pyro_vgpds.data.parts import make_like
from pyro_vgpds.data.reading import to_tensor
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted

__all__ = ["ColumnShard", "gather_columns", "share_columns"]

_HINT = "Give every process columns of the same sequences."


class ColumnShard(Sequences):
    """Columns of the outputs that this process has, of sequences that all processes have; made by
    :func:`~pyro_vgpds.distributed.shard` and :func:`~pyro_vgpds.distributed.share` with ``columns=True``.

    ``num_outputs`` and the means, variances and counts of the outputs are those of all processes, in the order of the
    processes. ``y`` is a placeholder without storage; :meth:`read` has the numbers of this process.

    :ivar own: which of all outputs this process has.
    :param data: sequences with columns of this process.
    :param communicator: the processes.
    :param first: the first column of ``data`` that this process keeps.
    :param stop: the column after the last. Default: all that follow.
    :raises ProcessError: if times, dtypes or dates differ between processes.
    :raises ValueError: if the data have lags or an exposure.

    >>> from pyro_vgpds import distributed
    >>> isinstance(distributed.shard(data, columns=True), distributed.ColumnShard)  # one process keeps all columns
    False
    """

    def __init__(self, data: Sequences, communicator: Communicator, first: int = 0, stop: int | None = None) -> None:
        vars(self).update(vars(data))
        self.communicator = communicator
        if data.num_outputs == 0 or data.lags or data.exposure is not None:
            fault = "has times only" if data.num_outputs == 0 else "has lags" if data.lags else "has an exposure"
            raise ValueError(
                f"data must be Sequences(t, y) without lags and exposure to divide columns, but it {fault}."
            )
        origin = None if data.time_origin is None else str(data.time_origin)
        agreed = {
            "the lengths of the sequences": list(data.lengths),
            "the times of data": [float(data.times.t.sum()).hex(), origin, data.time_zone],
            "names of data": data.names,
            "dtype of data": str(data.dtype),
        }
        for what, value in agreed.items():
            communicator.check_equal(what, value, _HINT)
        self._arrays = [array[:, first:stop] for array in data._arrays]
        if not self._is_on_disk():
            self._arrays = [to_tensor(array, data.dtype).contiguous() for array in self._arrays]
        names = None if data.columns is None else data.columns[first:stop]
        sizes, every = communicator.all_gather(int(self._arrays[0].shape[1])), communicator.all_gather(names)
        start = sum(sizes[: communicator.rank])
        self.own, self._total = slice(start, start + sizes[communicator.rank]), sum(sizes)
        self.columns = None if any(part is None for part in every) else [name for part in every for name in part]
        self._groups = {}
        self._summarise()
        self._y = torch.full((), float("nan"), dtype=self.dtype, device=self.device).expand(
            self.num_frames, self.num_outputs
        )

    @property
    def frame_communicator(self) -> Communicator:
        """Only this process: it has all frames."""
        return SINGLE_PROCESS

    @property
    def column_communicator(self) -> Communicator:
        """The processes that have other columns."""
        return self.communicator

    @property
    def num_outputs(self) -> int:
        """D, of all processes."""
        return self._total

    def _own_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for where, block in self.blocks():
            yield slice(where.start - self.own.start, where.stop - self.own.start), block

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for start in range(self.own.start, self.own.stop, self.block_width):
            stop = min(start + self.block_width, self.own.stop)
            yield slice(start, stop), self.read(start, stop)

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Some outputs of this process, (N, stop - start).

        :param start: the first column, counted in all processes.
        :param stop: the column after the last. Default: all that follow.
        :raises ValueError: if another process has one of them.
        """
        stop = self.num_outputs if stop is None else stop
        if start < self.own.start or stop > self.own.stop:
            raise ValueError(
                f"outputs {start} to {stop - 1} were asked for, but this process has {self.own.start} to "
                f"{self.own.stop - 1}: the columns are divided between {self.communicator.size} processes. What "
                "needs all of them needs distributed.gather(guide, data), or data whose sequences are divided."
            )
        return super().read(start - self.own.start, stop - self.own.start)

    def _summarise(self) -> None:
        own = summarise(self._own_blocks(), self.own.stop - self.own.start, self.times.t)
        self._patterns = own.patterns
        means, variances, counts = self.communicator.all_gather_rows(
            torch.stack([x.double() for x in own[:3]], 1)
        ).unbind(1)
        self.output_means, self.output_variances = means.to(self.dtype), variances.to(self.dtype)
        self.output_counts = counts.long()
        self.num_missing = self.num_frames * self.num_outputs - int(self.output_counts.sum())

    def _make_groups(self, mean: Tensor, scale: Tensor, columns: bool) -> ColumnGroups:
        """Those of the columns of this process; outputs of others are in no group."""
        found = make_groups(self._own_blocks(), self._patterns, mean[self.own], scale[self.own], columns)
        of_column = torch.full((self.num_outputs,), -1, dtype=found.of_column.dtype, device=self.device)
        of_column[self.own] = found.of_column
        order = None if found.order is None else found.order + self.own.start
        return replace(found, of_column=of_column, order=order)

    def mask(self) -> Tensor:
        return ~self.read().isnan()  # an error, which tells what to do

    def joined(self, other: Sequences) -> Sequences:
        raise ValueError("columns that were shared with other processes cannot be joined: join the sequences before.")

    def lagged(self, lags: Sequence[int]) -> Sequences:
        raise ValueError("lagged() needs all columns of the data in one process: divide the sequences instead.")

    def __repr__(self) -> str:
        rank, size = self.communicator.rank, self.communicator.size
        where = f"outputs {self.own.start} to {self.own.stop - 1} in process {rank} of {size}"
        return f"{super().__repr__()[:-1]}; {where})"


def share_columns(data: Sequences, communicator: Communicator) -> ColumnShard:
    """The part of this process, if all processes have the same data: almost the same number of columns for each.

    :raises ProcessError: if the processes have different data, or there are fewer columns than processes.
    """
    communicator.check_equal(
        "the number of outputs", data.num_outputs, "To share different columns, use share(data, columns=True)."
    )
    if data.num_outputs < communicator.size:
        raise ProcessError(
            f"data has {counted(data.num_outputs, 'output')} for {communicator.size} processes, but each process "
            "needs one or more. Use fewer processes, or divide the sequences."
        )
    cuts = np.linspace(0, data.num_outputs, communicator.size + 1).round().astype(int).tolist()
    return ColumnShard(data, communicator, cuts[communicator.rank], cuts[communicator.rank + 1])


def gather_columns(data: ColumnShard) -> Sequences | None:
    """The outputs of all processes in the first process; None in the others."""
    rows = data.communicator.gather_rows(data.read(data.own.start, data.own.stop).mT.contiguous())
    if rows is None:
        return None
    lengths = list(data.lengths)
    return make_like(data, data.times.t.split(lengths), rows.mT.contiguous().split(lengths), names=data.names)
