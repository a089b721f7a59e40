# SPDX-License-Identifier: Apache-2.0
"""Exit codes of the command line, and the errors that lead to them."""

from __future__ import annotations

__all__ = ["FAILURE", "INTERRUPTED", "OK", "USAGE", "CommandError", "UsageError"]

OK, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


class CommandError(Exception):
    """A command failed, for example because a file is missing or has the wrong content."""

    code = FAILURE


class UsageError(CommandError):
    """An argument is wrong."""

    code = USAGE
