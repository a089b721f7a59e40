# SPDX-License-Identifier: Apache-2.0
"""The processes that train one model together, and the few collective operations that this needs.

Each operation begins with a round in which every process reports whether it has failed. A process that failed takes
part in that round only, whichever operation the others are in, and then all of them raise an error: no process waits
for one that has ended, and steps that one process has to undo are undone by all. In sums over the processes of one
machine and over few processes (:mod:`~pyro_vgpds.communication.sums`) the round and the sum are one operation.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_vgpds.communication.sums import FEW, SharedSums, exchange
from pyro_vgpds.linalg import NumericalError

__all__ = ["SINGLE_PROCESS", "Communicator", "GroupCommunicator", "ProcessError", "collective"]

P = ParamSpec("P")
R = TypeVar("R")

_FINE, _NUMERICAL, _FAILED = 0, 1, 2  # what a process reports to the others
_LOST = (
    "process {rank} of {size} lost the connection to the others: one of them ended, or did not answer in time. Its own "
    "message says why. Start all processes again, from the last checkpoint with fit(..., resume=...)."
)


class ProcessError(RuntimeError):
    """Another process failed, ended, or has other data or settings than this one.

    >>> from pyro_vgpds import distributed
    >>> try:
    ...     bound = fit(model, guide, distributed.shard(data), num_steps=1).bound
    ... except distributed.ProcessError as error:  # in each process, if one of them failed
    ...     print(error)
    """


class Communicator:
    """The processes that have data together: one alone, for which all operations are trivial.

    :ivar rank: number of this process, from 0.
    :ivar size: number of processes.
    """

    rank: int = 0
    size: int = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"

    def __deepcopy__(self, memo: object) -> Communicator:
        return self

    def check(self, error: Exception | None = None) -> None:
        """Wait for all processes, and raise an error in each if one has one: a NumericalError if no other occurs."""
        if error is not None:
            raise error

    @contextmanager
    def sharing_errors(self) -> Iterator[None]:
        """A block whose errors are raised in the other processes, too, instead of letting them wait for this one."""
        yield

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of a tensor, of the same shape everywhere, over the processes; the same bits on each of them."""
        return x

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        """The largest of each number over the processes, which have as many."""
        return [float(number) for number in numbers]

    def any(self, flag: bool) -> bool:
        """Whether the flag of some process is set."""
        return bool(self.all_reduce_max([flag])[0])

    def all_gather(self, value: object) -> list[Any]:
        """The values of all processes, in their order: numbers, text, lists and dictionaries."""
        return [value]

    def all_gather_rows(self, x: Tensor) -> Tensor:
        """The rows (n, ...) of all processes, one after the other, in every process; n may differ."""
        return x

    def gather_rows(self, x: Tensor) -> Tensor | None:
        """The same in the first process; None in the others."""
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """The tensor of the first process, of the same shape everywhere."""
        return x

    def check_equal(self, what: str, value: object, hint: str) -> None:
        """Raise a ProcessError in all processes if they have different values of ``what``, with a hint what to do."""
        values = self.all_gather(value)
        if any(other != values[0] for other in values):
            shown = "; ".join(f"process {i} has {other!r:.80}" for i, other in enumerate(values))
            raise ProcessError(f"{what} must be the same in all processes, but {shown}. {hint}")


class GroupCommunicator(Communicator):
    """The processes of a ``torch.distributed`` group.

    :ivar numbers: how many numbers this process has given to sums, for measurements.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        nccl = "nccl" in str(dist.get_backend(group))
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        self.numbers = 0
        self._known_error: Exception | None = None  # the last error that all processes know
        self._lost = False
        self._exchanges = self.size <= FEW and not nccl
        self._shared = None if nccl else SharedSums.open(self.rank, self._texts, _timeout(group))

    def check(self, error: Exception | None = None) -> None:
        if error is not None and (error is self._known_error or self._lost):
            raise error
        self._sum(torch.zeros(0, dtype=torch.float64), error)

    def _sum(self, terms: Tensor, error: Exception | None = None) -> Tensor:
        """The sum of a vector of float64, unless a process has an error."""
        code = _FINE if error is None else _NUMERICAL if isinstance(error, NumericalError) else _FAILED
        if self._shared is not None:
            codes, total = self._guarded(self._shared.exchange, terms, code)
            worst = max(codes)
        elif self._exchanges:
            ranks = [self._global(rank) for rank in range(self.size)]
            codes, total = self._call(exchange, terms, code, self.rank, ranks)
            worst = max(codes)
        else:
            worst = int(self._reduced(torch.tensor([code]), dist.ReduceOp.MAX))
            total = self._reduced(terms, dist.ReduceOp.SUM) if worst == _FINE and len(terms) else terms
        if worst == _FINE:
            return total
        texts = self._texts("" if error is None else f"{type(error).__name__}: {error}")
        if error is None or (worst == _FAILED and code == _NUMERICAL):
            shown = "; ".join(f"process {i} of {self.size}: {text}" for i, text in enumerate(texts) if text)
            error = NumericalError(shown) if worst == _NUMERICAL else ProcessError(f"another process failed. {shown}")
        self._known_error = error
        raise error

    @contextmanager
    def sharing_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.check(error)
            raise

    def all_reduce(self, x: Tensor) -> Tensor:
        self.numbers += x.numel()
        return self._sum(x.detach().to(self.device, torch.float64).flatten()).view(x.shape).to(x)

    def any(self, flag: bool) -> bool:
        return float(self._sum(torch.tensor([flag], dtype=torch.float64))) > 0.0

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        self.check()
        return self._reduced(torch.tensor(numbers, dtype=torch.float64), dist.ReduceOp.MAX).tolist()

    def all_gather(self, value: object) -> list[Any]:
        self.check()
        return [json.loads(text) for text in self._texts(json.dumps(value))]

    def all_gather_rows(self, x: Tensor) -> Tensor:
        counts = [int(n) for n in self.all_gather(len(x))]
        padded = x.new_zeros((max(counts), *x.shape[1:]), device=self.device)
        padded[: len(x)] = x.detach()
        parts = [torch.empty_like(padded) for _ in counts]
        self._call(dist.all_gather, parts, padded)
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)]).to(x.device)

    def gather_rows(self, x: Tensor) -> Tensor | None:
        counts = [int(n) for n in self.all_gather(len(x))]
        if self.rank:
            self._call(dist.send, x.detach().to(self.device).contiguous(), dst=self._global(0))
            return None
        parts = [x.detach()]
        for rank in range(1, self.size):
            part = x.new_empty((counts[rank], *x.shape[1:]), device=self.device)
            self._call(dist.recv, part, src=self._global(rank))
            parts.append(part.to(x.device))
        return torch.cat(parts)

    def broadcast(self, x: Tensor) -> Tensor:
        self.check()
        sent = x.detach().to(self.device, copy=True).contiguous()
        self._call(dist.broadcast, sent, src=self._global(0))
        return sent.to(x.device)

    def _reduced(self, x: Tensor, operation: object) -> Tensor:
        sent = x.to(self.device, copy=True).contiguous()
        self._call(dist.all_reduce, sent, op=operation)
        return sent.to(x.device)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _texts(self, text: str) -> list[str]:
        own = torch.frombuffer(bytearray(text.encode() or b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(text.encode())], device=self.device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        self._call(dist.all_gather, lengths, length)
        sizes = [int(n) for n in lengths]
        padded = torch.zeros(max(1, *sizes), dtype=torch.uint8, device=self.device)
        padded[: len(own)] = own.to(self.device)
        parts = [torch.empty_like(padded) for _ in sizes]
        self._call(dist.all_gather, parts, padded)
        return [part[:n].cpu().numpy().tobytes().decode() for part, n in zip(parts, sizes, strict=True)]

    def _call(self, operation: Callable[..., R], *args: object, **options: object) -> R:
        """One operation of torch with this group."""
        return self._guarded(operation, *args, group=self.group, **options)

    def _guarded(self, operation: Callable[..., R], *args: object, **options: object) -> R:
        """One operation with the other processes, whose errors say little to a user."""
        if self._lost:
            raise ProcessError(_LOST.format(rank=self.rank, size=self.size))
        try:
            return operation(*args, **options)
        except RuntimeError as error:
            self._lost = True
            text = _LOST.format(rank=self.rank, size=self.size)
            raise ProcessError(f"{text} ({str(error).splitlines()[0]:.200})") from error


def _timeout(group: dist.ProcessGroup | None) -> float:
    """Seconds after which a process of a group that does not answer is an error."""
    chosen = dist.group.WORLD if group is None else group
    assert chosen is not None, "torch.distributed is not initialised"
    return float(chosen._get_backend(torch.device("cpu")).options._timeout.total_seconds())


SINGLE_PROCESS = Communicator()


def collective(function: Callable[P, R]) -> Callable[P, R]:
    """A function that all processes call, if an argument is data that they have together; they share its errors."""

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        found = (getattr(x, "communicator", None) for x in (*args, *options.values()))
        communicator = next((one for one in found if isinstance(one, Communicator)), SINGLE_PROCESS)
        with communicator.sharing_errors():
            return function(*args, **options)

    return run
