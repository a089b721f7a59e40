# SPDX-License-Identifier: Apache-2.0
r"""The mapping with its inducing variables as a latent variable, so that the bound is a sum over frames.

U is whitened: with L Lᵀ = K_MM, the function values at the inducing inputs are L u_d, and p(U) = N(0, I). Given q(X)
and q(U) = Π_d N(m_d, C_d), the expected log density of a group of outputs observed in the same N rows is

.. math::
    \sum_d -\tfrac{N}{2} \log\tfrac{2\pi}{\beta_d} - \tfrac{\beta_d}{2} \big(y_d^\top y_d - 2 v_d^\top m_d
    + m_d^\top A m_d + \mathrm{tr}\,C_d A + \psi_0 - \mathrm{tr}\,A\big) - \log J

with A = L⁻¹ Ψ2 L⁻ᵀ and v_d = L⁻¹ Ψ1ᵀ y_d, all sums over frames. It is the collapsed bound plus KL(q(U), p(U)) at the
optimal q(U) of all frames.
"""

from __future__ import annotations

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.linalg import add_diagonal, broadcast_shapes, cholesky, default_jitter
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.mapping.frame_sums import FrameSums, frame_sums, sum_frames
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.matrix_distribution import IntegratedDistribution, MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["ExpectedGP", "ExplicitGP", "conditional_root", "expected_log_density", "optimum"]


def expected_log_density(sums: FrameSums, noise: Tensor, q: InducingGaussian) -> Tensor:
    """The expected log density () under q(U) of the outputs of sums over frames, with the noise 1/β, (1,) or (D,)."""
    spare = torch.nn.functional.pad(sums.slack, (0, 1))[sums.of_output]
    rest = sums.square - 2.0 * (sums.v * q.mean).sum(-2) + q.quadratic(sums.a, sums.of_output) + spare
    each = sums.rows * (2.0 * math.pi * noise).log() + rest / noise
    return -0.5 * each.sum() - sums.log_scale


def optimum(sums: FrameSums, noise: Tensor) -> tuple[Dual, Tensor]:
    """The optimal q(U) of frames with the noise 1/β, (1,) or (D,), and their part of the collapsed bound."""
    m, d = sums.v.shape
    dual = Dual.empty(m, d, device=sums.v.device).moved(sums, 1.0, 1.0)
    q = dual.posterior(noise)
    return dual, expected_log_density(sums, noise, q) - q.kl_to_prior()


def conditional_root(kernel: MappingValue, x: Tensor, k: Tensor) -> Tensor:
    """The Cholesky factor of Cov[f(x) given u], (..., N, N), at x (..., N, Q), with k = L⁻¹ K_MN as (..., N, M)."""
    prior = kernel.cov(x, x)
    # the rounding of a difference has the scale of its terms; it is all that is left if u determines f
    jitter = default_jitter(k.dtype) * prior.diagonal(dim1=-2, dim2=-1).mean(-1)
    return cholesky(add_diagonal(prior - k @ k.mT, jitter), "the mapping's covariance given the inducing variables")


class ExplicitGP(MatrixDistribution):
    r"""p(y given x, u), event shape (N, D): outputs of a sparse GP whose inducing variables are known.

    ``log_prob`` is a lower bound in which the function values given u are integrated out,

    .. math:: \sum_{nd} \log N(y_{nd} \mid m_d + s_d k_n^\top L^{-\top} u_d, s_d^2 / \beta_d)
              - \frac{\beta_d}{2} (k_{nn} - k_n^\top K_{MM}^{-1} k_n).

    It is a sum over frames, so any Pyro algorithm can use it on a batch. Under :class:`~pyro_vgpds.Collapsed_ELBO` the
    site's distribution becomes :meth:`integrate` (q(x), q(u)). ``sample`` draws from the exact conditional, plus noise.

    :param gp: p(y given x), with the latent points.
    :param u: whitened inducing variables (..., M, D).
    :param prior: of u, with the Cholesky factor of K_MM.
    :param places: which frames of q(x) the outputs belong to, (N,). Default: all.

    >>> import torch
    >>> from pyro_vgpds.mapping import ExplicitGP, InducingPrior
    >>> gp = model.likelihood(guide.posterior(data).mean, data)
    >>> prior = InducingPrior(gp.kernel, gp.inducing, gp.noise, num_outputs=5)
    >>> outputs = ExplicitGP(gp, prior.sample(), prior)
    >>> outputs.sample().shape
    torch.Size([48, 5])
    >>> bool(outputs.log_prob(data.y) < gp.log_prob(data.y))
    True
    """

    has_rsample = True

    def __init__(self, gp: SparseGP, u: Tensor, prior: InducingPrior, places: Tensor | None = None) -> None:
        self.gp, self.u, self.prior, self.places = gp, u.double(), prior, places
        batch = broadcast_shapes(gp.batch_shape, u.shape[:-2], prior.batch_shape)
        super().__init__(batch, gp.event_shape, validate_args=False)

    def _functions(self) -> tuple[Tensor, Tensor]:
        """L⁻¹ K_MN as (..., N, M), and the means of the scaled functions given u, (..., N, D)."""
        gp = self.gp
        k = solve_triangular(self.prior.factor, gp.kernel.cov(gp.x, gp.inducing).mT, upper=False).mT
        return k, k @ self.u

    def log_prob(self, value: Tensor) -> Tensor:
        gp, (k, f) = self.gp, self._functions()
        seen, scale = torch.isfinite(value), gp.output_scale
        y = torch.nan_to_num((value.double() - gp.output_mean) / scale, nan=0.0)
        spare = (gp.kernel.cov_diag(gp.x) - k.square().sum(-1)).clamp_min(0.0).unsqueeze(-1)
        noise = gp.noise.unsqueeze(-2)
        each = (2.0 * math.pi * noise).log() + ((y - f).square() + spare) / noise + 2.0 * scale.log()
        return -0.5 * torch.where(seen, each, 0.0).sum((-2, -1)).expand(self.batch_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        gp, (k, f) = self.gp, self._functions()
        root = conditional_root(gp.kernel, gp.x, k)
        noise = torch.randn((2, *self._extended_shape(sample_shape)), dtype=f.dtype, device=f.device)
        scaled = f + root @ noise[0] + gp.noise.sqrt().unsqueeze(-2) * noise[1]
        return torch.addcmul(gp.output_mean, gp.output_scale, scaled)

    def integrate(self, posterior: TorchDistribution, inducing: TorchDistribution) -> ExpectedGP:
        """The outputs with x and u integrated out.

        :param posterior: q(x), a distribution with a mean and a variance (N, Q).
        :param inducing: q(u). If it is Gaussian, with independent outputs, the expectation is exact; otherwise u is the
            draw that this distribution was made with.
        """
        q = InducingGaussian.of(inducing)
        return ExpectedGP(self, posterior, InducingGaussian.point(self.u) if q is None else q)


class ExpectedGP(IntegratedDistribution):
    """``log_prob`` is the expectation of that of :class:`ExplicitGP` under q(x), with moments (N, Q), and q(u).

    :raises ValueError: for several draws of hyperparameters at a time.
    """

    def __init__(self, likelihood: ExplicitGP, posterior: TorchDistribution, inducing: InducingGaussian) -> None:
        self.likelihood, self.inducing = likelihood, inducing
        rows = slice(None) if likelihood.places is None else likelihood.places
        self.x_mean, self.x_variance = posterior.mean[..., rows, :], posterior.variance[..., rows, :]
        if likelihood.batch_shape or posterior.batch_shape or inducing.batch_shape:
            raise ValueError(
                "the bound with explicit inducing variables takes one draw at a time: use vectorize_particles=False."
            )
        super().__init__(likelihood.batch_shape, likelihood.event_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        if value.requires_grad:
            raise NotImplementedError("ExplicitGP has no gradient in y under Collapsed_ELBO: its data are constants.")
        gp, prior = self.likelihood.gp, self.likelihood.prior
        own = frame_sums(gp, self.x_mean, self.x_variance, prior.factor, gp.groups(value, columns=True))
        sums = sum_frames(own, prior.communicator)
        density = expected_log_density(sums, gp.noise, self.inducing.given(sums))
        return density if prior.communicator.size == 1 else density / prior.communicator.size
