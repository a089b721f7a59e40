# SPDX-License-Identifier: Apache-2.0
"""How much each held-out error counts, if some parts of the data are much harder to predict than others."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.selection.weights import simplex_minimum

__all__ = ["entry_importance"]

_RESAMPLES = 64
_MANY = 100  # groups to predict from which their squared errors are simply added
_STEPS = 30
_LEAST = 0.01  # of the mean squared error, which is added to that of each resample: a constant part has no errors


def entry_importance(errors: Tensor, group: Tensor, count: int) -> Tensor:
    r"""Factors (n,) of squared errors, with mean 1, under which large errors of a few groups do not decide alone.

    What will be predicted has a few groups of entries only, such as a single origin of a forecast. It may be a quiet
    time, although a stormy one decides the sum of squared held-out errors. So the weights w of candidates minimise the
    mean logarithm of the squared error of resamples b of ``count`` groups,

    .. math:: \frac1B \sum_b \log w^\top G_b w, \qquad G_b = \frac{1}{n_b} \sum_{g \in b} \sum_{i \in g} e_i e_i^\top,

    with the errors e of all candidates. A hundredth of the mean squared error of the best candidate is added to each
    :math:`w^\top G_b w`, because constant parts of the data can be predicted without errors. Each logarithm is bounded
    by its tangent, so that w is found by repeated minimisation of a sum of squares in which group g has the factor
    :math:`\sum_{b \ni g} 1 / (n_b\, w^\top G_b w)`. These factors are the result.

    :param errors: (n, candidates), in comparable units.
    :param group: (n,), the number of each entry's group.
    :param count: the number of groups that will be predicted.
    """
    errors, group = errors.to("cpu", torch.float64), group.cpu()
    names, index = group.unique(return_inverse=True)
    if len(names) < 2 or count >= _MANY:
        return torch.ones(len(errors), dtype=torch.float64)
    size = torch.bincount(index).double()
    k = errors.shape[1]
    gram = torch.zeros(len(names), k, k, dtype=torch.float64)
    for i in range(k):
        gram[:, i].index_add_(0, index, errors[:, i : i + 1] * errors)
    member = _resamples(len(names), count)
    member = member / (member @ size).unsqueeze(-1)
    least = _LEAST * float(gram.sum(0).diagonal().min()) / float(size.sum()) + 1e-300
    best: tuple[float, Tensor] | None = None
    for start in (gram.sum(0), (gram / (torch.einsum("gii->g", gram) + least * size)[:, None, None]).sum(0)):
        weights = simplex_minimum(start.unsqueeze(0))[0]
        for _ in range(_STEPS):
            error = member @ torch.einsum("i,gij,j->g", weights, gram, weights) + least
            factor = member.mT @ error.reciprocal()
            moved = simplex_minimum(torch.einsum("g,gij->ij", factor, gram).unsqueeze(0))[0]
            done = bool((moved - weights).abs().max() < 1e-5)
            weights = moved
            if done:
                break
        error = member @ torch.einsum("i,gij,j->g", weights, gram, weights) + least
        value = float(error.log().mean())
        if best is None or value < best[0]:
            best = value, member.mT @ error.reciprocal()
    assert best is not None
    factor = best[1][index]
    return factor / factor.mean()


def _resamples(groups: int, count: int) -> Tensor:
    """How often each group is in each resample, (B, groups); each group is a resample if one group is predicted."""
    if count == 1:
        return torch.eye(groups, dtype=torch.float64)
    drawn = torch.randint(groups, (_RESAMPLES, count), generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.one_hot(drawn, groups).sum(1).double()
