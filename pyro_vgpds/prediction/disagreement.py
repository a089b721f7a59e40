# SPDX-License-Identifier: Apache-2.0
"""The disagreement of an ensemble's members about a new sequence, which tells how large its errors are."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mean_disagreement"]


def mean_disagreement(between: Tensor, scale: Tensor, group: Tensor, hidden: Tensor | None = None) -> Tensor:
    r"""Variances of the members' means as averages over groups of entries, (n,).

    Members agree on a new sequence that is like those of training, and disagree on most entries of an unusual one. A
    single entry says little: a few members can agree there by chance. So the variance

    .. math:: b_i = \sum_k w_k (m_{ki} - m_i)^2

    is replaced by :math:`s_i^2` times the mean of :math:`b_j / s_j^2` over the hidden entries j of the same group.

    :param between: :math:`b_i`, (n,).
    :param scale: :math:`s_i`, the standard deviations of the outputs, (n,).
    :param group: (n,), the number of the sequence that each entry is in.
    :param hidden: a mask (n,) of the entries to average over. Default: all, also for groups without such entries.
    """
    index = group.unique(return_inverse=True)[1]
    relative = between / scale.square()
    part = torch.ones_like(relative) if hidden is None else hidden.to(relative)
    size = torch.bincount(index, part)
    part = torch.where(size[index] > 0, part, 1.0)
    mean = torch.bincount(index, part * relative) / torch.bincount(index, part)
    return scale.square() * mean[index]
