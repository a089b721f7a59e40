# SPDX-License-Identifier: Apache-2.0
r"""Latent paths that move within a window of time, for trials that are aligned in time.

.. math:: x_q(t) = e_q(t)\, s_q(t), \qquad e_q(t) = \exp\!\big(-(t - c_q)^2 / 2 w_q^2\big),

with s_q nearly constant in a trial. With a linear mapping, f is a sum of such windows with loadings of their own: what
a neuron shows in one part of the trial helps to predict other neurons in the same part, with few numbers for each
trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.outputs_start import start_outputs
from pyro_vgpds.kernels import ARDLinear, Bias, Kernel, KernelValue, Matern32, White, lift
from pyro_vgpds.model import VGPDS

__all__ = ["Window", "WindowPaths", "WindowValue"]

_WHITE, _OFFSET = 1e-3, 0.1  # variances of white noise in the paths and of the functions' constant offsets


class WindowValue(KernelValue):
    """The value of :class:`Window`."""

    def __init__(self, centre: Tensor, width: Tensor) -> None:
        self.centre, self.width = centre, width

    def window(self, t: Tensor) -> Tensor:
        r"""e(t), (..., K, \*t)."""
        return torch.exp(-0.5 * ((t - lift(self.centre, t)) / lift(self.width, t)).square())

    def gram(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        own = self.window(a)
        return own.unsqueeze(-1) * (own if b is None else self.window(b)).unsqueeze(-2)

    def diag(self, a: Tensor) -> Tensor:
        return self.window(a).square()


class Window(Kernel):
    """e(t) e(t'): a window of time, with centres c and widths w, one or (Q,), which multiplies another kernel."""

    def __init__(self, centre: object, width: object) -> None:
        super().__init__()
        self.add_parameter("centre", centre, constraint=constraints.real)  # type: ignore[arg-type]
        self.add_parameter("width", width)  # type: ignore[arg-type]

    def forward(self) -> WindowValue:
        return WindowValue(self.read("centre"), self.read("width"))


@dataclass(frozen=True)
class WindowPaths:
    """The kernels and the start of a model with ``num_each`` latent dimensions in each of ``num_windows`` windows."""

    num_windows: int
    num_each: int
    stop: float  #: the last centre; the first is 0
    width: float  #: of each window at first
    lengthscale: float  #: over which a path changes, apart from its window

    @property
    def latent_dim(self) -> int:
        """Q."""
        return self.num_windows * self.num_each

    def centres(self) -> Tensor:
        """The first centres, (Q,)."""
        each = torch.linspace(0.0, self.stop, self.num_windows, dtype=torch.float64)
        return each.repeat_interleave(self.num_each)

    def _each(self, value: float) -> Tensor:
        return torch.full((self.latent_dim,), value, dtype=torch.float64)

    def temporal(self) -> Kernel:
        """k_x."""
        path = Matern32(lengthscale=self._each(self.lengthscale)).fix("variance")
        return Window(self.centres(), self._each(self.width)) * path + White(_WHITE)

    def mapping(self) -> Kernel:
        """k_f."""
        return ARDLinear(self._each(1.0 / self.num_each)) + Bias(_OFFSET)

    @torch.no_grad()
    def start(self, model: VGPDS, data: Sequences) -> None:
        """Start at the principal components of the trials' averages in each window.

        They are not centred: a component can also be the average time course of all trials.
        """
        assert model.start is not None
        assert model.output_likelihood is not None
        outputs = start_outputs(model.output_likelihood, data)
        f = (outputs.data.read() - outputs.mean) / outputs.scale
        f = torch.nan_to_num(f, nan=0.0)
        windows = WindowValue(self.centres(), self._each(self.width)).window(data.times.t.double()).to(f)  # (Q, N)
        rows, (count, width) = data.times.slices(), (len(data.lengths), data.num_outputs)
        x, weight = torch.zeros_like(model.start.x), f.new_zeros(self.latent_dim)
        for first in range(0, self.latent_dim, self.num_each):
            e = windows[first].unsqueeze(-1)
            means = torch.stack([(e[r] * f[r]).sum(0) / e[r].sum() for r in rows])
            u, s, _ = torch.linalg.svd(means, full_matrices=False)
            for k in range(min(self.num_each, len(s))):
                score = torch.cat([u[i, k].expand(n) for i, n in enumerate(data.lengths)])
                x[:, first + k] = count**0.5 * score * e[:, 0]
                weight[first + k] = s[k].square() / (count * width)
        model.start = replace(model.start, x=x)
        next(leaf for leaf in model.mapping.leaves() if isinstance(leaf, ARDLinear)).set(
            "weight", weight.clamp_min(1e-6)
        )
