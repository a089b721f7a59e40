# SPDX-License-Identifier: Apache-2.0
r"""K_t of a Markov kernel in O(N), by its state-space form.

The kernel is K_t = K_f + diag ω: a smooth part f, which has the state-space form, and white noise ω. A site (η, λ) on
x = f + white noise is the site (η, λ)/(1 + ωλ) on f, and

.. math::
    \mu = \frac{\mu_f + \omega\eta}{1 + \omega\lambda}, \quad
    s = \frac{\omega}{1 + \omega\lambda} + \frac{s_f}{(1 + \omega\lambda)^2}, \quad
    \log|B| = \log|B_f| + \sum \log(1 + \omega\lambda).

The sequences are one chain, whose state is drawn again at the first frame of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pyro_vgpds.data.times import Times
from pyro_vgpds.kernels import KernelValue
from pyro_vgpds.kernels.programs import ProgramOf, stacked
from pyro_vgpds.linalg import broadcast_shapes, default_jitter
from pyro_vgpds.parameters.gradients import log_parameter_of
from pyro_vgpds.temporal import recursions
from pyro_vgpds.temporal.chains import Layout
from pyro_vgpds.temporal.covariance import PathMoments, Predictor, TemporalCovariance
from pyro_vgpds.temporal.dense import DenseCovariance
from pyro_vgpds.temporal.markov_autograd import natural_posterior, plain_posterior
from pyro_vgpds.temporal.path_gradients import MarkovPath, markov_path
from pyro_vgpds.temporal.path_reader import PathReader, path_reader
from pyro_vgpds.temporal.paths import GaussianPath
from pyro_vgpds.temporal.state_space import CompiledKernel, StateSpaceForm, make_state_space, read_compiled

__all__ = ["MarkovCovariance"]

_COLUMNS = 1 << 22  # numbers in the columns of S that are computed at once


class MarkovCovariance(TemporalCovariance):
    """K_t by its state-space form; only :meth:`matrix` and :meth:`posterior_matrix` make N × N matrices.

    It computes in float64 and returns the dtype of the times.
    """

    name = "markov"

    def __init__(
        self, kernel: KernelValue, times: Times, jitter: float | None, program: ProgramOf | None = None
    ) -> None:
        super().__init__(kernel, times, jitter, program)
        self._has_graph = torch.is_grad_enabled()
        self._made: dict[bool, StateSpaceForm] = {}  # with and without gradients
        self._variance: Tensor | None = None  # of a compiled kernel, (K,), without a gradient
        self._compiled = read_compiled(self.program, times)
        if self._compiled is not None:
            self.kernels = torch.Size((max(x.shape[0] for x in self._compiled.tensors),))  # (..., K)
            return
        form, diag = make_state_space(self.kernel, self.times, self._compiled), kernel.diag(times.t)
        self._made = {True: form, False: form}
        self.kernels = broadcast_shapes(form.a.shape[:-3], form.q.shape[:-3], diag.shape[:-1])
        self._k = diag.expand(self.kernels + (len(times),)).mT

    @property
    def state_space(self) -> StateSpaceForm:
        """The state-space form. That of a compiled kernel is made when it is first needed: q(X) does not need it."""
        has_graph = self._has_graph and torch.is_grad_enabled()
        if has_graph not in self._made:
            with torch.set_grad_enabled(has_graph):
                self._made[has_graph] = make_state_space(self.kernel, self.times, self._compiled)
        return self._made[has_graph]

    @property
    def white(self) -> Tensor:
        """The variance of the white noise, (..., N, K)."""
        return self.state_space.white

    @property
    def k(self) -> Tensor:
        """The diagonal of K_t, (..., N, K)."""
        if self._compiled is None:
            return self._k
        frames, tensors = self._compiled
        if not (self._has_graph and torch.is_grad_enabled()):
            if self._variance is None:
                self._variance = frames.variance(tensors)
            return self._variance.expand(len(self.times), -1)
        return self.kernel.diag(self.times.t).expand(self.kernels + (len(self.times),)).mT

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernels[:-1]

    @property
    def num_kernels(self) -> int:
        return self.kernels[-1]

    def tensors(self) -> tuple[Tensor, ...]:
        form = self.state_space
        return form.a, form.q, form.step, form.h, form.white

    def diag(self) -> Tensor:
        return self.k

    def matrix(self) -> Tensor:
        return self._dense().matrix()

    def posterior_matrix(self, lam: Tensor) -> Tensor:
        return self._dense().posterior_matrix(lam)

    def _dense(self) -> DenseCovariance:
        return DenseCovariance(self.kernel, self.times, self.jitter)

    def _run(
        self, recursion: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor, shared: tuple[Tensor, ...] = ()
    ) -> tuple[Tensor, ...]:
        """A recursion on inputs (..., N, Q), broadcast to one shape; its results are (..., N, Q) or (..., Q).

        :param shared: further inputs, which are not repeated over leading dimensions that they do not have.
        """
        own = [broadcast_shapes(self.kernels, x.shape[:-2] + x.shape[-1:]) for x in (*inputs, *shared)]
        chains = broadcast_shapes(*own)
        few = [shape if chains[len(chains) - len(shape) :] == shape else chains for shape in own[len(inputs) :]]
        rows = self.kernels.numel()
        form = self.state_space
        index = torch.arange(rows, device=form.a.device).reshape(self.kernels).expand(chains).flatten()
        a, q = (x.expand(self.kernels + x.shape[-3:]).reshape(rows, *x.shape[-3:]) for x in (form.a, form.q))
        n, shapes = len(self.times), [chains] * len(inputs) + few
        flat = [
            x.double().mT.expand(shape + (n,)).reshape(-1, n)
            for x, shape in zip((*inputs, *shared), shapes, strict=True)
        ]
        results = recursion(a, q, Layout(form.h, form.step, index, form.blocks), *flat)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(x.reshape(chains) if x.dim() == 1 else x.reshape(chains + (n,)).mT for x in results)

    def _back(self, x: Tensor) -> Tensor:
        return x.to(self.times.t.dtype)

    def matmul(self, v: Tensor) -> Tensor:
        (smooth,) = self._run(recursions.matmul, v)
        return self._back(smooth + self.white * v)

    def _compiled_for(self, first: Tensor, lam: Tensor) -> CompiledKernel | None:
        """The compiled kernel, if the sites have no batches."""
        own = first.shape == lam.shape and lam.dim() == 2 and self.kernels[0] in (1, lam.shape[1])
        return self._compiled if own else None

    def posterior(self, mean_bar: Tensor, lam: Tensor) -> PathMoments:
        compiled = self._compiled_for(mean_bar, lam)
        if compiled is not None and not compiled.frames.is_tiled:
            mu, s, logdet, self._variance = plain_posterior(
                compiled.frames, mean_bar.double(), lam.double(), compiled.tensors
            )
            return PathMoments(mu, s, self._back(mean_bar), logdet)
        lam = lam.double()
        shrink = self._shrink(lam)
        s, _, logdet = self._run(recursions.variance, lam * shrink)
        variance = self._noisy(s, shrink)
        return PathMoments(self.matmul(mean_bar), variance, self._back(mean_bar), self._whole(logdet, lam))

    def posterior_from_natural(self, eta: Tensor, lam: Tensor) -> PathMoments:
        if (compiled := self._compiled_for(eta, lam)) is not None:
            *moments, self._variance = natural_posterior(compiled.frames, eta.double(), lam.double(), compiled.tensors)
            return PathMoments(*moments)
        lam = lam.double()
        shrink = self._shrink(lam)
        if eta.shape == lam.shape:
            s, _, logdet, mean, mean_bar = self._run(recursions.posterior, shrink * eta, shrink * lam)
        else:  # many means have the same variance
            s, _, logdet = self._run(recursions.variance, shrink * lam)
            mean, mean_bar = self._run(recursions.solve, shrink * eta, shared=(shrink * lam,))
        mu = self._back(mean + self.white * mean_bar)
        return PathMoments(mu, self._noisy(s, shrink), self._back(mean_bar), self._whole(logdet, lam))

    def markov_path(self, eta: Tensor, lam: Tensor) -> MarkovPath | None:
        if self._compiled is None:
            return None
        frames, tensors = self._compiled
        log_parameters = [log_parameter_of(x) for x in tensors]
        if any(x.requires_grad and log is None for x, log in zip(tensors, log_parameters, strict=True)):
            return None
        return markov_path(frames, eta, lam, stacked(tensors).detach(), log_parameters)

    def path_reader(self, kernel: nn.Module) -> PathReader | None:
        return None if self._compiled is None else path_reader(kernel, *self._compiled)

    def _shrink(self, lam: Tensor) -> Tensor:
        """1/(1 + ωλ), (..., N, Q)."""
        return 1.0 / (1.0 + self.white * lam)

    def _noisy(self, s: Tensor, shrink: Tensor) -> Tensor:
        """The diagonal of S from that of f, (..., N, Q)."""
        return self._back(shrink * (self.white + shrink * s))

    def _whole(self, logdet: Tensor, lam: Tensor) -> Tensor:
        """log|B| from that of f, (..., Q)."""
        return self._back(logdet + torch.log1p(self.white * lam).sum(-2))

    def _mean(self, eta: Tensor, lam: Tensor, shrink: Tensor) -> tuple[Tensor, Tensor]:
        """μ = S η and mean_bar = K_t⁻¹ μ in float64. mean_bar of f and of x are the same, and μ = μ_f + ω mean_bar."""
        mean, mean_bar = self._run(recursions.solve, shrink * eta, shared=(shrink * lam,))
        return mean + self.white * mean_bar, mean_bar

    def posterior_block(self, lam: Tensor, rows: Tensor) -> Tensor:
        """S of the frames ``rows`` (T,), (..., Q, T, T), some columns at a time: O(N T), and never N × N."""
        lam, n = lam.double(), len(self.times)
        shrink = self._shrink(lam)
        parts = []
        for some in rows.split(max(1, _COLUMNS // shrink.numel())):
            unit = torch.zeros((len(some),) + (1,) * (shrink.dim() - 2) + (n, 1), dtype=lam.dtype, device=lam.device)
            unit.view(len(some), n)[torch.arange(len(some)), some] = 1.0
            mean, _ = self._mean(unit, lam, shrink)
            parts.append(mean.index_select(-2, rows).movedim(0, -1).transpose(-3, -2))  # (..., Q, T, columns)
        block = torch.cat(parts, -1)
        return self._back(0.5 * (block + block.mT))

    def gain(self, lam: Tensor, v: Tensor) -> Tensor:
        lam = lam.double()
        root = torch.where(lam == 0.0, 0.0, torch.where(lam == 0.0, 1.0, lam).sqrt())  # a gradient of zero at zero
        return self._back(self._mean(root * v, lam, self._shrink(lam))[0])

    def predictor(self, sequence: int, mean_bar: Tensor, lam: Tensor) -> Predictor:
        rows = self.times.slices()[sequence]
        return functools.partial(self._predict, self.times.t[rows], mean_bar[..., rows, :], lam[..., rows, :])

    def _predict(self, old: Tensor, mean_bar: Tensor, lam: Tensor, t: Tensor) -> GaussianPath:
        """The new times as frames without sites among those of the sequence."""
        merged, order = torch.cat([old, t]).sort(stable=True)
        mean_bar, lam = (torch.nn.functional.pad(x, (0, 0, 0, len(t))).index_select(-2, order) for x in (mean_bar, lam))
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        joint = MarkovCovariance(self.kernel, Times(merged), self.jitter)
        return joint.posterior_path(joint.posterior(mean_bar, lam), lam, place[len(old) :])

    def _noise(self) -> Tensor:
        """White noise and jitter, (..., N, K): the diagonal that the factor of K_t has besides K_f."""
        diag = self.k.double()
        if self.jitter is not None:
            return (self.white + self.jitter).expand_as(diag).clamp_min(torch.finfo(torch.float64).tiny)
        lengths = torch.tensor(self.times.lengths, device=diag.device)
        which = torch.repeat_interleave(torch.arange(len(lengths), device=diag.device), lengths)
        total = diag.new_zeros(diag.shape[:-2] + (len(lengths), diag.shape[-1])).index_add(-2, which, diag)
        scale = (total / lengths.unsqueeze(-1)).index_select(-2, which)
        return self.white + default_jitter(self.k.dtype) * scale

    def correlate(self, noise: Tensor) -> Tensor:
        return self._back(self._run(recursions.draw, self._noise(), noise)[0])

    def uncorrelate(self, x: Tensor) -> Tensor:
        """L⁻¹ x, (..., N, Q): the inverse of :meth:`correlate`, without gradients."""
        noise = self._noise()
        if torch.is_grad_enabled() and (x.requires_grad or noise.requires_grad or self.state_space.a.requires_grad):
            raise NotImplementedError(
                "uncorrelate has no gradient for structure='markov'. Call it within torch.no_grad(), or use "
                "structure='dense'."
            )
        return self._back(self._run(recursions.undraw, noise, x)[0])

    def whiten(self, x: Tensor) -> tuple[Tensor, Tensor]:
        noise = self._noise()
        precision = 1.0 / noise
        _, _, logdet = self._run(recursions.variance, precision)
        _, solved = self._run(recursions.solve, precision * x, precision)
        return self._back((x * solved).sum(-2)), self._back(logdet + noise.log().sum(-2))

    def inverse_diag(self) -> Tensor:
        return self._back(self._run(recursions.variance, 1.0 / self._noise())[1])
