# SPDX-License-Identifier: Apache-2.0
"""Many sequences, of which only a batch is in memory at a time."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_device, check_dtype, check_texts
from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.batch import Batch, SomeSequences
from pyro_vgpds.data.map_style import Items, in_memory, is_map, read_indices, read_item, read_lengths, read_order
from pyro_vgpds.data.parts import make_like
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted

__all__ = ["Batch", "DatasetLike", "SequenceDataset", "as_dataset"]


class SequenceDataset:
    """Sequences that are read when they are needed, one by one.

    :param source: a map-style dataset of pairs (t, y), such as a ``torch.utils.data.Dataset``, with times (n,) as
        numbers and outputs (n, D), NaN for missing ones; or :class:`~pyro_vgpds.Sequences`.
    :param lengths: the number of frames of each sequence. Default: ``source.lengths`` if it exists; otherwise every
        sequence is read once to count its frames.
    :param columns: names of the outputs.
    :param dtype: of the numbers in memory. Default: float64, or that of ``source`` if it is ``Sequences``.
    :param device: of all computations. Default: the CPU, or that of ``source``.
    :raises TypeError: if ``source`` has no length or no items, as an ``IterableDataset``, or its times are dates.
    :raises ValueError: if it is empty, or ``lengths`` do not fit.

    >>> from pyro_vgpds.data import SequenceDataset
    >>> many = SequenceDataset([([0.0, 0.1], [[1.0], [2.0]]), ([0.0], [[3.0]]), ([0.0, 0.2], [[4.0], [5.0]])])
    >>> many
    SequenceDataset(3 sequences, 5 frames)
    >>> many.batch([2, 0]).rows.tolist()
    [3, 4, 0, 1]
    >>> [len(batch.indices) for batch in many.batches(2)]
    [2, 1]

    Several processes can each have a dataset of their own, see :func:`~pyro_vgpds.distributed.share`. Their batches are
    one batch together, so all of them must ask for a batch at the same time.

    :ivar communicator: the processes that have the sequences together.
    :ivar total_sequences: the number of sequences in all of them.
    :ivar total_frames: the number of frames in all of them.
    """

    def __init__(
        self,
        source: Sequences | Items,
        *,
        lengths: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(source, Sequences):
            if source.num_outputs == 0:
                raise ValueError("source has times but no outputs: create it with Sequences(t, y).")
            if source.column_communicator.size > 1:
                raise ValueError(
                    "batches need sequences with all their columns, but the columns are divided between processes. "
                    "Divide the sequences: distributed.shard(data)."
                )
            if any(option is not None for option in (lengths, columns, dtype, device)):
                raise ValueError("lengths, columns, dtype and device are those of source if it is Sequences.")
            lengths, self.dtype, self.device = source.lengths, source.dtype, source.device
        else:
            if not is_map(source):
                raise TypeError(
                    "source must be Sequences or a map-style dataset with a length and items (t, y), such as a "
                    f"torch.utils.data.Dataset, but got {type(source).__name__}. An IterableDataset has no items: q(X) "
                    "of a sequence must be found again when the sequence comes back."
                )
            self.dtype = torch.float64 if dtype is None else dtype
            check_dtype(self.dtype)
            self.device = check_device(device)
        check_texts("columns", columns, optional=True)
        self.source, self.columns = source, None if columns is None else list(columns)
        if len(source) == 0:
            raise ValueError("source is empty: there must be at least one sequence.")
        if lengths is None:
            lengths = getattr(source, "lengths", None)
        if lengths is None:
            assert not isinstance(source, Sequences)
            lengths = [len(read_item(source, i)[0]) for i in range(len(source))]
        self.lengths = read_lengths(lengths)
        if len(self.lengths) != len(source) or min(self.lengths) < 1:
            raise ValueError(
                f"lengths of source must be {len(source)} positive numbers of frames, one for each sequence, but got "
                f"{counted(len(self.lengths), 'number')} with minimum {min(self.lengths, default=0)}."
            )
        self._starts = tuple(itertools.accumulate(self.lengths, initial=0))
        self.communicator: Communicator = SINGLE_PROCESS
        self.total_sequences = self.fewest_sequences = self.num_sequences
        self.total_frames, self.offset, self.first_sequence = self.num_frames, 0, 0
        if isinstance(source, Sequences) and source.communicator.size > 1:
            self._set_communicator(source.communicator)

    def _set_communicator(self, communicator: Communicator) -> None:
        self.communicator = communicator
        sizes = communicator.all_gather([self.num_sequences, self.num_frames])
        self.total_sequences, self.total_frames = (sum(column) for column in zip(*sizes, strict=True))
        self.first_sequence, self.offset = (sum(column[: communicator.rank]) for column in zip(*sizes, strict=True))
        self.fewest_sequences = min(count for count, _ in sizes)

    def shared_by(self, communicator: Communicator) -> SequenceDataset:
        """The same sequences, as the part of this process.

        :param communicator: the processes, each of which calls this.
        :raises ProcessError: if they have different outputs.
        """
        first, hint = self.sequences([0]), "Give every process sequences of the same outputs."
        communicator.check_equal("the number of outputs", first.num_outputs, hint)
        communicator.check_equal("columns of data", self.columns or first.columns, hint)
        communicator.check_equal("dtype of data", str(self.dtype), hint)
        new = copy.copy(self)
        new._set_communicator(communicator)
        return new

    def of_this_process(self) -> SequenceDataset:
        """The same sequences without those of other processes. If this process is the only one, nothing is changed."""
        if self.communicator.size == 1:
            return self
        new = copy.copy(self)
        new.communicator, new.total_frames, new.offset, new.first_sequence = SINGLE_PROCESS, self.num_frames, 0, 0
        new.total_sequences = new.fewest_sequences = self.num_sequences
        return new

    @property
    def frame_communicator(self) -> Communicator:
        """The processes that have other frames."""
        return self.communicator

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def num_units(self) -> int:
        """The number of what a batch has some of: sequences."""
        return self.num_sequences

    @property
    def num_frames(self) -> int:
        """N, the frames of all sequences."""
        return self._starts[-1]

    def __len__(self) -> int:
        return self.num_sequences

    def __repr__(self) -> str:
        return f"SequenceDataset({counted(self.num_sequences, 'sequence')}, {counted(self.num_frames, 'frame')})"

    def sequences(self, indices: Sequence[int] | Tensor | None = None) -> Sequences:
        """Some sequences in memory, as :class:`~pyro_vgpds.Sequences`.

        :param indices: which of them, different from each other. Default: all.
        :raises ValueError: if an index does not exist, or a sequence is not of its length.

        >>> many.sequences([1])
        Sequences(1 sequence, 1 frame, 1 output)
        """
        chosen = self.check_indices(range(self.num_sequences) if indices is None else indices)
        if isinstance(self.source, Sequences):
            everything = chosen == list(range(self.num_sequences)) and self.source.communicator.size == 1
            return self.source if everything else SomeSequences(self.source, chosen)
        items = [read_item(self.source, i) for i in chosen]
        t, y = [in_memory(item[0]) for item in items], [in_memory(item[1]) for item in items]
        data = Sequences(t, y, columns=self.columns, dtype=self.dtype, device=self.device)
        if data.time_origin is not None:
            raise TypeError("times of a dataset must be numbers: convert dates to seconds since a common origin.")
        for i, found in zip(chosen, data.lengths, strict=True):
            if found != self.lengths[i]:
                raise ValueError(f"sequence {i} has {counted(found, 'frame')}, but its length is {self.lengths[i]}.")
        return data

    def rows(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Which of the frames of all sequences belong to some of them.

        :param indices: which sequences.
        """
        parts = [torch.arange(self._starts[i], self._starts[i + 1]) for i in self.check_indices(indices)]
        return torch.cat(parts).to(self.device)

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """A batch of some sequences.

        :param indices: which of them, different from each other.
        :raises ValueError: as :meth:`sequences`.
        """
        chosen = self.check_indices(indices)
        which = torch.tensor(chosen, device=self.device)
        found = Batch(self.sequences(chosen), which, self.rows(chosen), self.total_sequences)
        if self.communicator.size == 1:
            return found
        own = torch.tensor([found.count, found.num_observed])
        sequences, observed = (self.communicator.all_reduce(own) - own).tolist()
        return replace(found, communicator=self.communicator, others=(sequences, observed))

    def batches(self, batch_size: int, order: Tensor | None = None) -> Iterator[Batch]:
        """All sequences in batches of almost the same size, each sequence in one of them.

        :param batch_size: the maximum number of sequences in a batch, in all processes together.
        :param order: (S,), the order in which sequences come. Default: as they are.
        """
        check_count("batch_size", batch_size)
        order = read_order(order, self.num_sequences, "sequences")
        for part in self.parts(order, batch_size):
            yield self.batch(part)

    def parts(self, order: Tensor, batch_size: int) -> tuple[Tensor, ...]:
        """The indices of the batches of an order of the sequences: as few as possible, of almost the same size.

        :param order: (S,), of the sequences of this process.
        :param batch_size: the maximum number of sequences in a batch, in all processes together.
        :raises ValueError: if ``batch_size`` is not a positive number of sequences.
        """
        return order.tensor_split(self.num_batches(batch_size))

    def num_batches(self, batch_size: int) -> int:
        """The number of batches of an epoch: each process has a sequence or more in each of them.

        :param batch_size: the maximum number of sequences in a batch, in all processes together. If a process has fewer
            sequences than there would be batches, batches are larger.
        :raises ValueError: if ``batch_size`` is not a positive number of sequences.

        >>> many.num_batches(2)
        2
        """
        check_count("batch_size", batch_size)
        return min(-(-self.total_sequences // batch_size), self.fewest_sequences)

    def named(self, indices: Sequence[int]) -> Sequences:
        """As :meth:`sequences`, with names: those that the data have, or else the indices.

        :param indices: which of them.
        """
        data = copy.copy(self.sequences(indices))
        data.names = [str(i) for i in indices] if data.names is None else data.names
        return data

    def placeholder(self, num_outputs: int) -> Sequences:
        """A sequence of one frame in which nothing was observed, like those of the data; nothing is read from files.

        :param num_outputs: D.
        """
        t, own = torch.zeros(1, dtype=self.dtype), self.source
        if isinstance(own, Sequences):
            y = torch.full((1, own.num_base_outputs), torch.nan, dtype=self.dtype)
            return make_like(own, [t], [y], names=["none"], exposure=None)
        y = torch.full((1, num_outputs), torch.nan, dtype=self.dtype)
        return Sequences([t], [y], columns=self.columns, names=["none"], dtype=self.dtype, device=self.device)

    def check_indices(self, indices: Sequence[int] | Tensor, empty: bool = False, name: str = "indices") -> list[int]:
        """Indices of sequences as a list.

        :param indices: which of them, different from each other.
        :param empty: whether there may be none.
        :param name: of the argument, for an error.
        :raises ValueError: if one does not exist or repeats.
        """
        return read_indices(indices, self.num_sequences, "sequences", empty, name)


#: what is trained on in batches
DatasetLike: TypeAlias = "SequenceDataset | Sequences | Items"


def as_dataset(data: DatasetLike) -> SequenceDataset:
    """``data`` as a :class:`SequenceDataset`; itself if it is one."""
    try:
        return data if isinstance(data, SequenceDataset) else SequenceDataset(data)
    except (TypeError, ValueError) as error:
        raise type(error)(f"data, read as SequenceDataset(data): {error}") from None
