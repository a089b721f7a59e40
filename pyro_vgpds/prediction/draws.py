# SPDX-License-Identifier: Apache-2.0
r"""Mixtures of a few Gaussians that have the exact mean and variance of a function value.

Given a draw :math:`x_s` of the latent point, f is Gaussian with a mean :math:`m_s` and a variance :math:`v_s`. The
mixture over S draws stands for the distribution of f, but in many latent dimensions a few draws do not have its
moments, and if the :math:`v_s` are small, the mixture has gaps between its components and tails that are cut off. The
exact mean m and variance v of f are known, so with B = v − mean of the :math:`v_s`, the variance that x causes,

.. math:: m_s' = m + \sqrt{\tfrac{B - b}{\mathrm{var}_s(m_s)}} \, (m_s - \bar m), \qquad v_s' = v_s + b,

have these moments for every b. b is 0 if the components overlap. Otherwise each is widened, up to the bandwidth of
Silverman's rule: b = h² B − mean of the :math:`v_s`, if that is positive, with h = 1.06 S^{−1/5}. One more component,
N(m, v), has the tails that draws do not reach.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["with_moments"]

_BANDWIDTH = 1.06  # of Silverman's rule, in standard deviations, times S^(−1/5)


def with_moments(
    centre: Tensor, spread: Tensor, mean: Tensor, variance: Tensor, *, widen: bool = True
) -> tuple[Tensor, Tensor]:
    """Means and variances of the components of a mixture with the given moments, (S + 1, T, F) each.

    :param centre: mean of f given each draw, (S, T, F).
    :param spread: variance of f given each draw, (S, T, F).
    :param mean: of f, (T, F).
    :param variance: of f, (T, F).
    :param widen: close gaps between components, and add the component for the tails; if False, there are S.

    >>> import torch
    >>> from pyro_vgpds.prediction.draws import with_moments
    >>> centre, spread = torch.tensor([[[-1.0]], [[2.0]]]), torch.full((2, 1, 1), 0.1)
    >>> m, v = with_moments(centre, spread, torch.zeros(1, 1), torch.ones(1, 1))
    >>> m.shape, abs(float(m.mean())) < 1e-6, round(float((m.square() + v).mean()), 4)
    (torch.Size([3, 1, 1]), True, 1.0)
    """
    least = torch.finfo(variance.dtype).tiny
    within = spread.mean(0)
    # f given x cannot vary more than f; draws may tell so
    spread = spread * (variance / within.clamp_min(least)).clamp_max(1.0)
    within = torch.minimum(within, variance)
    through = variance - within
    extra = torch.zeros_like(through)
    if widen:
        extra = ((_BANDWIDTH * len(centre) ** -0.2) ** 2 * through - within).clamp_min(0.0)
    centred = centre - centre.mean(0)
    between = centred.square().mean(0)
    scale = ((through - extra) / between.clamp_min(least)).sqrt()
    # without any difference between draws the rest cannot be in their means
    is_known = between > torch.finfo(variance.dtype).eps ** 2 * variance
    extra = torch.where(is_known, extra, through)
    centre, spread = mean + torch.where(is_known, scale, 0.0) * centred, spread + extra
    if not widen:
        return centre, spread
    return torch.cat([centre, mean.unsqueeze(0)]), torch.cat([spread, variance.unsqueeze(0)])
