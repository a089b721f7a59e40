# SPDX-License-Identifier: Apache-2.0
"""Options that stand for objects: the likelihood of a model, and the noise and the residuals of predictions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from pyro_vgpds.cli.arguments import given, positive
from pyro_vgpds.cli.errors import CommandError, UsageError
from pyro_vgpds.cli.model_file import ModelFile
from pyro_vgpds.inference.data_checks import check_dated
from pyro_vgpds.kernels import Kernel, parse_kernel
from pyro_vgpds.likelihoods import parse_likelihood
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.families import Gaussian, StudentT
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.fitted import predict_with
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.posterior_mixture import PosteriorMixture

__all__ = [
    "add_options", "likelihood_facts", "likelihood_text", "numbers_text", "read_kernel", "read_likelihood",
    "single_only", "with_options", "with_posterior_options",
]  # fmt: skip

_GAUSSIAN = ("--one-noise", "--calibrate", "--noise-factor")  # arguments for Gaussian outputs


def add_options(parser: argparse.ArgumentParser, which: str) -> None:
    """:param which: the end of the help texts, such as "of single models only"."""
    group = parser.add_argument_group("noise of predictions")
    group.add_argument(
        "--noise-factor",
        type=positive,
        metavar="F",
        help="predict with F times the noise variance of training: above 1, observed values get less weight and "
        f"intervals are wider; {which}. Default: 1",
    )
    group.add_argument(
        "--residual",
        metavar="KERNEL",
        help="temporal kernel of what the mapping does not explain, written as for fit --temporal: "
        '"bias(variance=1)+white(variance=1)" for an offset of each output that is constant over a sequence, '
        f'"matern32(lengthscale=5)+white(variance=1)" for one that drifts; {which}. Default: that of the model; '
        "fit chooses one if entries are missing and hidden ones are predicted better with it",
    )


def read_kernel(text: str | None, argument: str, parse: Callable[[str], Kernel] = parse_kernel) -> Kernel | None:
    """:raises UsageError: that names the argument."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise UsageError(f"{argument}: {error}") from None


def single_only(args: argparse.Namespace, trained: ModelFile, *names: str) -> None:
    """Raise a UsageError if one of these arguments is given for an ensemble."""
    if isinstance(trained.posterior, Ensemble) and (found := given(args, names)):
        raise UsageError(
            f"{found[0]} requires a single model, but {trained.path} has an ensemble. Train with fit --quick, without "
            "--calibrate."
        )


def with_options(args: argparse.Namespace, trained: ModelFile) -> ModelFile:
    """The same models with the noise of ``--noise-factor`` and the residuals of ``--residual``."""
    single_only(args, trained, "--noise-factor", "--residual")
    found = trained.posterior
    if isinstance(found, Posterior):
        return replace(trained, posterior=with_posterior_options(args, found))
    if isinstance(found, PosteriorMixture):
        members = [with_posterior_options(args, one) for one in found.posteriors]
        return replace(trained, posterior=PosteriorMixture(members, found.weights.tolist()))
    return trained


def with_posterior_options(args: argparse.Namespace, posterior: Posterior) -> Posterior:
    """
    :raises UsageError: if a value is wrong.
    :raises CommandError: if the kernel cannot be the residuals' kernel of these times.
    """
    residual = read_kernel(args.residual, "--residual")
    if args.noise_factor is None and residual is None:
        return posterior
    if posterior.likelihood is not None:
        likelihood = posterior.likelihood.likelihood
        if args.noise_factor is not None:
            raise UsageError(f"--noise-factor needs Gaussian outputs, but the likelihood is {likelihood}.")
        if not isinstance(likelihood, StudentT):
            raise UsageError(f"--residual needs Gaussian or Student-t outputs, but the likelihood is {likelihood}.")
    origin = posterior.origin
    noise = origin.noise_variance if args.noise_factor is None else args.noise_factor * posterior.noise_variance
    try:
        if residual is not None:
            check_dated(residual, posterior.data, "residual")
        return predict_with(posterior, noise_variance=noise, residual=origin.residual if residual is None else residual)
    except (ValueError, TypeError) as error:
        raise CommandError(f"--residual: {error}" if residual is not None else f"--noise-factor: {error}") from None


def read_likelihood(args: argparse.Namespace) -> Likelihood | None:
    """The likelihood of ``--likelihood``; None for Gaussian outputs, which some arguments need."""
    if args.likelihood is None:
        return None
    try:
        likelihood = parse_likelihood(args.likelihood)
    except ValueError as error:
        raise UsageError(f"--likelihood: {error}") from None
    if isinstance(likelihood, Gaussian):
        return None
    if names := given(args, _GAUSSIAN):
        raise UsageError(f"{names[0]} needs Gaussian outputs, but got --likelihood {args.likelihood}.")
    if given(args, ("--residual",)) and not isinstance(likelihood, StudentT):
        raise UsageError(f"--residual needs Gaussian or Student-t outputs, but got --likelihood {args.likelihood}.")
    return likelihood


def likelihood_facts(value: LikelihoodValue) -> dict[str, Any]:
    """Name, parameters and options of a likelihood at its parameters, as JSON."""
    likelihood = value.likelihood
    found = {name: getattr(value.parameters, name) for name in likelihood.parameter_names}
    options = {name: getattr(likelihood, name) for name in likelihood.option_names}
    return {
        "kind": type(likelihood).__name__,
        "text": likelihood_text(value),
        **{
            name: part.detach().flatten().tolist()
            for name, part in (found | options).items()
            if isinstance(part, Tensor)
        },
    }


def likelihood_text(value: LikelihoodValue) -> str:
    """A likelihood and its parameters in short form."""
    likelihood = value.likelihood
    parts = []
    for name in (*likelihood.parameter_names, *likelihood.option_names):
        number = getattr(value.parameters, name, getattr(likelihood, name, None))
        if not isinstance(number, Tensor):  # with likelihoods inside
            return repr(likelihood)
        fixed = " (fixed)" if name in likelihood.parameter_names and likelihood.is_fixed(name) else ""
        parts.append(f"{name} {numbers_text(number.detach().flatten().cpu().numpy())}{fixed}")
    return ", ".join([type(likelihood).__name__, *parts])


def numbers_text(values: np.ndarray) -> str:
    """A few numbers, or the range of many."""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    if len(values) <= 6:
        return ", ".join(f"{value:.4g}" for value in values)
    return f"{values.min():.4g} to {values.max():.4g}, median {np.median(values):.4g}, one per output"
