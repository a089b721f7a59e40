# SPDX-License-Identifier: Apache-2.0
"""One long sequence, of which the outputs of a batch of frames are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import check_count
from pyro_vgpds.data.batches import Batch, SequenceDataset
from pyro_vgpds.data.map_style import MappedSequences, read_indices, read_order
from pyro_vgpds.data.parts import make_like
from pyro_vgpds.data.sequences import Sequences

__all__ = ["FrameBatch", "FrameDataset"]


@dataclass(frozen=True)
class FrameBatch(Batch):
    """Some frames of one sequence. The latent path is that of the whole sequence, and its terms are not scaled; the
    terms of the outputs are multiplied by the number of all frames over that of the batch.

    >>> from pyro_vgpds import Sequences
    >>> from pyro_vgpds.data import FrameDataset
    >>> frames = FrameDataset(Sequences(data.times.t[:25], data.read()[:25]))
    >>> batch = frames.batch([3, 20, 7])
    >>> batch.sequences, batch.rows.tolist(), round(batch.scale, 3)
    (Sequences(1 sequence, 3 frames, 5 outputs), [3, 7, 20], 8.333)
    """

    whole: Sequences  #: the times of the whole sequence

    @property
    def scale(self) -> float:
        """The number of all frames over that of the batch."""
        return self.whole.num_frames / len(self.rows)

    @property
    def paths(self) -> Sequences:
        """The sequence whose latent path is computed: the whole one."""
        return self.whole

    @property
    def path_scale(self) -> float:
        """The factor of the terms of the latent path."""
        return 1.0

    @property
    def path_rows(self) -> None:
        """Which of the frames of all sequences those of the path are: all."""
        return None

    @property
    def places(self) -> Tensor:
        """Which frames of the path the outputs belong to, (B,)."""
        return self.rows


class FrameDataset:
    """The frames of one sequence, in batches. Its times are in memory, its outputs are read when they are needed.

    :param source: one sequence: :class:`~pyro_vgpds.Sequences`, or a :class:`~pyro_vgpds.SequenceDataset` of one. The
        outputs of a :class:`~pyro_vgpds.data.MappedSequences` stay in their file.
    :raises TypeError: if ``source`` is something else.
    :raises ValueError: if there are several sequences, or several processes have them together.

    >>> from pyro_vgpds import Sequences
    >>> from pyro_vgpds.data import FrameDataset
    >>> frames = FrameDataset(Sequences(data.times.t[:25], data.read()[:25]))
    >>> [len(batch.rows) for batch in frames.batches(10)]
    [9, 8, 8]
    """

    def __init__(self, source: Sequences | SequenceDataset) -> None:
        if not isinstance(source, (Sequences, SequenceDataset)):
            raise TypeError(f"source must be Sequences or a SequenceDataset, but got {type(source).__name__}.")
        if source.communicator.size > 1:
            raise ValueError(
                f"source must be in one process, but is shared by {source.communicator.size}. Give the sequence that "
                "distributed.shard or share was called with, or use batches of sequences."
            )
        many = source if isinstance(source, SequenceDataset) else SequenceDataset(source)
        if many.num_sequences != 1:
            raise ValueError(f"batches of frames need one sequence, but there are {many.num_sequences}.")
        self.sequence, own = many, many.source
        if isinstance(own, MappedSequences):
            t = own.t if own.step is None else own.step * np.arange(len(own.y))
            self._data = Sequences(t, own.y, columns=many.columns, dtype=many.dtype, device=many.device)
        else:
            self._data = many.sequences()
        self.whole = Sequences(self._data.times.t.cpu(), dtype=many.dtype, device=many.device)
        self.whole.time_origin, self.whole.time_zone = self._data.time_origin, self._data.time_zone

    @property
    def num_frames(self) -> int:
        """N, the number of frames."""
        return self.whole.num_frames

    @property
    def num_units(self) -> int:
        """The number of what a batch has some of: frames."""
        return self.num_frames

    def batch(self, indices: Sequence[int] | Tensor) -> FrameBatch:
        """A batch of some frames.

        :param indices: which of them, different from each other.
        :raises ValueError: if one does not exist or repeats.
        """
        rows = torch.tensor(sorted(read_indices(indices, self.num_frames, "frames")), device=self.whole.device)
        data = self._data
        assert data.y is not None
        y, exposure = data.y[rows].to(data.dtype), data.exposure
        if exposure is not None and exposure.dim() > 1:
            exposure = exposure[rows]
        part = make_like(data, [data.times.t[rows]], [y], lags=(), exposure=exposure)
        return FrameBatch(part, rows, rows, self.num_frames, self.whole)

    def batches(self, batch_size: int, order: Tensor | None = None) -> Iterator[FrameBatch]:
        """All frames in batches of almost the same size, each frame in one of them.

        :param batch_size: the maximum number of frames in a batch.
        :param order: (N,), the order in which frames come. Default: as they are.
        """
        check_count("batch_size", batch_size)
        order = read_order(order, self.num_frames, "frames")
        for part in self.parts(order, batch_size):
            yield self.batch(part)

    def parts(self, order: Tensor, batch_size: int) -> tuple[Tensor, ...]:
        """The indices of the batches of an order of the frames: as few as possible, of almost the same size.

        :param order: (N,).
        :param batch_size: the maximum number of frames in a batch.
        :raises ValueError: if ``batch_size`` is not a positive number of frames.
        """
        check_count("batch_size", batch_size)
        return order.tensor_split(-(-self.num_frames // batch_size))
