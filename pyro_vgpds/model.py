# SPDX-License-Identifier: Apache-2.0
"""The generative model: a latent path with a temporal GP prior, mapped to the outputs by a sparse GP.

Longer than 300 lines because the methods of one class and their documentation belong together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroParam
from torch import Tensor

from pyro_vgpds.checks import check_callable, check_flags, check_noise, check_number, finite, positive
from pyro_vgpds.communication import collective
from pyro_vgpds.data.batches import Batch
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import total_sizes
from pyro_vgpds.formatting import counted
from pyro_vgpds.inference.data_checks import check_time_scales, warn_of_spreads, warn_of_stored
from pyro_vgpds.inference.gather import same
from pyro_vgpds.inference.outputs_start import (
    check_functions,
    check_likelihood,
    default_mapping,
    read_likelihood,
    start_outputs,
)
from pyro_vgpds.inference.point import read_point
from pyro_vgpds.inference.relevance import Relevance, mapping_weights
from pyro_vgpds.inference.start import (
    Sizes,
    Start,
    check_start,
    default_temporal,
    draw_inducing,
    find_start,
    start_kernels,
)
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.kernels.check import check_mapping, check_pair, check_temporal
from pyro_vgpds.kernels.owners import claim, release
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.mapping.explicit import ExplicitGP
from pyro_vgpds.mapping.explicit_outputs import ExplicitOutputs
from pyro_vgpds.mapping.forms import linear_form
from pyro_vgpds.mapping.group_terms import ValueAndGrads
from pyro_vgpds.mapping.inducing_gaussian import InducingPrior
from pyro_vgpds.mapping.latent_gp import GivenLatent, LatentGP
from pyro_vgpds.mapping.output_sites import OutputSites
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.mapping.rbf_bound import rbf_bound
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.parameters import ParameterModule, is_prior, modules_of
from pyro_vgpds.temporal.distributions import TemporalGP
from pyro_vgpds.temporal.structure import check_structure

__all__ = ["VGPDS", "Relevance"]

_LEAST_NOISE = 1e-6  # of an output's variance: an output without noise would have an unbounded likelihood

#: the data that each model ran on last; not an attribute, because copies of a model have not run
_ran_on: weakref.WeakKeyDictionary[VGPDS, weakref.ref[Sequences]] = weakref.WeakKeyDictionary()

#: models that ran on batches, which are others each time
_ran_on_batches: weakref.WeakSet[VGPDS] = weakref.WeakSet()


def _precise(x: Tensor, data: Sequences) -> Tensor:
    """The latent path of a guide; parameters made by torch.zeros, for example, are float32 by default."""
    if torch.promote_types(x.dtype, data.dtype) != x.dtype:
        raise TypeError(
            f"site 'x' of the guide is {x.dtype}, but data and model are {data.dtype}. Make the parameters of the "
            f"guide with dtype={data.dtype}."
        )
    return x


def _marked(*sites: str) -> Any:
    """A mark for Collapsed_ELBO: integrate over these sites. Every other algorithm ignores it."""
    return {"integrate": sites[0] if len(sites) == 1 else sites}


class VGPDS(ParameterModule):
    r"""Variational Gaussian process dynamical system (Damianou, Titsias and Lawrence 2011) as a Pyro model.

    .. math::
        x_q(t) \sim GP(0, k_x), \quad f_d(x) \sim GP(0, k_f), \quad
        y_{nd} = m_d + s_d (f_d(x(t_n)) + \epsilon_{nd})

    Called on :class:`~pyro_vgpds.Sequences`, it has the sample sites ``x`` (N, Q) and ``y`` (N, D), observed if the
    sequences have outputs. Train it with :class:`~pyro_vgpds.Collapsed_ELBO`, or run it under any Pyro algorithm.
    :meth:`from_data` is the usual way to create one; this constructor takes every part as given.

    :param temporal: k_x, a kernel of time.
    :param mapping: k_f, a kernel with analytic Ψ statistics.
    :param inducing: inducing inputs (M, Q); learned.
    :param noise: variance of ε: one number as in the paper, (D,) for one each, or a prior; learned. None with a
        ``likelihood``.
    :param output_mean: m, (D,); fixed.
    :param likelihood: the distribution of outputs given f, if they are not Gaussian. The model then has the sites
        ``x``, ``f`` (N, F) and ``y``, with f_d = m_d + s_d g_d(x) for a GP g_d. F is D, or D · P for a likelihood with
        P functions for each output; ``output_mean`` and ``output_scale`` are then (F,). Default: Gaussian.
    :param output_scale: s, (D,); fixed, but learned if ``likelihood.learns_scale``. ``noise`` and the variance of
        ``mapping`` are in units of the scaled outputs. Default: ones.
    :param least_noise: added to ``noise``, which cannot become smaller than this. Fixed.
    :param jitter: added to the diagonal of K_MM as it is. Default: the rule of
        :func:`~pyro_vgpds.linalg.default_jitter`.
    :param structure: ``"dense"`` or ``"markov"`` forces how the temporal prior is computed. Default:
        :class:`~pyro_vgpds.TemporalGP` chooses the faster one.
    :raises ValueError: if shapes do not fit together, or a number is out of its range.
    :raises TypeError: if a kernel does not suit its role: ``mapping`` needs analytic Ψ statistics.

    :ivar start: initial latent points ``start.x`` (N, Q), by :meth:`from_data`; None for a model created by hand.
    :ivar warns_of_scales: whether the next call may give a :class:`~pyro_vgpds.inference.TimeScaleWarning`: True until
        the model meets data, which :meth:`from_data` does.

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
        likelihood: Likelihood | None = None,
        output_scale: Tensor | None = None,
        least_noise: float = 0.0,
        jitter: float | None = None,
        structure: str | None = None,
    ) -> None:
        check_likelihood(likelihood, noise)
        likelihood = read_likelihood(likelihood)
        check_temporal(temporal)
        if structure is not None:
            check_structure(structure, temporal())
        check_mapping(mapping)
        inducing, output_mean = finite("inducing", inducing), finite("output_mean", output_mean)
        if inducing.dim() != 2 or 0 in inducing.shape:
            raise ValueError(f"inducing must be (M, Q), but its shape is {tuple(inducing.shape)}.")
        if output_mean.dim() != 1 or not len(output_mean):
            raise ValueError(f"output_mean must be (D,), but its shape is {tuple(output_mean.shape)}.")
        if likelihood is not None:
            check_functions(likelihood, len(output_mean))
        output_scale = positive("output_scale", torch.ones_like(output_mean) if output_scale is None else output_scale)
        if output_scale.shape != output_mean.shape:
            raise ValueError(
                f"output_scale must be ({len(output_mean)},) as output_mean, but its shape is "
                f"{tuple(output_scale.shape)}."
            )
        check_number("least_noise", least_noise, "a finite number >= 0", lambda value: value >= 0.0)
        if jitter is not None:
            check_number("jitter", jitter, "a finite number >= 0", lambda value: value >= 0.0, "None")
        check_pair(temporal, mapping, inducing.shape[1])
        for name, kernel in (("temporal", temporal), ("mapping", mapping)):
            release(name, kernel, kernel.leaves())
        super().__init__()
        self.temporal, self.mapping, self.jitter, self.structure = temporal, mapping, jitter, structure
        self.inducing = PyroParam(inducing.detach().clone(memory_format=torch.contiguous_format), event_dim=2)
        self.register_buffer("output_mean", output_mean.detach().clone())
        self.least_noise, self.output_likelihood = least_noise, likelihood
        if likelihood is not None and likelihood.learns_scale:
            self.assign("output_scale", output_scale.to(output_mean))
        else:
            self.register_buffer("output_scale", output_scale.to(output_mean))
        if likelihood is None:
            self.set_noise(noise)
        else:
            self.sites = OutputSites()
        self.start: Start | None = None
        self.warns_of_scales = True
        self._claim()

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy
        super().__setstate__(state)
        self._claim()

    def _claim(self) -> None:
        claim(self, [*self.temporal.leaves(), *self.mapping.leaves()])

    def set_noise(self, noise: Any) -> None:
        """Replace the noise variance of the scaled outputs; the new one is learned.

        :param noise: one number, (D,) for one each, or a distribution or ``PyroSample`` as its prior.
        :raises ValueError: if it is not positive, or of another size.

        >>> small.set_noise([0.1, 0.2, 0.3])
        >>> small.noise.shape
        torch.Size([3])
        """
        if self.output_likelihood is not None:
            raise ValueError(f"a model with {self.output_likelihood} has no noise; set the likelihood's parameters.")
        self.assign("noise", noise if is_prior(noise) else check_noise(noise, self.num_outputs))

    @classmethod
    @collective
    def from_data(
        cls,
        data: Sequences,
        latent_dim: int | None = None,
        num_inducing: int | None = None,
        temporal: Kernel | None = None,
        mapping: Kernel | None = None,
        *,
        likelihood: Likelihood | str | Mapping[Any, Any] | None = None,
        static_dim: int | None = None,
        noise_per_output: bool = True,
        scale_outputs: bool = True,
        jitter: float | None = None,
        structure: str | None = None,
    ) -> VGPDS:
        """A model that is ready to be trained on ``data``.

        The latent path starts at the whitened principal components of the observed outputs. The inducing inputs are its
        k-means centres (drawn with torch's global generator: ``pyro.set_rng_seed`` makes them reproducible). Variances
        and noise come from the data. Temporal lengthscales and periods that the kernels leave open are those under
        which the principal components are most likely, for each latent dimension.

        :param data: the training sequences.
        :param latent_dim: Q, an upper limit: the weights of ``mapping`` switch off dimensions that are not needed.
            Default: 40, or less for few outputs or frames.
        :param num_inducing: number of inducing inputs, M. Default: 50, up to 100 for many frames. A linear mapping
            (:class:`~pyro_vgpds.kernels.ARDLinear`, also plus ``Bias``) is exact without them: they are not used.
        :param temporal: k_x. Default: ``Matern32() * Cosine() + Matern12(1, s) + Matern32(1, s) + White(1e-2) +
            Bias(0.1)`` with the longest span s of a sequence: an oscillation, and a level and a trend from which
            forecasts continue. For a single sequence the oscillation is its cycle with two harmonics and a
            ``Matern32()``, or a ``Matern32()`` alone if nothing oscillates. Discrete outputs have ``Matern32() +
            White(1e-2) + Bias(0.1)`` and a cycle with fixed periods if their average has one. See :doc:`/mathematics`.
        :param mapping: k_f. Default: :class:`~pyro_vgpds.kernels.ARDRBF`.
        :param likelihood: the distribution of the outputs given latent functions, from
            :mod:`pyro_vgpds.likelihoods`, such as ``NegativeBinomial()`` for counts; a name such as ``"poisson"``; or a
            dictionary of these with their columns, ``{"gaussian": ["hip", "knee"], "poisson": ["steps"]}``. Default:
            Gaussian.
        :param static_dim: Number of latent dimensions initialised to one constant per sequence, for differences between
            sequences such as the style of a walk. The others start from the variation within sequences. Each dimension
            then has temporal parameters of its own. Default: a fifth of Q, less for few sequences, 0 for up to three.
        :param noise_per_output: one noise variance for each output; the cost of a step then grows with D. If False, one
            for all, as in the paper.
        :param scale_outputs: divide the outputs by their standard deviations within the model, which then counts all of
            them alike. Predictions and the bound stay in the data's units. If False, a warning says if their standard
            deviations differ by more than a factor of 1000.
        :param jitter: as for :class:`VGPDS`.
        :param structure: as for :class:`VGPDS`.
        :raises ValueError: if the sizes do not fit the data, an output was never observed, nothing varies, or a
            parameter of ``temporal`` is a duration although the data have no dates.

        >>> from pyro_vgpds.kernels import Bias, Matern32, White
        >>> kernel = Matern32() + White(1e-2) + Bias(0.1)
        >>> walks = VGPDS.from_data(data, latent_dim=2, num_inducing=10, temporal=kernel)
        >>> walks.inducing.shape, walks.noise.shape, walks.output_mean.shape
        (torch.Size([10, 2]), torch.Size([5]), torch.Size([5]))
        """
        sizes = Sizes(latent_dim, num_inducing, static_dim)
        check_start(data, sizes)
        check_flags(noise_per_output=noise_per_output, scale_outputs=scale_outputs)
        check_time_scales(temporal, data)
        latent_dim, num_inducing, static_dim = sizes.chosen(data)
        if not scale_outputs:
            warn_of_spreads(data)
        likelihood = read_likelihood(likelihood)
        with torch.no_grad():
            outputs = start_outputs(likelihood, data)
            mean, scale = outputs.mean, outputs.scale if scale_outputs else torch.ones_like(outputs.scale)
            start = find_start(outputs.data, latent_dim, static_dim, mean, scale)
        is_default = temporal is None, mapping is None
        if temporal is None:
            is_discrete = likelihood is not None and likelihood.is_discrete
            temporal = default_temporal(start, outputs.data, outputs.average if is_discrete else None)
        model = cls(
            temporal,
            default_mapping(likelihood) if mapping is None else mapping,
            inducing=data.times.t.new_zeros(num_inducing, latent_dim),
            noise=1.0 if likelihood is None else None,
            likelihood=likelihood,
            output_mean=mean,
            output_scale=scale,
            least_noise=_LEAST_NOISE if noise_per_output else 0.0,
            jitter=jitter,
            structure=structure,
        ).to(dtype=data.dtype, device=data.device)
        with torch.no_grad():
            if sizes.num_inducing is None and linear_form(model.mapping()) is not None:
                num_inducing = min(total_sizes(data)[0], latent_dim + 1)
            model.inducing = PyroParam(draw_inducing(start, num_inducing, data), event_dim=2)
            if likelihood is None:
                model.set_noise(start.noise(noise_per_output))
            start_kernels(start, model.temporal, model.mapping, is_default, static_dim)
        same(model, None, data)
        model.start, model.warns_of_scales = start, False
        return model

    @property
    def latent_dim(self) -> int:
        """Q, the number of latent dimensions."""
        return self.inducing_unconstrained.shape[1]

    @property
    def num_inducing(self) -> int:
        """M, the number of inducing inputs."""
        return self.inducing_unconstrained.shape[0]

    @property
    def num_outputs(self) -> int:
        """D, the number of outputs."""
        functions = 1 if self.output_likelihood is None else self.output_likelihood.num_functions
        return len(self.output_mean) // functions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._claim()
        warn_of_stored("inducing", self.inducing_unconstrained)
        data = args[0] if args else kwargs.get("data")
        check_time_scales(self.temporal, data.paths if isinstance(data, Batch) else data, self.warns_of_scales)
        self.warns_of_scales = False
        result = super().__call__(*args, **kwargs)
        if data is not None:
            _ran_on[self] = weakref.ref(data)
        if isinstance(data, Batch):
            _ran_on_batches.add(self)
        return result

    def can_skip_trace(self, data: Sequences | Batch) -> bool:
        """Whether the bound on ``data`` can be computed without running the model as a Pyro program: it has run on
        them, or on a batch if they are one, as this class defines it, its outputs are Gaussian, and it has no priors on
        hyperparameters.

        :param data: the sequences, or a batch.
        """
        if isinstance(data, Batch):
            known, y = self in _ran_on_batches, data.sequences.y
        else:
            met = _ran_on.get(self)
            known, y = met is not None and met() is data, data.y
        return (
            known
            and y is not None
            and self.output_likelihood is None
            and type(self).forward is VGPDS.forward
            and not (self._forward_hooks or self._forward_pre_hooks)
            and not any(vars(module).get("_pyro_samples") for module in modules_of(self))
        )

    def forward(self, data: Sequences | Batch) -> Tensor:
        """Draw x and y, or condition on the y of ``data``.

        :param data: times, and optionally outputs, on which the model is then conditioned. On a
            :class:`~pyro_vgpds.data.Batch` the model has one more latent site, the whitened inducing variables ``u``
            (M, D), and the terms of its sequences are scaled.
        :returns: y, (N, D).
        :raises TypeError: if ``data`` is not :class:`~pyro_vgpds.Sequences`, or of another dtype than the model, or the
            latent path of a guide has less precision than the model.
        :raises ValueError: if ``data`` has another number of outputs than the model, or it is a batch and the mapping
            is linear.
        """
        if isinstance(data, Batch):
            return self._on_batch(data)
        prior, k_f = self.path_prior(data), self.mapping()
        x = _precise(pyro.sample("x", prior), data)
        if self.output_likelihood is None:
            return pyro.sample("y", self.likelihood(x, data, k_f), obs=data.y, infer=_marked("x"))
        outputs = self.output_likelihood().exposed(data.exposure)
        f = pyro.sample("f", self.functions(x, k_f), infer=_marked("x"))
        return pyro.sample("y", GivenLatent(f, outputs, data, self.sites), obs=data.y, infer=_marked("f"))

    def _on_batch(self, batch: Batch) -> Tensor:
        """The same with the inducing variables as a latent site, and only a batch of the sequences or frames."""
        k_f, path = self.mapping(), self.path_prior(batch.paths)
        prior = self.inducing_prior(batch, k_f)
        u = pyro.sample("u", prior)
        path.rows, path.places = batch.path_rows, batch.places
        with poutine.scale(scale=batch.path_scale):
            x = _precise(pyro.sample("x", path), batch.sequences)
        x = x if batch.places is None else x[..., batch.places, :]
        with poutine.scale(scale=batch.scale):
            return pyro.sample(
                "y", self.outputs_on(batch, x, u, prior, k_f), obs=batch.sequences.y, infer=_marked("x", "u")
            )

    def inducing_prior(self, batch: Batch, kernel: MappingValue) -> InducingPrior:
        """p(U) of the whitened inducing variables, on a batch.

        :param batch: whose scale, rows and processes a guide may need.
        :param kernel: the value of ``mapping``.
        :raises ValueError: if the mapping is linear.
        """
        if linear_form(kernel) is not None:
            raise ValueError(
                "batches need a mapping that is not linear: a linear one has its weights as inducing variables. Train "
                "on all data."
            )
        noise = self.output_mean.new_ones(1) if self.output_likelihood is not None else self._noise()
        return InducingPrior(
            kernel, self.inducing, noise, len(self.output_mean), jitter=self.jitter, scale=batch.scale,
            rows=batch.rows, communicator=batch.communicator,
        )  # fmt: skip

    def outputs_on(
        self, batch: Batch, x: Tensor, u: Tensor, prior: InducingPrior, kernel: MappingValue
    ) -> ExplicitGP | ExplicitOutputs:
        """p(y given x, u) of the frames of a batch.

        :param batch: the batch.
        :param x: the latent points of these frames.
        :param u: whitened inducing variables.
        :param prior: of u.
        :param kernel: the value of ``mapping``.
        """
        data = batch.sequences
        if self.output_likelihood is None:
            return ExplicitGP(self.likelihood(x, data, kernel), u, prior, batch.places)
        outputs = self.output_likelihood().exposed(data.exposure)
        return ExplicitOutputs(self.functions(x, kernel), u, prior, outputs, data, batch.places)

    def path_prior(self, data: Sequences) -> TemporalGP:
        """p(X) at the current parameters.

        :param data: the sequences, of which the times are used.
        :raises TypeError: if ``data`` is not :class:`~pyro_vgpds.Sequences`, or of another dtype than the model.
        :raises ValueError: if ``data`` has another number of outputs than the model.
        """
        check_data(data, needs_outputs=False)
        if data.num_outputs not in (0, self.num_outputs):
            raise ValueError(f"data has {counted(data.num_outputs, 'output')}, but the model has {self.num_outputs}.")
        if data.dtype != (own := self.inducing_unconstrained.dtype):
            raise TypeError(
                f"data is {data.dtype}, but the model is {own}. Make the data with Sequences(t, y, dtype={own}), or "
                f"call model.to({data.dtype})."
            )
        return TemporalGP(self.temporal(), data.times, self.latent_dim, structure=self.structure)

    def functions(self, x: Tensor, kernel: MappingValue | None = None) -> LatentGP:
        """p(f given x) at the current parameters, for outputs that are not Gaussian.

        :param x: latent points (..., N, Q).
        :param kernel: the value of ``mapping``, if it was read before. Default: ``mapping()``.
        """
        return LatentGP(
            x, self.mapping() if kernel is None else kernel, inducing=self.inducing, mean=self.output_mean,
            scale=self.output_scale, jitter=self.jitter,
        )  # fmt: skip

    def likelihood(self, x: Tensor, data: Sequences, kernel: MappingValue | None = None) -> SparseGP:
        """p(y given x) at the current parameters.

        :param x: latent points (..., N, Q).
        :param data: the sequences of those N frames.
        :param kernel: the value of ``mapping``, if it was read before. Default: ``mapping()``.
        :raises ValueError: if outputs are not Gaussian; see :meth:`functions`.
        """
        if self.output_likelihood is not None:
            raise ValueError(f"the outputs are {self.output_likelihood}: p(y given x) has no closed form.")
        kernel = self.mapping() if kernel is None else kernel
        return SparseGP(
            x, kernel, inducing=self.inducing, noise=self._noise(), mean=self.output_mean, scale=self.output_scale,
            data=data, jitter=self.jitter,
        )  # fmt: skip

    def bound_and_grads(
        self, mean: Tensor, variance: Tensor, data: Sequences, kernel: MappingValue
    ) -> ValueAndGrads | None:
        """:meth:`SparseGP.bound_and_grads <pyro_vgpds.SparseGP.bound_and_grads>` of :meth:`likelihood` on the data,
        without making that distribution, which takes a tenth of the time in small problems.

        :param mean: (N, Q).
        :param variance: (N, Q).
        :param data: the sequences of those N frames.
        :param kernel: the value of ``mapping``.
        """
        inducing: Tensor = self.inducing
        if inducing.dtype != torch.float64 or type(self).likelihood is not VGPDS.likelihood:
            return None
        noise = self._noise()
        groups = data.groups(self.output_mean, self.output_scale, columns=noise.shape[-1] > 1).in_double
        return rbf_bound(kernel, mean, variance, inducing, noise, groups, self.jitter, data.frame_communicator)

    def _noise(self) -> Tensor:
        """The noise variance of the scaled outputs, (..., 1) or (..., D)."""
        value: Tensor = self.noise
        own_dim = self.event_dim("noise") if "noise" in self._pyro_samples else value.dim()
        noise = value + self.least_noise
        noise = noise if own_dim else noise.unsqueeze(-1)
        noise.above_least = value  # type: ignore[attr-defined]  # gradients without autograd need it
        return noise

    def initial_posterior(self) -> tuple[Tensor, Tensor] | None:
        """The first ``mean_bar`` and ``lam`` of q(X), (N, Q) each; None for a model that was created by hand."""
        if self.start is None:
            return None
        with torch.no_grad():
            times = self.start.times.to(self.inducing.device)
            return self.start.sites(TemporalGP(self.temporal(), times, self.latent_dim, structure=self.structure))

    def relevance(self, guide: Callable[..., object] | None = None, data: Sequences | None = None) -> Relevance:
        """The relevance of each latent dimension: its weight in the mapping times its spread, (Q,).

        The weights alone cannot be compared: a latent dimension may be stretched and its weight shrunk with no change
        to the model. The spread is the variance of q(X) over the frames if ``guide`` and ``data`` are given, else that
        of the inducing inputs. A dimension is active if it has at least 5 % of the largest relevance.

        :param guide: the guide of this model.
        :param data: the data that the two were trained on.
        :raises ValueError: if the mapping kernel has no weights.

        >>> model.relevance(guide, data).value.argsort(descending=True).shape  # the most relevant first
        torch.Size([3])
        """
        check_callable("guide", guide, "a guide of this model", optional=True)
        if data is not None:
            check_data(data)
        with torch.no_grad():
            weights = mapping_weights(self.mapping, self.latent_dim)
            if guide is None or data is None:
                return Relevance.of(weights * self.inducing.var(0, correction=0))
            q, (n, _) = read_point(self, guide, data).q, total_sizes(data)
            centre = data.frame_communicator.all_reduce(q.mean.sum(0)) / n
            spread = data.frame_communicator.all_reduce(((q.mean - centre).square() + q.variance).sum(0)) / n
            return Relevance.of(weights * spread)

    def extra_repr(self) -> str:
        text = f"latent_dim={self.latent_dim}, num_inducing={self.num_inducing}, num_outputs={self.num_outputs}"
        return text if self.structure is None else f"{text}, structure={self.structure!r}"
