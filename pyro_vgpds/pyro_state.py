# SPDX-License-Identifier: Apache-2.0
"""One Pyro program at a time: a lock around Pyro's global state, which all Python threads of a process share.

The parameter store and the stack of effect handlers belong to the process. If two threads ran models at the same time,
each would find the other's parameters and handlers. Everything in this library that runs a Pyro program takes this
lock, so that a fit in another thread waits for its turn. Predictions use tensors only and do not take it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import pyro
from pyro.poutine import runtime

__all__ = ["one_at_a_time", "own_store", "pyro_lock"]

F = TypeVar("F", bound=Callable[..., Any])


class _State:
    """The lock, who has it, and the content of the parameter store outside of it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: int | None = None  # the thread that has the lock
        self.depth = 0
        self.outside: Any = None  # of the parameter store, before the outermost own_store

    def renew(self) -> None:
        """In a forked process, in which only the calling thread lives on.

        If another thread had the lock, it is never given back, and what that thread was doing to Pyro never ends.
        """
        if not self.depth or self.owner == threading.get_ident():
            return
        runtime._PYRO_STACK.clear()
        if self.outside is not None:
            store = pyro.get_param_store()
            store.clear()
            store.set_state(self.outside)
        self.__init__()  # type: ignore[misc]


_state = _State()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.renew)


@contextmanager
def pyro_lock() -> Iterator[None]:
    """A block in which no other thread runs a Pyro program of this library. Blocks may be nested.

    >>> from pyro_vgpds import Collapsed_ELBO
    >>> from pyro_vgpds.pyro_state import pyro_lock
    >>> with pyro_lock(), pyro_lock():
    ...     bound = -Collapsed_ELBO().loss(model, guide, data)
    """
    state = _state
    with state.lock:
        state.owner, state.depth = threading.get_ident(), state.depth + 1
        try:
            yield
        finally:
            state.depth -= 1


@contextmanager
def own_store(content: Any = None) -> Iterator[None]:
    """:func:`pyro_lock`, with a parameter store of its own: afterwards Pyro's has the same content as before.

    :param content: of the store. Default: it is empty.

    >>> import pyro
    >>> import torch
    >>> from pyro_vgpds.pyro_state import own_store
    >>> with own_store():
    ...     number = pyro.param("number", torch.tensor(1.0))
    >>> "number" in pyro.get_param_store()
    False
    """
    store = pyro.get_param_store()
    with pyro_lock():
        outermost = _state.outside is None
        if outermost:
            _state.outside = store.get_state()
        try:
            with store.scope(content):
                yield
        finally:
            if outermost:
                _state.outside = None


def one_at_a_time(function: F) -> F:
    """A function that runs within :func:`pyro_lock`."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with pyro_lock():
            return function(*args, **options)

    return cast(F, run)
