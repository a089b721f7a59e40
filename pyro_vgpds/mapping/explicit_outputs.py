# SPDX-License-Identifier: Apache-2.0
r"""Outputs that are not Gaussian, given latent points and inducing variables.

Each entry has a Gaussian factor exp(linear f − ½ weight f² + constant), so that the expected log of the factors is a
sum over frames of the same form as for Gaussian outputs, with a matrix A for each function. For likelihoods whose
factors are lower bounds it is exact. For others an average over draws of the latent points corrects it
(:mod:`~pyro_vgpds.mapping.drawn`).
"""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.likelihoods.factors import Moments, Sites
from pyro_vgpds.likelihoods.quadrature import hermite_nodes, usual_nodes
from pyro_vgpds.likelihoods.value import LikelihoodValue, several_draws
from pyro_vgpds.linalg import broadcast_shapes
from pyro_vgpds.mapping.bound import site_limits
from pyro_vgpds.mapping.drawn import Given, correction
from pyro_vgpds.mapping.explicit import conditional_root, expected_log_density, optimum
from pyro_vgpds.mapping.frame_sums import FrameSums, sum_frames, whitened_psi
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior
from pyro_vgpds.mapping.latent_gp import LatentGP, mean_terms, scaled_sites
from pyro_vgpds.mapping.output_sites import OutputSites, first_state
from pyro_vgpds.matrix_distribution import IntegratedDistribution, MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["ExpectedOutputs", "ExplicitOutputs", "site_sums"]


def site_sums(gp: LatentGP, mean: Tensor, variance: Tensor, factor: Tensor, sites: Sites) -> FrameSums:
    """The sums of frames with moments (N, Q) whose outputs have Gaussian factors: as of outputs with noise 1, of which
    only ``a``, ``v`` and ``slack`` count, and with minus the logs of the factors at f = m in ``log_scale``. The x of
    ``gp`` is not read.

    :raises NumericalError: if rounding error dominates.
    """
    weight, linear = scaled_sites(sites, gp.output_mean, gp.output_scale)
    psi = gp.basis.expect(mean.double(), variance.double(), weight.mT, linear)
    a, v, slack = whitened_psi(psi, factor, site_limits(weight.detach(), linear.detach()).seen)
    zeros = torch.zeros_like(slack)
    terms = mean_terms(sites, gp.output_mean) + sites.constant.sum()
    which = torch.arange(len(slack), device=slack.device)
    return FrameSums(a, v, slack, which, zeros.detach(), zeros.detach(), -terms)


class ExplicitOutputs(MatrixDistribution):
    r"""p(y given x, u), event shape (N, D): outputs of a likelihood whose functions are those of a sparse GP.

    ``log_prob`` is a lower bound in which the function values given u are integrated by Gauss–Hermite quadrature,

    .. math:: \sum_{nd} E[\log p(y_{nd} \mid f)], \qquad
              f \sim N(m_d + s_d k_n^\top L^{-\top} u_d,\; s_d^2 (k_{nn} - k_n^\top K_{MM}^{-1} k_n)).

    ``sample`` draws from the exact conditional. Under :class:`~pyro_vgpds.Collapsed_ELBO` the site's distribution
    becomes :meth:`integrate` (q(x), q(u)).

    :param gp: p(f given x), with the latent points.
    :param u: whitened inducing variables (..., M, F).
    :param prior: of u, with the Cholesky factor of K_MM.
    :param likelihood: the likelihood at its parameters, with the exposures of these frames.
    :param data: the sequences that the outputs come from.
    :param places: which frames of q(x) they belong to, (N,). Default: all.
    """

    def __init__(
        self, gp: LatentGP, u: Tensor, prior: InducingPrior, likelihood: LikelihoodValue, data: Sequences,
        places: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.gp, self.u, self.prior, self.likelihood, self.data = gp, u.double(), prior, likelihood, data
        self.places = places
        batch = broadcast_shapes(gp.batch_shape, u.shape[:-2], prior.batch_shape)
        n, functions = gp.event_shape
        shape = torch.Size((n, functions // likelihood.likelihood.num_functions))
        super().__init__(batch, shape, validate_args=False)

    def _functions(self) -> tuple[Tensor, Tensor]:
        """L⁻¹ K_MN as (..., N, M), and the means of the functions given u, (..., N, F)."""
        gp = self.gp
        k = solve_triangular(self.prior.factor, gp.basis.cov(gp.x).mT, upper=False).mT
        return k, torch.addcmul(gp.output_mean, gp.output_scale, k @ self.u)

    def log_prob(self, value: Tensor) -> Tensor:
        gp, (k, mean) = self.gp, self._functions()
        spare = (gp.kernel.cov_diag(gp.x) - k.square().sum(-1)).clamp_min(1e-300).unsqueeze(-1)
        deviation, count = gp.output_scale * spare.sqrt(), self.likelihood.likelihood.num_functions
        nodes, weights = (part.to(mean) for part in hermite_nodes(usual_nodes(count), count))
        total = mean.new_zeros(())
        for node, weight in zip(nodes.repeat(1, mean.shape[-1] // count), weights, strict=True):
            f = torch.addcmul(mean, deviation, node)
            total = total + weight * self.likelihood.log_prob(f, value.to(f)).sum((-2, -1))
        return total.expand(self.batch_shape)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            gp, (k, mean) = self.gp, self._functions()
            root = conditional_root(gp.kernel, gp.x, k)
            shape = torch.Size(sample_shape) + self.batch_shape + mean.shape[-2:]
            f = mean + gp.output_scale * (root @ torch.randn(shape, dtype=mean.dtype, device=mean.device))
            y: Tensor = self.likelihood.distribution(f).sample()
            return y.to(self.data.dtype)

    def integrate(self, posterior: TorchDistribution, inducing: TorchDistribution) -> ExpectedOutputs:
        """The outputs with x and u integrated out.

        :param inducing: q(u). If it is Gaussian, with independent functions, the expectation over u is exact; otherwise
            u is the draw that this distribution was made with.
        """
        q = InducingGaussian.of(inducing)
        return ExpectedOutputs(self, posterior, InducingGaussian.point(self.u) if q is None else q)


class ExpectedOutputs(IntegratedDistribution):
    """``log_prob`` is the bound on the expected log density under q(x) and q(u), with Gaussian factors of the outputs.

    The factors are those that q(u) brings along (``outputs`` of :class:`~pyro_vgpds.mapping.InducingGaussian`), which
    keep their state between evaluations. For another q(u) they are at their optimum, after some updates.

    :ivar share: factor of its log-probability in the loss, as of ``poutine.scale``; 0 if its gradients are not used.
    :raises ValueError: for several draws of hyperparameters at a time.
    """

    share: float = 1.0

    def __init__(self, outputs: ExplicitOutputs, posterior: TorchDistribution, inducing: InducingGaussian) -> None:
        if outputs.batch_shape or posterior.batch_shape or inducing.batch_shape:
            raise several_draws(outputs.likelihood.likelihood)
        rows = slice(None) if outputs.places is None else outputs.places
        self.outputs, self.inducing, self.likelihood = outputs, inducing, outputs.gp
        self.x_mean, self.x_variance = posterior.mean.double()[rows], posterior.variance.double()[rows]
        self.sites = OutputSites() if inducing.outputs is None else inducing.outputs
        super().__init__(outputs.batch_shape, outputs.event_shape, validate_args=False)

    def sums(self, sites: Sites) -> FrameSums:
        """The sums over the frames, whose outputs have these factors."""
        return site_sums(self.likelihood, self.x_mean, self.x_variance, self.outputs.prior.factor, sites)

    def state(self, y: Tensor) -> Tensor:
        """The state of the factors of y (N, D), (2, N, F). That of frames that are visited for the first time starts
        from a guess of the functions and some updates.
        """
        kept, value, communicator = self.sites.state, self.outputs.likelihood, self.outputs.prior.communicator
        if not communicator.any(not kept.shape[1] or bool(kept.isnan().any())):
            return kept
        before = self.inducing.before()

        def bound(sites: Sites) -> Tensor:
            sums, own = self._joint(sites, different=False)
            if before is None:
                return optimum(sums, _one(sums))[1] / communicator.size + own
            return expected_log_density(sums, _one(sums), before) / communicator.size + own

        first = first_state(value, y, self.outputs.data.lengths, communicator, bound)
        fresh = kept.isnan() if kept.shape[1] else torch.ones_like(first, dtype=torch.bool)
        self.sites.set(torch.where(fresh, first, kept if kept.shape[1] else first))
        return self.sites.state

    def log_prob(self, value: Tensor) -> Tensor:
        if value.requires_grad:
            raise NotImplementedError("outputs have no gradient under Collapsed_ELBO: its data are constants.")
        y, likelihood, communicator = value.detach().double(), self.outputs.likelihood, self.outputs.prior.communicator
        evaluation = self.sites.tracked(likelihood, y, self.state(y), self.share)
        sums, own = self._joint(evaluation.sites, likelihood.likelihood.is_drawn)
        q = self.inducing.given(sums)
        bound = expected_log_density(sums, _one(sums), q) / communicator.size + own
        if likelihood.likelihood.is_drawn:
            more, evaluation.drawn = self.correction(q, y, evaluation.sites)
            bound = bound + more
        return bound

    def _joint(self, sites: Sites, different: bool) -> tuple[FrameSums, Tensor]:
        """The sums over the frames of all processes, and what only this one has: the logs of its factors at f = m."""
        own = self.sums(sites)
        rest = own._replace(log_scale=torch.zeros_like(own.log_scale.detach()))
        return sum_frames(rest, self.outputs.prior.communicator, different), -own.log_scale

    def correction(self, q: InducingGaussian, y: Tensor, sites: Sites) -> tuple[Tensor, Moments | None]:
        """What draws of the latent points add to the bound, and the moments of the functions."""
        gp, factor = self.likelihood, self.outputs.prior.factor
        given = Given(gp.basis, factor, q.mean.mT, q.covariance_matrix, gp.output_mean, gp.output_scale)
        communicator = self.outputs.prior.communicator
        first = sum(communicator.all_gather(len(y))[: communicator.rank])
        return correction(given, self.x_mean, self.x_variance, y, sites, self.outputs.likelihood, first)


def _one(sums: FrameSums) -> Tensor:
    """The noise of functions, (1,)."""
    return torch.ones_like(sums.slack[:1]).detach()
