# SPDX-License-Identifier: Apache-2.0
"""Messages about what a command is doing. They go to the standard error; the standard output is for results."""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pyro_vgpds.formatting import on_terminal
from pyro_vgpds.selection.progress import Event

__all__ = ["PATIENCE", "Count", "left", "say", "watching", "working"]

PATIENCE = 3.0  # seconds after which short work gets a line
_SECONDS = 10.0  # between two lines that are not written to a terminal
_SILENCE = 60.0  # after which a line says that work continues


def say(args: argparse.Namespace, text: str) -> None:
    """Print ``text``, unless ``--quiet`` is given."""
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def left(done: int, total: int, seconds: float) -> str:
    """The time that the rest takes, if it goes on as in the first ``seconds``, as text; empty if nothing is done."""
    if not 0 < done < total:
        return ""
    rest = seconds * (total - done) / done
    unit, size = next(((unit, size) for unit, size in (("h", 3600.0), ("min", 60.0)) if rest >= 2 * size), ("s", 1.0))
    return f", about {math.ceil(rest / size)} {unit} left"


@contextmanager
def working(args: argparse.Namespace, text: str, patience: float = 0.0) -> Iterator[Count]:
    """Print ``text``, and while the block runs the seconds, what is done and the seconds that are left: on a terminal
    in a line that is rewritten, elsewhere in a new line now and then.

    :param patience: print nothing if the block takes fewer seconds than this.
    :returns: a function to call with what is done, the total, and optionally more text.
    """
    if args.quiet:
        yield lambda done, total, note="": None
        return
    with _Job(text, on_terminal(), patience) as job:
        yield job.count


class Count(Protocol):
    """A function that is told how far work is."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


class _Line:
    """A line of the terminal that is rewritten."""

    drawn = 0  # its characters

    def draw(self, text: str) -> None:
        print("\r" + text.ljust(self.drawn), end="", file=sys.stderr, flush=True)
        self.drawn = len(text)


class _Job(_Line):
    """Work that is under way, and a thread that prints how far it is."""

    def __init__(self, text: str, terminal: bool, patience: float) -> None:
        self.text, self.terminal, self.patience = text, terminal, patience
        self.over, self.ticker = threading.Event(), threading.Thread(target=self.tick, daemon=True)
        self.start = self.last = time.monotonic()
        self.done, self.total, self.note = 0, 0, ""
        self.announced = False

    def count(self, done: int, total: int, note: str = "") -> None:
        self.done, self.total, self.note = done, total, note

    def __enter__(self) -> _Job:
        if not self.patience:
            self.announce()
        self.ticker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.ticker.join()
        if self.announced and self.terminal:
            self.draw(f"{self.text} {time.monotonic() - self.start:.1f} s")
            print(file=sys.stderr, flush=True)

    def announce(self) -> None:
        self.announced = True
        if self.terminal:
            self.draw(self.text)
        else:
            print(self.text, file=sys.stderr, flush=True)

    def tick(self) -> None:
        while not self.over.wait(0.5 if self.terminal else min(1.0, _SECONDS)):
            now = time.monotonic()
            if not self.announced:
                if now - self.start >= self.patience:
                    self.announce()
            elif self.terminal:
                self.draw(self.state(now - self.start))
            elif now - self.last >= max(_SECONDS, 0.1 * (now - self.start)):  # fewer lines of what takes hours
                print(self.state(now - self.start), file=sys.stderr, flush=True)
                self.last = now

    def state(self, seconds: float) -> str:
        share = f"{100.0 * self.done / self.total:.0f} %, " if self.total else ""
        return f"{self.text} {share}{self.note}{seconds:.0f} s{left(self.done, self.total, seconds)}"


@contextmanager
def watching(args: argparse.Namespace) -> Iterator[Callable[[Event], object] | bool]:
    """The ``progress`` of :func:`~pyro_vgpds.auto`: a line for each candidate, or off a terminal one now and then."""
    if args.quiet:
        yield False
        return
    lines = _Lines(on_terminal())
    ticker = threading.Thread(target=lines.tick, daemon=True)
    ticker.start()
    try:
        yield lines
    finally:
        lines.over.set()
        ticker.join()
        lines.erase()


class _Lines(_Line):
    """Prints events, and in another thread that work continues."""

    def __init__(self, terminal: bool) -> None:
        self.terminal, self.over, self.lock = terminal, threading.Event(), threading.Lock()
        self.start = self.last = time.monotonic()
        self.event: Event | None = None
        self.pending: str | None = None  # a line that was not printed yet, because another was just before

    def __call__(self, event: Event) -> None:
        with self.lock:
            self.event = event
            text = _text(event)
            if text is None:
                return
            if self.terminal or event.kind == "final" or time.monotonic() - self.last >= _SECONDS:
                self._print(text)
            else:
                self.pending = text

    def tick(self) -> None:
        """Until the end: on a terminal rewrite the line of what is running, elsewhere break a long silence.

        The time that is left is not known: candidates take very different times, and most are stopped early.
        """
        while not self.over.wait(0.5 if self.terminal else 1.0):
            with self.lock:
                silent = time.monotonic() - self.last
                if self.event is None:
                    continue
                running = "final training" if self.event.kind == "final" else self.event.name
                elapsed = time.monotonic() - self.start
                if self.terminal:
                    self.draw(f"{running} ... {elapsed:.0f} s")
                elif self.pending is not None and silent >= _SECONDS:
                    self._print(self.pending)
                elif silent >= _SILENCE:
                    now = f"{running} is running; " if self.event.kind in ("start", "final") else ""
                    state = f"{self.event.finished} of {self.event.total} candidates are done"
                    self._print(f"{now}{state} after {elapsed:.0f} s")

    def erase(self) -> None:
        """Remove the line that is rewritten."""
        if self.drawn:
            print("\r" + " " * self.drawn + "\r", end="", file=sys.stderr, flush=True)
            self.drawn = 0

    def _print(self, text: str) -> None:
        self.erase()
        print(text, file=sys.stderr, flush=True)
        self.last, self.pending = time.monotonic(), None


def _text(event: Event) -> str | None:
    place = f"{event.finished:3d}/{event.total} "
    if event.kind == "done":
        return f"{place} {event.name}: held-out error {event.error:.4g}, {event.seconds:.1f} s"
    if event.kind in ("failed", "skipped"):
        why = "failed" if event.kind == "failed" else "not tried: the time budget is over"
        return f"{place} {event.name}: {why}"
    return f"training on all data: {event.name}" if event.kind == "final" else None
