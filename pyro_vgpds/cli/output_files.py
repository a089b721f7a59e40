# SPDX-License-Identifier: Apache-2.0
"""Checks of output files before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyro_vgpds.cli.csv_files import CSV_SUFFIXES
from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.files.atomic import destination, temporary_path
from pyro_vgpds.files.film import FILM_SUFFIXES

__all__ = ["check_output"]

#: of data, pictures and pages, which a model is not
_OTHERS = (
    *CSV_SUFFIXES, ".npz", ".npy", ".bvh", *FILM_SUFFIXES, ".webm", ".png", ".jpg", ".jpeg", ".pdf", ".svg", ".html",
    ".htm", ".json",
)  # fmt: skip


def check_output(
    path: Path | None,
    force: bool,
    suffixes: Sequence[str] = (),
    argument: str = "-o/--output",
    inputs: Sequence[Path | None] = (),
    instead: str = "Choose another name, or pass --force to replace it.",
    *,
    is_model: bool = False,
) -> None:
    """Check that a file can be written at the end.

    :param suffixes: those that are allowed. Default: all.
    :param inputs: files that are read. They are never replaced, even with ``force``.
    :param instead: what to do if the file exists.
    :param is_model: a model or a checkpoint, whose name may have any suffix except those of data, pictures and pages.
    :raises UsageError: if the suffix is not allowed, or the file exists and ``force`` is not given.
    :raises CommandError: if the folder does not exist or is not writable.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{argument} must end in one of {', '.join(suffixes)}, but got {path}.")
    try:
        with suppress(FileNotFoundError):
            path.lstat()
    except OSError as error:  # a name that is too long, or a folder that is a file
        raise CommandError(f"{argument}: cannot write {path}: {error.strerror}.") from None
    if path.is_dir():
        raise UsageError(f"{argument} must be a file, but {path} is a folder.")
    if any(other is not None and other.resolve() == path.resolve() for other in inputs):
        raise UsageError(f"{argument}: {path} is an input file. Choose another name.")
    if is_model and path.suffix.lower() in _OTHERS:
        raise UsageError(f"{argument} must be a model file, such as {path.stem}.safetensors, but got {path}.")
    if path.exists() and not force:
        raise UsageError(f"{argument}: {path} already exists. {instead}")
    try:  # permissions are not enough: root has all, and a file system may be read-only
        target = destination(path).absolute()
        if not target.parent.is_dir():
            raise CommandError(f"{argument}: folder {target.parent} does not exist.")
        part = temporary_path(target)
        part.touch(exist_ok=False)
        part.unlink()
    except OSError as error:
        raise CommandError(f"{argument}: cannot write {path}: {error.strerror}.") from None
