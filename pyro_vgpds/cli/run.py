# SPDX-License-Identifier: Apache-2.0
"""From arguments to a command, and from what goes wrong to a message and an exit code."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from typing import Any

from pyro_vgpds.cli.errors import FAILURE, INTERRUPTED, OK, CommandError
from pyro_vgpds.cli.parser import PROGRAM, make_parser
from pyro_vgpds.linalg import NumericalError

__all__ = ["main"]

#: what the library raises to say that an argument or a file is not what it should be
_KNOWN = (CommandError, ValueError, TypeError, OSError, ImportError, NumericalError, MemoryError)


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    :param argv: the arguments; left out, those of the process.
    :returns: 0 where it was done, 1 where it failed, 2 where an argument is wrong, 130 after Ctrl-C.

    >>> from pyro_vgpds.cli import main
    >>> from pyro_vgpds import save
    >>> save("model.safetensors", model, guide, data)
    >>> main("forecast model.safetensors --sequence 0 --until 3 -o ahead.csv --quiet".split())
    0
    """
    parser = make_parser()
    try:
        args = parser.parse_args(_joined(sys.argv[1:] if argv is None else argv))
    except SystemExit as done:  # --help, --version, or an argument that argparse refuses
        return int(done.code or OK)
    name = f"{PROGRAM} {args.command}"
    with warnings.catch_warnings():
        if not args.debug:
            warnings.showwarning = lambda message, *_, **__: print(f"{name}: warning: {message}", file=sys.stderr)
        return _run(args, name)


def _joined(argv: list[str]) -> list[str]:
    """``--times -1,0`` as ``--times=-1,0``: argparse takes what begins with - for an option, if it is no one number."""
    joined: list[str] = []
    for text in argv:
        if joined and joined[-1] in ("--times", "--until") and re.match(r"-[\d.]", text):
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def _run(args: argparse.Namespace, name: str) -> int:
    command: Any = args.run
    try:
        code = int(command(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"{name}: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # of `| head`: nobody reads on, and nothing more is to be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        if isinstance(error, _KNOWN):
            print(f"{name}: error: {_one_line(error)}", file=sys.stderr)
        else:
            kind = type(error).__name__
            print(f"{name}: error: {kind}: {_one_line(error)} (--debug shows where)", file=sys.stderr)
        return error.code if isinstance(error, CommandError) else FAILURE


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for this."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return str(error) or type(error).__name__
