# SPDX-License-Identifier: Apache-2.0
"""Gaussian factors of the outputs, moments of the functions, and helpers for outputs with gaps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator

__all__ = ["Moments", "Part", "Sites", "Values", "filled", "observed", "rows_of_all", "spread", "without_outliers"]

_OUTLIERS = 3.0  # distances between the quartiles, beyond which an output does not count more
_MOST = 1 << 24  # numbers that processes send each other for the quartiles of the outputs
_NEIGHBOURS = 2  # frames on each side that tell whether it is an outlier

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
    """The standard deviation of each column (N, D) without outliers, (D,), positive."""
    kept = without_outliers(y)
    found = (kept - kept.nanmean(0)).square().nanmean(0).sqrt()
    return torch.where(found > 0.0, found, 1.0)


def rows_of_all(y: Tensor, communicator: Communicator) -> Tensor:
    """The rows of all processes; if they are very many, some of them at equal distances.

    :param y: those of this process, (n, D).
    """
    if communicator.size == 1:
        return y
    numbers = sum(communicator.all_gather(y.numel()))
    return communicator.all_gather_rows(y[:: -(-numbers // _MOST)])


def without_outliers(y: Tensor, communicator: Communicator = SINGLE_PROCESS) -> Tensor:
    """Outputs (N, D) of which those far from the others of the column are moved to the edge.

    Most of five neighbouring frames cannot be outliers: if they are far from the others on the same side, that is what
    the output does, such as one that is constant most of the time.

    :param y: outputs, NaN if they were not observed.
    :param communicator: the processes that have the rows together, and share the quartiles.
    """
    low, high = torch.nanquantile(rows_of_all(y, communicator), y.new_tensor([0.25, 0.75]), 0)
    reach = _OUTLIERS * (high - low)
    low, high = low - reach, high + reach
    far = (reach > 0.0) & ((y < low) | (y > high))
    columns = far.any(0).nonzero().flatten()
    if not len(columns):
        return y
    some, low, high = y[:, columns], low[columns], high[columns]
    edge = some.new_full((_NEIGHBOURS, len(columns)), torch.nan)
    windows = torch.cat([edge, some, edge]).unfold(0, 2 * _NEIGHBOURS + 1, 1)
    usual = windows.nanmedian(-1).values
    kept = torch.where(usual > high, torch.inf, high), torch.where(usual < low, -torch.inf, low)
    result = y.clone()
    result[:, columns] = torch.where(far[:, columns], torch.maximum(torch.minimum(some, kept[0]), kept[1]), some)
    return result


def observed(y: Tensor) -> tuple[Tensor, Tensor]:
    """1 for outputs that were observed and 0 for others, and the outputs with 0 in place of those others.

    :param y: outputs, NaN if they were not observed.
    """
    return torch.nan_to_num(0.0 * y + 1.0, nan=0.0), torch.nan_to_num(y, nan=0.0)  # isfinite takes twice as long


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
