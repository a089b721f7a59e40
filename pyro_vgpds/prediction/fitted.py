# SPDX-License-Identifier: Apache-2.0
"""A trained model at fixed parameters: q(X), q(U) and the noise that predictions are made with."""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from pyro.distributions import TorchDistribution
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import kl_divergence
from torch.overrides import TorchFunctionMode

from pyro_vgpds.checks import check_flags, find_output
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted
from pyro_vgpds.inference.amortized import AmortizedOpperArchambeau
from pyro_vgpds.inference.data_checks import check_dated
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.inference.outputs_start import check_outputs
from pyro_vgpds.inference.partial_guide import summary_of
from pyro_vgpds.inference.point import read_point
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.likelihoods.value import LikelihoodValue
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.mapping.site_gp import SiteGP
from pyro_vgpds.prediction.arguments import SequenceLike, read_scale, read_variance
from pyro_vgpds.prediction.correlations import Correlations, correlations_of
from pyro_vgpds.prediction.output_prediction import OutputPrediction, OutputReconstruction
from pyro_vgpds.prediction.output_residuals import OutputResiduals, check_residual
from pyro_vgpds.prediction.path_search import Training
from pyro_vgpds.prediction.predictions import Prediction, Reconstruction
from pyro_vgpds.prediction.predictor import BasePredictor
from pyro_vgpds.prediction.residuals import Correlation, Residuals
from pyro_vgpds.prediction.solver import Solver
from pyro_vgpds.pyro_state import one_at_a_time
from pyro_vgpds.temporal.gaussian import GaussianPosterior, PathPosterior
from pyro_vgpds.threads import bound_work, sizes_work, thread_limited, threads_for
from pyro_vgpds.training.progress import CountLike
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["FittedModel", "Origin", "predict_with"]

F = TypeVar("F", bound="FittedModel")


class Origin(NamedTuple):
    """The arguments of a :class:`FittedModel`, and the parameters at that time."""

    model: PyroModule
    guide: Callable[..., Any]
    values: dict[str, Tensor]  #: medians of hyperparameters with priors
    states: tuple[dict[str, Tensor], dict[str, Tensor]]  #: of model and guide
    noise_variance: Tensor | None  #: (1,) or (D,); None for that of the model
    output_scale: Tensor | None  #: (D,); None for that of the model
    residual: Kernel | None
    widening: bool  #: whether the function is less certain in gaps


class FittedModel(BasePredictor):
    """The common part of all predictions of a trained model; arguments as in :class:`~pyro_vgpds.Posterior`.

    :ivar bound: the lower bound on log p(Y) after training.
    :ivar training: q(X), p(y given x) and the data.
    :ivar inducing: q(U).
    :ivar correlation: of the residuals; None if the noise is white.
    :ivar encode: the network of an amortised guide, from sequences to sites; None for other guides.
    :ivar work: multiply-adds of an evaluation of the bound, which the number of threads depends on.
    :ivar origin: model, guide, and the noise, scale, residual kernel and widening of predictions.
    """

    @one_at_a_time
    def __init__(
        self,
        model: PyroModule,
        guide: Callable[..., Any],
        data: Sequences,
        *,
        noise_variance: ArrayLike | float | None = None,
        output_scale: ArrayLike | None = None,
        residual: Kernel | None = None,
        widening: bool = False,
    ) -> None:
        if not callable(guide) or guide is model:
            raise TypeError(
                f"guide must be a guide of the model, such as an AutoOpperArchambeau, but got {type(guide).__name__}."
            )
        check_data(data)
        check_flags(widening=widening)
        if data.communicator.size > 1:
            raise ValueError(
                "predictions need the sequences of all processes in one: see pyro_vgpds.distributed.gather(guide, data)"
            )
        if isinstance(guide, OpperArchambeauGuide) and guide.model is not model:
            raise ValueError("guide was made for another model: give the model and the guide that were trained.")
        if isinstance(residual, Kernel):
            check_dated(residual, data, "residual")
        with torch.no_grad():
            self.correlation = None if residual is None else Correlation.read(residual, data.times.t)
            with threads_for(sizes_work(model, data)):
                q, likelihood, values = read_point(model, guide, data)
            dense = data.times.lengths if q.prior.structure == "dense" else ()
            n, latent_dim = q.event_shape
            basis = likelihood.basis
            self.work = bound_work(n, data.num_outputs, latent_dim, basis.size, dense, basis.pair_work)
            if isinstance(likelihood, SiteGP):
                _check_plain(
                    likelihood, noise_variance=noise_variance, output_scale=output_scale, widening=widening or None
                )
                if residual is not None and self.correlation is not None:
                    check_residual(self.correlation, residual, likelihood.outputs)
            noise, scale = read_variance(noise_variance, data), read_scale(output_scale, data)
            states, summary = (_state(model), _state(guide)), summary_of(guide)
            self.origin = Origin(model, guide, values, states, noise, scale, copy.deepcopy(residual), bool(widening))
            if summary is not None and scale is not None:
                summary = summary.rescaled(likelihood.output_scale, scale)
            if noise is not None or scale is not None:
                likelihood = likelihood.replaced(noise_variance=noise, scale=scale)
            self.data, self.training = data, Training(q, likelihood, data, summary)
            self.encode = guide.frozen_encoder() if isinstance(guide, AmortizedOpperArchambeau) else None
            self._compute()

    @thread_limited
    def _compute(self) -> None:
        training, data = self.training, self.training.data
        q, likelihood = training.q, training.likelihood
        assert data.y is not None
        self.inducing = InducingPosterior(likelihood, q.mean, q.variance, data, summary=training.sums)
        in_memory = training.summary is None
        expected = likelihood.integrate(q).log_prob(data.y) if in_memory else training.expected()
        self.bound = float(expected) - float(kl_divergence(q, q.prior)) - training.kl_elsewhere

    def __repr__(self) -> str:
        known, others = self.training.summary, ""
        if known is not None:
            others = f" and {counted(known.num_sequences, 'sequence')} that are not in memory"
        return f"{type(self).__name__}(of {self.data}{others}, bound={self.bound:.6g})"

    def __deepcopy__(self: F, memo: dict[int, Any]) -> F:
        new = object.__new__(type(self))
        memo[id(self)] = new
        before = [(module, dict(vars(module))) for module in _autoguides(self.origin.guide)]
        with _DetachedCopies():
            try:
                new.__dict__.update(copy.deepcopy(self.__dict__, memo))
            finally:  # Pyro's autoguides lose their model when they are copied
                for module, state in before:
                    vars(module).update(state)
            for module, (_, state) in zip(_autoguides(new.origin.guide), before, strict=True):
                lost = [name for name, value in vars(module).items() if value is None and state.get(name) is not None]
                vars(module).update({name: copy.deepcopy(state[name], memo) for name in lost})
        return new

    @property
    def q(self) -> PathPosterior:
        """The posterior of the latent path at the training frames, event shape (N, Q): an
        :class:`~pyro_vgpds.OpperArchambeau`, or a :class:`~pyro_vgpds.temporal.GaussianPosterior` for other guides.
        """
        return self.training.q

    @functools.cached_property
    def correlations(self) -> Correlations | None:
        """Those of the latent dimensions in training frames with missing outputs."""
        q = self.q.with_sites() if isinstance(self.q, GaussianPosterior) else self.q
        with torch.no_grad():
            rows = torch.arange(self.data.num_frames, device=self.data.device)
            return None if q is None else correlations_of(q, self.inducing, rows)

    @property
    def likelihood(self) -> LikelihoodValue | None:
        """The likelihood of outputs that are not Gaussian, at its parameters; None for Gaussian outputs."""
        mapping = self.training.likelihood
        return mapping.outputs if isinstance(mapping, SiteGP) else None

    @abstractmethod
    def reconstruct(
        self, t: DataLike, y: DataLike, sequence: SequenceLike = None, *, fill: bool = False,
        include_noise: bool = True, solver: Solver | None = None, progress: CountLike = False,
    ) -> Reconstruction:  # fmt: skip
        """As :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>`."""

    def check_new(self, data: Sequences, name: str = "y") -> None:
        """Raise a ValueError that names the first output of ``name`` that is not possible under the likelihood."""
        if self.likelihood is not None:
            check_outputs(self.likelihood, data, name, self.columns)

    def need_gaussian(self, what: str) -> None:
        """Raise a ValueError if the outputs are not Gaussian, as ``what`` needs."""
        if self.likelihood is not None:
            raise ValueError(f"{what} needs Gaussian outputs, but the likelihood is {self.likelihood.likelihood}.")

    def _likelihood_at(self, t: Tensor) -> LikelihoodValue | None:
        """The likelihood of frames: those of training have their exposures, others 1, or one for each output."""
        outputs = self.likelihood
        return outputs if outputs is None or t is self.data.times.t else outputs.elsewhere

    def predict(
        self, t: Tensor, path: TorchDistribution, inducing: InducingPosterior, *, full_cov: bool = False,
        residuals: Residuals | None = None, widening: bool = False, **options: Any,
    ) -> Prediction:  # fmt: skip
        """The outputs on a latent path. Arguments as in :class:`~pyro_vgpds.Prediction`."""
        outputs = self._likelihood_at(t)
        if outputs is None:
            options |= {"full_cov": full_cov, "residuals": residuals, "widening": widening}
            return Prediction(t, path, inducing, **options)
        if full_cov:
            raise ValueError("full_cov=True needs Gaussian outputs: use .covariance of the prediction.")
        return OutputPrediction(t, path, inducing, outputs, residuals=residuals, **options)

    def predict_from(
        self, t: Tensor, path: TorchDistribution, inducing: InducingPosterior, *, residuals: Residuals | None = None,
        **options: Any,
    ) -> Reconstruction:  # fmt: skip
        """The same for partly observed outputs."""
        outputs = self._likelihood_at(t)
        if outputs is None:
            return Reconstruction(t, path, inducing, residuals=residuals, **options)
        return OutputReconstruction(t, path, inducing, outputs, residuals=residuals, **options)

    @property
    def noise_variance(self) -> Tensor:
        """The noise variance of predictions, (1,) or (D,), in squared units of the data.

        :raises ValueError: if outputs are not Gaussian.
        """
        self.need_gaussian("noise_variance")
        return self.inducing.noise[: self.num_outputs]

    # q(U)

    @property
    def inducing_mean(self) -> Tensor:
        """E[U] of the scaled outputs, (M, D), without their means."""
        return self.inducing.mean()

    def inducing_covariance(self, output: int = 0) -> Tensor:
        """Cov[u_d] of one scaled output, (M, M). Outputs observed in the same frames that share a noise share it.

        :raises ValueError: if there is no such output.
        """
        return self.inducing.covariance(find_output("output", output, None, self.num_outputs))

    def residuals(
        self, inducing: InducingPosterior, t: Tensor, frames: list[tuple[Tensor, Tensor]]
    ) -> Residuals | None:
        """Residuals carried to the frames at ``t``; None if the noise is white."""
        if self.correlation is None:
            return None
        if self.likelihood is None:
            return Residuals(self.correlation, inducing, t, frames)
        return OutputResiduals(self.correlation, inducing, t, frames, self.likelihood)


def predict_with(posterior: F, **options: Tensor | Kernel | bool | None) -> F:
    """The same trained model with another noise variance, output scale, residual or widening; the others stay."""
    origin = posterior.origin
    own = {name: getattr(origin, name) for name in ("noise_variance", "output_scale", "residual", "widening")}
    return type(posterior)(origin.model, origin.guide, posterior.data, **{**own, **options})


def _check_plain(mapping: SiteGP, **options: object) -> None:
    """Raise a ValueError for options that need Gaussian outputs."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"{name} needs Gaussian outputs, but the likelihood is {mapping.outputs.likelihood}; got {value!r:.80}."
            )


def _state(module: object) -> dict[str, Tensor]:
    """Copies of the parameters and buffers; empty for a model that is a function."""
    state = module.state_dict() if isinstance(module, PyroModule) else {}
    return {name: value.detach().clone() for name, value in state.items()}


def _autoguides(guide: object) -> list[AutoGuide]:
    """Pyro's autoguides that a guide consists of."""
    return [m for m in guide.modules() if isinstance(m, AutoGuide)] if isinstance(guide, torch.nn.Module) else []


class _DetachedCopies(TorchFunctionMode):
    """Within it, tensors that are results of others are copied, too, and need no gradient: the trace of the model that
    Pyro's autoguides keep has such tensors, which torch refuses to copy.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
