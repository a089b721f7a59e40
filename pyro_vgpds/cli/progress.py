# SPDX-License-Identifier: Apache-2.0
"""Messages about what a command is doing. They go to the standard error; the standard output is for results."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["say", "working"]


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
