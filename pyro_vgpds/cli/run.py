# SPDX-License-Identifier: Apache-2.0
"""Run a command from its arguments, and turn errors into messages and exit codes."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyro_vgpds.cli.errors import FAILURE, INTERRUPTED, OK, CommandError
from pyro_vgpds.cli.parser import PROGRAM, make_parser
from pyro_vgpds.interrupts import restore_interrupts
from pyro_vgpds.linalg import NumericalError

__all__ = ["main"]

#: errors that say what is wrong with an argument or a file
_KNOWN = (CommandError, ValueError, TypeError, OSError, ImportError, NumericalError, MemoryError)


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    :param argv: the arguments. Default: those of the process.
    :returns: the exit code: 0 success, 1 failure, 2 wrong argument, 130 Ctrl-C.

    >>> from pyro_vgpds.cli import main
    >>> from pyro_vgpds import save
    >>> save("model.safetensors", model, guide, data)
    >>> main("forecast model.safetensors --sequence 0 --until 3 -o ahead.csv --quiet".split())
    0
    """
    try:
        restore_interrupts()
        with _all_streams():
            return _main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # before the command begins, or after it has ended
        return INTERRUPTED


@contextmanager
def _all_streams() -> Iterator[None]:
    """Replace standard streams that the process was started without (``2>&-``) by ones that discard what is written."""
    missing = [name for name in ("stdout", "stderr") if getattr(sys, name) is None]
    with ExitStack() as stack:
        for name in missing:
            setattr(sys, name, stack.enter_context(open(os.devnull, "w", encoding="utf-8")))
            stack.callback(setattr, sys, name, None)
        yield


def _main(argv: list[str]) -> int:
    parser = make_parser()
    try:
        args = parser.parse_args(_joined(argv))
    except SystemExit as done:  # --help, --version, or an argument that argparse rejects
        return int(done.code or OK)
    name = f"{PROGRAM} {args.command}"
    with warnings.catch_warnings():
        if not args.debug:
            warnings.showwarning = lambda message, *_, **__: print(f"{name}: warning: {message}", file=sys.stderr)
        return _run(args, name)


def _joined(argv: list[str]) -> list[str]:
    """Join ``--times -1,0`` to ``--times=-1,0``, because argparse takes ``-1,0`` for an option."""
    joined: list[str] = []
    for text in argv:
        if joined and joined[-1] in ("--missing", "--times", "--until") and re.match(r"-[\d.]", text):
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _run(args: argparse.Namespace, name: str) -> int:
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"{name}: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # of `| head`, for example: nobody reads the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        if isinstance(error, _KNOWN):
            print(f"{name}: error: {_one_line(error)}", file=sys.stderr)
        else:
            kind = type(error).__name__
            print(f"{name}: error: {kind}: {_one_line(error)} (--debug prints the traceback)", file=sys.stderr)
        return error.code if isinstance(error, CommandError) else FAILURE


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return str(error) or type(error).__name__
