# SPDX-License-Identifier: Apache-2.0
"""Sequences that several processes have together, each of them some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.communication import Communicator, ProcessError
from pyro_vgpds.data.parts import make_like
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times
from pyro_vgpds.formatting import counted

__all__ = ["Shard", "gather_sequences", "share_of", "total_sizes"]

_HINT = "Give every process sequences of the same outputs."


class Shard(Sequences):
    """The sequences of this process, which has data together with others; made by
    :func:`~pyro_vgpds.distributed.shard` and :func:`~pyro_vgpds.distributed.share`.

    Times, lengths, frames and ``y`` are those of this process. Means, variances and counts of the outputs are those of
    all processes, and so are ``num_observed`` and the column groups.

    :ivar offset: the number of frames of the processes before this one.
    :ivar total_frames: frames in all processes.
    :ivar total_sequences: sequences in all processes.
    :param data: the sequences of this process.
    :param communicator: the processes.
    :param first: the first sequence of ``data`` that this process keeps.
    :param stop: the sequence after the last. Default: all that follow.
    :raises ProcessError: if columns, dtypes, lags or dates differ between processes.

    >>> from pyro_vgpds import distributed
    >>> isinstance(distributed.shard(data), distributed.Shard)  # one process keeps the data as they are
    False
    """

    def __init__(self, data: Sequences, communicator: Communicator, first: int = 0, stop: int | None = None) -> None:
        vars(self).update(vars(data))
        self.communicator = communicator
        communicator.check_equal("the number of outputs", data.num_outputs, _HINT)
        if data.num_outputs == 0:
            raise ValueError("data has times but no outputs: create it with Sequences(t, y).")
        for what in ("columns", "lags", "time_zone"):
            value = getattr(data, what)
            communicator.check_equal(f"{what} of data", list(value) if isinstance(value, tuple) else value, _HINT)
        communicator.check_equal("dtype of data", str(data.dtype), _HINT)
        communicator.check_equal("whether the times are dates", data.time_origin is not None, _HINT)
        kept = data.times.slices()[first:stop]
        rows = slice(kept[0].start, kept[-1].stop)
        self.times = Times(self._with_common_origin(data)[rows], data.lengths[first:stop])
        self._arrays = self._arrays[first:stop]
        self.names = None if data.names is None else data.names[first:stop]
        if self.exposure is not None and self.exposure.dim() > 1:
            self.exposure = self.exposure[rows]
        self._groups = {}
        self._summarise()
        self._y = self._make_y()

    def _with_common_origin(self, data: Sequences) -> Tensor:
        """The times, which count from the earliest date of all processes."""
        if data.time_origin is None:
            return data.times.t
        origins = [np.datetime64(text) for text in self.communicator.all_gather(str(data.time_origin))]
        self.time_origin = min(origins)
        return data.times.t + float((data.time_origin - self.time_origin) / np.timedelta64(1, "s"))

    def _summarise(self) -> None:
        frames = self.communicator.all_gather(self.num_frames)
        self.offset = sum(frames[: self.communicator.rank])  #: frames of the processes before this one
        self.most_frames, self.total_frames = max(frames), sum(frames)
        self.total_sequences = sum(self.communicator.all_gather(self.num_sequences))
        super()._summarise()
        communicator, own = self.communicator, self.output_counts.double()
        sums = communicator.all_reduce(torch.stack([own, own * self.output_means.double().nan_to_num()]))
        counts, means = sums[0], sums[1] / sums[0]
        # about the common mean: the variance within a process, plus the squared distance of the means
        off = (self.output_means.double() - means).square() + self.output_variances.double()
        variances = communicator.all_reduce(own * off.nan_to_num()) / counts
        self.output_means, self.output_variances = means.to(self.dtype), variances.to(self.dtype)
        self.output_counts = counts.long()
        self._patterns = self._patterns.joint(communicator)

    @property
    def num_observed(self) -> int:
        """Entries of ``y`` in all processes that are not missing."""
        return int(self.output_counts.sum())

    def mask(self) -> Tensor:
        return ~self.read().isnan()

    def joined(self, other: Sequences) -> Sequences:
        raise ValueError("sequences that were shared with other processes cannot be joined: join them before.")

    def lagged(self, lags: Sequence[int]) -> Sequences:
        return Shard(super().lagged(lags), self.communicator)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}; process {self.communicator.rank} of {self.communicator.size})"


def total_sizes(data: Sequences) -> tuple[int, int]:
    """The numbers of frames and of sequences in all processes that have the data together."""
    if isinstance(data, Shard):
        return data.total_frames, data.total_sequences
    return data.num_frames, data.num_sequences


def share_of(data: Sequences, communicator: Communicator) -> Shard:
    """The part of this process, if all processes have the same data: sequences one after the other, of almost the same
    number of frames for each process.

    :raises ProcessError: if the processes have different data, or there are fewer sequences than processes.
    """
    communicator.check_equal(
        "the lengths of the sequences", list(data.lengths), "To share different data, use share(data)."
    )
    if data.num_sequences < communicator.size:
        raise ProcessError(
            f"data has {counted(data.num_sequences, 'sequence')} for {communicator.size} processes, but each process "
            "needs one or more. Use fewer processes, or divide long sequences."
        )
    ends = np.cumsum(data.lengths)
    cuts = [0]
    for rank in range(1, communicator.size):  # the end of a sequence that is nearest to the ideal cut
        cut = 1 + int(np.abs(ends - rank * ends[-1] / communicator.size).argmin())
        cuts.append(min(max(cut, cuts[-1] + 1), data.num_sequences - communicator.size + rank))
    cuts.append(data.num_sequences)
    return Shard(data, communicator, cuts[communicator.rank], cuts[communicator.rank + 1])


def gather_sequences(data: Shard) -> Sequences | None:
    """The sequences of all processes in the first process, in the order of the processes; None in the others."""
    communicator, base = data.communicator, data.num_base_outputs
    lengths = [n for part in communicator.all_gather(list(data.lengths)) for n in part]
    names = communicator.all_gather(data.names)
    t, y = communicator.gather_rows(data.times.t), communicator.gather_rows(data.read(0, base))
    exposure = data.exposure
    if exposure is not None and exposure.dim() > 1:
        exposure = communicator.gather_rows(exposure)
    if t is None or y is None:
        return None
    known = None if any(part is None for part in names) else [name for part in names for name in part]
    return make_like(data, t.split(lengths), y.split(lengths), names=known, exposure=exposure)
