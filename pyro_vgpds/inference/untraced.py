# SPDX-License-Identifier: Apache-2.0
"""The collapsed bound of a model and guide without a trace of their Pyro programs.

Pyro traces model and guide in each evaluation, since a program may do something else each time. For a small problem
that costs more than the bound. A :class:`~pyro_vgpds.VGPDS` with an :class:`~pyro_vgpds.AutoOpperArchambeau` and no
priors on hyperparameters always does the same, unless an effect handler changes it: so after it has run once, the same
numbers are computed from its parts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import pyro
import torch
from pyro.poutine import runtime
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_vgpds.data.batch import Batch
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.mapping.explicit import ExplicitGP
from pyro_vgpds.mapping.explicit_outputs import ExplicitOutputs
from pyro_vgpds.mapping.group_terms import ValueAndGrads
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.parameters import parameters_of
from pyro_vgpds.parameters.gradients import add_to_parameter
from pyro_vgpds.pyro_state import pyro_lock
from pyro_vgpds.temporal.covariance import PathMoments, TemporalCovariance
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.kl import divergence_and_grads
from pyro_vgpds.temporal.path_gradients import DiagonalPath, MarkovPath
from pyro_vgpds.temporal.path_reader import KernelReader

__all__ = [
    "ExplicitGuide", "UntracedModel", "batch_priors", "can_skip_trace", "keep_reader", "kept_reader", "run_backward",
    "untraced_loss", "untraced_loss_and_grads",
]  # fmt: skip

_readings: weakref.WeakKeyDictionary[object, _Reading] = weakref.WeakKeyDictionary()


class UntracedModel(Protocol):
    """A model whose parts can be read, such as :class:`~pyro_vgpds.VGPDS`, which documents these methods."""

    @property
    def mapping(self) -> Callable[[], MappingValue]: ...
    def can_skip_trace(self, data: Sequences | Batch) -> bool: ...
    def path_prior(self, data: Sequences) -> TemporalGP: ...
    def likelihood(self, x: Tensor, data: Sequences, kernel: MappingValue | None = None) -> SparseGP: ...
    def bound_and_grads(
        self, mean: Tensor, variance: Tensor, data: Sequences, kernel: MappingValue
    ) -> ValueAndGrads | None: ...
    def inducing_prior(self, batch: Batch, kernel: MappingValue) -> InducingPrior: ...
    def outputs_on(
        self, batch: Batch, x: Tensor, u: Tensor, prior: InducingPrior, kernel: MappingValue
    ) -> ExplicitGP | ExplicitOutputs: ...


class ExplicitGuide(Protocol):
    """A guide with a q(U)."""

    def make_posterior(self, prior: TemporalGP) -> OpperArchambeau: ...
    def inducing_posterior(self, prior: InducingPrior) -> InducingGaussian: ...


def can_skip_trace(model: object, guide: object, *args: object) -> bool:
    """Whether :func:`untraced_loss` gives what the Pyro programs would: nothing is random, no effect handler is active,
    and Pyro's parameter store has the parameters of these modules.
    """
    if len(args) != 1 or not isinstance(args[0], (Sequences, Batch)) or runtime.am_i_wrapped():
        return False
    if not hasattr(model, "can_skip_trace") or not isinstance(guide, OpperArchambeauGuide):
        return False
    if not guide.can_skip_trace(model) or not model.can_skip_trace(args[0]):
        return False
    with pyro_lock():
        stored = {id(value) for _, value in pyro.get_param_store().named_parameters()}
    return stored.issuperset(map(id, [*guide.read_parameters(), *parameters_of(cast("nn.Module", model))]))


def untraced_loss(model: object, guide: object, data: Sequences | Batch) -> Tensor:
    """Minus the bound on sequences or a batch, of a model and a guide that :func:`can_skip_trace` allows."""
    own = cast("UntracedModel", model)
    if isinstance(data, Batch):
        return _on_batch(own, cast("ExplicitGuide", guide), data)
    prior = own.path_prior(data)
    return _loss(own, prior, cast("OpperArchambeauGuide", guide).make_posterior(prior), data)


def _loss(model: UntracedModel, prior: TemporalGP, q: OpperArchambeau, data: Sequences) -> Tensor:
    assert data.y is not None
    divergence = kl_divergence(q, prior) / data.column_communicator.size  # each process with other columns has a part
    return divergence - model.likelihood(q.mean, data).integrate(q).log_prob(data.y)


def untraced_loss_and_grads(model: object, guide: object, data: Sequences | Batch, retain_graph: bool) -> float:
    """:func:`untraced_loss`, whose gradients are added to those of the parameters.

    If the gradients of the bound are computed with it, autograd begins at the moments of q(X) and the values of the
    other parameters.
    """
    if isinstance(data, Batch):
        loss = untraced_loss(model, guide, data)
    else:
        model, guide = cast("UntracedModel", model), cast("OpperArchambeauGuide", guide)
        reader = kept_reader(model, data)
        path = None if reader is None else guide.analytic_path(reader)
        if path is None:
            prior = model.path_prior(data)
            path = guide.analytic_path(prior.covariance) if data.column_communicator.size == 1 else None
            if path is not None:
                keep_reader(model, data, prior.covariance)
        if path is not None:
            return _path_loss(model, path, data, retain_graph)
        q = guide.make_posterior(prior)
        found = _loss_and_grads(model, q, data)
        if found is not None:
            run_backward(found, retain_graph)
            return float(found.value)
        loss = _loss(model, prior, q, data)
    if loss.requires_grad:
        loss.backward(retain_graph=retain_graph)
    return float(loss.detach())


def run_backward(found: ValueAndGrads, retain_graph: bool) -> None:
    """``torch.autograd.backward`` from the inputs, without its checks of their shapes: for small
    problems these take as long as the steps of autograd.
    """
    pairs = [(x, g) for x, g in zip(found.inputs, found.gradients, strict=True) if x.requires_grad]
    if pairs:
        tensors, gradients = zip(*pairs, strict=True)
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward(tensors, gradients, retain_graph, False, (), allow_unreachable=True, accumulate_grad=True)


def _path_loss(model: UntracedModel, path: MarkovPath | DiagonalPath, data: Sequences, retain_graph: bool) -> float:
    """:func:`_loss`, whose gradients are added to those of the parameters."""
    assert data.y is not None
    mean, variance, kernel = path.mean.requires_grad_(), path.variance.requires_grad_(), model.mapping()
    outputs = model.bound_and_grads(mean, variance, data, kernel)
    if outputs is None:
        loss = -model.likelihood(mean, data, kernel).integrate(path).log_prob(data.y)
        loss.backward(retain_graph=retain_graph)
        assert mean.grad is not None
        assert variance.grad is not None
        path.add_gradients(-mean.grad, -variance.grad)
        return path.divergence + float(loss.detach())
    path.add_gradients(*outputs.gradients[:2])
    others = zip(outputs.inputs[2:], (-g for g in outputs.gradients[2:]), strict=True)
    pairs = [(x, g) for x, g in others if x.requires_grad and not add_to_parameter(x, g)]
    if pairs:
        inputs, gradients = zip(*pairs, strict=True)
        run_backward(ValueAndGrads(outputs.value, inputs, gradients), retain_graph)
    return path.divergence - float(outputs.value)


def _loss_and_grads(model: UntracedModel, q: OpperArchambeau, data: Sequences) -> ValueAndGrads | None:
    """:func:`_loss` with its gradients; None if the kernel of the mapping does not compute those of its part."""
    moments, lam = q.moments, q.lam
    detached = PathMoments(*(x.detach() for x in moments))
    mean, variance = detached.mu.requires_grad_(), detached.s.clamp_min(0.0)
    divergence = divergence_and_grads(detached, lam.detach(), 1.0 / data.column_communicator.size)
    assert data.y is not None
    outputs = model.likelihood(mean, data).bound_and_grads(mean, variance, data.y)
    if divergence is None or outputs is None:
        return None
    g_mean, g_variance, *others = (-g for g in outputs.gradients)
    q.take_gradients(mean, variance, g_mean, g_variance)
    g_variance = torch.where(detached.s < 0.0, 0.0, g_variance)
    g_mu, g_s, *rest = divergence.gradients
    inputs = (*moments, lam, *outputs.inputs[2:])
    return ValueAndGrads(divergence.value - outputs.value, inputs, (g_mu + g_mean, g_s + g_variance, *rest, *others))


def batch_priors(model: UntracedModel, batch: Batch) -> tuple[MappingValue, TemporalGP, InducingPrior]:
    """k_f, and p(X) and p(U) on a batch, of a model in which nothing is random."""
    kernel, path = model.mapping(), model.path_prior(batch.paths)
    path.rows, path.places = batch.path_rows, batch.places
    return kernel, path, model.inducing_prior(batch, kernel)


def _on_batch(model: UntracedModel, guide: ExplicitGuide, batch: Batch) -> Tensor:
    """The same with the inducing variables explicit."""
    kernel, path, inducing = batch_priors(model, batch)
    q, u = guide.make_posterior(path), guide.inducing_posterior(inducing)
    x = q.mean if batch.places is None else q.mean[batch.places]
    outputs = model.outputs_on(batch, x, inducing.mean, inducing, kernel).integrate(q, u)
    assert batch.sequences.y is not None
    expected = outputs.log_prob(batch.sequences.y)  # after which q(U) is known, if it follows the batch
    divergence = u.kl_to_prior() / batch.communicator.size  # of which each process has a part, as of the expectation
    loss: Tensor = batch.path_scale * kl_divergence(q, path) + divergence - batch.scale * expected
    return loss


class _Reading(NamedTuple):
    reader: KernelReader
    data: weakref.ref[Sequences]
    structure: object


def keep_reader(model: object, data: Sequences, covariance: TemporalCovariance) -> None:
    """Keep a reader of the kernel of a model, if K_t on the data has one."""
    kernel = getattr(model, "temporal", None)
    reader = covariance.path_reader(kernel) if isinstance(kernel, nn.Module) else None
    if reader is not None:
        _readings[model] = _Reading(reader, weakref.ref(data), getattr(model, "structure", None))


def kept_reader(model: object, data: Sequences) -> KernelReader | None:
    """The reader for a model on these data; None if more than the values of parameters has changed since."""
    reading = _readings.get(model)
    if reading is None or reading.data() is not data or reading.structure != getattr(model, "structure", None):
        return None
    kernel = getattr(model, "temporal", None)
    return reading.reader if isinstance(kernel, nn.Module) and reading.reader.is_current(kernel) else None
