# SPDX-License-Identifier: Apache-2.0
"""How many independent outputs tell as much as the outputs of data, which change together."""

from __future__ import annotations

import math

import torch

from pyro_vgpds.data.filling import line_between
from pyro_vgpds.data.parts import split_outputs
from pyro_vgpds.data.sequences import Sequences

__all__ = ["independent_outputs"]

_MOST = 1000  # changes, and outputs, that are compared, evenly spaced


def independent_outputs(data: Sequences) -> float:
    r"""The effective number of independent outputs, from 1 to D.

    With the correlations :math:`\rho_{de}` of the n changes between neighbouring frames, it is

    .. math:: \frac{D^2}{D + \max\big(0, \sum_{d \ne e} \rho_{de}^2 - D (D - 1) / n\big)},

    where :math:`D (D - 1) / n` is the sum for independent outputs, by chance. Missing entries are interpolated
    linearly. Outputs that never change do not count. Of more than 1000 outputs, some tell the number, at most 1000.

    :param data: the sequences.
    """
    parts = []
    for t, y in zip(*split_outputs(data), strict=True):
        some = y[:, :: math.ceil(y.shape[1] / _MOST)].double()
        filled = line_between(t, some, some.isfinite())
        parts.append(torch.nan_to_num(filled, nan=0.0).diff(dim=0))
    change = torch.cat(parts)
    change = change[:: max(1, math.ceil(len(change) / _MOST))]
    change = change[:, change.any(0)]
    n, d = change.shape
    if n == 0 or d == 0:
        return 1.0
    unit = change / change.square().mean(0).sqrt()
    gram = unit.mT @ unit if d < n else unit @ unit.mT  # the sum of the squares of their elements is the same
    shared = float((gram / n).square().sum()) - d - d * (d - 1) / n
    return d**2 / (d + max(0.0, shared))
