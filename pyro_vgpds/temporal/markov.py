# SPDX-License-Identifier: Apache-2.0
r"""K_t of a Markov kernel, and everything that q(X) needs of it, in O(N) by its state-space form.

The kernel is K_t = K_f + diag ω: a smooth part, which the state-space model has, and white noise, which it never sees.
A site (η, λ) on x = f + white noise is the site (η, λ)/(1 + ωλ) on f, and

.. math::
    \mu = \frac{\mu_f + \omega\eta}{1 + \omega\lambda}, \quad
    s = \frac{\omega}{1 + \omega\lambda} + \frac{s_f}{(1 + \omega\lambda)^2}, \quad
    \log|B| = \log|B_f| + \sum \log(1 + \omega\lambda).

The sequences are one chain, which forgets everything where a new one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.linalg import default_jitter
from pyro_vgpds.temporal import recursions
from pyro_vgpds.temporal.dense import DenseCovariance, Moments

__all__ = ["MarkovCovariance"]

_COLUMNS = 1 << 22  # numbers of the columns of S that are made at once


class MarkovCovariance:
    """K_t by its state-space form: the methods of ``DenseCovariance``, and no N × N matrix but where one is asked for.

    It computes in float64 whatever the dtype of the times, and returns theirs.
    """

    name = "markov"

    def __init__(self, kernel: KernelValue, times: Times, jitter: float | None) -> None:
        self.kernel, self.times, self.jitter = kernel, times, jitter
        t = times.t.double()
        first = torch.zeros(len(t), dtype=torch.bool, device=t.device)
        first[list(times.starts)] = True
        dt = torch.where(first, 0.0, torch.diff(t, prepend=t[:1]))
        self.h = kernel.observation_model(t)  # (N, d)
        if self.h.requires_grad:
            raise ValueError(
                "observation_model must not depend on parameters, or on times with a gradient: put scales into "
                "stationary_covariance, or take structure='dense'."
            )
        begins = first[:, None, None]
        stationary = kernel.stationary_covariance().double().unsqueeze(-3)
        self.a = torch.where(begins, 0.0, kernel.transition_matrix(dt).double())  # (..., K, N, d, d)
        self.q = torch.where(begins, stationary, kernel.process_noise(dt).double())
        white = kernel.white(t)
        self.white = white.double().mT if isinstance(white, Tensor) else t.new_zeros(1, 1)  # (..., N, K)
        diag = kernel.diag(times.t)
        self.kernels = torch.broadcast_shapes(self.a.shape[:-3], self.q.shape[:-3], diag.shape[:-1])  # (..., K)
        self.k = diag.expand(self.kernels + (len(t),)).mT  # (..., N, K)

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernels[:-1]

    def equals(self, other: Any) -> bool:
        def tensors(x: MarkovCovariance) -> tuple[Tensor, ...]:
            return x.a, x.q, x.h, x.white

        return self is other or (
            isinstance(other, MarkovCovariance)
            and self.times.lengths == other.times.lengths
            and all(
                x.shape == y.shape and torch.equal(x, y) for x, y in zip(tensors(self), tensors(other), strict=True)
            )
        )

    def diag(self) -> Tensor:
        return self.k

    def matrix(self) -> Tensor:
        return self._dense().matrix()

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        """S, (..., Q, N, N), zero between sequences."""
        return self._dense().posterior_matrix(lam)

    def _dense(self) -> DenseCovariance:
        return DenseCovariance(self.kernel, self.times, self.jitter)

    def _run(self, recursion: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, ...]:
        """A recursion on inputs (..., N, Q), all of which are brought to one shape; results likewise, or (..., Q)."""
        chains = torch.broadcast_shapes(self.kernels, *[x.shape[:-2] + x.shape[-1:] for x in inputs])
        rows = self.kernels.numel()
        index = torch.arange(rows, device=self.a.device).reshape(self.kernels).expand(chains).flatten()
        a, q = (x.expand(self.kernels + x.shape[-3:]).reshape(rows, *x.shape[-3:]) for x in (self.a, self.q))
        n = len(self.times)
        flat = [x.double().mT.expand(chains + (n,)).reshape(-1, n) for x in inputs]
        results = recursion(a, q, self.h, index, *flat)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(x.reshape(chains) if x.dim() == 1 else x.reshape(chains + (n,)).mT for x in results)

    def _back(self, x: Tensor) -> Tensor:
        return x.to(self.k.dtype)

    def matmul(self, v: Tensor) -> Tensor:
        (smooth,) = self._run(recursions.matmul, v)
        return self._back(smooth + self.white * v)

    def posterior(self, shift: Tensor, lam: Tensor, natural: bool = False) -> Moments:
        """``shift`` is mean_bar, of which μ = K mean_bar, or with ``natural`` η = S⁻¹μ."""
        lam = lam.double()
        shrink = 1.0 / (1.0 + self.white * lam)
        s, _, logdet = self._run(recursions.variance, lam * shrink)
        s = shrink * (self.white + shrink * s)
        logdet = logdet + torch.log1p(self.white * lam).sum(-2)
        if natural:
            mu, mean_bar = self._mean(shift, lam, shrink)
        else:
            mu, mean_bar = self.matmul(shift), shift
        return Moments(self._back(mu), self._back(s), self._back(mean_bar), self._back(logdet))

    def _mean(self, eta: Tensor, lam: Tensor, shrink: Tensor) -> tuple[Tensor, Tensor]:
        """μ = S η, and mean_bar = K⁻¹ μ: that of f and of x are the same, as K_f mean_bar and K mean_bar differ by
        what white noise adds.
        """
        mean, mean_bar = self._run(recursions.solve, shrink * eta, shrink * lam)
        return mean + self.white * mean_bar, mean_bar

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        """S of some frames, (..., Q, T, T), some columns at a time: O(N T), and never N × N."""
        lam, n = lam.double(), len(self.times)
        shrink = 1.0 / (1.0 + self.white * lam)
        parts = []
        for some in rows.split(max(1, _COLUMNS // shrink.numel())):
            unit = torch.zeros((len(some),) + (1,) * (shrink.dim() - 2) + (n, 1), dtype=lam.dtype, device=lam.device)
            unit.view(len(some), n)[torch.arange(len(some)), some] = 1.0
            mean, _ = self._mean(unit, lam, shrink)
            parts.append(mean.index_select(-2, rows).movedim(0, -1).transpose(-3, -2))  # (..., Q, T, columns)
        block = torch.cat(parts, -1)
        return self._back(0.5 * (block + block.mT))

    def forecast(self, q: Any, t: Tensor, sequence: int) -> Any:
        """q(X*) at new times of a sequence: frames without sites among its own."""
        from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
        from pyro_vgpds.temporal.paths import Rows

        rows = self.times.slices()[sequence]
        merged, order = torch.cat([self.times.t[rows], t]).sort(stable=True)
        prior = TemporalGP(self.kernel, merged, q.event_shape[-1], self.jitter, structure="markov")
        mean_bar, lam = (
            torch.nn.functional.pad(x[..., rows, :], (0, 0, 0, len(t))).index_select(-2, order)
            for x in (q.mean_bar, q.lam)
        )
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        return Rows(OpperArchambeau(prior, mean_bar, lam), place[rows.stop - rows.start :])

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        """K r B⁻¹ v = S r v, (..., N, Q): what Matheron's rule takes off a draw of the prior."""
        lam = lam.double()
        root = torch.where(lam == 0.0, 0.0, torch.where(lam == 0.0, 1.0, lam).sqrt())  # no gradient at zero
        return self._back(self._mean(root * v, lam, 1.0 / (1.0 + self.white * lam))[0])

    def _noise(self) -> Tensor:
        """The white part and the jitter of its sequence, (..., N, K): what the factor of K_t has beside K_f."""
        diag = self.k.double()
        if self.jitter is not None:
            return (self.white + self.jitter).expand_as(diag).clamp_min(torch.finfo(torch.float64).tiny)
        lengths = torch.tensor(self.times.lengths, device=diag.device)
        which = torch.repeat_interleave(torch.arange(len(lengths), device=diag.device), lengths)
        total = diag.new_zeros(diag.shape[:-2] + (len(lengths), diag.shape[-1])).index_add(-2, which, diag)
        scale = (total / lengths.unsqueeze(-1)).index_select(-2, which)
        return self.white + default_jitter(self.k.dtype) * scale

    def correlate(self, noise: Tensor) -> Tensor:
        """Standard normal noise (..., N, Q) with this covariance."""
        return self._back(self._run(recursions.draw, self._noise(), noise)[0])

    def uncorrelate(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`correlate`.

        :raises NotImplementedError: where a gradient is asked for.
        """
        noise = self._noise()
        if torch.is_grad_enabled() and (x.requires_grad or noise.requires_grad or self.a.requires_grad):
            raise NotImplementedError("uncorrelate has no gradient for a Markov prior; call it within torch.no_grad().")
        return self._back(self._run(recursions.undraw, noise, x)[0])

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Squared Mahalanobis norm and log-determinant, each (..., Q)."""
        noise = self._noise()
        precision = 1.0 / noise
        _, _, logdet = self._run(recursions.variance, precision)
        _, solved = self._run(recursions.solve, precision * x, precision)
        return self._back((x * solved).sum(-2)), self._back(logdet + noise.log().sum(-2))

    def inverse_diag(self) -> Tensor:
        """The diagonal of K_t⁻¹, (..., N, K)."""
        return self._back(self._run(recursions.variance, 1.0 / self._noise())[1])
