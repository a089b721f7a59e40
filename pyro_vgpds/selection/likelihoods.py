# SPDX-License-Identifier: Apache-2.0
"""Outputs of a comparison that are not Gaussian: their likelihood, as users give it and in files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.kernels import Json
from pyro_vgpds.files.likelihoods import pack_likelihood, unpack_likelihood
from pyro_vgpds.inference.outputs_start import check_outputs
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.columns import ByColumn
from pyro_vgpds.likelihoods.families import Gaussian, NegativeBinomial, StudentT
from pyro_vgpds.likelihoods.names import parse_likelihood
from pyro_vgpds.likelihoods.poisson import Poisson

__all__ = [
    "LikelihoodLike", "are_continuous", "are_counts", "check_likelihood", "check_shared", "is_own", "meet_likelihood",
    "pack_outputs", "parts_of", "unpack_outputs",
]  # fmt: skip

#: a name, a likelihood, or a dictionary from names or likelihoods to columns
LikelihoodLike: TypeAlias = str | Likelihood | Mapping[Any, Any] | None


def check_likelihood(likelihood: LikelihoodLike) -> Likelihood | None:
    """A likelihood that training may change; None for Gaussian outputs.

    :raises TypeError: if it is not a name, a likelihood or a dictionary of them.
    :raises ValueError: if a name is unknown, or the columns are wrong.
    """
    found = None if likelihood is None else copy.deepcopy(parse_likelihood(likelihood))
    return None if isinstance(found, Gaussian) else found


def meet_likelihood(likelihood: LikelihoodLike, data: Sequences, task: str) -> Likelihood | None:
    """The likelihood for data; None for Gaussian outputs.

    :raises ValueError: if an output is not possible, or partly observed frames have exposures of their own.
    """
    found = check_likelihood(likelihood)
    if found is None:
        return None
    check_outputs(found(), data)
    if task == "reconstruct" and data.exposure is not None and data.exposure.dim() > 1:
        raise ValueError(
            "auto(data, 'reconstruct') needs one exposure for each output, (D,), but the data have one for each entry, "
            "and reconstruct has no exposures of new frames."
        )
    return found


def parts_of(likelihood: Likelihood) -> list[Likelihood]:
    """The likelihoods of groups of outputs, or the likelihood of all."""
    return list(likelihood.groups) if isinstance(likelihood, ByColumn) else [likelihood]


def are_counts(likelihood: Likelihood) -> bool:
    """Whether all outputs are counts without a limit."""
    return all(isinstance(part, NegativeBinomial | Poisson) for part in parts_of(likelihood))


def are_continuous(likelihood: Likelihood) -> bool:
    """Whether all outputs are numbers with Gaussian noise or with heavy tails."""
    return all(isinstance(part, Gaussian | StudentT) for part in parts_of(likelihood))


def is_own(likelihood: LikelihoodLike) -> bool:
    """Whether a part of a likelihood is a class of the user, which worker processes do not know."""
    found = check_likelihood(likelihood)
    return found is not None and any(not type(part).__module__.startswith("pyro_vgpds.") for part in parts_of(found))


def check_shared(likelihood: LikelihoodLike, processes: int | None, has_folder: bool) -> None:
    """Check that other processes, and files, can have a likelihood.

    :raises ValueError: if it is a class of the user and there are several processes.
    :raises TypeError: if it cannot be written to the files of a folder.
    """
    if processes is not None and processes > 1 and is_own(likelihood):
        raise ValueError(
            f"processes must be 1 for the likelihood {likelihood!r:.80}: worker processes know those of "
            f"pyro_vgpds.likelihoods only, but got {processes}."
        )
    if has_folder:
        pack_outputs(likelihood)


def pack_outputs(likelihood: LikelihoodLike) -> str | Json | None:
    """A likelihood as JSON; names stay names.

    :raises TypeError: if it is a class that is not registered.
    """
    if likelihood is None or isinstance(likelihood, str):
        return likelihood
    return pack_likelihood(parse_likelihood(likelihood))


def unpack_outputs(content: str | Json | None) -> str | Likelihood | None:
    """The inverse of :func:`pack_outputs`."""
    return content if content is None or isinstance(content, str) else unpack_likelihood(content)
