# SPDX-License-Identifier: Apache-2.0
"""Checks of the kinds of arguments: flags, strings, files, functions and objects of a class.

:mod:`pyro_vgpds.checks` has those of numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sized

import numpy as np
from torch import Tensor

from pyro_vgpds.checks import is_whole, plain

__all__ = [
    "check_callable", "check_dict", "check_flags", "check_kind", "check_list", "check_parts", "check_path",
    "check_texts",
]  # fmt: skip


def check_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str, optional: bool = False) -> None:
    """Raise a TypeError, which says what is ``wanted``, if ``value`` is not an instance of a class."""
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{name} must be {wanted}{' or None' if optional else ''}, but got {value!r:.80}.")


def check_parts(name: str, value: object, wanted: str, *parts: str) -> None:
    """Raise a TypeError, which says what is ``wanted``, if an object of any class lacks one of these attributes."""
    if isinstance(value, (type, np.ndarray, np.generic)) or not all(hasattr(value, part) for part in parts):
        raise TypeError(f"{name} must be {wanted}, but got {value!r:.80}.")


def check_flags(**flags: object) -> None:
    """Raise a TypeError if one of some arguments is not True or False.

    >>> from pyro_vgpds.kinds import check_flags
    >>> check_flags(fill=True, include_noise="no")
    Traceback (most recent call last):
    TypeError: include_noise must be True or False, but got 'no'.
    """
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)) and not (is_whole(value) and value in (0, 1)):
            raise TypeError(f"{name} must be True or False, but got {value!r:.80}.")


def check_callable(name: str, value: object, wanted: str = "a function", optional: bool = False) -> None:
    """Raise a TypeError if ``value`` cannot be called."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{name} must be {wanted}{' or None' if optional else ''}, but got {value!r:.80}.")


def check_path(name: str, value: object, optional: bool = False) -> None:
    """Raise an error if ``value`` is not the name of a file: a TypeError, or a ValueError for an empty string."""
    if value is None and optional:
        return
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be the name of a file, a string or Path, but got {value!r:.80}.")
    if not text or "\0" in text:
        raise ValueError(f"{name} must be the name of a file, but got {text!r:.80}.")


def check_list(name: str, value: object, wanted: str = "a list", optional: bool = False) -> None:
    """Raise a TypeError if ``value`` is not a list; also a tuple, an array, or a series or index of pandas is one."""
    if value is None and optional:
        return
    is_one = isinstance(value, (np.ndarray, Tensor)) and value.ndim == 0
    is_other = isinstance(value, (str, bytes, Mapping, set, frozenset, type)) or hasattr(value, "columns")
    if is_one or is_other or not (isinstance(value, Iterable) and isinstance(value, Sized)):
        raise TypeError(f"{name} must be {wanted}, but got {value!r:.80}.")
    if isinstance(value, Tensor):
        plain(name, value)


def check_dict(name: str, value: object, wanted: str, kind: type | tuple[type, ...]) -> None:
    """Raise a TypeError if ``value`` is not a dictionary of things of one kind, or a ValueError if it is empty."""
    if not isinstance(value, Mapping) or not all(isinstance(one, kind) for one in value.values()):
        raise TypeError(f"{name} must be {wanted}, but got {value!r:.80}.")
    if not value:
        raise ValueError(f"{name} must be {wanted} with at least one entry, but it is empty.")


def check_texts(name: str, value: object, optional: bool = False) -> None:
    """Raise a TypeError if ``value`` is not a list of strings."""
    if value is None and optional:
        return
    check_list(name, value, "a list of strings")
    wrong = [one for one in value if not isinstance(one, str)]  # type: ignore[attr-defined]
    if wrong:
        raise TypeError(f"{name} must be a list of strings, but one of them is {wrong[0]!r:.80}.")
