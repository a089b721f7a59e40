# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of priors and posteriors of latent paths."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_not_negative, check_parts, check_tensor, is_whole
from pyro_vgpds.data.times import Times

__all__ = ["as_times", "check_new_times", "check_prior", "check_shapes"]


def check_prior(kernel: object, latent_dim: int, jitter: float | None) -> None:
    """Raise an error if an argument of a prior is of another kind, or out of its range."""
    check_parts("kernel", kernel, "the value of a kernel, such as RBF()()", "gram", "diag", "is_diagonal")
    if not torch.jit.is_tracing():  # type: ignore[attr-defined]  # in which sizes are tensors
        check_count("latent_dim", latent_dim)
    if jitter is not None:
        check_not_negative("jitter", jitter)


def as_times(times: Times | Tensor) -> Times:
    """Times of one or several sequences in float64, from a tensor (N,) for one sequence."""
    if not isinstance(times, Times):
        check_tensor("times", times)
        if times.dim() != 1 or not len(times):
            raise ValueError(f"times must be (N,), but its shape is {tuple(times.shape)}.")
        times = Times(times)
    return times.in_double


def check_new_times(t: Tensor, sequence: int | None, count: int) -> None:
    """Raise an error if times are not (T,), or there is no such sequence among ``count``."""
    check_tensor("t", t)
    if t.dim() != 1 or not len(t):
        raise ValueError(f"t must be new times (T,), but its shape is {tuple(t.shape)}.")
    if sequence is not None and not (is_whole(sequence) and 0 <= sequence < count):
        raise ValueError(f"sequence must be a whole number from 0 to {count - 1} or None, but got {sequence!r:.80}.")


def check_shapes(shape: torch.Size, **parameters: Tensor) -> None:
    """Raise an error if a parameter is not a tensor of this shape or of batches of it."""
    for name, value in parameters.items():
        check_tensor(name, value, 2)
        if value.shape[-2:] != shape:
            raise ValueError(
                f"{name} must end in {tuple(shape)} = (frames, latent dimensions), "
                f"but its shape is {tuple(value.shape)}."
            )
