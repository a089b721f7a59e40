# SPDX-License-Identifier: Apache-2.0
r"""The latent path as Pyro distributions: the temporal GP prior p(X given t) and the posterior q(X).

q(X) has the form that every stationary point of the bound has (Opper and Archambeau 2009; the paper's section 2.2):

.. math:: \mu_q = K_t \bar\mu_q, \qquad S_q = (K_t^{-1} + \mathrm{diag}\,\lambda_q)^{-1}.

Nothing here inverts or factorises K_t or S. With r = √λ and B = I + r K r, whose eigenvalues are at least 1,
S = K − K r B⁻¹ r K and KL = ½ (log|B| + mean_bar·μ − λ·diag S).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import MultivariateNormal, TorchDistribution, constraints
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Independent, Normal, register_kl

from pyro_vgpds import recursions
from pyro_vgpds.expandable import Expandable
from pyro_vgpds.kernels.base import KernelValue
from pyro_vgpds.linalg import cholesky
from pyro_vgpds.markov import MarkovCovariance, Moments
from pyro_vgpds.times import Times

__all__ = ["STRUCTURES", "GaussianPath", "OpperArchambeau", "Rows", "TemporalGP"]

#: what K_t can be computed as
STRUCTURES = ("dense", "markov")
# Frames from which on Markov is the faster form (measured): at least, and for each number of the state. Of several
# sequences the squared lengths add up. The scans, which stand in for the compiled loops, pay off later.
_COMPILED_FRAMES = (100, 10)
_SCAN_FRAMES = (400, 120)


class DenseCovariance:
    """K_t as one dense block a sequence, (..., K, B, n, n) for each batch of B sequences of similar length."""

    name = "dense"

    def __init__(self, kernel: KernelValue, times: Times, jitter: float | None) -> None:
        self.kernel, self.times, self.jitter = kernel, times, jitter
        self.blocks = [kernel.gram(batch.t) for batch in times.batches]
        self._factors: list[Tensor] | None = None

    @property
    def batch_shape(self) -> torch.Size:
        return self.blocks[0].shape[:-4]

    def equals(self, other: Any) -> bool:
        return self is other or (
            isinstance(other, DenseCovariance)
            and self.times.lengths == other.times.lengths
            and all(torch.equal(a, b) for a, b in zip(self.blocks, other.blocks, strict=True))
        )

    def diag(self) -> Tensor:
        return self.times.join([block.diagonal(dim1=-2, dim2=-1) for block in self.blocks])

    def matrix(self) -> Tensor:
        return self.times.block_diagonal(self.blocks)

    def matmul(self, v: Tensor) -> Tensor:
        parts = zip(self.blocks, self.times.split(v), strict=True)
        return self.times.join([_matvec(block, part) for block, part in parts])

    def factors(self) -> list[Tensor]:
        """Cholesky factors of the jittered blocks; padding is the identity."""
        if self._factors is None:
            blocks = [batch.mask_block(block) for batch, block in zip(self.times.batches, self.blocks, strict=True)]
            self._factors = [cholesky(block, "the temporal covariance K_t", self.jitter) for block in blocks]
        return self._factors

    def correlate(self, noise: Tensor) -> Tensor:
        """Standard normal noise (..., N, Q) with this covariance."""
        parts = zip(self.factors(), self.times.split(noise), strict=True)
        return self.times.join([_matvec(factor, part) for factor, part in parts])

    def uncorrelate(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`correlate`."""
        parts = []
        for factor, part in zip(self.factors(), self.times.split(x), strict=True):
            factor = factor.expand(torch.broadcast_shapes(factor.shape[:-2], part.shape[:-1]) + factor.shape[-2:])
            part = part.unsqueeze(-1).expand(factor.shape[:-1] + (1,))
            parts.append(torch.linalg.solve_triangular(factor, part, upper=False).squeeze(-1))
        return self.times.join(parts)

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Squared Mahalanobis norm and log-determinant, each (..., Q)."""
        square = self.uncorrelate(x).square().sum(-2)
        logdet = [2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1)) for factor in self.factors()]
        return square, torch.stack(logdet).sum(0)

    def inverse_diag(self) -> Tensor:
        """The diagonal of K_t⁻¹, (..., N, K)."""
        return self.times.join([torch.cholesky_inverse(factor).diagonal(dim1=-2, dim2=-1) for factor in self.factors()])

    def posterior(self, shift: Tensor, lam: Tensor, natural: bool = False) -> Moments:
        """``shift`` is mean_bar, of which μ = K mean_bar, or with ``natural`` η = S⁻¹μ."""
        parts = zip(self.blocks, self.times.split(shift), self.times.split(lam), strict=True)
        results = [_Posterior.apply(*part, natural) for part in parts]
        mu, s, mean_bar, logdet = (list(x) for x in zip(*results, strict=True))
        join = self.times.join
        return Moments(join(mu), join(s), join(mean_bar), torch.stack([d.sum(-1) for d in logdet]).sum(0))

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        """S, (..., Q, N, N), zero between sequences."""
        blocks = []
        for block, part in zip(self.blocks, self.times.split(lam), strict=True):
            v = torch.linalg.solve_triangular(_factor_b(block, part), _root(part).unsqueeze(-1) * block, upper=False)
            blocks.append(block - v.mT @ v)
        return self.times.block_diagonal(blocks)

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        """S of some frames, (..., Q, T, T)."""
        return self.posterior_matrix(lam)[..., rows, :][..., rows]

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        """K r B⁻¹ v, (..., N, Q): what Matheron's rule takes off a draw of the prior."""
        parts = []
        for block, rate, part in zip(self.blocks, self.times.split(lam), self.times.split(v), strict=True):
            solved = torch.cholesky_solve(part.unsqueeze(-1), _factor_b(block, rate)).squeeze(-1)
            parts.append(_matvec(block, _root(rate) * solved))
        return self.times.join(parts)

    def forecast(self, q: OpperArchambeau, t: Tensor, sequence: int) -> GaussianPath:
        """q(X*) at new times of a sequence; the factor of its B is made once and kept by ``q``."""
        rows = self.times.slices()[sequence]
        old, rate = self.times.t[rows], q.lam[..., rows, :].mT  # (..., Q, n)
        if sequence not in q.kept:
            q.kept[sequence] = _factor_b(self.kernel.gram(old), rate)
        cross = self.kernel.gram(old, t)  # (..., K, n, T): without white noise, also where a time is the same
        mean = cross.mT @ q.mean_bar[..., rows, :].mT.unsqueeze(-1)
        v = torch.linalg.solve_triangular(q.kept[sequence], _root(rate).unsqueeze(-1) * cross, upper=False)
        variance = (self.kernel.diag(t) - v.square().sum(-2)).clamp_min(0.0)
        return GaussianPath(mean.squeeze(-1).mT, variance.mT, lambda: self.kernel.gram(t) - v.mT @ v)


class DiagonalCovariance:
    """K_t of a kernel that is white noise: everything is O(N)."""

    name = "diagonal"

    def __init__(self, kernel: KernelValue, times: Times, jitter: float | None) -> None:
        self.times = times
        self.k = kernel.diag(times.t).mT  # (..., N, K)

    @property
    def batch_shape(self) -> torch.Size:
        return self.k.shape[:-2]

    def equals(self, other: Any) -> bool:
        return self is other or (isinstance(other, DiagonalCovariance) and torch.equal(self.k, other.k))

    def diag(self) -> Tensor:
        return self.k

    def matrix(self) -> Tensor:
        return torch.diag_embed(self.k.mT)

    def matmul(self, v: Tensor) -> Tensor:
        return self.k * v

    def correlate(self, noise: Tensor) -> Tensor:
        return self.k.sqrt() * noise

    def uncorrelate(self, x: Tensor) -> Tensor:
        return x / self.k.sqrt()

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x.square() / self.k).sum(-2), self.k.log().sum(-2)

    def inverse_diag(self) -> Tensor:
        return 1.0 / self.k

    def posterior(self, shift: Tensor, lam: Tensor, natural: bool = False) -> Moments:
        spread = 1.0 + self.k * lam
        mean_bar = shift / spread if natural else shift
        return Moments(self.k * mean_bar, self.k / spread, mean_bar, torch.log1p(self.k * lam).sum(-2))

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        return torch.diag_embed((self.k / (1.0 + self.k * lam)).mT)

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        same = rows.unsqueeze(-1) == rows
        return torch.where(same, (self.k / (1.0 + self.k * lam)).mT[..., rows].unsqueeze(-1), 0.0)

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        return self.k * lam.sqrt() / (1.0 + self.k * lam) * v

    def forecast(self, q: OpperArchambeau, t: Tensor, sequence: int) -> TemporalGP:
        """q(X*) at new times: white noise says nothing of other times, so it is the prior."""
        return TemporalGP(q.prior.kernel, t, q.event_shape[-1], structure=q.prior.asked)


def check_structure(structure: str | None, kernel: KernelValue) -> None:
    """Raise a ValueError where ``structure`` is none of those there are, or ``kernel`` cannot have it."""
    if structure is not None and structure not in STRUCTURES:
        raise ValueError(f"structure must be one of {', '.join(map(repr, STRUCTURES))} or None, but got {structure!r}.")
    if structure == "markov" and kernel.state_dim is None:
        raise ValueError(
            "structure='markov' needs a kernel with a state-space form: Matern12, Matern32, Matern52, Linear, Bias, "
            "White, Periodic (of no tiny lengthscale), MarkovRBF, and their sums and products. MarkovRBF is nearly an "
            "RBF; with any other kernel leave structure out."
        )


def choose_structure(kernel: KernelValue, times: Times, structure: str | None) -> str:
    """``"diagonal"``, ``"markov"`` or ``"dense"``: as asked for, or else the fastest that the kernel has."""
    check_structure(structure, kernel)
    if kernel.is_diagonal:
        return "diagonal"
    if structure is not None:
        return structure
    least, each = _COMPILED_FRAMES if recursions.is_compiled(times.t) else _SCAN_FRAMES
    d = kernel.state_dim
    if d is None or sum(n * n for n in times.lengths) < max(least, each * d) ** 2:
        return "dense"
    return "markov"


def _matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _root(lam: Tensor) -> Tensor:
    """√λ, with a gradient of zero where there is padding, and so λ = 0."""
    padded = lam == 0.0
    return torch.where(padded, 0.0, torch.where(padded, 1.0, lam).sqrt())


def _factor_b(block: Tensor, lam: Tensor) -> Tensor:
    """L, with L Lᵀ = B = I + r K r."""
    r = _root(lam)
    b = r.unsqueeze(-1) * block * r.unsqueeze(-2)
    b.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return cholesky(b, "B = I + √λ K_t √λ of q(X)")


class _Posterior(torch.autograd.Function):
    """(K, mean_bar, λ) → (μ, diag S, mean_bar, log|B|), with the gradients of the paper's appendix B; or from η.

    dS = W dK Wᵀ − S dΛ S and d log|B| = tr(P dK) + tr(S dΛ), with W = I − S Λ and P = (K + Λ⁻¹)⁻¹ = Λ W.
    μ = K mean_bar, or with η held μ = S η: dμ = W dK mean_bar − S dΛ μ + S dη. Then mean_bar = η − λμ, whose digits
    are those of r B⁻¹ r⁻¹ η where λ is large.
    """

    @staticmethod
    def forward(
        ctx: Any, block: Tensor, shift: Tensor, lam: Tensor, natural: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        factor, r = _factor_b(block, lam), lam.sqrt()
        v = torch.linalg.solve_triangular(factor, r.unsqueeze(-1) * block, upper=False)  # S = K − VᵀV
        s = block.diagonal(dim1=-2, dim2=-1) - v.square().sum(-2)
        mean_bar = shift
        if natural:
            scaled = (shift / r.clamp_min(torch.finfo(r.dtype).tiny)).unsqueeze(-1)
            mean_bar = r * torch.cholesky_solve(scaled, factor).squeeze(-1)
        mu = _matvec(block, mean_bar)
        ctx.natural, ctx.shapes = natural, (shift.shape, lam.shape)
        ctx.save_for_backward(block, mean_bar, lam, mu, s, v)
        return mu, s, mean_bar.clone(), 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_mu: Tensor, g_s: Tensor, g_mean_bar: Tensor, g_logdet: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        block, mean_bar, lam, mu, s, v = ctx.saved_tensors
        g_logdet = g_logdet.unsqueeze(-1)
        full = block - v.mT @ v
        if ctx.natural:  # dη enters mean_bar by itself and by −λ dμ
            g_mu = g_mu - lam * g_mean_bar
            g_through = _matvec(full, g_mu)
            g_mu = g_mu - lam * g_through  # Wᵀ g_mu
            g_shift = g_through + g_mean_bar
        else:
            g_shift = _matvec(block, g_mu) + g_mean_bar
        g_lam = None
        if ctx.needs_input_grad[2]:
            g_lam = g_logdet * s - _matvec(full.square(), g_s) - (g_shift * mu if ctx.natural else 0.0)
            g_lam = g_lam.sum_to_size(ctx.shapes[1])
        shape = full.shape[:-1]
        mean_bar, g_mu, g_shift = mean_bar.expand(shape), g_mu.expand(shape), g_shift.sum_to_size(ctx.shapes[0])
        if not ctx.needs_input_grad[0]:
            return None, g_shift, g_lam, None
        w = full.mul_(-lam.unsqueeze(-2))
        w.diagonal(dim1=-2, dim2=-1).add_(1.0)
        # Wᵀ diag(g_s) W + g_logdet Λ W + g_mu mean_barᵀ = (Wᵀ diag(g_s) + g_logdet Λ) W + …, as one product
        left = g_s.unsqueeze(-2) * w.mT
        left.diagonal(dim1=-2, dim2=-1).add_(g_logdet * lam)
        left = torch.cat([left, g_mu.unsqueeze(-1)], -1)
        right = torch.cat([w, mean_bar.unsqueeze(-2)], -2)
        if block.dim() == 4 and block.shape[0] == 1:  # all latent dimensions share K: their sum is part of the product
            left, right = left.permute(1, 2, 0, 3).flatten(-2), right.transpose(0, 1).flatten(1, 2)
            return (left @ right).unsqueeze(0), g_shift, g_lam, None
        return (left @ right).sum_to_size(block.shape), g_shift, g_lam, None


class TemporalGP(Expandable):
    r"""p(X given t) = ∏_q N(x_q given 0, k_x(t, t)), block-diagonal over sequences (the paper's eq. 6, section 2.3).

    Event shape (N, Q). Sampling and ``log_prob`` factorise K_t, with jitter by the rule of
    :func:`~pyro_vgpds.linalg.default_jitter`, once and only when asked for; q(X) and its KL need neither.

    :param kernel: a temporal kernel's value, ``kernel()``.
    :param times: a :class:`~pyro_vgpds.times.Times` (``data.times``), or a tensor (N,) for one sequence.
    :param latent_dim: Q.
    :param jitter: added to the diagonal where K_t is factorised; ``None`` follows the rule.
    :param structure: ``"dense"`` makes one n × n block for each sequence, at a cost of O(n³); ``"markov"`` goes through
        the kernel's state-space form, at O(n). Left out, it is ``"markov"`` where the kernel has such a form and there
        are frames enough for it to be the faster one. The results are the same.
    :raises ValueError: where ``"markov"`` is asked of a kernel without a state-space form.
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        kernel: KernelValue,
        times: Times | Tensor,
        latent_dim: int,
        jitter: float | None = None,
        structure: str | None = None,
    ) -> None:
        times = times if isinstance(times, Times) else Times(times)
        self.asked = structure  # what priors at other times are asked for, too
        structures = {"diagonal": DiagonalCovariance, "markov": MarkovCovariance, "dense": DenseCovariance}
        make: Any = structures[choose_structure(kernel, times, structure)]
        self.covariance: DenseCovariance | DiagonalCovariance | MarkovCovariance = make(kernel, times, jitter)
        self.kernel, self.times = kernel, times
        own = self.covariance.diag().shape[-1]
        if own not in (1, latent_dim):
            raise ValueError(
                f"the temporal kernel has parameters for {own} latent dimensions, but latent_dim is {latent_dim}."
            )
        super().__init__(self.covariance.batch_shape, torch.Size((len(times), latent_dim)), validate_args=False)

    @property
    def structure(self) -> str:
        """``"dense"``, ``"markov"``, or ``"diagonal"`` for white noise alone."""
        return self.covariance.name

    def __repr__(self) -> str:
        n, q = self.event_shape
        return f"TemporalGP(frames={n}, latent_dim={q}, structure={self.structure!r})"

    @property
    def mean(self) -> Tensor:
        return self.covariance.diag().new_zeros(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        return self.covariance.diag().expand(self._extended_shape())

    @property
    def covariance_matrix(self) -> Tensor:
        """K_t for each latent dimension, (..., Q, N, N), zero between sequences. Large: made only when asked for."""
        n, q = self.event_shape
        return self.covariance.matrix().expand(self.batch_shape + (q, n, n))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        k = self.covariance.diag()
        noise = torch.randn(self._extended_shape(sample_shape), dtype=k.dtype, device=k.device)
        return self.covariance.correlate(noise)

    def log_prob(self, value: Tensor) -> Tensor:
        n, q = self.event_shape
        square, logdet = self.covariance.whiten(value)
        terms = square + logdet + n * math.log(2.0 * math.pi)
        return -0.5 * terms.expand(terms.shape[:-1] + (q,)).sum(-1)


class OpperArchambeau(Expandable):
    r"""q(X) = ∏_q N(x_q given K_t \bar μ_q, (K_t⁻¹ + diag λ_q)⁻¹) (the paper's eq. 13), event shape (N, Q).

    Only 2QN numbers parametrise it. Its density is the prior's times Gaussian sites in each x_nq, so
    ``q.log_prob(x) - prior.log_prob(x)`` is exact whatever jitter the prior needed.

    :param prior: the :class:`TemporalGP` that it is a posterior of.
    :param mean_bar: \bar μ, (..., N, Q).
    :param lam: λ ≥ 0, (..., N, Q).
    """

    arg_constraints = {"mean_bar": constraints.real, "lam": constraints.nonnegative}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, prior: TemporalGP, mean_bar: Tensor, lam: Tensor, validate_args: bool | None = None) -> None:
        for name, value in (("mean_bar", mean_bar), ("lam", lam)):
            if value.shape[-2:] != prior.event_shape:
                raise ValueError(
                    f"{name} must end in {tuple(prior.event_shape)} = (frames, latent dimensions), "
                    f"but its shape is {tuple(value.shape)}."
                )
        self.prior, self.lam = prior, lam
        self.kept: dict[int, Tensor] = {}  # what forecasts of each sequence use again
        self._shift, self._natural = mean_bar, False
        self._moments: Moments | None = None
        batch = torch.broadcast_shapes(prior.batch_shape, mean_bar.shape[:-2], lam.shape[:-2])
        super().__init__(batch, prior.event_shape, validate_args=validate_args)

    @classmethod
    def from_natural(cls, prior: TemporalGP, eta: Tensor, lam: Tensor) -> OpperArchambeau:
        """The same distribution by η = S⁻¹μ and λ, its natural parameters up to those of the prior.

        With η and λ held, the prior's hyperparameters move μ as well; that is the gradient natural steps go with.
        """
        new = cls(prior, eta, lam, validate_args=False)
        new._natural = True
        return new

    def __repr__(self) -> str:
        n, q = self.event_shape
        return f"OpperArchambeau(frames={n}, latent_dim={q}, structure={self.prior.structure!r})"

    def _posterior(self) -> Moments:
        if self._moments is None:
            self._moments = self.prior.covariance.posterior(self._shift, self.lam, self._natural)
        return self._moments

    @property
    def mean_bar(self) -> Tensor:
        """K_t⁻¹ μ."""
        return self._posterior().mean_bar if self._natural else self._shift

    @property
    def eta(self) -> Tensor:
        """S⁻¹ μ."""
        return self._shift if self._natural else self._shift + self.lam * self._posterior().mu

    @property
    def mean(self) -> Tensor:
        """μ = K_t mean_bar."""
        return self._posterior().mu.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """The diagonals of S."""
        return self._posterior().s.expand(self._extended_shape())

    @property
    def covariance_matrix(self) -> Tensor:
        """S for each latent dimension, (..., Q, N, N), zero between sequences. Large: made only when asked for."""
        n, q = self.event_shape
        return self.prior.covariance.posterior_matrix(self.lam).expand(self.batch_shape + (q, n, n))

    def covariance_of(self, rows: Tensor) -> Tensor:
        """S of some frames, (..., Q, T, T)."""
        t, q = len(rows), self.event_shape[-1]
        return self.prior.covariance.posterior_block(self.lam, rows).expand(self.batch_shape + (q, t, t))

    def forecast(self, t: Tensor, sequence: int | None) -> TorchDistribution:
        r"""q(X*) at new times (T,) of a sequence, or of a new one (None), for which it is the prior.

        .. math:: \mu_* = K_{*N} \bar\mu, \qquad \Sigma_* = K_{**} - K_{*N} (K_t + \Lambda^{-1})^{-1} K_{N*}

        Event shape (T, Q), with ``mean``, ``variance``, ``covariance_matrix`` (Q, T, T) and ``rsample``. White noise of
        the temporal kernel is part of K_** and not of K_*N.
        """
        if sequence is None:
            in_order = bool((t.diff() >= 0).all())  # as recursions over time want it
            structure = self.prior.asked if in_order else "dense"
            return TemporalGP(self.prior.kernel, t, self.event_shape[-1], structure=structure)
        return self.prior.covariance.forecast(self, t, sequence)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        # Matheron's rule: a draw of the prior, corrected by what pseudo-observations of it with noise 1/λ would say
        draw = self.prior.expand(self.batch_shape).rsample(sample_shape)
        noise = torch.randn_like(draw)
        residual = self.lam.sqrt() * draw + noise
        return self.mean + draw - self.prior.covariance.gain(self.lam, residual)

    def log_prob(self, value: Tensor) -> Tensor:
        # q(x) = p(x) exp(η·x − ½ x·λx) / Z with η = mean_bar + λμ and log Z = ½ (η·μ − log|B|)
        mu, logdet = self._posterior().mu, self._posterior().logdet
        site = self.eta * (value - 0.5 * mu) - 0.5 * self.lam * value.square()
        return self.prior.log_prob(value) + site.sum((-2, -1)) + 0.5 * logdet.sum(-1)


class GaussianPath(Expandable):
    """Gaussian paths, independent over the latent dimensions: event shape (T, Q).

    :param mean: (..., T, Q).
    :param variance: likewise.
    :param covariance: makes the covariances (..., Q, T, T), which are large, when they are asked for.
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, mean: Tensor, variance: Tensor, covariance: Callable[[], Tensor]) -> None:
        self._mean, self._variance, self._covariance = mean, variance, covariance
        super().__init__(mean.shape[:-2], mean.shape[-2:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self._mean.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        return self._variance.expand(self._extended_shape())

    @property
    def covariance_matrix(self) -> Tensor:
        """(..., Q, T, T)."""
        return self._covariance()

    def _factor(self) -> Tensor:
        return cholesky(self._covariance(), "the covariance of the path at new times", None)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self._mean.dtype, device=self._mean.device)
        return self.mean + _matvec(self._factor(), noise.mT).mT

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_normal(value, self.mean, self._factor())


def _log_normal(value: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Log-density of paths (..., T, Q) whose covariances (..., Q, T, T) have these factors."""
    return MultivariateNormal(mean.mT, scale_tril=factor, validate_args=False).log_prob(value.mT).sum(-1)


class Rows(TorchDistribution):
    """Some rows of a path, as a distribution of their own: event shape (T, Q).

    :param path: an :class:`OpperArchambeau`.
    :param rows: their indices, (T,).
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, path: OpperArchambeau, rows: Tensor) -> None:
        self.path, self.rows = path, rows
        shape = torch.Size((len(rows), path.event_shape[-1]))
        super().__init__(path.batch_shape, shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.path.mean[..., self.rows, :]

    @property
    def variance(self) -> Tensor:
        return self.path.variance[..., self.rows, :]

    @property
    def covariance_matrix(self) -> Tensor:
        """(..., Q, T, T). Large: made only when asked for."""
        return self.path.covariance_of(self.rows)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Rows:
        return Rows(self.path.expand(batch_shape), self.rows)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.path.rsample(sample_shape)[..., self.rows, :]

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_normal(value, self.mean, cholesky(self.covariance_matrix, "the covariance of a path's rows", None))


@register_kl(OpperArchambeau, TemporalGP)  # type: ignore[untyped-decorator]
def _kl_posterior_prior(q: OpperArchambeau, p: TemporalGP) -> Tensor:
    if not q.prior.covariance.equals(p.covariance):
        raise ValueError(
            "KL(OpperArchambeau, TemporalGP) is for a q that stands on the same prior: make the OpperArchambeau of the "
            "guide from a TemporalGP with the model's kernel and times."
        )
    mu, s, mean_bar, logdet = q._posterior()
    kl = 0.5 * (logdet.sum(-1) + (mean_bar * mu - q.lam * s).sum((-2, -1)))
    return kl.expand(q.batch_shape)


@register_kl(Independent, TemporalGP)  # type: ignore[untyped-decorator]
def _kl_mean_field(q: Independent, p: TemporalGP) -> Tensor:
    if not isinstance(q.base_dist, Normal) or q.event_shape != p.event_shape:
        raise NotImplementedError("KL to a TemporalGP is analytic for Independent Normals of its event shape.")
    n, latent = p.event_shape
    square, logdet = p.covariance.whiten(q.mean)
    trace = (p.covariance.inverse_diag() * q.variance).sum((-2, -1))
    logdet = logdet.expand(logdet.shape[:-1] + (latent,)).sum(-1)
    kl = 0.5 * (square.sum(-1) + trace + logdet - n * latent - q.variance.log().sum((-2, -1)))
    return kl.expand(torch.broadcast_shapes(q.batch_shape, p.batch_shape))
