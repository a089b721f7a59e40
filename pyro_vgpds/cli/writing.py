# SPDX-License-Identifier: Apache-2.0
"""Checks of output files before any work is done: a file is not replaced unless asked for."""

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
    instead: str = "Give another name, or --force to replace it.",
) -> None:
    """Refuse, before any work is done, what could not be written at the end.

    :param inputs: files that are read, which are not replaced whatever ``force`` says.
    :param instead: what to do where the file is there already.
    :raises UsageError: where the suffix is unknown, or the file is there already and ``force`` is not given.
    :raises CommandError: where there is no folder for it, or the folder takes no files.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{argument} must end in one of {', '.join(suffixes)}, but got {path}.")
    if path.is_dir():
        raise UsageError(f"{argument} must be a file, but {path} is a folder.")
    if any(other is not None and other.resolve() == path.resolve() for other in inputs):
        raise UsageError(f"{argument}: {path} is what is to be read; give another name.")
    if path.exists() and not force:
        raise UsageError(f"{argument}: {path} is there already. {instead}")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"{argument}: there is no folder {path.absolute().parent}.")
    try:  # modes of the folder do not tell: of root, of file systems that are read only, of names that are too long
        part = beside(path)
        part.touch(exist_ok=False)
        part.unlink()
    except OSError as error:
        raise CommandError(f"{argument}: {path} cannot be written: {error.strerror}.") from None
