# SPDX-License-Identifier: Apache-2.0
"""Baselines of outputs that are not Gaussian in a comparison: which there are, and their likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from pyro_vgpds.baselines import OutputBaseline
from pyro_vgpds.baselines.counts import COUNT_RULES, common_period, join_components
from pyro_vgpds.baselines.output_baseline import OUTPUT_BASELINES
from pyro_vgpds.baselines.output_fitting import HeldOutMeans, fit_likelihood, is_fitted
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import HeldOut, Split
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.prediction.baseline_predictions import ComponentPrediction
from pyro_vgpds.selection.distributions import describe_distribution
from pyro_vgpds.selection.likelihoods import are_counts

__all__ = ["fit_to_held_out", "known_output_baselines", "propose_output_baselines"]


def known_output_baselines(likelihood: Likelihood) -> list[str]:
    """Names of the baselines for outputs that are not all continuous; none for a likelihood of the user."""
    if are_counts(likelihood):
        return list(COUNT_RULES)
    return [name for name in OUTPUT_BASELINES if name not in COUNT_RULES] if is_fitted(likelihood) else []


def propose_output_baselines(data: Sequences, task: str, likelihood: Likelihood) -> list[str]:
    """Those that suit the data and the task, the cheapest first."""
    names = known_output_baselines(likelihood)
    if not are_counts(likelihood):
        return names
    if common_period(data) is None:
        return [name for name in names if name != "common cycle"]
    # the others are good out of season only, which no weight can express
    return ["common cycle"] if task == "forecast" else names


def fit_to_held_out(predictors: Sequence[OutputBaseline], splits: Sequence[Split]) -> tuple[Likelihood, HeldOut]:
    """The likelihood under which all held-out outputs are most likely, and the predictions with it.

    :param predictors: one baseline, trained on each split.
    """
    pairs = list(zip(splits, predictors, strict=True))
    every = [cast("list[ComponentPrediction]", split.outputs(baseline)) for split, baseline in pairs]
    truth = [torch.cat(split.truth) for split in splits]
    hidden = [part.isfinite() for part in truth]
    means = [_exposed_means(found)[:, at] for found, at in zip(every, hidden, strict=True)]
    held_out = HeldOutMeans(
        torch.cat([part[at] for part, at in zip(truth, hidden, strict=True)]).cpu(),
        join_components(means).cpu(),
        torch.cat([at.nonzero()[:, 1] for at in hidden]).cpu(),
        predictors[0].data.output_scales.cpu(),
    )
    likelihood = fit_likelihood(predictors[0].likelihood.likelihood, held_out)
    likelihood.meet(predictors[0].num_outputs)
    parts = []
    for split, found in zip(splits, every, strict=True):
        fitted = [part.with_outputs(likelihood().detached().exposed_like(part.outputs)) for part in found]
        parts.append(describe_distribution(split, fitted))
    return likelihood, HeldOut.join(parts)


def _exposed_means(found: Sequence[ComponentPrediction]) -> Tensor:
    """Means (K, T, D) of the components, with the exposures of the frames."""
    means = [part.outputs.moments(part.outputs.link(part.means))[0] for part in found]
    return join_components(means)
