# SPDX-License-Identifier: Apache-2.0
"""Messages about what a command is doing. They go to the standard error; the standard output is for results."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyro_vgpds.selection.progress import Event

__all__ = ["say", "watching", "working"]

_SECONDS = 10.0  # between two lines that are not written to a terminal
_SILENCE = 60.0  # after which a line says that work continues


def say(args: argparse.Namespace, text: str) -> None:
    """Print ``text``, unless ``--quiet`` is given."""
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def working(args: argparse.Namespace, text: str) -> Iterator[None]:
    """Print ``text`` and, on a terminal, the seconds that the block takes."""
    if args.quiet or not sys.stderr.isatty():
        say(args, text)
        yield
        return
    done, start = threading.Event(), time.monotonic()

    def count() -> None:
        while not done.wait(0.5):
            print(f"\r{text} {time.monotonic() - start:.0f} s ", end="", file=sys.stderr, flush=True)

    print(text, end="", file=sys.stderr, flush=True)
    ticker = threading.Thread(target=count, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        print(f"\r{text} {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


@contextmanager
def watching(args: argparse.Namespace) -> Iterator[Callable[[Event], object] | bool]:
    """The ``progress`` of :func:`~pyro_vgpds.auto`: a line for each candidate, or off a terminal one now and then."""
    if args.quiet:
        yield False
        return
    lines = _Lines(sys.stderr.isatty())
    ticker = threading.Thread(target=lines.tick, daemon=True)
    ticker.start()
    try:
        yield lines
    finally:
        lines.over.set()
        ticker.join()
        lines.erase()


class _Lines:
    """Prints events, and in another thread that work continues."""

    def __init__(self, terminal: bool) -> None:
        self.terminal, self.over, self.lock = terminal, threading.Event(), threading.Lock()
        self.start = self.last = time.monotonic()
        self.event: Event | None = None
        self.drawn = 0  # characters of the line that is rewritten
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
        """Until the end: on a terminal rewrite the line of what is running, elsewhere break a long silence."""
        while not self.over.wait(0.5 if self.terminal else 1.0):
            with self.lock:
                silent = time.monotonic() - self.last
                if self.event is None:
                    continue
                state = f"{self.event.finished} of {self.event.total} candidates are done"
                if self.terminal:
                    running = "final training" if self.event.kind == "final" else self.event.name
                    self._draw(f"{running} ... {time.monotonic() - self.start:.0f} s")
                elif self.pending is not None and silent >= _SECONDS:
                    self._print(self.pending)
                elif silent >= _SILENCE:
                    self._print(f"{state} after {time.monotonic() - self.start:.0f} s")

    def erase(self) -> None:
        """Remove the line that is rewritten."""
        if self.drawn:
            print("\r" + " " * self.drawn + "\r", end="", file=sys.stderr, flush=True)
            self.drawn = 0

    def _draw(self, text: str) -> None:
        print("\r" + text.ljust(self.drawn), end="", file=sys.stderr, flush=True)
        self.drawn = len(text)

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
