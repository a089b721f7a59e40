# SPDX-License-Identifier: Apache-2.0
"""Copies of posteriors, whose guides may be those of Pyro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.autoguide import AutoGuide
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["DetachedCopies", "autoguides"]


def autoguides(guide: object) -> list[AutoGuide]:
    """Pyro's autoguides that a guide consists of."""
    return [m for m in guide.modules() if isinstance(m, AutoGuide)] if isinstance(guide, torch.nn.Module) else []


class DetachedCopies(TorchFunctionMode):
    """Within it, tensors that are results of others are copied, too, and need no gradient: the trace of the model that
    Pyro's autoguides keep has such tensors, which torch refuses to copy.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
