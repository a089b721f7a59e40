# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on the command line, with the exit code that says whose fault it is."""

from __future__ import annotations

__all__ = ["FAILURE", "INTERRUPTED", "OK", "USAGE", "CommandError", "UsageError"]

OK, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


class CommandError(Exception):
    """A command cannot do what was asked: a file is missing or holds the wrong thing."""

    code = FAILURE


class UsageError(CommandError):
    """An argument is wrong, whatever the files hold."""

    code = USAGE
