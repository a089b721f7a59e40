# SPDX-License-Identifier: Apache-2.0
"""The mapping from latent points to outputs: a sparse GP as a distribution, its latent points known or integrated."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pyro_vgpds.checks import check_kind, check_not_negative, check_parts, check_tensor
from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.data.groups import ColumnGroups
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.linalg import broadcast_shapes, cholesky, in_double
from pyro_vgpds.mapping.basis import Basis, basis_of
from pyro_vgpds.mapping.bound import collapsed_bound
from pyro_vgpds.mapping.distributed_psi import sum_psi
from pyro_vgpds.mapping.group_terms import ValueAndGrads
from pyro_vgpds.mapping.native_psi2 import single_sums
from pyro_vgpds.mapping.precision import allows_single
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.mapping.rbf_bound import rbf_bound
from pyro_vgpds.matrix_distribution import IntegratedDistribution, MatrixDistribution
from pyro_vgpds.types import Shape

__all__ = ["CollapsedGP", "PathMarginals", "SparseGP"]


class PathMarginals(Protocol):
    """What the bound needs of a distribution of the latent points."""

    @property
    def mean(self) -> Tensor:
        """(..., N, Q)."""

    @property
    def variance(self) -> Tensor:
        """(..., N, Q)."""

    @property
    def batch_shape(self) -> torch.Size:
        """Of the distribution."""


class SparseGP(MatrixDistribution):
    r"""p(y given x): D outputs :math:`y_{nd} = m_d + s_d (f_d(x_n) + \epsilon_{nd})`, event shape (N, D).

    ``log_prob`` is the variational lower bound of Titsias (2009) on the exact GP's marginal likelihood,

    .. math:: \sum_d \Big(\log N(y_d \mid m_d, s_d^2 (Q_{NN} + \beta_d^{-1} I))
              - \frac{\beta_d}{2} \mathrm{tr}(K_{NN} - Q_{NN})\Big), \qquad Q_{NN} = K_{NM} K_{MM}^{-1} K_{MN},

    so any Pyro algorithm that samples x can use it. It is exact if the inducing inputs are the points x. ``sample``
    draws from the exact GP prior at x, plus noise, in the data's units. Under :class:`~pyro_vgpds.Collapsed_ELBO` the
    site's distribution becomes :meth:`integrate` (q(x)), in which x is integrated out.

    :param x: latent points (..., N, Q).
    :param kernel: the mapping kernel's value, ``kernel()``.
    :param inducing: inducing inputs (..., M, Q).
    :param noise: noise variance of the scaled outputs: one number, (..., 1) for all outputs or (..., D) one each.
    :param mean: m, (D,).
    :param scale: s, (D,). Default: ones.
    :param data: the :class:`~pyro_vgpds.Sequences` that ``y`` comes from, whose column groups are then used; a
        ``log_prob`` of other values reads those.
    :param jitter: added to the diagonal of K_MM; ``None`` follows :func:`~pyro_vgpds.linalg.default_jitter`.
    :raises ValueError: if ``noise`` or ``scale`` has another number of outputs than ``mean``.
    :raises NumericalError: by ``log_prob``, if K_MM cannot be factorised or rounding error dominates the bound.

    >>> import torch
    >>> from pyro_vgpds import SparseGP
    >>> from pyro_vgpds.kernels import ARDRBF
    >>> x = torch.linspace(-1, 1, 6).double().unsqueeze(-1)
    >>> noise, mean, kernel = torch.tensor(0.1).double(), torch.zeros(3).double(), ARDRBF(1.0, 2.0)()
    >>> exact = SparseGP(x, kernel, inducing=x, noise=noise, mean=mean)
    >>> y = exact.sample()  # (N, D)
    >>> k = kernel.cov(x, x) + noise * torch.eye(6)
    >>> gp = torch.distributions.MultivariateNormal(torch.zeros(6).double(), k)
    >>> torch.allclose(exact.log_prob(y), gp.log_prob(y.T).sum(), rtol=1e-4)  # as Z = X
    True
    """

    has_rsample = True

    def __init__(
        self,
        x: Tensor,
        kernel: MappingValue,
        *,
        inducing: Tensor,
        noise: Tensor,
        mean: Tensor,
        scale: Tensor | None = None,
        data: Sequences | None = None,
        jitter: float | None = None,
    ) -> None:
        check_parts("kernel", kernel, "the value of a mapping, such as ARDRBF()()", "cov", "psi1", "psi2")
        for name, value, dims in (("x", x, 2), ("inducing", inducing, 2), ("mean", mean, 1), ("noise", noise, 0)):
            check_tensor(name, value, dims)
        check_tensor("scale", scale, 1, optional=True)
        check_kind("data", data, Sequences, "Sequences(t, y)", optional=True)
        if jitter is not None:
            check_not_negative("jitter", jitter)
        self._given = mean, scale  # as they are, by which the data know their column groups
        self.is_single = inducing.dtype == torch.float32  # then sums are, if their errors allow it
        x, inducing, mean, noise = (value.double() for value in (x, inducing, mean, noise))
        self.x, self.kernel, self.inducing, self.output_mean = x, in_double(kernel), inducing, mean
        self._scale = None if scale is None else scale.double()
        self.noise = noise if noise.dim() else noise.unsqueeze(-1)  # (..., 1) or (..., D)
        self.data, self.jitter = data, jitter
        if self.noise.shape[-1] not in (1, len(mean)):
            raise ValueError(
                f"noise must be one number, (..., 1) or (..., {len(mean)}), but its shape is {tuple(noise.shape)}."
            )
        if scale is not None and scale.shape != mean.shape:
            raise ValueError(
                f"scale must be ({len(mean)},) as mean, one for each output, but got {tuple(scale.shape)}."
            )
        batch = broadcast_shapes(x.shape[:-2], inducing.shape[:-2], self.noise.shape[:-1])
        super().__init__(batch, torch.Size((x.shape[-2], len(mean))), validate_args=False)

    def groups(self, value: Tensor, columns: bool = False) -> ColumnGroups:
        """The column groups of ``value``: those of the data if it is the data's own ``y``.

        :param value: outputs (N, D).
        :param columns: keep the columns themselves, also if all outputs share a noise.
        """
        data = self.data
        if data is None or value is not data.y:
            steps = torch.arange(len(value), dtype=self.x.dtype)
            data = Sequences(steps, value, dtype=self.x.dtype, device=value.device)
        return self.groups_of(data, columns)

    def communicator(self, value: Tensor) -> Communicator:
        """The processes that have other frames of the data, if ``value`` is the data's ``y``; otherwise this one alone.

        :param value: outputs (N, D).
        """
        return self.data.frame_communicator if self.data is not None and value is self.data.y else SINGLE_PROCESS

    def groups_of(self, data: Sequences, columns: bool = False) -> ColumnGroups:
        """The column groups of centred and scaled outputs.

        :param data: the sequences that have them.
        :param columns: keep the columns themselves, also if all outputs share a noise.
        """
        return data.groups(*self._given, columns=columns or bool(self.noise.shape[-1] > 1)).in_double

    def num_functions(self, data: Sequences) -> int:
        """The number of functions that predict outputs of the data: one for each, without lagged copies.

        :param data: the sequences.
        """
        return data.num_base_outputs

    def targets(self, data: Sequences, start: int, stop: int) -> Tensor:
        """Centred and scaled outputs (N, stop - start), 0 if they were not observed.

        :param data: the sequences that have them.
        :param start: the first output.
        :param stop: the output after the last.
        """
        centred = data.read(start, stop).double().sub_(self.output_mean[start:stop])
        return torch.nan_to_num(centred.div_(self.output_scale[start:stop]), nan=0.0)

    @property
    def output_scale(self) -> Tensor:
        """The scale of the outputs, (D,)."""
        return torch.ones_like(self.output_mean) if self._scale is None else self._scale

    @property
    def noise_variance(self) -> Tensor:
        """The noise variance in the data's units: (..., D), or (..., 1) if noise and scale are the same for all."""
        return self.noise * _common(self.output_scale.square())

    def replaced(self, *, noise_variance: Tensor | None = None, scale: Tensor | None = None) -> SparseGP:
        """A copy with another noise or scale.

        :param noise_variance: in the data's units, (1,) or (D,). Default: the current :attr:`noise_variance`.
        :param scale: (D,). Default: the current one.
        """
        scale = self.output_scale if scale is None else scale
        noise = self.noise_variance if noise_variance is None else noise_variance
        return SparseGP(
            self.x, self.kernel, inducing=self.inducing, noise=noise / _common(scale.square()), mean=self.output_mean,
            scale=scale, data=self.data, jitter=self.jitter,
        )  # fmt: skip

    @property
    def basis(self) -> Basis:
        """The inducing variables: the functions at the inducing inputs or, of a linear kernel, their weights."""
        return basis_of(self.kernel, self.inducing, self.jitter)

    def inducing_factor(self) -> Tensor:
        """L, the Cholesky factor of the covariance K_MM of the inducing variables, with its jitter."""
        return self.basis.factor()

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_prob(self, self.x, None, value, self.batch_shape)

    def bound_and_grads(self, mean: Tensor, variance: Tensor, value: Tensor) -> ValueAndGrads | None:
        """The bound with x integrated over N(mean, diag variance), and its gradients in ``mean``, ``variance`` and the
        parameters, if the kernel computes all of them in one piece; None if it does not.

        :param mean: (N, Q).
        :param variance: (N, Q).
        :param value: outputs (N, D). If several processes have other frames, each gets its part of the bound.
        """
        if self.is_single or value.dim() > 2:
            return None
        groups, communicator = self.groups(value), self.communicator(value)
        return rbf_bound(self.kernel, mean, variance, self.inducing, self.noise, groups, self.jitter, communicator)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        factor = cholesky(self.kernel.cov(self.x, self.x), "the mapping's covariance K_NN", None)
        noise = torch.randn((2, *shape), dtype=self.x.dtype, device=self.x.device)
        scaled = factor @ noise[0] + self.noise.sqrt().unsqueeze(-2) * noise[1]
        return torch.addcmul(self.output_mean, self.output_scale, scaled)

    def integrate(self, posterior: PathMarginals) -> CollapsedGP:
        """The distribution of y with x integrated out, a :class:`~pyro_vgpds.mapping.CollapsedGP`.

        :param posterior: q(x), a distribution with a mean and a variance (..., N, Q).
        """
        return CollapsedGP(self, posterior)


class CollapsedGP(IntegratedDistribution):
    r"""``log_prob`` is :math:`\hat F`: the bound of :class:`~pyro_vgpds.SparseGP` with x integrated over q(x).

    It optimises q(U) after the integration over x, so it is a lower bound on E_q[SparseGP.log_prob], equal for a
    point q. It depends on q only through its marginal means and variances.

    :param likelihood: the :class:`~pyro_vgpds.SparseGP`.
    :param posterior: q(x), with a mean and a variance (..., N, Q).

    >>> q = guide.posterior(data)
    >>> likelihood = model.likelihood(q.mean, data)
    >>> bool(likelihood.integrate(q).log_prob(data.y) < likelihood.log_prob(data.y))
    True
    """

    def __init__(self, likelihood: SparseGP, posterior: PathMarginals) -> None:
        self.likelihood, self.x_mean, self.x_variance = likelihood, posterior.mean, posterior.variance
        batch = broadcast_shapes(likelihood.batch_shape, posterior.batch_shape)
        super().__init__(batch, likelihood.event_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return _log_prob(self.likelihood, self.x_mean, self.x_variance, value, self.batch_shape)


def _log_prob(gp: SparseGP, x: Tensor, variance: Tensor | None, value: Tensor, batch_shape: torch.Size) -> Tensor:
    """The bound of outputs (N, D), or of each in a batch of them, which have their own column groups, at latent points
    that are known or N(x, diag variance).
    """
    if value.requires_grad:
        raise NotImplementedError("SparseGP has no gradient in y: its data enter as constants.")
    if value.dim() > 2:
        bounds = torch.stack([_log_prob(gp, x, variance, each, batch_shape) for each in value])
        return bounds.diagonal() if value.shape[:-2] == batch_shape else bounds
    x, variance = x.double(), None if variance is None else variance.double()
    if variance is not None and (found := gp.bound_and_grads(x, variance, value)) is not None:
        return found.tensor().expand(batch_shape)
    groups, communicator = gp.groups(value), gp.communicator(value)
    if variance is None and communicator.size > 1:
        raise ValueError(
            "the data are shared by several processes, which Collapsed_ELBO supports, but not an algorithm that draws "
            "latent points. Use Collapsed_ELBO, or the whole data in one process."
        )
    basis = gp.basis
    factor = basis.factor()
    single = gp.is_single and groups.mask is None and allows_single(basis, factor, x, variance, gp.noise)
    with single_sums(single):
        psi = basis.expect(x, variance, groups.mask, groups.factor)
    bound = collapsed_bound(sum_psi(psi, communicator), factor, gp.noise, groups)
    return (bound if communicator.size == 1 else bound / communicator.size).expand(batch_shape)


def _common(values: Tensor) -> Tensor:
    """``values`` (D,), as (1,) if all are equal."""
    return values[:1] if bool((values == values[0]).all()) else values
