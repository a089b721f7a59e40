# SPDX-License-Identifier: Apache-2.0
"""Loading the compiled parts of the package, and the threads that they run on."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import torch

__all__ = [
    "LOOP_WORK", "Library", "Loop", "added", "chunks", "loop_threads", "most_threads", "pointer", "run", "run_loops",
    "start",
]  # fmt: skip

#: multiply-adds of a compiled loop for each thread: tenths of a millisecond, several times what a thread takes to start
LOOP_WORK = 4e6
#: sizes of the ranges of each of several threads that share them: the last ones are small, so that all end together
_SHARES = (8, 4, 2, 1, 1)

_TYPES = {"n": ctypes.c_long, "i": ctypes.c_int, "r": ctypes.c_double, "p": ctypes.c_void_p}

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
_threads: ContextVar[int | None] = ContextVar("_threads", default=None)


@functools.cache
def _keep_memory() -> None:
    """Make the C library keep up to 64 MB that were freed, for the next step, which needs as much again.

    Otherwise glibc returns large pieces to the system at once, and each of their pages costs microseconds when it is
    used again: a fifth of a step with many groups of outputs. It adapts to the largest piece that was freed, of up to
    32 MB, so that one of this size, which is never written to, is enough.
    """
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)


class Library:
    """A compiled module, which is opened when it is first used.

    :param name: its full name.
    :param functions: the arguments of its functions, a letter for each: n for a long, i for an int, r for a double, p
        for a pointer. They return an int.
    """

    def __init__(self, name: str, **functions: str) -> None:
        self._name, self._functions = name, functions

    @functools.cached_property
    def _opened(self) -> ctypes.CDLL | None:
        if os.environ.get("PYRO_VGPDS_NATIVE", "1") == "0":
            return None
        spec = importlib.util.find_spec(self._name)
        if spec is None or spec.origin is None:
            return None
        try:
            library = ctypes.CDLL(spec.origin)
            _keep_memory()
            for name, letters in self._functions.items():
                function = getattr(library, name)
                function.argtypes = [_TYPES[letter] for letter in letters if letter != " "]
                function.restype = ctypes.c_int
        except (OSError, AttributeError):
            return None
        return library

    def __call__(self) -> ctypes.CDLL | None:
        """The module; None if it was not built from this version of the sources, or ``PYRO_VGPDS_NATIVE=0`` disables
        it.
        """
        return self._opened

    def available(self) -> bool:
        """Whether it was built and is not disabled."""
        return self() is not None

    def function(self, name: str) -> Callable[..., int]:
        """A function of a module that is available."""
        found: Callable[..., int] = getattr(self(), name)
        return found

    def address(self, name: str) -> int:
        """The address of a function, for other compiled code to call it; 0 if the module is not available."""
        library = self()
        return 0 if library is None else ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


@contextmanager
def loop_threads(count: int) -> Iterator[None]:
    """A context with at most ``count`` threads for compiled loops, whatever torch is set to."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def most_threads() -> int | None:
    """The number of the innermost :func:`loop_threads`; None outside of all of them."""
    return _threads.get()


def _count(work: float) -> int:
    """Threads for some work in multiply-adds."""
    if work < 2.0 * LOOP_WORK:
        return 1
    limit = _threads.get()
    return max(1, min(torch.get_num_threads() if limit is None else limit, int(min(work / LOOP_WORK, 1e6))))


def chunks(count: int, unit: int, work: float, shared: bool = False) -> list[tuple[int, int]]:
    """Contiguous ranges of ``count`` items in whole units: one for each thread that pays off.

    :param work: multiply-adds of all items.
    :param shared: several ranges for each of several threads, the first ones larger, so that all end at the same time.
    """
    threads = _count(work)
    if threads == 1:
        return [(0, count)]
    units = -(-count // unit)
    sizes = [size for size in (_SHARES if shared else (1,)) for _ in range(threads)]
    if units < sum(sizes):
        sizes = [1] * max(1, min(units, len(sizes)))
    ends = [0, *itertools.accumulate(sizes)]
    return list(itertools.pairwise(min(count, unit * (units * end // ends[-1])) for end in ends))


def start(call: Callable[[A, B], R], inputs: Sequence[A], outputs: Sequence[B], work: float) -> Callable[[], list[R]]:
    """Begin ``call(input, output)`` for all pairs in other threads, and return a function that gives the results.

    That function takes part in the work. With one thread it does all of it. ``call`` must not hold Python's lock.

    :param work: multiply-adds of all calls.
    """
    results: list[Any] = [None] * len(inputs)
    left = deque(enumerate(zip(inputs, outputs, strict=True)))

    def go_on() -> None:
        while left:
            try:
                i, (one, other) = left.popleft()
            except IndexError:  # another thread was faster
                return
            results[i] = call(one, other)

    threads = min(_count(work), len(inputs))
    helpers = [_pool(threads - 1, os.getpid()).submit(go_on) for _ in range(threads - 1)]

    def finish() -> list[R]:
        go_on()
        for helper in helpers:
            if not helper.cancel():  # one that has not begun yet, on a busy machine, is not needed any more
                helper.result()
        return results

    return finish


def run(call: Callable[[A, B], R], inputs: Sequence[A], outputs: Sequence[B], work: float) -> list[R]:
    """The results of ``call(input, output)`` for all pairs, on as many threads as pay off, as of :func:`start`."""
    if len(inputs) == 1:
        return [call(inputs[0], outputs[0])]
    return start(call, inputs, outputs, work)()


class Loop(NamedTuple):
    """A compiled loop over rows, which can be divided into ranges of them."""

    call: Callable[[tuple[int, int], Any], int]  #: does a range with its own outputs; nonzero if memory ran out
    make_outputs: Callable[[], Any]  #: the outputs of one range
    result: Callable[[list[Any]], Any]  #: what the outputs of all ranges, in their order, give
    work: float  #: multiply-adds of all rows


def run_loops(count: int, unit: int, loops: Sequence[Loop], shared: bool = False) -> list[Any]:
    """The results of loops over the same rows, of which each may need what those before it wrote for the same rows.

    The loops are divided together, so that threads wait for each other only once. Parameters as in :func:`chunks`.

    :raises MemoryError: if there is not enough memory.
    """
    work = sum(loop.work for loop in loops)
    ranges = chunks(count, unit, work, shared)
    outputs = [[loop.make_outputs() for loop in loops] for _ in ranges]

    def call(range_: tuple[int, int], own: list[object]) -> bool:
        return any(loop.call(range_, each) for loop, each in zip(loops, own, strict=True))

    if any(run(call, ranges, outputs, work)):
        raise MemoryError("a compiled loop ran out of memory")
    return [loop.result([own[i] for own in outputs]) for i, loop in enumerate(loops)]


def added(outputs: Sequence[Sequence[Any]]) -> torch.Tensor:
    """The sum of the last outputs of all ranges, in the order of the rows, so that threads do not change it."""
    return functools.reduce(torch.Tensor.add_, (own[-1] for own in outputs))


def pointer(x: torch.Tensor | None) -> int:
    """The address of the numbers; 0 for None."""
    return 0 if x is None else x.data_ptr()


@functools.cache
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    """The pool of this size for a process: threads do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="pyro_vgpds")
