# SPDX-License-Identifier: Apache-2.0
"""The container of all our files: tensors and one JSON text, as safetensors. Nothing that is read is ever run.

The text has the format's version and a digest of everything, so that a file that was cut short or changed is known for
what it is. Files are written beside their place and moved there when they are complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyro
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from pyro_vgpds.version import __version__

__all__ = ["FileFormatError", "beside", "pack", "placed", "read_file", "unpack", "write_file"]

FORMAT = 1
_KEY = "pyro_vgpds"


class FileFormatError(ValueError):
    """A file is not what it should be: cut short, changed, of another kind, or of a later version.

    >>> from pathlib import Path
    >>> from pyro_vgpds import load
    >>> _ = Path("notes.txt").write_text("no model")
    >>> load("notes.txt")
    Traceback (most recent call last):
    pyro_vgpds.files.container.FileFormatError: notes.txt ...
    """


def write_file(path: str | os.PathLike[str], kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write tensors and a JSON header; at every moment ``path`` is a complete file, the old one or the new."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = {**header, "format": FORMAT, "kind": kind, "versions": _versions()}
    header["digest"] = _digest(header, tensors)
    content = to_bytes(tensors, metadata={_KEY: json.dumps(header)})
    with placed(Path(path)) as part, part.open("xb") as file:  # with the mode that the umask says
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def placed(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; the file is moved to its place when it is complete, and else removed.

    :raises OSError: that names ``path``, where it is about the file.
    """
    part = beside(path)
    try:
        try:
            yield part
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(part), part):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def beside(path: Path) -> Path:
    """A name in the same folder, which nothing has yet, with the same suffix, as some writers go by it."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")


def read_file(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file.

    :raises FileFormatError: where it is cut short, changed, of another kind, or of a later version.
    :raises FileNotFoundError: where there is none.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            if text is None:
                raise FileFormatError(f"{path} is a safetensors file, but not one of pyro_vgpds.")
            header = json.loads(text)
            if isinstance(header.get("format"), int) and header["format"] > FORMAT:
                version = header.get("versions", {}).get("pyro_vgpds", "a later version")
                raise FileFormatError(
                    f"{path} has format {header['format']}, of pyro_vgpds {version}; this one reads up to {FORMAT}. "
                    "Install a later pyro_vgpds."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileFormatError:
        raise
    except (SafetensorError, ValueError, AttributeError, TypeError, OverflowError) as error:
        raise FileFormatError(
            f"{path} is not a complete pyro_vgpds file: it was cut short, changed or is of another kind ({error})."
        ) from None
    if header.pop("digest", None) != _digest(header, tensors):
        raise FileFormatError(f"{path} was changed after it was written: its digest does not fit its content.")
    if header.get("kind") != kind:
        raise FileFormatError(f"{path} holds a {header.get('kind')}, but a {kind} is wanted.")
    return header, tensors


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Any nesting of numbers, texts, lists, dictionaries and tensors as JSON, the tensors added to ``tensors``."""
    if isinstance(value, Tensor):
        name = f"tensor{len(tensors)}"
        tensors[name] = value.detach().clone()
        return {"t": name}
    if isinstance(value, dict):
        return {"d": [[pack(key, tensors), pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"l": [pack(item, tensors) for item in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"f": repr(value)}  # JSON has no infinities
    return value


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """What :func:`pack` was given; tuples come back as lists."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "t":
        return tensors[inner]
    if kind == "d":
        return {unpack(key, tensors): unpack(item, tensors) for key, item in inner}
    return [unpack(item, tensors) for item in inner] if kind == "l" else float(inner)


def _digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def _versions() -> dict[str, str]:
    return {
        "pyro_vgpds": __version__,
        "pyro-ppl": pyro.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
