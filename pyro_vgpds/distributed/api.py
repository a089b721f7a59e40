# SPDX-License-Identifier: Apache-2.0
"""Joining the other processes, and sharing data with them."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import overload

import torch
import torch.distributed as dist

from pyro_vgpds.checks import check_flags, check_number
from pyro_vgpds.communication import SINGLE_PROCESS, Communicator, GroupCommunicator, ProcessError
from pyro_vgpds.data.batches import SequenceDataset
from pyro_vgpds.data.column_shards import ColumnShard, share_columns
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import Shard, share_of

__all__ = ["join", "release_group", "shard", "share"]

# Its functions have the group of all processes as a default argument. Imported by torch later, it would keep the group.
_KEEPS_GROUP = "torch.distributed.nn.functional"
_SHARED = "data is shared with the other processes already."
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def join(timeout: float = 600.0) -> Iterator[int]:
    """A block in which this process belongs to those that ``torchrun`` started. Its value is this process's number.

    It initialises ``torch.distributed`` from torchrun's environment variables, with nccl if there are GPUs and gloo if
    not, and leaves the group at the end. Without torchrun there is one process, and nothing is done. If
    ``torch.distributed`` is initialised already, that group is used and kept.

    :param timeout: seconds after which a process that does not answer is an error in the others. One that ends is an
        error at once.
    :raises ProcessError: if the other processes cannot be reached.
    :raises ValueError: if ``timeout`` is not positive.

    >>> from pyro_vgpds import distributed
    >>> with distributed.join() as rank:  # one process, without torchrun
    ...     part = distributed.shard(data)
    ...     print(rank, part)
    0 Sequences(2 sequences, 48 frames, 5 outputs)
    """
    check_number("timeout", timeout, "positive and finite", lambda value: value > 0.0)
    if dist.is_available() and dist.is_initialized():
        yield dist.get_rank()
        return
    if any(name not in os.environ for name in _VARIABLES):
        yield 0
        return
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    limit = timedelta(seconds=timeout)
    importlib.import_module(_KEEPS_GROUP)
    try:
        dist.init_process_group(backend, timeout=limit)
        if backend == "gloo":
            dist.monitored_barrier(timeout=limit)
    except RuntimeError as error:
        raise ProcessError(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} cannot reach the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} within {timeout:g} seconds: {error}"
        ) from error
    try:
        yield dist.get_rank()
        with suppress(RuntimeError):  # another process has failed, and says so
            dist.barrier()
    except BaseException as error:
        release_group(error)
        raise
    finally:
        gc.collect()  # a module that was wrapped in DistributedDataParallel has the group, too
        dist.destroy_process_group()


def release_group(error: BaseException | None) -> None:
    """Clear the local variables of torch's finished functions in the traceback of an error that leaves the block of
    :func:`join`, and in those of its causes.

    They would keep the group, and so its threads, until Python ends. A thread that then frees a tensor ends the process
    with ``terminate called without an active exception``, in place of the error.
    """
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__", "").startswith("torch.distributed"):
                with suppress(RuntimeError):  # it has not finished
                    trace.tb_frame.clear()
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


def shard(data: Sequences, group: dist.ProcessGroup | None = None, *, columns: bool = False) -> Sequences:
    """The sequences of ``data`` that this process trains on, if all processes have the same ``data``.

    Each process gets sequences one after the other, almost the same number of frames for each process. Models and
    guides are made, trained and saved with the result as with any data, by all processes at the same time. See
    :func:`share` if each process reads files of its own.

    :param data: all sequences; memory-mapped outputs are read only where they are used.
    :param group: a group of ``torch.distributed``. Default: all processes.
    :param columns: divide the outputs: each process has all frames and some columns. For many more outputs than frames,
        or fewer sequences than processes.
    :returns: a :class:`~pyro_vgpds.distributed.Shard`, or a :class:`~pyro_vgpds.distributed.ColumnShard` with
        ``columns``; ``data`` itself if there is one process.
    :raises ProcessError: in all processes, if they have different data, or there are fewer sequences, or columns, than
        processes.

    >>> from pyro_vgpds import distributed
    >>> distributed.shard(data) is data  # one process
    True
    """
    check_flags(columns=columns)
    communicator = _communicator(group)
    with communicator.sharing_errors():
        own = _checked(data)
        if communicator.size == 1:
            return own
        return share_columns(own, communicator) if columns else share_of(own, communicator)


@overload
def share(
    data: SequenceDataset, group: dist.ProcessGroup | None = None, *, columns: bool = False
) -> SequenceDataset: ...
@overload
def share(data: Sequences | None, group: dist.ProcessGroup | None = None, *, columns: bool = False) -> Sequences: ...


def share(
    data: Sequences | SequenceDataset | None, group: dist.ProcessGroup | None = None, *, columns: bool = False
) -> Sequences | SequenceDataset:
    """Sequences of this process, to be trained on together with those of the others.

    :param data: the sequences that this process has, and no other; None if it has no data, which is an error in all
        processes. A :class:`~pyro_vgpds.SequenceDataset` for training in batches.
    :param group: a group of ``torch.distributed``. Default: all processes.
    :param columns: the processes have the same sequences, and other columns of their outputs, which are put side by
        side in the order of the processes.
    :returns: a :class:`~pyro_vgpds.distributed.Shard` or, with ``columns``, a
        :class:`~pyro_vgpds.distributed.ColumnShard`, or a dataset that knows the other processes; ``data`` itself if
        there is one process.
    :raises ProcessError: in all processes, if one of them has no data, other outputs than this one or, with
        ``columns``, other times.
    :raises ValueError: if ``data`` is a SequenceDataset and ``columns`` is True.

    >>> from pyro_vgpds import distributed
    >>> distributed.share(data) is data  # one process
    True
    """
    check_flags(columns=columns)
    communicator = _communicator(group)
    with communicator.sharing_errors():
        empty = [rank for rank, some in enumerate(communicator.all_gather(data is not None)) if not some]
        if empty and communicator.size > 1:
            raise ProcessError(
                f"each process needs one or more sequences, but process {empty[0]} of {communicator.size} has no "
                "data. Use fewer processes, or distribute the sequences in another way."
            )
        kinds = communicator.all_gather(isinstance(data, SequenceDataset))
        if any(kind != kinds[0] for kind in kinds):
            raise ProcessError("data must be Sequences in all processes, or a SequenceDataset in all of them.")
        if isinstance(data, SequenceDataset):
            if columns:
                raise ValueError("columns=True needs Sequences(t, y): batches are of sequences with all their columns.")
            if data.communicator.size > 1:
                raise ValueError(_SHARED)
            return data if communicator.size == 1 else data.shared_by(communicator)
        own = _checked(data)
        if communicator.size == 1:
            return own
        return ColumnShard(own, communicator) if columns else Shard(own, communicator)


def _checked(data: Sequences | None) -> Sequences:
    check_data(data)
    if isinstance(data, (Shard, ColumnShard)):
        raise ValueError(_SHARED)
    assert data is not None
    return data


def _communicator(group: dist.ProcessGroup | None) -> Communicator:
    if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise TypeError(f"group must be a group of torch.distributed or None, but got {group!r:.80}.")
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return SINGLE_PROCESS
    return GroupCommunicator(group)
