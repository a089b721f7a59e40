# SPDX-License-Identifier: Apache-2.0
"""The container of all files: tensors and one JSON text, as safetensors. Nothing that is read is ever run.

The text has the format's version and a digest of everything, so that truncated and modified files are detected. Files
are written under a temporary name and moved to their place when they are complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

import pyro
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from pyro_vgpds.checks import check_path
from pyro_vgpds.files.atomic import atomic_write
from pyro_vgpds.types import PathLike
from pyro_vgpds.version import __version__

__all__ = ["FileFormatError", "UnknownNameError", "pack", "read_file", "unpack", "write_file"]

FORMAT = 1
_KEY = "pyro_vgpds"


class FileFormatError(ValueError):
    """A file is truncated, modified, of another kind, or of a later version.

    >>> from pathlib import Path
    >>> from pyro_vgpds import load
    >>> _ = Path("notes.txt").write_text("no model")
    >>> load("notes.txt")
    Traceback (most recent call last):
    pyro_vgpds.files.container.FileFormatError: notes.txt ...
    """


class UnknownNameError(FileFormatError):
    """A file has a kernel or a likelihood that is not registered."""


def write_file(path: PathLike, kind: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write tensors and a JSON header; ``path`` is always a complete file, the old one or the new."""
    check_path("path", path)
    tensors = _separate(tensors)
    header = {**header, "format": FORMAT, "kind": kind, "versions": _versions()}
    header["digest"] = _digest(header, tensors)
    content = to_bytes(tensors, metadata={_KEY: json.dumps(header)})
    with atomic_write(Path(path)) as part, part.open("xb") as file:  # with the mode of the umask
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_file(path: PathLike, *kinds: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file of one of these kinds.

    :raises FileFormatError: if it is truncated, modified, of another kind, or of a later version.
    :raises FileNotFoundError: if there is no such file.
    """
    check_path("path", path)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        header, tensors = _read(path)
        digest = _digest({name: value for name, value in header.items() if name != "digest"}, tensors)
    except FileFormatError:
        raise
    except (SafetensorError, ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise FileFormatError(
            f"{path} is not a complete pyro_vgpds file: it is truncated, modified or of another kind ({error})."
        ) from None
    if header.pop("digest", None) != digest:
        raise FileFormatError(f"{path} was modified after it was written: its digest does not match its content.")
    if header.get("kind") not in kinds:
        raise FileFormatError(f"{path} holds a {header.get('kind')}, but a {kinds[0]} is expected.")
    return header, tensors


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors, both of the same file if another process replaces it in between."""
    while True:
        before = _identity(path)
        with safe_open(path, framework="pt") as file:  # which opens it more than once
            text = (file.metadata() or {}).get(_KEY)
            # copies in aligned memory: otherwise sums of the same numbers may be rounded in another way
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if _identity(path) == before:
            break
    if text is None:
        raise FileFormatError(f"{path} is a safetensors file, but not one of pyro_vgpds.")
    header = json.loads(text)
    if isinstance(header.get("format"), int) and header["format"] > FORMAT:
        version = header.get("versions", {}).get("pyro_vgpds", "a later version")
        raise FileFormatError(
            f"{path} has format {header['format']}, of pyro_vgpds {version}; this version reads up to "
            f"{FORMAT}. Install a later pyro_vgpds."
        )
    return header, tensors


def _identity(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Any nesting of numbers, strings, lists, dictionaries and tensors as JSON; tensors are added to ``tensors``."""
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
    """The inverse of :func:`pack`; tuples become lists."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "t":
        return tensors[inner]
    if kind == "d":
        return {unpack(key, tensors): unpack(item, tensors) for key, item in inner}
    return [unpack(item, tensors) for item in inner] if kind == "l" else float(inner)


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, none of which shares memory with another: safetensors refuses those that do."""
    result, taken = {}, set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        memory = value.untyped_storage().data_ptr()
        result[name] = value.clone() if memory in taken else value
        taken.add(memory)
    return result


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
