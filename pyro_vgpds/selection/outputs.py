# SPDX-License-Identifier: Apache-2.0
"""Outputs of a comparison that are not Gaussian: their likelihood by name, and whether all of them are counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.outputs_start import check_outputs
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.columns import ByColumn
from pyro_vgpds.likelihoods.families import Gaussian, NegativeBinomial
from pyro_vgpds.likelihoods.parse import parse_likelihood
from pyro_vgpds.likelihoods.poisson import Poisson

__all__ = ["LikelihoodLike", "are_counts", "check_likelihood", "meet_likelihood"]

#: a name, or a dictionary from names to columns; plain values, which can be written to a file
LikelihoodLike: TypeAlias = str | dict[str, list[int | str]] | None


def check_likelihood(likelihood: LikelihoodLike) -> Likelihood | None:
    """The likelihood of a name or a dictionary of names; None for Gaussian outputs.

    :raises TypeError: if it is something else.
    :raises ValueError: if a name is unknown, or the columns are wrong.
    """
    if likelihood is None:
        return None
    names = list(likelihood) if isinstance(likelihood, Mapping) else [likelihood]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            "a comparison needs the likelihood by name, such as 'negative-binomial', or a dictionary from names to "
            f"columns, but got {likelihood!r:.80}."
        )
    found = parse_likelihood(likelihood)
    return None if isinstance(found, Gaussian) else found


def meet_likelihood(likelihood: LikelihoodLike, data: Sequences) -> Likelihood | None:
    """The likelihood for data; None for Gaussian outputs.

    :raises ValueError: if an output is not possible, or there is an exposure for each entry.
    """
    found = check_likelihood(likelihood)
    if found is None:
        return None
    check_outputs(found(), data)
    if data.exposure is not None and data.exposure.dim() > 1:
        raise ValueError(
            "auto needs one exposure for each output, (D,), but the data have one for each entry: held-out frames are "
            "predicted without their exposure."
        )
    return found


def are_counts(likelihood: Likelihood) -> bool:
    """Whether all outputs are counts without a limit, for which there are baselines."""
    parts = likelihood.groups if isinstance(likelihood, ByColumn) else [likelihood]
    return all(isinstance(part, NegativeBinomial | Poisson) for part in parts)
