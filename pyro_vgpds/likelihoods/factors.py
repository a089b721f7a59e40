# SPDX-License-Identifier: Apache-2.0
"""Gaussian factors of the outputs, moments of the functions, and helpers for outputs with gaps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["Moments", "Part", "Sites", "Values", "filled", "spread"]


#: the values of a likelihood's parameters, as attributes
Values: TypeAlias = SimpleNamespace


class Sites(NamedTuple):
    """A Gaussian factor exp(linear f − ½ weight f² + constant) for each function value, (N, F) each.

    All three are zero for entries that were not observed.
    """

    weight: Tensor
    linear: Tensor
    constant: Tensor


class Moments(NamedTuple):
    """E f and E f² of each function value, and E of the first two derivatives of log p in it, (N, F) each.

    The derivatives are None if nothing has computed them yet.
    """

    mean: Tensor
    square: Tensor
    slope: Tensor | None = None
    curvature: Tensor | None = None


class Part(NamedTuple):
    """The likelihood of some outputs, the values of its parameters, and the outputs' indices (None: all)."""

    likelihood: Any
    parameters: Values
    outputs: Tensor | None

    def columns(self, num_outputs: int) -> Tensor:
        """The indices of the outputs, (d,).

        :param num_outputs: D, of all.
        """
        return torch.arange(num_outputs) if self.outputs is None else self.outputs

    def functions(self, num_outputs: int, num_functions: int) -> Tensor:
        """The indices of their functions among all functions, (d · P,).

        :param num_outputs: D, of all.
        :param num_functions: for each output; it may be more than this likelihood needs.
        """
        first = num_functions * self.columns(num_outputs).unsqueeze(-1)
        return (first + torch.arange(self.likelihood.num_functions, device=first.device)).flatten()


def spread(y: Tensor) -> Tensor:
    """A robust standard deviation of each column (N, D), (D,), positive: the middle half of a Gaussian's values."""
    quartiles = torch.nanquantile(y, y.new_tensor([0.25, 0.75]), 0)
    robust = (quartiles[1] - quartiles[0]) / 1.349
    centred = y - y.nanmean(0)
    plain = centred.square().nanmean(0).sqrt()
    found = torch.where(robust > 1e-3 * plain, robust, plain)
    return torch.where(found > 0.0, found, 1.0)


def filled(y: Tensor) -> Tensor:
    """``y`` (N, D) with a possible value in entries that were not observed: the first that was observed in the column.

    A column in which nothing was observed gets one of another column.
    """
    seen = torch.isfinite(y)
    if bool(seen.all()):
        return y
    first = y.gather(-2, seen.to(torch.uint8).argmax(-2, keepdim=True))
    known = first[torch.isfinite(first)]
    first = torch.where(torch.isfinite(first), first, known[0] if len(known) else torch.zeros_like(first))
    return torch.where(seen, y, first)
