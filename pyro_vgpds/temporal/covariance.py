# SPDX-License-Identifier: Apache-2.0
"""The interface of all forms of K_t (dense, diagonal, Markov): the products, factors and posteriors of q(X)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.kernels.programs import ProgramOf, read_program
from pyro_vgpds.temporal.path_gradients import DiagonalPath, MarkovPath
from pyro_vgpds.temporal.path_reader import KernelReader
from pyro_vgpds.temporal.paths import GaussianPath

__all__ = ["PathMoments", "Predictor", "TemporalCovariance"]

#: new times (T,) of one sequence, in any order ↦ q(X*)
Predictor: TypeAlias = Callable[[Tensor], GaussianPath]


class PathMoments(NamedTuple):
    """The moments of q(X), and what its KL divergence needs besides."""

    mu: Tensor  #: μ = K mean_bar = S η, (..., N, Q)
    s: Tensor  #: the diagonal of S, (..., N, Q)
    mean_bar: Tensor  #: K⁻¹ μ = η − λμ, (..., N, Q)
    logdet: Tensor  #: log|B| with B = I + √λ K √λ, summed over sequences, (..., Q)


class TemporalCovariance(ABC):
    r"""K_t = k_x(t, t), block-diagonal over sequences, and the posterior covariance S = (K_t⁻¹ + Λ)⁻¹.

    N is the number of frames of all sequences and Q that of latent dimensions. K is 1 if the latent dimensions share
    one kernel, else Q. λ ≥ 0 (..., N, Q) are precisions of Gaussian sites, Λ = diag λ. No form inverts or factorises
    S: with r = √λ and B = I + r K r, whose eigenvalues are at least 1, S = K − K r B⁻¹ r K.

    Only :meth:`correlate`, :meth:`uncorrelate`, :meth:`whiten` and :meth:`inverse_diag` factorise K_t itself, and so
    only they add jitter.

    :param kernel: a temporal kernel's value.
    :param times: the times of all sequences.
    :param jitter: added to the diagonal of K_t when it is factorised. None: :func:`~pyro_vgpds.linalg.default_jitter`.
    :param program: the kernel as a program, if it was read before.
    """

    #: the structure's name, such as ``"dense"``
    name: ClassVar[str]

    def __init__(
        self, kernel: KernelValue, times: Times, jitter: float | None, program: ProgramOf | None = None
    ) -> None:
        self.kernel, self.times, self.jitter = kernel, times, jitter
        self.program = read_program(kernel) if program is None else program

    @property
    def num_kernels(self) -> int:
        """K."""
        return self.diag().shape[-1]

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size:
        """The batch shape of the kernel's parameters."""

    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that determine K_t."""

    def equals(self, other: TemporalCovariance) -> bool:
        """Whether both are the same matrix in the same form."""
        if self is other:
            return True
        if (self.name, self.times.lengths) != (other.name, other.times.lengths):
            return False
        return all(torch.equal(a, b) for a, b in zip(self.tensors(), other.tensors(), strict=True))

    # the prior

    @abstractmethod
    def diag(self) -> Tensor:
        """The diagonal of K_t, (..., N, K)."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """K_t, (..., K, N, N), zero between sequences."""

    @abstractmethod
    def matmul(self, v: Tensor) -> Tensor:
        """K_t v, (..., N, Q)."""

    @abstractmethod
    def correlate(self, noise: Tensor) -> Tensor:
        """L ε, (..., N, Q), with L Lᵀ = K_t: a draw of the prior from standard normal noise ε."""

    @abstractmethod
    def uncorrelate(self, x: Tensor) -> Tensor:
        """L⁻¹ x, (..., N, Q): the inverse of :meth:`correlate`."""

    @abstractmethod
    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x·K_t⁻¹ x and log|K_t|, each (..., Q)."""

    @abstractmethod
    def inverse_diag(self) -> Tensor:
        """The diagonal of K_t⁻¹, (..., N, K)."""

    # the posterior

    @abstractmethod
    def posterior(self, mean_bar: Tensor, lam: Tensor) -> PathMoments:
        """The moments of q(X) with μ = K_t mean_bar."""

    @abstractmethod
    def posterior_from_natural(self, eta: Tensor, lam: Tensor) -> PathMoments:
        """The moments of q(X) with μ = S η. Their gradients keep η and λ fixed, so that μ depends on the kernel."""

    def markov_path(self, eta: Tensor, lam: Tensor) -> MarkovPath | None:
        """The same with its gradients and without a graph; None if they need autograd."""
        return None

    def diagonal_path(self, mean_bar: Tensor, log_lam: Tensor) -> DiagonalPath | None:
        """The moments of q(X) with μ = K_t mean_bar in the same way, for parameters mean_bar and log λ."""
        return None

    def path_reader(self, kernel: nn.Module) -> KernelReader | None:
        """Makes :meth:`markov_path` or :meth:`diagonal_path` at later values of the parameters; None if that needs the
        whole of K_t.
        """
        return None

    @abstractmethod
    def posterior_matrix(self, lam: Tensor) -> Tensor:
        """S, (..., Q, N, N), zero between sequences."""

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        """S of the frames ``rows`` (T,), (..., Q, T, T)."""
        return self.posterior_matrix(lam)[..., rows, :][..., rows]

    @abstractmethod
    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        """K_t r B⁻¹ v = S r v, (..., N, Q)."""

    def posterior_draw(self, lam: Tensor, shape: torch.Size) -> Tensor:
        """Draws of N(0, S), ``shape`` + (N, Q), by Matheron's rule.

        A draw f of the prior is corrected by pseudo-observations of it with noise 1/λ: f − K r B⁻¹ (r f + ε).
        """
        k = self.diag()
        draw = self.correlate(torch.randn(shape + lam.shape[-2:], dtype=k.dtype, device=k.device))
        return draw - self.gain(lam, lam.sqrt() * draw + torch.randn_like(draw))

    def posterior_path(self, moments: PathMoments, lam: Tensor, rows: Tensor) -> GaussianPath:
        """q(X) of the frames ``rows`` (T,) as a distribution, from the moments of all frames."""
        return GaussianPath(
            moments.mu[..., rows, :],
            moments.s[..., rows, :].clamp_min(0.0),
            lambda: self.posterior_block(lam, rows),
            lambda shape: self.posterior_draw(lam, shape)[..., rows, :],
        )

    @abstractmethod
    def predictor(self, sequence: int, mean_bar: Tensor, lam: Tensor) -> Predictor | None:
        r"""q(X*) of one sequence as a function of new times, with everything prepared that all times share.

        .. math:: \mu_* = K_{*N} \bar\mu, \qquad \Sigma_* = K_{**} - K_{*N} (K_t + \Lambda^{-1})^{-1} K_{N*}

        White noise is part of :math:`K_{**}` only. None if :math:`K_{*N} = 0`: then q(X*) is the prior.
        """
