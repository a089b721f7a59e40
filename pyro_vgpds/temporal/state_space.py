# SPDX-License-Identifier: Apache-2.0
"""The state-space form of a kernel at the times of sequences, compiled if the kernel is known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.kernels.programs import ProgramOf
from pyro_vgpds.temporal import recursions
from pyro_vgpds.temporal.markov_autograd import Frames, frames_of, time_steps, transitions

__all__ = ["CompiledKernel", "StateSpaceForm", "make_state_space", "read_compiled"]


class CompiledKernel(NamedTuple):
    """A kernel whose state-space form compiled code computes."""

    frames: Frames  #: the frames of its program
    tensors: list[Tensor]  #: its parameters


class StateSpaceForm(NamedTuple):
    """The state-space form at the times."""

    a: Tensor  #: (..., K, U, d, d)
    q: Tensor
    step: Tensor  #: (N,)
    h: Tensor  #: (N, d)
    blocks: tuple[int, ...]
    white: Tensor  #: (..., N, K)


def read_compiled(found: ProgramOf | None, times: Times) -> CompiledKernel | None:
    """A kernel whose form is compiled; None for others."""
    t = times.t
    if found is None or not found[0].sizes or t.dtype != torch.float64 or t.requires_grad:
        return None
    if not recursions.is_compiled(t):
        return None
    program, tensors = found
    return CompiledKernel(
        frames_of(times, program), tensors if torch.is_grad_enabled() else [x.detach() for x in tensors]
    )


def _transitions(kernel: KernelValue, times: Times) -> tuple[Tensor, Tensor, Tensor]:
    """A and the covariance of the process noise for each different time step, (..., K, U, d, d), and which of them
    precedes each frame, (N,). At the first frame of a sequence they are zero and the stationary covariance.
    """
    dt, begins, which = time_steps(times)
    begins = begins[:, None, None]
    stationary = kernel.stationary_covariance().double().unsqueeze(-3)
    a = torch.where(begins, 0.0, kernel.transition_matrix(dt).double())
    q = torch.where(begins, stationary, kernel.process_noise(dt).double())
    return a, q, which


def make_state_space(kernel: KernelValue, times: Times, compiled: CompiledKernel | None) -> StateSpaceForm:
    """The state-space form."""
    t = times.t.double()
    white = kernel.white(t)
    white = white.double().mT if isinstance(white, Tensor) else t.new_zeros(1, 1)
    if compiled is not None:
        frames, tensors = compiled
        return StateSpaceForm(*transitions(frames, tensors), frames.step, frames.h, frames.blocks, white)
    h = kernel.observation_model(t)
    if h.requires_grad:
        raise ValueError(
            "observation_model must not depend on parameters or on times that require a gradient. Put scales into "
            "stationary_covariance, or use structure='dense'."
        )
    return StateSpaceForm(*_transitions(kernel, times), h, tuple(kernel.state_blocks()), white)
