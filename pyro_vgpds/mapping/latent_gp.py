# SPDX-License-Identifier: Apache-2.0
"""Latent functions, and the outputs given them, if these are not Gaussian."""

from __future__ import annotations

import math

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.linalg import solve_triangular

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.likelihoods.factors import Moments, Sites
from pyro_vgpds.likelihoods.value import LikelihoodValue, several_draws
from pyro_vgpds.linalg import broadcast_shapes, cholesky, in_double
from pyro_vgpds.mapping.basis import Basis, basis_of
from pyro_vgpds.mapping.bound import site_bound, site_limits
from pyro_vgpds.mapping.distributed_psi import sum_psi
from pyro_vgpds.mapping.drawn import GivenOptimum, correction
from pyro_vgpds.mapping.forms import rbf_form
from pyro_vgpds.mapping.group_terms import whiten
from pyro_vgpds.mapping.output_sites import OutputSites
from pyro_vgpds.mapping.psi import MappingValue, Psi
from pyro_vgpds.mapping.rbf_site_bound import rbf_site_bound
from pyro_vgpds.matrix_distribution import IntegratedDistribution, MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["CollapsedLatent", "CollapsedOutputs", "GivenLatent", "LatentGP", "mean_terms", "scaled_sites"]


class LatentGP(MatrixDistribution):
    r"""p(f given x): F functions :math:`f_d(x_n) = m_d + s_d g_d(x_n)`, event shape (N, F), without noise.

    ``log_prob`` and ``sample`` are those of the exact GP, with an N × N covariance. Under
    :class:`~pyro_vgpds.Collapsed_ELBO` the functions are integrated out, which costs O(N M² F).

    :param x: latent points (..., N, Q).
    :param kernel: the mapping kernel's value, ``kernel()``.
    :param inducing: inducing inputs (..., M, Q).
    :param mean: m, (F,).
    :param scale: s, (F,).
    :param jitter: added to the diagonal of K_MM; ``None`` follows :func:`~pyro_vgpds.linalg.default_jitter`.
    """

    has_rsample = True

    def __init__(
        self,
        x: Tensor,
        kernel: MappingValue,
        *,
        inducing: Tensor,
        mean: Tensor,
        scale: Tensor,
        jitter: float | None = None,
    ) -> None:
        self.x, self.kernel, self.inducing = x.double(), in_double(kernel), inducing.double()
        self.output_mean, self.output_scale, self.jitter = mean.double(), scale.double(), jitter
        batch = broadcast_shapes(x.shape[:-2], inducing.shape[:-2], scale.shape[:-1])
        super().__init__(batch, torch.Size((x.shape[-2], mean.shape[-1])), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.output_mean.unsqueeze(-2).expand(self.shape())

    @property
    def basis(self) -> Basis:
        """The inducing variables: the functions at the inducing inputs or, of a linear kernel, their weights."""
        return basis_of(self.kernel, self.inducing, self.jitter)

    def inducing_factor(self) -> Tensor:
        """L, the Cholesky factor of the covariance K_MM of the inducing variables, with its jitter."""
        return self.basis.factor()

    def given(self, psi: Psi, factor: Tensor) -> GivenOptimum:
        """The distribution of f given x under the optimal q(U).

        :param psi: the statistics with the Gaussian factors of the outputs.
        :param factor: L, the Cholesky factor of K_MM.
        """
        v, A = solve_triangular(factor, psi.psi1_y, upper=False), whiten(factor, psi.psi2)
        return GivenOptimum(self.basis, factor, A, v, self.output_mean, self.output_scale)

    def _factor(self) -> Tensor:
        return cholesky(self.kernel.cov(self.x, self.x), "the mapping's covariance K_NN", None)

    def log_prob(self, value: Tensor) -> Tensor:
        factor, scale = self._factor(), self.output_scale.unsqueeze(-2)
        white = solve_triangular(factor, (value.double() - self.output_mean.unsqueeze(-2)) / scale, upper=False)
        n, d = self.event_shape
        log_det = d * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + n * self.output_scale.log().sum(-1)
        return -0.5 * (white.square().sum((-2, -1)) + n * d * math.log(2.0 * math.pi)) - log_det

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.x.dtype, device=self.x.device)
        return torch.addcmul(self.output_mean.unsqueeze(-2), self.output_scale.unsqueeze(-2), self._factor() @ noise)

    def integrate(self, posterior: TorchDistribution) -> CollapsedLatent:
        """F with x integrated over q(x), for :class:`CollapsedOutputs`."""
        return CollapsedLatent(self, posterior)


class CollapsedLatent:
    """The functions with x integrated out: what the bound of the outputs needs of both.

    Of several processes that have the frames together each has a part of the bound: that of its own frames and 1/K of
    what depends on their sums.

    :param gp: p(f given x).
    :param posterior: q(x), with a mean and a variance (..., N, Q).
    :ivar communicator: the processes that have the frames together.
    :ivar first: the number of frames of the processes before this one.
    """

    communicator: Communicator = SINGLE_PROCESS
    first: int = 0

    def __init__(self, gp: LatentGP, posterior: TorchDistribution | None = None) -> None:
        self.gp = gp
        self.x = gp.x if posterior is None else posterior.mean.double()
        self.x_variance = None if posterior is None else posterior.variance.double()
        self.batch_shape = gp.batch_shape if posterior is None else broadcast_shapes(
            gp.batch_shape, posterior.batch_shape
        )  # fmt: skip

    def belong_to(self, data: Sequences) -> None:
        """Take the frames as those of data, which several processes may have together."""
        self.communicator, self.first = data.communicator, data.offset

    def bound(self, sites: Sites) -> Tensor:
        """The expected log of the Gaussian factors minus KL(q(U), p(U)), at the optimal q(U)."""
        found = self._bound_in_one(sites)
        return self._bound(sites)[0] if found is None else found

    def _bound_in_one(self, sites: Sites) -> Tensor | None:
        """The same as one operation, for kernels that have it and frames of one process."""
        gp, form = self.gp, rbf_form(self.gp.kernel)
        if form is None or self.x_variance is None or self.communicator.size > 1:
            return None
        given = self.x, self.x_variance, gp.inducing, form
        found = rbf_site_bound(*given, sites, gp.output_mean, gp.output_scale, gp.jitter)
        return None if found is None else found.tensor()

    def _bound(self, sites: Sites, different: bool = False) -> tuple[Tensor, Psi, Tensor]:
        """The bound, and the statistics of all frames, of which a drawn correction is a function of each process."""
        gp, communicator = self.gp, self.communicator
        weight, linear = scaled_sites(sites, gp.output_mean, gp.output_scale)
        basis = gp.basis
        own, factor = basis.expect(self.x, self.x_variance, weight.mT, linear), basis.factor()
        psi = sum_psi(own, communicator, different)
        bound = site_bound(psi, factor, site_limits(weight, linear).of_all(communicator))
        return bound / communicator.size + mean_terms(sites, gp.output_mean), psi, factor

    def evaluate(self, likelihood: LikelihoodValue, y: Tensor, sites: Sites) -> tuple[Tensor, Moments | None]:
        """The bound of outputs y (N, D) with these factors, and the moments of those functions whose bound is an
        estimate with draws.
        """
        if not likelihood.likelihood.is_drawn:
            return self.bound(sites) + sites.constant.sum(), None
        bound, psi, factor = self._bound(sites, different=True)
        bound = bound + sites.constant.sum()
        given = self.gp.given(psi, factor)
        more, moments = correction(given, self.x, self.x_variance, y, sites, likelihood, self.first)
        return bound + more, moments


def scaled_sites(sites: Sites, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and linear part as factors of g in f = mean + scale g."""
    return scale.square() * sites.weight, scale * (sites.linear - sites.weight * mean)


def mean_terms(sites: Sites, mean: Tensor) -> Tensor:
    """The log of the factors at f = mean, without their constants, summed: what :func:`scaled_sites` leaves."""
    return (mean * (sites.linear - 0.5 * sites.weight * mean)).sum()


class GivenLatent(MatrixDistribution):
    """p(y given f): independent outputs (N, D), NaN for those that were not observed.

    :param f: function values (..., N, F).
    :param likelihood: the likelihood at its parameters.
    :param data: the sequences that the outputs come from.
    :param sites: the Gaussian factors of these outputs, which :class:`~pyro_vgpds.Collapsed_ELBO` uses.
    """

    def __init__(self, f: Tensor, likelihood: LikelihoodValue, data: Sequences, sites: OutputSites) -> None:
        self.f, self.likelihood, self.data, self.sites = f, likelihood, data, sites
        outputs = f.shape[-1] // likelihood.likelihood.num_functions
        super().__init__(f.shape[:-2], torch.Size((f.shape[-2], outputs)), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.likelihood.log_prob(self.f, value.to(self.f)).sum((-2, -1))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            y: Tensor = self.likelihood.distribution(self.f).sample(torch.Size(sample_shape))
            return y.to(self.data.dtype)

    def integrate(self, latent: CollapsedLatent) -> CollapsedOutputs:
        """The distribution of y with f integrated out."""
        return CollapsedOutputs(self, latent)


class CollapsedOutputs(IntegratedDistribution):
    """``log_prob`` is the bound of the outputs with f and x integrated out.

    :param outputs: p(y given f); its f is not read.
    :param latent: the functions with x integrated out.
    :ivar share: factor of its log-probability in the loss, as of ``poutine.scale``; 0 if its gradients are not used.
    :raises ValueError: for several draws of hyperparameters at a time.
    """

    share: float = 1.0

    def __init__(self, outputs: GivenLatent, latent: CollapsedLatent) -> None:
        if latent.batch_shape:
            raise several_draws(outputs.likelihood.likelihood)
        self.outputs, self.latent, self.likelihood = outputs, latent, latent.gp
        super().__init__(latent.batch_shape, outputs.event_shape, validate_args=False)

    @property
    def sites(self) -> OutputSites:
        """The Gaussian factors of the outputs."""
        return self.outputs.sites

    def log_prob(self, value: Tensor) -> Tensor:
        outputs, likelihood, data = self.outputs, self.outputs.likelihood, self.outputs.data
        if value is data.y:
            self.latent.belong_to(data)
        y, state = outputs.sites.read(data, value, likelihood, self.latent.bound)
        evaluation = outputs.sites.tracked(likelihood, y, state, self.share)
        bound, evaluation.drawn = self.latent.evaluate(likelihood, y, evaluation.sites)
        return bound.expand(self.batch_shape)
