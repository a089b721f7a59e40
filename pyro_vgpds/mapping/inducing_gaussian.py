# SPDX-License-Identifier: Apache-2.0
"""Distributions of the whitened inducing variables: their prior, and Gaussian posteriors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, register_kl

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.linalg import broadcast_shapes, cholesky, in_double
from pyro_vgpds.mapping.frame_sums import FrameSums
from pyro_vgpds.mapping.output_sites import OutputSites
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.matrix_distribution import MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["InducingGaussian", "InducingPrior"]


class InducingPrior(MatrixDistribution):
    """p(U) = N(0, I) of whitened inducing variables, event shape (M, D); u_d times L has the covariance K_MM = L Lᵀ.

    A guide is handed this prior, which has what q(U) may depend on.

    :param kernel: the mapping kernel's value.
    :param inducing: inducing inputs (M, Q).
    :param noise: the noise variance of the scaled outputs, (1,) or (D,).
    :param num_outputs: D.
    :param jitter: added to the diagonal of K_MM. Default: the rule of :func:`~pyro_vgpds.linalg.default_jitter`.
    :param scale: the number of all sequences over that of the batch.
    :param rows: which of the frames of all sequences those of the batch are, (n,).
    :param communicator: the processes whose sequences are one batch together.
    :ivar factor: L.

    >>> import torch
    >>> from pyro_vgpds.kernels import ARDRBF
    >>> from pyro_vgpds.mapping import InducingPrior
    >>> z, noise = torch.randn(4, 2).double(), torch.full((1,), 0.1).double()
    >>> InducingPrior(ARDRBF(1.0, 2.0)(), z, noise, num_outputs=3).sample().shape
    torch.Size([4, 3])
    """

    has_rsample = True

    def __init__(
        self, kernel: MappingValue, inducing: Tensor, noise: Tensor, num_outputs: int, *, jitter: float | None = None,
        scale: float = 1.0, rows: Tensor | None = None, communicator: Communicator = SINGLE_PROCESS,
    ) -> None:  # fmt: skip
        self.kernel, self.inducing, self.noise = in_double(kernel), inducing.double(), noise.double()
        self.factor = cholesky(self.kernel.inducing_cov(self.inducing), "the inducing covariance K_MM", jitter)
        self.scale, self.rows, self.communicator = scale, rows, communicator
        batch = broadcast_shapes(self.factor.shape[:-2], self.noise.shape[:-1])
        super().__init__(batch, torch.Size((inducing.shape[-2], num_outputs)), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.factor.new_zeros(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        return self.factor.new_ones(self._extended_shape())

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return torch.randn(self._extended_shape(sample_shape), dtype=self.factor.dtype, device=self.factor.device)

    def log_prob(self, value: Tensor) -> Tensor:
        return Normal(torch.zeros_like(value), 1.0, validate_args=False).log_prob(value).sum((-2, -1))


class InducingGaussian(MatrixDistribution):
    r"""q(U) = Π_d N(m_d, C_d) of whitened inducing variables, event shape (M, D).

    Outputs are in G groups. The covariance of an output of group g is :math:`C_d = R_g \mathrm{diag}(s_d) R_g^\top`:
    with eigenvectors R_g that all outputs of a group share, or with a Cholesky factor and s = 1.

    :param mean: (M, D).
    :param basis: R, (G, M, M).
    :param spread: s ≥ 0, (M, D) or (M, 1).
    :param of_output: the group of each output, (D,).
    :param orthogonal: whether the bases are orthogonal, otherwise they are lower triangular.
    :ivar outputs: the Gaussian factors of the outputs of a batch, if these are not Gaussian and the guide keeps them.

    >>> import torch
    >>> from pyro_vgpds.mapping import InducingGaussian
    >>> mean, root = torch.zeros(4, 3).double(), torch.eye(4).double().unsqueeze(0)
    >>> q = InducingGaussian(mean, root, torch.ones(4, 1).double(), torch.zeros(3, dtype=torch.long), orthogonal=False)
    >>> q.covariance_matrix.shape, q.sample().shape
    (torch.Size([3, 4, 4]), torch.Size([4, 3]))
    """

    has_rsample = True

    def __init__(self, mean: Tensor, basis: Tensor, spread: Tensor, of_output: Tensor, *, orthogonal: bool) -> None:
        self._mean, self.basis, self.spread = mean.double(), basis.double(), spread.double().expand(mean.shape)
        self.of_output, self.orthogonal = of_output, orthogonal
        self.outputs: OutputSites | None = None
        self.has_seen = True  # data
        super().__init__(torch.Size(), mean.shape, validate_args=False)

    @classmethod
    def of(cls, q: Distribution) -> InducingGaussian | None:
        """``q`` itself, or independent Normals as one of this kind; None for another distribution.

        :param q: a distribution of event shape (M, D).
        """
        if isinstance(q, InducingGaussian):
            return q
        if isinstance(q, Independent) and isinstance(q.base_dist, Normal) and len(q.event_shape) == 2:
            return None if q.batch_shape else cls._diagonal(q.mean, q.variance)
        return None

    @classmethod
    def point(cls, u: Tensor) -> InducingGaussian:
        """All mass at one point.

        :param u: (M, D).
        """
        return cls._diagonal(u, torch.zeros_like(u))

    @classmethod
    def _diagonal(cls, mean: Tensor, variance: Tensor) -> InducingGaussian:
        eye = torch.eye(len(mean), dtype=torch.float64, device=mean.device).unsqueeze(0)
        where = torch.zeros(mean.shape[-1], dtype=torch.long, device=mean.device)
        return cls(mean, eye, variance, where, orthogonal=True)

    def given(self, sums: FrameSums) -> InducingGaussian:
        """The q(U) that the expectation is taken over, when it meets the sums of a batch: this one.

        :param sums: of the frames of the batch.
        """
        return self

    def before(self) -> InducingGaussian | None:
        """The q(U) before it meets the sums of a batch: this one; None if it has seen no data."""
        return self if self.has_seen else None

    @property
    def mean(self) -> Tensor:
        return self._mean

    @property
    def variance(self) -> Tensor:
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1).mT

    @property
    def covariance_matrix(self) -> Tensor:
        """C of each output, (D, M, M)."""
        root = self.basis[self.of_output] * self.spread.mT.sqrt().unsqueeze(-2)
        return root @ root.mT

    def quadratic(self, a: Tensor, of_output: Tensor) -> Tensor:
        """E[u_d·A u_d], (D,), with the matrix of the group of each output; 0 for an output without a group.

        :param a: symmetric matrices, (C, M, M).
        :param of_output: the group of each output, (D,); -1 for none.
        """
        if len(a) == len(self.basis) == 1 and not bool((of_output < 0).any()):
            return self._quadratic(a[0], self.basis[0], self.mean, self.spread)
        if len(a) == len(self.basis) == len(of_output) and torch.equal(of_output, self.of_output):  # one for each
            a, basis = a[of_output], self.basis[of_output]
            rotated = (basis * (a @ basis)).sum(-2)
            mean = self.mean.mT.unsqueeze(-1)
            return (mean * (a @ mean)).sum((-2, -1)) + (rotated * self.spread.mT).sum(-1)
        total, seen = self.mean.new_zeros(self.mean.shape[-1]), of_output >= 0
        pairs = torch.stack([of_output, self.of_output])[:, seen]
        which = seen.nonzero().squeeze(-1)
        for c, g in pairs.unique(dim=1).T.tolist():
            index = which[(pairs[0] == c) & (pairs[1] == g)]
            part = self._quadratic(a[c], self.basis[g], self.mean[:, index], self.spread[:, index])
            total = total.index_copy(0, index, part)
        return total

    @staticmethod
    def _quadratic(a: Tensor, basis: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        rotated = (basis * (a @ basis)).sum(-2)  # the diagonal of Rᵀ A R
        return (mean * (a @ mean)).sum(-2) + rotated @ spread

    def kl_to_prior(self) -> Tensor:
        """KL(q(U), N(0, I)), ()."""
        length = self.basis.square().sum(-2).mT[:, self.of_output]  # of the columns of R, (M, D)
        log_det = self.spread.log().sum()
        if not self.orthogonal:
            own = self.basis.diagonal(dim1=-2, dim2=-1).square().log().sum(-1)
            log_det = log_det + own[self.of_output].sum()
        return 0.5 * (self.mean.square().sum() + (length * self.spread).sum() - self.mean.numel() - log_det)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        noise = torch.randn(self._extended_shape(sample_shape), dtype=self.mean.dtype, device=self.mean.device)
        scaled = self.spread.sqrt() * noise
        if len(self.basis) == 1:
            return self.mean + self.basis[0] @ scaled
        return self.mean + (self.basis[self.of_output] @ scaled.mT.unsqueeze(-1)).squeeze(-1).mT

    def log_prob(self, value: Tensor) -> Tensor:
        basis = self.basis[self.of_output]  # (D, M, M)
        off = (value - self.mean).mT.unsqueeze(-1)
        if self.orthogonal:
            white = (basis.mT @ off).squeeze(-1)
        else:
            white = torch.linalg.solve_triangular(basis, off, upper=False).squeeze(-1)
        scale = self.spread.mT.sqrt()
        log_prob = Normal(torch.zeros_like(scale), scale, validate_args=False).log_prob(white).sum((-2, -1))
        if not self.orthogonal:
            log_prob = log_prob - basis.diagonal(dim1=-2, dim2=-1).log().sum()
        return log_prob


@register_kl(InducingGaussian, InducingPrior)  # type: ignore[untyped-decorator]
def _kl_inducing(q: InducingGaussian, p: InducingPrior) -> Tensor:
    return q.kl_to_prior().expand(p.batch_shape)


@register_kl(Independent, InducingPrior)  # type: ignore[untyped-decorator]
def _kl_mean_field(q: Independent, p: InducingPrior) -> Tensor:
    if (own := InducingGaussian.of(q)) is None:
        raise NotImplementedError("KL(q, InducingPrior) is analytic only for Gaussians.")
    return own.kl_to_prior().expand(p.batch_shape)
