# SPDX-License-Identifier: Apache-2.0
"""Loading the compiled parts of the package, and the threads that they run on."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

__all__ = ["chunks", "open_library", "pool"]


def open_library(name: str, **functions: list[Any]) -> ctypes.CDLL | None:
    """The compiled module of this full name; None if it was not built from this version of the sources, or
    ``PYRO_VGPDS_NATIVE=0`` disables it.

    :param functions: the types of the arguments of its functions, which return an int.
    """
    if os.environ.get("PYRO_VGPDS_NATIVE", "1") == "0":
        return None
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        for function, types in functions.items():
            getattr(library, function).argtypes = types
            getattr(library, function).restype = ctypes.c_int
    except (OSError, AttributeError):
        return None
    return library


def chunks(count: int, unit: int) -> list[tuple[int, int]]:
    """Contiguous ranges of ``count`` items in whole units, at most one range for each torch thread."""
    units = -(-count // unit)
    threads = max(1, min(torch.get_num_threads(), units))
    return list(itertools.pairwise(min(count, unit * (units * i // threads)) for i in range(threads + 1)))


def pool(threads: int) -> ThreadPoolExecutor:
    """The pool of this size for the current process: threads do not survive a fork."""
    return _pool(threads, os.getpid())


@functools.cache
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pyro_vgpds")
