# SPDX-License-Identifier: Apache-2.0
"""The generative model: a latent path with a temporal GP prior, mapped to the outputs by a sparse GP."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import pyro
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor

from pyro_vgpds.checks import check_count, check_noise, is_whole, positive
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted
from pyro_vgpds.inference.start import Start, start_model
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, Kernel, White
from pyro_vgpds.kernels.base import event_dim
from pyro_vgpds.kernels.check import check_mapping, check_temporal
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.temporal.distributions import TemporalGP, check_structure

__all__ = ["VGPDS", "Relevance"]

# marks for Collapsed_ELBO; every other algorithm ignores them
_INTEGRATED: Any = {"integrated": True}
_INTEGRATE: Any = {"integrate": "x"}


class Relevance(NamedTuple):
    """Of each latent dimension, (Q,): how much it matters, and whether it is on.

    >>> value, active = model.relevance(guide, data)
    >>> value.shape, active.dtype
    (torch.Size([3]), torch.bool)
    """

    value: Tensor  #: (Q,), its weight times its spread
    active: Tensor  #: (Q,) of bool


class VGPDS(PyroModule):
    r"""Variational Gaussian process dynamical system (Damianou, Titsias and Lawrence 2011) as a Pyro model.

    .. math::
        x_q(t) \sim GP(0, k_x), \quad f_d(x) \sim GP(0, k_f), \quad
        y_{nd} = m_d + s_d (f_d(x(t_n)) + \epsilon_{nd})

    Called on :class:`~pyro_vgpds.Sequences`, it has the sample sites ``x`` (N, Q) and ``y`` (N, D), observed where the
    sequences have outputs. Train it with :class:`~pyro_vgpds.Collapsed_ELBO`, or run it under any Pyro algorithm.
    :meth:`from_data` is the usual way to make one; this constructor takes every part as given.

    :param temporal: k_x, a kernel of time.
    :param mapping: k_f, a kernel with analytic Ψ statistics.
    :param inducing: inducing inputs (M, Q); learned.
    :param noise: variance of ε: one number as in the paper, (D,) for one each, or a prior; learned.
    :param output_mean: m, (D,); fixed.
    :param output_scale: s, (D,); fixed. ``noise`` and the variance of ``mapping`` are in units of the scaled outputs.
        Default: ones.
    :param jitter: added to the diagonal of K_MM as it is; left out, the rule of
        :func:`~pyro_vgpds.linalg.default_jitter` is followed.
    :param structure: ``"dense"`` or ``"markov"`` forces how the temporal prior is computed; left out,
        :class:`~pyro_vgpds.TemporalGP` picks the faster one.
    :raises ValueError: where shapes do not fit together, or a number is out of its range.
    :raises TypeError: where a kernel is not of its place: ``mapping`` needs analytic Ψ statistics.

    >>> import torch
    >>> from pyro_vgpds import Sequences
    >>> from pyro_vgpds.kernels import ARDRBF, RBF
    >>> points, mean = torch.randn(4, 2).double(), torch.zeros(3).double()
    >>> small = VGPDS(RBF(), ARDRBF(), inducing=points, noise=0.1, output_mean=mean)
    >>> small(Sequences([0.0, 0.5, 1.0])).shape  # a draw of y from the prior
    torch.Size([3, 3])
    """

    inducing: Any
    inducing_unconstrained: Any
    noise: Any
    noise_unconstrained: Any
    output_mean: Tensor
    output_scale: Tensor

    def __init__(
        self,
        temporal: Kernel,
        mapping: Kernel,
        inducing: Tensor,
        noise: Any,
        output_mean: Tensor,
        *,
        output_scale: Tensor | None = None,
        jitter: float | None = None,
        structure: str | None = None,
    ) -> None:
        check_temporal(temporal)
        if structure is not None:  # only then: reading a kernel draws what has a prior
            check_structure(structure, temporal())
        check_mapping(mapping)
        inducing = torch.as_tensor(inducing)
        output_mean = torch.as_tensor(output_mean)
        if inducing.dim() != 2 or 0 in inducing.shape:
            raise ValueError(f"inducing must be (M, Q), but its shape is {tuple(inducing.shape)}.")
        if output_mean.dim() != 1 or not len(output_mean):
            raise ValueError(f"output_mean must be (D,), but its shape is {tuple(output_mean.shape)}.")
        if output_scale is None:
            output_scale = torch.ones_like(output_mean)
        output_scale = positive("output_scale", output_scale)
        if output_scale.shape != output_mean.shape:
            raise ValueError(
                f"output_scale must be ({len(output_mean)},), one for each output, but its shape is "
                f"{tuple(output_scale.shape)}."
            )
        if jitter is not None and not (jitter >= 0.0):
            raise ValueError(f"jitter must be a number >= 0 or None, but got {jitter!r}.")
        for name, kernel in (("temporal", temporal), ("mapping", mapping)):
            if kernel._pyro_name:
                raise ValueError(f"{name} is part of another model already; make a new kernel, or copy.deepcopy it.")
        for leaf in mapping.leaves():
            if "weight" in leaf._pyro_params and leaf.weight.numel() not in (1, inducing.shape[1]):
                raise ValueError(
                    f"the mapping's weight must be one number or {inducing.shape[1]}, one for each latent dimension, "
                    f"but it has {leaf.weight.numel()}."
                )
        super().__init__()
        self.temporal, self.mapping, self.jitter, self.structure = temporal, mapping, jitter, structure
        self.inducing = PyroParam(inducing.detach().clone(memory_format=torch.contiguous_format), event_dim=2)
        self.register_buffer("output_mean", output_mean.detach().clone())
        self.register_buffer("output_scale", output_scale.to(output_mean))
        self.set_noise(noise)
        #: where :meth:`from_data` puts q(X) to begin with; None for a model made by hand
        self.start: Start | None = None

    def set_noise(self, noise: Any) -> None:
        """Make the noise variance another one, which is then learned.

        :param noise: one number, (D,) for one each, or a distribution or ``PyroSample`` as its prior.
        :raises ValueError: where it is not positive, or of another size.

        >>> small.set_noise([0.1, 0.2, 0.3])
        >>> small.noise.shape
        torch.Size([3])
        """
        if isinstance(noise, PyroSample) or hasattr(noise, "log_prob") or callable(noise):
            prior: Any = noise if isinstance(noise, PyroSample) else PyroSample(noise)
        else:
            value = check_noise(noise, self.num_outputs)
            prior = PyroParam(value, constraints.positive, event_dim=value.dim())
        self.noise = prior

    @classmethod
    def from_data(
        cls,
        data: Sequences,
        latent_dim: int,
        num_inducing: int | None = None,
        temporal: Kernel | None = None,
        mapping: Kernel | None = None,
        *,
        static_dim: int = 0,
        noise_per_output: bool = False,
        scale_outputs: bool = False,
        jitter: float | None = None,
        structure: str | None = None,
    ) -> VGPDS:
        """A model that is ready to be trained on ``data``.

        The latent path starts at the principal components of what was observed, whitened; the inducing inputs are its
        k-means centres (drawn with torch's global generator: ``pyro.set_rng_seed`` makes them the same again); scales
        and noise come from the data; temporal lengthscales and periods that the kernels leave open are those under
        which the principal components are most likely.

        :param data: the training sequences.
        :param latent_dim: Q, an upper limit: the weights of ``mapping`` switch off what is not needed.
        :param num_inducing: M; left out, 100, or the number of frames where that is smaller.
        :param temporal: k_x; left out, ``RBF() + White(1e-2) + Bias(0.1)`` with the variance of the RBF held at 1, as
            it is redundant with the weights of the mapping.
        :param mapping: k_f; left out, :class:`~pyro_vgpds.kernels.ARDRBF`.
        :param static_dim: of the latent dimensions, so many start as constants of each sequence: what sets sequences
            apart, such as the style of a walk. The others start from what varies within sequences, so that all begin
            in one space. Each dimension then has temporal parameters of its own. For several sequences; often a
            higher bound and better reconstruction.
        :param noise_per_output: one noise variance for each output; the cost of a step then grows with D.
        :param scale_outputs: divide the outputs by their standard deviations within the model, which then counts all of
            them alike. Predictions and the bound stay in the data's units.
        :param jitter: as for :class:`VGPDS`.
        :param structure: as for :class:`VGPDS`.
        :raises ValueError: where the sizes do not fit the data, an output was never observed, or nothing varies.

        >>> from pyro_vgpds.kernels import Bias, Matern32, White
        >>> kernel = Matern32() + White(1e-2) + Bias(0.1)
        >>> walks = VGPDS.from_data(data, latent_dim=2, num_inducing=10, temporal=kernel)
        >>> walks.inducing.shape, walks.noise.shape, walks.output_mean.shape
        (torch.Size([10, 2]), torch.Size([]), torch.Size([5]))
        """
        check_sizes(data, latent_dim, num_inducing, noise_per_output)
        _check_static(static_dim, latent_dim, data)
        if temporal is None:
            temporal = RBF().fix("variance") + White(1e-2) + Bias(0.1)
        num_inducing = min(100, data.num_frames) if num_inducing is None else num_inducing
        options = {"dtype": data.dtype, "device": data.device}
        model = cls(
            temporal,
            ARDRBF() if mapping is None else mapping,
            inducing=torch.zeros(num_inducing, latent_dim, **options),  # type: ignore[call-overload]
            noise=torch.ones(data.num_outputs if noise_per_output else (), **options),  # type: ignore[call-overload]
            output_mean=data.output_means,
            output_scale=data.output_scales if scale_outputs else None,
            jitter=jitter,
            structure=structure,
        ).to(**options)
        start_model(model, data, default_mapping=mapping is None, static_dim=static_dim)
        return model

    @property
    def latent_dim(self) -> int:
        """Q, how many latent dimensions there are."""
        return self.inducing_unconstrained.shape[1]

    @property
    def num_inducing(self) -> int:
        """M, how many inducing inputs there are."""
        return self.inducing_unconstrained.shape[0]

    @property
    def num_outputs(self) -> int:
        """D, how many outputs there are."""
        return len(self.output_mean)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._warn_of_namesakes()
        return super().__call__(*args, **kwargs)

    def _warn_of_namesakes(self) -> None:
        """Pyro fills a new module from parameters of the same name in its store: say so before it happens."""
        held = pyro.get_param_store()._params.get("inducing")
        if held is None or held is self.inducing_unconstrained or pyro.settings.get("module_local_params"):
            return
        warnings.warn(
            "Pyro's parameter store holds parameters of an earlier model, which this model will now take over. "
            "Call pyro.clear_param_store() between models.",
            UserWarning,
            stacklevel=3,
        )

    def forward(self, data: Sequences) -> Tensor:
        """Draw x and y, or condition on the y of ``data``.

        :param data: times, and outputs where the model is to be conditioned on them.
        :returns: y, (N, D).
        :raises TypeError: where ``data`` is not :class:`~pyro_vgpds.Sequences`, or of another dtype than the model.
        :raises ValueError: where ``data`` has another number of outputs than the model.
        """
        if not isinstance(data, Sequences):
            raise TypeError(f"data must be Sequences(t, y), but got {type(data).__name__}.")
        if data.num_outputs not in (0, self.num_outputs):
            raise ValueError(f"data has {counted(data.num_outputs, 'output')}, but the model has {self.num_outputs}.")
        if data.dtype != self.inducing_unconstrained.dtype:
            raise TypeError(
                f"data is {data.dtype}, but the model is {self.inducing_unconstrained.dtype}; make them alike."
            )
        k_x, k_f = self.temporal(), self.mapping()
        x = pyro.sample("x", TemporalGP(k_x, data.times, self.latent_dim, structure=self.structure), infer=_INTEGRATED)
        return pyro.sample("y", self.likelihood(x, data, k_f), obs=data.y, infer=_INTEGRATE)

    def likelihood(self, x: Tensor, data: Sequences, kernel: MappingValue | None = None) -> SparseGP:
        """p(y given x) at the current parameters.

        :param x: latent points (..., N, Q).
        :param data: the sequences of those N frames.
        :param kernel: the value of ``mapping``, if it was read before. Default: ``mapping()``.
        """
        kernel = self.mapping() if kernel is None else kernel
        inducing, noise = self.inducing, self.noise
        noise = noise if event_dim(self, "noise") else noise.unsqueeze(-1)
        mean, scale = self.output_mean, self.output_scale
        return SparseGP(
            x, kernel, inducing=inducing, noise=noise, mean=mean, scale=scale, data=data, jitter=self.jitter
        )

    def relevance(self, guide: Any = None, data: Sequences | None = None) -> Relevance:
        """How much each latent dimension matters: its weight in the mapping times its spread, (Q,).

        The weights alone cannot be compared, as a latent dimension may be stretched and its weight shrunk with no
        change to the model. The spread is the variance of q(X) over the frames where ``guide`` and ``data`` are given,
        and else that of the inducing inputs, which lie where the latent path does. A dimension is on where it has at
        least a twentieth of the largest relevance.

        :param guide: the :class:`~pyro_vgpds.AutoOpperArchambeau` of this model.
        :param data: the data that the two were trained on.
        :raises ValueError: where the mapping kernel has no weights.

        >>> model.relevance(guide, data).value.argsort(descending=True).shape  # the most relevant first
        torch.Size([3])
        """
        leaves = [leaf for leaf in self.mapping.leaves() if "weight" in leaf._names]
        if not leaves:
            raise ValueError(f"the mapping kernel has no weights of latent dimensions: {self.mapping}.")
        with torch.no_grad():
            if guide is None or data is None:
                spread = self.inducing.var(0, correction=0)
            else:
                q = guide.posterior(data)
                spread = q.mean.var(0, correction=0) + q.variance.mean(0)
            # a random weight counts by the mean of its prior: reading it would draw it
            means: list[Any] = [getattr(leaf._pyro_samples.get("weight"), "mean", None) for leaf in leaves]
            weights = [leaf.weight if w is None else w for w, leaf in zip(means, leaves, strict=True)]
            value = torch.stack([w.expand(self.latent_dim) for w in weights]).sum(0) * spread
        return Relevance(value, value >= 0.05 * value.max())

    def extra_repr(self) -> str:
        text = f"latent_dim={self.latent_dim}, num_inducing={self.num_inducing}, num_outputs={self.num_outputs}"
        return text if self.structure is None else f"{text}, structure={self.structure!r}"


def check_sizes(data: Sequences, latent_dim: int, num_inducing: int | None, noise_per_output: bool) -> None:
    """What :meth:`VGPDS.from_data` asks of its arguments."""
    if not isinstance(data, Sequences):
        raise TypeError(f"data must be Sequences(t, y), but got {type(data).__name__}.")
    n, d = data.num_frames, data.num_outputs
    if d == 0:
        raise ValueError("data has times but no outputs: make it with Sequences(t, y).")
    for name, value, limit, what in (
        ("latent_dim", latent_dim, d, "outputs"),
        ("num_inducing", num_inducing, n, "frames"),
    ):
        if value is None and name == "num_inducing":
            continue
        check_count(name, value)
        assert value is not None
        if value > limit:
            raise ValueError(f"{name} must be at most the number of {what}, {limit}, but got {value}.")
    unseen = (data.output_counts == 0).nonzero().flatten().tolist()
    if unseen:
        raise ValueError(f"outputs {_some(unseen, data.columns)} of data were never observed; leave them out.")
    constant = (data.output_variances <= _rounding(data)).nonzero().flatten().tolist()
    if n > 1 and len(constant) == d:
        raise ValueError("nothing in data varies: every output has the same value in all its frames.")
    if noise_per_output and constant:
        raise ValueError(
            f"noise_per_output needs outputs that vary, but {_some(constant, data.columns)} are constant: drop them."
        )


def _check_static(static_dim: Any, latent_dim: int, data: Sequences) -> None:
    if not is_whole(static_dim) or not 0 <= static_dim < latent_dim:
        raise ValueError(f"static_dim must be a whole number from 0 to latent_dim - 1, but got {static_dim!r}.")
    if static_dim >= max(1, data.num_sequences):
        raise ValueError(
            f"static_dim={static_dim} needs more than {static_dim} sequences that can differ, but data has "
            f"{data.num_sequences}."
        )


def _rounding(data: Sequences) -> Tensor:
    """The variance that rounding alone gives to a constant output."""
    return (4.0 * torch.finfo(data.dtype).eps * data.output_means).square()


def _some(indices: list[int], names: list[str] | None) -> str:
    shown = [str(i) if not names else f"{i} ({names[i]!r})" for i in indices[:5]]
    return ", ".join(shown) + (f" and {len(indices) - 5} more" if len(indices) > 5 else "")
