# SPDX-License-Identifier: Apache-2.0
"""How exact the bound is, if the likelihood of the outputs makes it an estimate."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch

from pyro_vgpds.checks import check_callable, check_count, check_seed
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.elbo import Collapsed_ELBO
from pyro_vgpds.mapping.drawn import randomised

__all__ = ["BoundEstimate", "bound_with_spread"]


class BoundEstimate(NamedTuple):
    """The bound from several independent sets of draws.

    >>> from pyro_vgpds.inference import BoundEstimate
    >>> BoundEstimate(-120.3, 0.05, 0.14).value
    -120.3
    """

    value: float  #: the mean over the sets
    standard_error: float  #: of the mean
    spread: float  #: the standard deviation of the bound from one set, as training reports it


def bound_with_spread(
    model: Callable[..., object],
    guide: Callable[..., object],
    data: Sequences,
    *,
    num_sets: int = 8,
    num_draws: int | None = None,
    seed: int = 0,
) -> BoundEstimate:
    """The bound with its standard error.

    The bound of a :class:`~pyro_vgpds.likelihoods.SiteLikelihood`, such as ``Poisson``, is an estimate with a few draws
    of the latent points, which are fixed during training. This evaluates it with other draws. The values show how far
    the bound of training may be from the one with infinitely many draws. For other likelihoods both errors are 0.

    :param model: the model.
    :param guide: its guide.
    :param data: the data that both were trained on.
    :param num_sets: number of independent sets of draws.
    :param num_draws: draws of each latent point in a set, an even number. Default: as many as training uses.
    :param seed: of the sets.
    :raises ValueError: if ``num_sets`` is less than 2, or ``num_draws`` is not even.

    >>> from pyro_vgpds.inference import bound_with_spread
    >>> bound_with_spread(model, guide, data).standard_error  # of Gaussian outputs
    0.0
    """
    check_callable("model", model)
    check_callable("guide", guide)
    check_data(data)
    check_seed(seed)
    check_count("num_sets", num_sets, least=2)
    if num_draws is not None:
        check_count("num_draws", num_draws, least=2)
        if num_draws % 2:
            raise ValueError(f"num_draws must be an even number, as draws come in pairs, but got {num_draws}.")
    state, values = torch.get_rng_state(), []
    for i in range(num_sets):
        torch.set_rng_state(state)  # hyperparameters with priors have the same draws
        with randomised(hash((seed, i)) & 0x7FFFFFFF, num_draws), torch.no_grad():
            values.append(-float(Collapsed_ELBO().loss(model, guide, data)))
    spread = statistics.stdev(values)
    return BoundEstimate(statistics.fmean(values), spread / num_sets**0.5, spread)
