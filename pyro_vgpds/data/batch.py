# SPDX-License-Identifier: Apache-2.0
"""A batch: some sequences out of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.times import Times

__all__ = ["Batch", "SomeSequences"]

_MOST = 1 << 24  # numbers of data whose centred and scaled copy is kept in memory for all batches
_SUMMARY = ("output_means", "output_variances", "output_counts")


@dataclass(frozen=True)
class Batch:
    """Some sequences out of many. A :class:`~pyro_vgpds.VGPDS` that is called on a batch has the inducing variables as
    the latent site ``u``, and its terms of the sequences are multiplied by :attr:`scale`.

    >>> from pyro_vgpds.data import SequenceDataset
    >>> batch = SequenceDataset(data).batch([1])
    >>> batch.sequences, batch.scale
    (Sequences(1 sequence, 23 frames, 5 outputs), 2.0)
    >>> model(batch).shape
    torch.Size([23, 5])
    """

    sequences: Sequences  #: those of the batch
    indices: Tensor  #: (B,), which of all sequences they are
    rows: Tensor  #: (n,), which of the frames of all sequences theirs are
    num_sequences: int  #: the number of all sequences, in all processes
    #: the processes whose sequences are one batch together
    communicator: Communicator = field(default=SINGLE_PROCESS, kw_only=True)
    #: sequences and observed numbers of the batch in the other processes
    others: tuple[int, int] = field(default=(0, 0), kw_only=True)

    @property
    def count(self) -> int:
        """The number of sequences of the batch in all processes."""
        return len(self.indices) + self.others[0]

    @property
    def num_observed(self) -> int:
        """The observed numbers of the batch in all processes."""
        return self.sequences.num_observed + self.others[1]

    @property
    def scale(self) -> float:
        """The number of all sequences over that of the batch, in all processes."""
        return self.num_sequences / self.count

    @property
    def paths(self) -> Sequences:
        """The sequences whose latent paths are computed: those of the batch."""
        return self.sequences

    @property
    def path_scale(self) -> float:
        """The factor of the terms of the latent paths."""
        return self.scale

    @property
    def path_rows(self) -> Tensor | None:
        """Which of the frames of all sequences those of the paths are; None for all."""
        return self.rows

    @property
    def places(self) -> Tensor | None:
        """Which frames of the paths the outputs belong to; None for all."""
        return None


class SomeSequences(Sequences):
    """Some of the sequences of others; nothing is read or copied that the batch does not need."""

    def __init__(self, data: Sequences, indices: Sequence[int]) -> None:
        vars(self).update(vars(data))
        self.communicator = SINGLE_PROCESS  # the processes of a batch are those of the batch
        slices, own = data.times.slices(), self._arrays
        self.times = Times(torch.cat([data.times.t[slices[i]] for i in indices]), [data.lengths[i] for i in indices])
        self._arrays = [own[i] for i in indices]
        self.names = None if data.names is None else [data.names[i] for i in indices]
        if data.exposure is not None and data.exposure.dim() > 1:
            self.exposure = torch.cat([data.exposure[slices[i]] for i in indices])
        self._groups = {}
        self._whole: tuple[Sequences, Tensor, list[Any]] | None = None
        small = data.y is not None and data.y.numel() <= _MOST and not self._is_on_disk()
        if small and data.num_missing == 0 and data.communicator.size == 1:
            self._take(data, torch.cat([torch.arange(slices[i].start, slices[i].stop) for i in indices]))
            return
        if own:
            self._summarise()
        self._y = self._make_y()

    def _take(self, data: Sequences, rows: Tensor) -> None:
        """Take what is known of data without gaps. Their means and variances are computed if somebody asks."""
        assert data.y is not None
        for name in _SUMMARY:
            vars(self).pop(name, None)
        self._patterns = replace(self._patterns, masks=self._patterns.masks[:, rows.numpy()])
        self._whole = data, rows.to(data.device), self._arrays
        self._y = data.y[self._whole[1]]

    def __getattr__(self, name: str) -> Any:
        if name not in _SUMMARY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._summarise()
        return vars(self)[name]

    def groups(self, mean: Tensor, scale: Tensor | None = None, columns: bool = False) -> ColumnGroups:
        if self._whole is None or not columns or self._whole[2] is not self._arrays:  # a copy may have other outputs
            return super().groups(mean, scale, columns)
        data, rows, _ = self._whole
        return data.groups(mean, scale, columns).taken(rows)

    def __repr__(self) -> str:
        return Sequences.__repr__(self)
