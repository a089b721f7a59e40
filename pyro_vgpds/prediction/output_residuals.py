# SPDX-License-Identifier: Apache-2.0
r"""Residuals of Student-t outputs that are correlated in time.

Outliers of real recordings come in runs, which independent noise takes for outliers one by one. With a kernel of time
k + w δ, the sum of a path's kernel and white noise, the noise of an output in a sequence is

.. math:: e_d(t) + \sqrt{w}\, σ_d\, ε, \qquad e_d \sim GP\big(0, σ_d^2 k\big), \qquad ε \sim \text{Student-t}(ν),

with the trained scale σ_d. The variances of the kernel count, since the noise of the likelihood may have none to
divide. Given the mean and variance of e, each observed entry has a weight, as it has in training given those of f.
Given the weights, e is Gaussian. The two are updated in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from pyro_vgpds.kernels import Kernel
from pyro_vgpds.likelihoods import StudentT
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.prediction.residuals import Correlation, Residuals, path_at, weights_of
from pyro_vgpds.temporal.paths import GaussianPath

__all__ = ["OutputResiduals", "check_residual"]

_UPDATES = 6  # of the weights


def check_residual(correlation: Correlation, kernel: Kernel, outputs: LikelihoodValue) -> None:
    """Raise a ValueError if residuals of these outputs cannot have the kernel, whose correlation is given."""
    if not isinstance(outputs.likelihood, StudentT):
        raise ValueError(
            f"residual needs Gaussian or Student-t outputs, but the likelihood is {outputs.likelihood}; got {kernel}."
        )
    if correlation.split() is None:
        raise ValueError(
            "residual of Student-t outputs must be the sum of White() and another kernel, such as "
            f"Matern32(1.0, 0.3) + White(1.0), but got {kernel}."
        )


class OutputResiduals(Residuals):
    """Residuals of Student-t outputs; parameters as in :class:`~pyro_vgpds.prediction.residuals.Residuals`.

    :param outputs: the likelihood at its parameters.
    :ivar outputs: the likelihood of the outputs given f + e: its scale is that of the white part.
    """

    def __init__(
        self,
        correlation: Correlation,
        inducing: InducingPosterior,
        t_new: Tensor,
        sequences: Sequence[tuple[Tensor, Tensor]],
        outputs: LikelihoodValue,
    ) -> None:
        super().__init__(correlation, inducing, t_new, sequences)
        found = correlation.split()
        assert found is not None
        self._kernel, white = found
        scale, df = outputs.parameters.scale.detach().double(), outputs.parameters.df.detach().double()
        self.scale = scale.expand(inducing.num_outputs)
        values = SimpleNamespace(scale=self.scale * white.sqrt(), df=df)
        self.outputs = LikelihoodValue(outputs.likelihood, values, outputs.offset)

    @functools.cached_property
    def paths(self) -> list[tuple[Tensor, GaussianPath]]:
        """For each sequence its new frames (T,), and e / scale there, event shape (T, D)."""
        index = torch.arange(self.inducing.num_outputs, device=self.t_new.device)
        with torch.no_grad():
            return [
                (target, path_at(self._kernel, t, *self._factors(t, left), self.t_new[target]))
                for t, left, target in self._left(index, weights_of(self.inducing))
            ]

    def _factors(self, t: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """η and λ (n, D) of the Gaussian factors in e / scale of observed residuals (n, D), NaN if not observed."""
        eta, lam, mean, variance = (torch.zeros_like(left) for _ in range(4))
        for _ in range(_UPDATES if len(t) else 0):
            moments = torch.stack([self.scale * mean, self.scale.square() * (mean.square() + variance)])
            weight, linear, _ = self.outputs.sites(left, moments)
            eta, lam = linear * self.scale, weight * self.scale.square()
            path = path_at(self._kernel, t, eta, lam, t)
            mean, variance = path.mean, path.variance
        return eta, lam

    def path_moments(self) -> tuple[Tensor, Tensor]:
        """E e and V e, (T, D) each."""
        mean, variance = self.t_new.new_empty(2, len(self.t_new), self.inducing.num_outputs)
        for target, path in self.paths:
            mean[target] = path.mean * self.scale
            variance[target] = path.variance * self.scale.square()
        return mean, variance

    def sample(self, num_samples: int) -> Tensor:
        """Draws of e, (num_samples, T, D), coherent in time."""
        draws = self.t_new.new_empty(num_samples, len(self.t_new), self.inducing.num_outputs)
        for target, path in self.paths:
            # a frame at which the kernel has no variance, such as t = 0 of Linear, may have a covariance without a root
            drawn = torch.where(path.variance > 0.0, path.sample((num_samples,)), path.mean)
            draws[:, target] = drawn * self.scale
        return draws
