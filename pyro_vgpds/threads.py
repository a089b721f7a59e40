# SPDX-License-Identifier: Apache-2.0
"""How many threads a computation uses: as many as pay off for its size, and never more than torch is set to.

Several threads divide the work, but they wait for each other at each of many small operations. A problem of 100 frames
takes many times the CPU time on two threads that it takes on one, and more wall time as well. The rule is one thread
for each :data:`WORK_PER_THREAD` multiply-adds of torch's operations in an evaluation of the bound
(``python -m benchmarks.threads``).

Compiled loops, which do most of the work in one piece, divide it from much smaller sizes on
(:data:`pyro_vgpds.compiled.LOOP_WORK`), on up to as many threads as torch is set to. What they do in training does not
count for the rule: torch's threads, which wait for their next operation by running in circles, would be in their way.

The environment variable ``PYRO_VGPDS_THREADS`` replaces the rule: a number is the largest number of threads for any
size, and 0 leaves torch's setting as it is.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from pyro_vgpds.checks import check_list, check_not_negative, is_real
from pyro_vgpds.compiled import loop_threads, most_threads
from pyro_vgpds.data.sequences import Sequences

__all__ = ["WORK_PER_THREAD", "bound_work", "sizes_work", "thread_limited", "threads_for"]

#: multiply-adds for each thread: with less, waiting costs more than dividing the work gains
WORK_PER_THREAD = 2.5e8

F = TypeVar("F", bound=Callable[..., Any])


def bound_work(
    num_frames: int,
    num_outputs: int,
    latent_dim: int,
    num_inducing: int,
    dense: Sequence[int] = (),
    pair_work: int | None = None,
) -> float:
    """Multiply-adds of an evaluation of the bound, roughly: N M (M Q + min(N, D)), and Q n³ for dense sequences.

    :param dense: lengths of the sequences whose temporal covariance is dense.
    :param pair_work: multiply-adds for each frame and pair of inducing variables. Default: Q.

    >>> from pyro_vgpds.threads import bound_work
    >>> f"{bound_work(100, 20, 5, 30):.0e}, {bound_work(10_000, 60, 5, 100):.0e}"
    '5e+05, 6e+08'
    """
    check_list("dense", dense, "a list of lengths")
    for name, value in (
        ("num_frames", num_frames), ("num_outputs", num_outputs), ("latent_dim", latent_dim),
        ("num_inducing", num_inducing), *(("dense", length) for length in dense),
    ):  # fmt: skip
        check_not_negative(name, value)
    if pair_work is not None:
        check_not_negative("pair_work", pair_work)
    pair_work = latent_dim if pair_work is None else pair_work
    each = num_inducing * (num_inducing * pair_work + min(num_frames, num_outputs))
    return float(num_frames) * each + float(latent_dim) * sum(float(n) ** 3 for n in dense)


def sizes_work(model: object, data: Sequences) -> float:
    """As :func:`bound_work` before the model has been called: without the temporal covariance and the pairs of inducing
    variables, because it is not known how they are computed. Sizes that the model does not have count as 1.
    """
    latent_dim, num_inducing = (int(getattr(model, name, 1)) for name in ("latent_dim", "num_inducing"))
    return bound_work(data.num_frames, data.num_outputs, latent_dim, num_inducing, pair_work=0)


class _Setting:
    """torch's setting and the blocks that have changed it.

    The setting belongs partly to a Python thread and partly to the process. So blocks that overlap in several Python
    threads all return to what torch was set to before the first of them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0  # blocks in all Python threads
        self.usual = 1  # torch's setting before the first of them
        self.own = threading.local()  # depth: blocks in this Python thread

    def enter(self, wanted: int) -> int:
        """Set at most ``wanted`` threads; returns what to go back to."""
        with self.lock:
            depth = getattr(self.own, "depth", 0)
            if self.open == 0:
                self.usual = torch.get_num_threads()
            before = torch.get_num_threads() if depth else self.usual
            torch.set_num_threads(min(before, wanted))
            self.open, self.own.depth = self.open + 1, depth + 1
        return before

    def leave(self, before: int) -> None:
        with self.lock:
            torch.set_num_threads(before)
            self.open, self.own.depth = self.open - 1, self.own.depth - 1

    def renew(self) -> None:
        """In a forked process, where another thread may have held the lock, only the calling thread lives on."""
        self.lock = threading.Lock()
        self.open = getattr(self.own, "depth", 0)


_setting = _Setting()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_setting.renew)


def _wanted(work: float) -> int | None:
    """The number of threads for some work; None to leave the setting."""
    given = os.environ.get("PYRO_VGPDS_THREADS")
    if not given:
        return max(1, int(min(work, 1e15) / WORK_PER_THREAD))
    if not given.isdecimal():
        raise ValueError(f"the environment variable PYRO_VGPDS_THREADS must be a whole number, but is {given!r}.")
    return int(given) or None


@contextmanager
def threads_for(work: float) -> Iterator[int]:
    """As many threads as pay off, at most as many as torch is set to; the setting is restored at the end of the block.

    Blocks may be nested and may overlap in several Python threads. Compiled loops have a limit of their own: torch's
    setting before the first block.

    :param work: multiply-adds between two small operations, such as :func:`bound_work`; 0 for one thread.
    :raises ValueError: if ``PYRO_VGPDS_THREADS`` is not a whole number.

    >>> import torch
    >>> from pyro_vgpds.threads import threads_for
    >>> before = torch.get_num_threads()
    >>> with threads_for(1e6) as threads:
    ...     threads
    1
    >>> torch.get_num_threads() == before
    True
    """
    if not is_real(work) or not work >= 0:
        raise ValueError(f"work must be a number of 0 or more, but got {work!r:.80}.")
    wanted = _wanted(work)
    if wanted is None:
        yield torch.get_num_threads()
        return
    before = _setting.enter(wanted)
    limit = most_threads() or before
    if os.environ.get("PYRO_VGPDS_THREADS"):
        limit = min(limit, wanted)
    try:
        with loop_threads(limit):
            yield torch.get_num_threads()
    finally:
        _setting.leave(before)


def thread_limited(method: F) -> F:
    """A method that runs within :func:`threads_for` of its object's attribute ``work``."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        with threads_for(self.work):
            return method(self, *args, **options)

    return cast(F, run)
