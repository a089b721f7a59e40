# SPDX-License-Identifier: Apache-2.0
"""Outputs that are not Gaussian, on the command line."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from torch import Tensor

from pyro_vgpds.cli.arguments import given
from pyro_vgpds.cli.errors import UsageError
from pyro_vgpds.likelihoods import parse_likelihood
from pyro_vgpds.likelihoods.base import Likelihood, LikelihoodValue
from pyro_vgpds.likelihoods.families import Gaussian

__all__ = ["likelihood_facts", "likelihood_text", "numbers_text", "read_likelihood"]

_GAUSSIAN = ("--one-noise", "--calibrate", "--noise-factor", "--residual")  # arguments for Gaussian outputs


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
