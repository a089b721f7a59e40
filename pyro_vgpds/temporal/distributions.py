# SPDX-License-Identifier: Apache-2.0
"""The latent path as Pyro distributions: the temporal GP prior p(X given t) and the posterior q(X).

Nothing here inverts or factorises K_t or S. With r = √λ and B = I + r K r, whose eigenvalues are at least 1,
S = K − K r B⁻¹ r K and KL = ½ (log|B| + mean_bar·μ − λ·diag S).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor
from torch.distributions import Independent, Normal, register_kl

from pyro_vgpds.data.times import Times
from pyro_vgpds.expandable import Expandable
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.temporal import recursions
from pyro_vgpds.temporal.dense import DenseCovariance, DiagonalCovariance, Moments
from pyro_vgpds.temporal.markov import MarkovCovariance

__all__ = ["STRUCTURES", "OpperArchambeau", "TemporalGP"]

#: what K_t can be computed as
STRUCTURES = ("dense", "markov")
# Frames from which on Markov is the faster form (measured): at least, and for each number of the state. Of several
# sequences the squared lengths add up. The scans, which stand in for the compiled loops, pay off later.
_COMPILED_FRAMES = (100, 10)
_SCAN_FRAMES = (400, 120)


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


class TemporalGP(Expandable):
    r"""p(X given t), block-diagonal over sequences (the paper's eq. 8, section 2.3):

    .. math:: p(X \mid t) = \prod_q N(x_q \mid 0, K_t), \qquad K_t = k_x(t, t).

    Event shape (N, Q). Sampling and ``log_prob`` factorise K_t, with jitter by the rule of
    :func:`~pyro_vgpds.linalg.default_jitter`, once and only when asked for; q(X) and its KL need neither.

    :param kernel: a temporal kernel's value, ``kernel()``.
    :param times: a :class:`~pyro_vgpds.data.Times` (``data.times``), or a tensor (N,) for one sequence.
    :param latent_dim: Q, how many latent dimensions there are.
    :param jitter: added to the diagonal where K_t is factorised; ``None`` follows the rule.
    :param structure: ``"dense"`` makes one n × n block for each sequence, at a cost of O(n³); ``"markov"`` goes through
        the kernel's state-space form, at O(n). Left out, it is ``"markov"`` where the kernel has such a form and there
        are frames enough for it to be the faster one. The results are the same.
    :raises ValueError: where ``"markov"`` is asked of a kernel without a state-space form, or the kernel has parameters
        for another number of latent dimensions.

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
    r"""q(X), event shape (N, Q), in the form that every stationary point of the bound has (Opper and Archambeau 2009;
    the paper's eq. 15):

    .. math:: q(X) = \prod_q N(x_q \mid \mu_q, S_q), \qquad
              \mu_q = K_t \bar\mu_q, \qquad S_q = (K_t^{-1} + \mathrm{diag}\,\lambda_q)^{-1}.

    Only 2QN numbers parametrise it, and neither K_t nor S is ever inverted. Its density is the prior's times Gaussian
    sites in each x_nq, so ``q.log_prob(x) - prior.log_prob(x)`` is exact whatever jitter the prior needed.

    :param prior: the :class:`TemporalGP` that it is a posterior of.
    :param mean_bar: :math:`\bar\mu`, (..., N, Q).
    :param lam: λ ≥ 0, (..., N, Q).
    :param validate_args: check the arguments, as for all distributions.
    :raises ValueError: where a shape does not end in (N, Q), or ``lam`` is negative.

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

        :param prior: the :class:`TemporalGP`.
        :param eta: η, (..., N, Q).
        :param lam: λ ≥ 0, (..., N, Q).

        >>> torch.allclose(OpperArchambeau.from_natural(prior, q.eta, q.lam).mean, q.mean)
        True
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
        """S of some frames, (..., Q, T, T).

        :param rows: their indices, (T,).
        """
        t, q = len(rows), self.event_shape[-1]
        return self.prior.covariance.posterior_block(self.lam, rows).expand(self.batch_shape + (q, t, t))

    def forecast(self, t: Tensor, sequence: int | None) -> TorchDistribution:
        r"""q(X*) at new times (T,) of a sequence, or of a new one (None), for which it is the prior.

        .. math:: \mu_* = K_{*N} \bar\mu, \qquad \Sigma_* = K_{**} - K_{*N} (K_t + \Lambda^{-1})^{-1} K_{N*}

        Event shape (T, Q), with ``mean``, ``variance``, ``covariance_matrix`` (Q, T, T) and ``rsample``. White noise of
        the temporal kernel is part of :math:`K_{**}` and not of :math:`K_{*N}`.

        :param t: new times (T,), a tensor.
        :param sequence: the index of the training sequence, or None.

        >>> q.forecast(torch.tensor([1.1, 1.2]).double(), sequence=0).variance.shape
        torch.Size([2, 2])
        """
        covariance = self.prior.covariance
        if sequence is None or isinstance(covariance, DiagonalCovariance):  # white noise says nothing of other times
            in_order = bool((t.diff() >= 0).all())  # as recursions over time want it
            structure = self.prior.asked if in_order else "dense"
            return TemporalGP(self.prior.kernel, t, self.event_shape[-1], structure=structure)
        return covariance.forecast(self, t, sequence)

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
