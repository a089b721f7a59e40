# SPDX-License-Identifier: Apache-2.0
"""The latent path as Pyro distributions: the temporal GP prior p(X given t) and the posterior q(X).

All algebra is that of a :class:`~pyro_vgpds.temporal.covariance.TemporalCovariance`, the covariance matrix K_t in one
of its forms. With its moments KL(q, p) = ½ (log|B| + mean_bar·μ − λ·diag S).
"""

from __future__ import annotations

import functools
import math

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from pyro_vgpds.checks import check_flags, check_kind
from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.kernels.programs import read_program
from pyro_vgpds.linalg import broadcast_shapes, in_double, positive_part
from pyro_vgpds.matrix_distribution import MatrixDistribution
from pyro_vgpds.temporal.arguments import as_times, check_new_times, check_prior, check_shapes
from pyro_vgpds.temporal.covariance import PathMoments, Predictor
from pyro_vgpds.temporal.paths import GaussianPath
from pyro_vgpds.temporal.structure import make_covariance
from pyro_vgpds.types import Shape

__all__ = ["OpperArchambeau", "TemporalGP"]


class TemporalGP(MatrixDistribution):
    r"""p(X given t), block-diagonal over sequences (the paper's eq. 8, section 2.3):

    .. math:: p(X \mid t) = \prod_q N(x_q \mid 0, K_t), \qquad K_t = k_x(t, t).

    Event shape (N, Q). Only sampling and ``log_prob`` factorise K_t, once, with jitter by the rule of
    :func:`~pyro_vgpds.linalg.default_jitter`; q(X) and its KL need neither.

    :param kernel: a temporal kernel's value, ``kernel()``.
    :param times: a :class:`~pyro_vgpds.data.Times` (``data.times``), or a tensor (N,) for one sequence.
    :param latent_dim: Q, the number of latent dimensions.
    :param jitter: added to the diagonal when K_t is factorised. Default: the rule.
    :param structure: ``"dense"`` makes one n × n block for each sequence, at a cost of O(n³); ``"markov"`` uses the
        kernel's state-space form, at a cost of O(n). The results are the same. Default: ``"markov"`` if the kernel has
        a state-space form and there are enough frames for it to be faster, else ``"dense"``.
    :raises ValueError: if ``structure`` is unknown, if it is ``"markov"`` and the kernel has no state-space form, or if
        the kernel has parameters for another number of latent dimensions.

    >>> import torch
    >>> from pyro_vgpds import TemporalGP
    >>> from pyro_vgpds.kernels import Matern32
    >>> t = torch.linspace(0, 1, 4).double()
    >>> prior = TemporalGP(Matern32(1.0, 0.5)(), t, latent_dim=2, structure="markov")
    >>> prior
    TemporalGP(frames=4, latent_dim=2, structure='markov')
    >>> prior.sample((5,)).shape, prior.covariance_matrix.shape
    (torch.Size([5, 4, 2]), torch.Size([2, 4, 4]))
    """

    has_rsample = True
    rows: Tensor | None = None  #: (n,), which of the frames of all sequences these are, if they are those of a batch
    places: Tensor | None = None  #: (B,), which of these frames have outputs in the batch; None for all

    def __init__(
        self,
        kernel: KernelValue,
        times: Times | Tensor,
        latent_dim: int,
        jitter: float | None = None,
        structure: str | None = None,
    ) -> None:
        check_prior(kernel, latent_dim, jitter)
        times, program = as_times(times), read_program(kernel)
        kernel = in_double(kernel) if program is None else kernel  # parameters of programs are float64
        self.kernel, self.times = kernel, times
        self._requested = structure  # of priors of the same kernel at other times, too
        self.covariance = make_covariance(kernel, times, jitter, structure, program)
        own = self.covariance.num_kernels
        if own not in (1, latent_dim):
            raise ValueError(
                f"the temporal kernel has parameters for {own} latent dimensions, but latent_dim is {latent_dim}."
            )
        super().__init__(self.covariance.batch_shape, torch.Size((len(times), latent_dim)), validate_args=False)

    def at(self, times: Times | Tensor) -> TemporalGP:
        """The prior of the same kernel at other times.

        :param times: a :class:`~pyro_vgpds.data.Times`, or a tensor (T,) for one sequence, in any order.
        """
        sorted_times = isinstance(times, Times) or bool((times.diff() >= 0).all())  # which the Markov form needs
        structure = self._requested if sorted_times else "dense"
        return TemporalGP(self.kernel, times, self.event_shape[-1], structure=structure)

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
        """K_t for each latent dimension, (..., Q, N, N), zero between sequences. Large: computed on each access."""
        n, q = self.event_shape
        return self.covariance.matrix().expand(self.batch_shape + (q, n, n))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        k = self.covariance.diag()
        noise = torch.randn(self._extended_shape(sample_shape), dtype=k.dtype, device=k.device)
        return self.covariance.correlate(noise)

    def log_prob(self, value: Tensor) -> Tensor:
        n, q = self.event_shape
        check_shapes(self.event_shape, value=value)
        square, logdet = self.covariance.whiten(value)
        terms = square + logdet + n * math.log(2.0 * math.pi)
        return -0.5 * terms.expand(terms.shape[:-1] + (q,)).sum(-1)


class OpperArchambeau(MatrixDistribution):
    r"""q(X), event shape (N, Q), in the form of every stationary point of the bound (Opper and Archambeau 2009; the
    paper's eq. 15):

    .. math:: q(X) = \prod_q N(x_q \mid \mu_q, S_q), \qquad
              \mu_q = K_t \bar\mu_q, \qquad S_q = (K_t^{-1} + \mathrm{diag}\,\lambda_q)^{-1}.

    It has only 2QN parameters, and neither K_t nor S is ever inverted. Its density is the prior's times Gaussian
    sites in each x_nq, so ``q.log_prob(x) - prior.log_prob(x)`` is exact for any jitter of the prior.

    :param prior: the prior, a :class:`TemporalGP`.
    :param mean_bar: :math:`\bar\mu`, (..., N, Q).
    :param lam: λ ≥ 0, (..., N, Q).
    :param validate_args: check the arguments, as for all distributions.
    :raises ValueError: if a shape does not end in (N, Q), or if ``lam`` is negative.

    >>> import torch
    >>> from pyro_vgpds import OpperArchambeau, TemporalGP
    >>> from pyro_vgpds.kernels import RBF
    >>> prior = TemporalGP(RBF(1.0, 0.5)(), torch.linspace(0, 1, 4).double(), latent_dim=2)
    >>> ones = torch.ones(4, 2).double()
    >>> q = OpperArchambeau(prior, mean_bar=ones, lam=3.0 * ones)
    >>> k = prior.covariance_matrix
    >>> inverse = torch.linalg.inv(k) + 3.0 * torch.eye(4)
    >>> torch.allclose(q.covariance_matrix, torch.linalg.inv(inverse))
    True
    >>> torch.allclose(q.mean, k[0] @ q.mean_bar)
    True
    """

    arg_constraints = {"mean_bar": constraints.real, "lam": constraints.nonnegative}
    has_rsample = True

    def __init__(self, prior: TemporalGP, mean_bar: Tensor, lam: Tensor, validate_args: bool | None = None) -> None:
        check_kind("prior", prior, TemporalGP, "a TemporalGP")
        check_shapes(prior.event_shape, mean_bar=mean_bar, lam=lam)
        if validate_args is not None:
            check_flags(validate_args=validate_args)
        mean_bar, lam = mean_bar.double(), lam.double()
        self.prior, self.mean_bar, self.lam = prior, mean_bar, lam
        self._predictors: dict[int, Predictor | None] = {}  # by sequence, made when first needed
        batch = broadcast_shapes(prior.batch_shape, mean_bar.shape[:-2], lam.shape[:-2])
        super().__init__(batch, prior.event_shape, validate_args=validate_args)

    @classmethod
    def from_natural(cls, prior: TemporalGP, eta: Tensor, lam: Tensor) -> OpperArchambeau:
        """The same distribution from η = S⁻¹μ and λ, its natural parameters less those of the prior.

        Gradients keep η and λ fixed, so that μ depends on the hyperparameters of the prior, as natural gradient steps
        need it.

        :param prior: the :class:`TemporalGP`.
        :param eta: η, (..., N, Q).
        :param lam: λ ≥ 0, (..., N, Q).
        :raises ValueError: if a shape does not end in (N, Q).

        >>> torch.allclose(OpperArchambeau.from_natural(prior, q.eta, q.lam).mean, q.mean)
        True
        """
        check_kind("prior", prior, TemporalGP, "a TemporalGP")
        check_shapes(prior.event_shape, eta=eta, lam=lam)
        eta, lam = eta.double(), lam.double()
        moments = prior.covariance.posterior_from_natural(eta, lam)
        new = cls(prior, moments.mean_bar, lam, validate_args=False)
        new.eta, new.moments = eta, moments
        return new

    def __repr__(self) -> str:
        n, q = self.event_shape
        return f"OpperArchambeau(frames={n}, latent_dim={q}, structure={self.prior.structure!r})"

    @functools.cached_property
    def moments(self) -> PathMoments:
        """μ, diag S, mean_bar and log|B|, computed once."""
        return self.prior.covariance.posterior(self.mean_bar, self.lam)

    def take_gradients(self, mean: Tensor, variance: Tensor, d_mean: Tensor, d_variance: Tensor) -> None:
        """Is called with the moments that a loss was computed from without a graph, and its gradients in them.

        :param mean: (N, Q).
        :param variance: (N, Q).
        :param d_mean: of the same shape.
        :param d_variance: of the same shape.
        """

    @functools.cached_property
    def eta(self) -> Tensor:
        """η = S⁻¹ μ."""
        return self.mean_bar + self.lam * self.moments.mu

    @property
    def mean(self) -> Tensor:
        """μ = K_t mean_bar."""
        return self.moments.mu.expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """The diagonals of S, without negative values that rounding errors made."""
        return self.moments.s.clamp_min(0.0).expand(self._extended_shape())

    @property
    def covariance_matrix(self) -> Tensor:
        """S for each latent dimension, (..., Q, N, N), zero between sequences. Large: computed on each access."""
        n, q = self.event_shape
        return positive_part(self.prior.covariance.posterior_matrix(self.lam)).expand(self.batch_shape + (q, n, n))

    def covariance_of(self, rows: Tensor) -> Tensor:
        """S of some frames, (..., Q, T, T).

        :param rows: their indices, (T,).
        """
        t, q = len(rows), self.event_shape[-1]
        return positive_part(self.prior.covariance.posterior_block(self.lam, rows)).expand(self.batch_shape + (q, t, t))

    def frames(self, rows: Tensor) -> GaussianPath:
        """q(X) of some frames as a distribution, event shape (T, Q).

        :param rows: their indices, (T,).
        """
        return self.prior.covariance.posterior_path(self.moments, self.lam, rows).expand(self.batch_shape)

    def forecast(self, t: Tensor, sequence: int | None) -> TorchDistribution:
        r"""q(X*) at new times (T,) of a training sequence, or of a new one (None), for which it is the prior.

        .. math:: \mu_* = K_{*N} \bar\mu, \qquad \Sigma_* = K_{**} - K_{*N} (K_t + \Lambda^{-1})^{-1} K_{N*}

        Event shape (T, Q), with ``mean``, ``variance``, ``covariance_matrix`` (Q, T, T) and ``rsample``. White noise of
        the temporal kernel is part of :math:`K_{**}` and not of :math:`K_{*N}`. What all new times of a sequence share,
        such as a factor of its K_t + Λ⁻¹, is computed once.

        :param t: new times (T,), a tensor, in any order.
        :param sequence: the index of the training sequence, or None.

        >>> q.forecast(torch.tensor([1.1, 1.2]).double(), sequence=0).variance.shape
        torch.Size([2, 2])
        """
        check_new_times(t, sequence, len(self.prior.times.lengths))
        if sequence is not None and sequence not in self._predictors:
            self._predictors[sequence] = self.prior.covariance.predictor(sequence, self.mean_bar, self.lam)
        predict = None if sequence is None else self._predictors[sequence]
        return self.prior.at(t) if predict is None else predict(t.double())

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.mean + self.prior.covariance.posterior_draw(self.lam, torch.Size(sample_shape) + self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        # q(x) = p(x) exp(η·x − ½ x·λx) / Z with η = mean_bar + λμ and log Z = ½ (η·μ − log|B|)
        check_shapes(self.event_shape, value=value)
        mu, _, _, logdet = self.moments
        site = self.eta * (value - 0.5 * mu) - 0.5 * self.lam * value.square()
        return self.prior.log_prob(value) + site.sum((-2, -1)) + 0.5 * logdet.sum(-1)
