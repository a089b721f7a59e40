# SPDX-License-Identifier: Apache-2.0
"""Which model a kernel object belongs to. Two models that shared one would change each other's parameters.

A kernel belongs to the model that was made from it, and may become part of another one if that model no longer exists.
Copies of a kernel belong to no model, those inside the copy of a model to that one.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

from pyro.nn import PyroModule

__all__ = ["claim", "release"]

_OWNERS: weakref.WeakKeyDictionary[PyroModule, weakref.ref[PyroModule]] = weakref.WeakKeyDictionary()


def _user(leaf: PyroModule) -> PyroModule | None:
    """The model that a leaf is part of, if it still exists."""
    found = _OWNERS.get(leaf)
    model = None if found is None else found()
    return model if model is not None and model._pyro_context is leaf._pyro_context else None


def release(name: str, kernel: PyroModule, leaves: Iterable[PyroModule]) -> None:
    """Prepare a kernel, the argument ``name``, to become part of a new sum, product or model.

    :raises ValueError: if one of its leaves belongs to a model that exists.
    """
    for leaf in leaves:
        if _user(leaf) is not None:
            gc.collect()  # models in reference cycles, such as those of a traceback, exist until then
        if _user(leaf) is not None:
            raise ValueError(
                f"{name} is or contains {leaf}, which is part of another model already; create a new kernel, or "
                "copy.deepcopy it. Two models that share a kernel would change each other. In a notebook, create the "
                "kernel in the cell that creates the model, so that the cell can be run again."
            )
    for module in kernel.modules():  # its model then refuses to be called; a copy has the context of a model, too
        if isinstance(module, PyroModule):
            module._pyro_name = ""
            module._pyro_context = type(module._pyro_context)()


def claim(model: PyroModule, leaves: Iterable[PyroModule]) -> None:
    """Record that leaves are part of a model and of no other one: when it is made, copied, or about to be called."""
    for leaf in leaves:
        if leaf._pyro_context is not model._pyro_context:
            raise ValueError(
                f"this model has lost its kernel {leaf} to another model or kernel that was created from the same "
                "object later. Create new kernels for each model."
            )
        _OWNERS[leaf] = weakref.ref(model)
