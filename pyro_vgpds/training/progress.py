# SPDX-License-Identifier: Apache-2.0
"""The progress bar and Ctrl-C."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeAlias

from tqdm import tqdm

from pyro_vgpds.checks import check_flags
from pyro_vgpds.formatting import on_terminal
from pyro_vgpds.training.problem import Trainable

__all__ = [
    "CountLike", "HiddenBar", "bar_class", "check_progress", "counting_bar", "interruptible", "is_shown", "part_of",
    "progress_bar",
]  # fmt: skip

#: show a bar or not, a function that is called with what is done and the total, or None for a bar on a terminal only
CountLike: TypeAlias = bool | Callable[[int, int], object] | None


def check_progress(progress: object) -> None:
    """Raise a TypeError if ``progress`` is not True, False, None or a function."""
    if progress is not None and not callable(progress):
        check_flags(progress=progress)


class HiddenBar:
    """A bar that is not drawn.

    It is no tqdm, which takes a lock that forked processes share for bars that are not drawn as well: a process that is
    killed at that moment would stop all others.

    :param call: is called with the number of things that are done and with ``total``.
    """

    def __init__(self, total: int, call: Callable[[int, int], object] | None = None) -> None:
        self.n, self.total, self.call = 0, total, call

    def update(self, n: float | None = 1) -> None:
        if n:
            self.n += int(n)
            if self.call is not None:
                self.call(self.n, self.total)

    def set_postfix_str(self, text: str) -> None:
        pass

    def __enter__(self) -> HiddenBar:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def bar_class() -> type[tqdm]:
    """The widget in Jupyter if ipywidgets is installed, otherwise a line of text: ``tqdm.auto`` alone would fail."""
    if importlib.util.find_spec("ipywidgets") is None:
        return tqdm
    from tqdm.auto import tqdm as widget

    return widget


def counting_bar(total: int, label: str, progress: CountLike = None) -> tqdm | HiddenBar:
    """A progress bar over a number of things.

    :param progress: show it, or a function that is called with the number of things that are done and with ``total``.
        Default: show it on a terminal only.
    """
    if callable(progress):
        return HiddenBar(total, progress)
    return bar_class()(total=total, desc=label) if is_shown(progress) else HiddenBar(total)


def is_shown(progress: bool | None) -> bool:
    """Whether to show a bar, None for on a terminal only; never without a standard error, where bars are drawn."""
    return on_terminal() if progress is None else progress and sys.stderr is not None


def part_of(progress: CountLike, index: int, count: int) -> CountLike:
    """The progress of one of several things in turn, of ``count`` in all."""
    if not callable(progress):
        return progress
    call = progress
    return lambda done, total: call(index * total + done, count * total)


@contextmanager
def progress_bar(problem: Trainable, num_steps: int, label: str, show: bool) -> Iterator[Callable[[int, float], None]]:
    """A progress bar, to call with each step and its bound."""
    if not show:
        yield lambda step, bound: None
        return
    with bar_class()(total=num_steps, desc=label) as bar:

        def update(step: int, bound: float) -> None:
            bar.update(step - bar.n)
            facts = {"bound": f"{bound:.6g}"}
            if problem.outputs is None and problem.late:
                facts["noise"] = f"{problem.late[0].detach().exp().mean().item():.3g}"
            with suppress(AttributeError, ValueError):  # a model that is not a VGPDS, or a mapping without weights
                facts["active"] = str(int(problem.model.relevance().active.sum()))
            bar.set_postfix(facts)

        yield update


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C into an answer to the question whether there was one; a second Ctrl-C interrupts as usual."""
    requested = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt
        requested = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, before)
