# SPDX-License-Identifier: Apache-2.0
"""Which form K_t is computed in: dense, diagonal or Markov."""

from __future__ import annotations

import torch

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.kernels.programs import ProgramOf
from pyro_vgpds.temporal import recursions, tiles
from pyro_vgpds.temporal.chains import UNROLLED
from pyro_vgpds.temporal.covariance import TemporalCovariance
from pyro_vgpds.temporal.dense import DenseCovariance
from pyro_vgpds.temporal.diagonal import DiagonalCovariance
from pyro_vgpds.temporal.markov import MarkovCovariance

__all__ = ["STRUCTURES", "check_structure", "choose_structure", "make_covariance"]

#: the structures that a user can choose
STRUCTURES = ("dense", "markov")
_FORMS: tuple[type[TemporalCovariance], ...] = (DenseCovariance, DiagonalCovariance, MarkovCovariance)
# Number of frames from which Markov is faster (measured): a minimum, and frames for each number of the state. The
# squared lengths of several sequences add up. Compiled kernels with unrolled or tiled loops pay off first, and the
# scans, which replace the compiled loops, last.
_PROGRAM_FRAMES = (0, 3)
_TILED_FRAMES = (100, 6)
_COMPILED_FRAMES = (100, 10)
_SCAN_FRAMES = (400, 120)


def check_structure(structure: str | None, kernel: KernelValue) -> None:
    """Raise a ValueError if ``structure`` is unknown, or if ``kernel`` does not have it."""
    if structure is not None and not (isinstance(structure, str) and structure in STRUCTURES):
        raise ValueError(f"structure must be one of {', '.join(map(repr, STRUCTURES))} or None, but got {structure!r}.")
    if structure == "markov" and kernel.state_dim is None:
        raise ValueError(
            "structure='markov' needs a kernel with a state-space form: Matern12, Matern32, Matern52, Linear, Bias, "
            "White, Periodic (unless its lengthscale is tiny), MarkovRBF, and their sums and products. MarkovRBF "
            "approximates an RBF; with any other kernel use structure=None."
        )


def choose_structure(kernel: KernelValue, times: Times, structure: str | None, program: ProgramOf | None = None) -> str:
    """``"diagonal"``, ``"markov"`` or ``"dense"``: the requested one, or the fastest that the kernel has."""
    check_structure(structure, kernel)
    if kernel.is_diagonal:
        return "diagonal"
    if structure is not None:
        return structure
    blocks = program[0].blocks if program is not None and program[0].sizes else None
    d = kernel.state_dim if blocks is None else len(blocks)
    if d is None:
        return "dense"
    least, each = _least_frames(kernel, times, blocks)
    if sum(n * n for n in times.lengths) < max(least, each * d) ** 2:
        return "dense"
    return "markov"


def _least_frames(kernel: KernelValue, times: Times, blocks: tuple[int, ...] | None) -> tuple[int, int]:
    """The frames from which Markov is faster, for a kernel that is a program of these blocks or, with None, is not."""
    if not recursions.is_compiled(times.t) or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return _SCAN_FRAMES  # a trace would not see the loops
    if blocks is None:
        return _TILED_FRAMES if tiles.fits(tuple(kernel.state_blocks())) else _COMPILED_FRAMES
    return _PROGRAM_FRAMES if len(blocks) <= UNROLLED or tiles.fits(blocks) else _COMPILED_FRAMES


def make_covariance(
    kernel: KernelValue, times: Times, jitter: float | None, structure: str | None, program: ProgramOf | None = None
) -> TemporalCovariance:
    """K_t of a kernel in the requested or the fastest form."""
    name = choose_structure(kernel, times, structure, program)
    if name == "markov" and torch.jit.is_tracing():  # type: ignore[attr-defined]  # public, but not in __all__
        raise RuntimeError(
            "torch.jit (JitTrace_ELBO) cannot trace the Markov form of the temporal kernel. Give the model "
            "structure='dense', or use an ELBO without Jit."
        )
    return next(form for form in _FORMS if form.name == name)(kernel, times, jitter, program)
