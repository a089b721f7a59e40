# SPDX-License-Identifier: Apache-2.0
"""Checks of output files before any computation: an existing file is only replaced with ``--force``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.files.container import beside

__all__ = ["check_output"]


def check_output(
    path: Path | None,
    force: bool,
    suffixes: Sequence[str],
    argument: str = "-o/--output",
    inputs: Sequence[Path | None] = (),
    instead: str = "Choose another name, or pass --force to replace it.",
) -> None:
    """Check before any computation that the file can be written.

    :param inputs: files that are read; they are never replaced, even with ``force``.
    :param instead: advice if the file exists already.
    :raises UsageError: if the suffix is unknown, or the file exists and ``force`` is False.
    :raises CommandError: if its folder does not exist or is not writable.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{argument} must end in one of {', '.join(suffixes)}, but got {path}.")
    if path.is_dir():
        raise UsageError(f"{argument} must be a file, but {path} is a folder.")
    if any(other is not None and other.resolve() == path.resolve() for other in inputs):
        raise UsageError(f"{argument}: {path} is an input file; choose another name.")
    if path.exists() and not force:
        raise UsageError(f"{argument}: {path} already exists. {instead}")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"{argument}: the folder does not exist: {path.absolute().parent}.")
    try:  # the folder's mode is not enough: root, read-only file systems, names that are too long
        part = beside(path)
        part.touch(exist_ok=False)
        part.unlink()
    except OSError as error:
        raise CommandError(f"{argument}: {path} cannot be written: {error.strerror}.") from None
