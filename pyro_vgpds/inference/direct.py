# SPDX-License-Identifier: Apache-2.0
"""The collapsed bound of a plain model without running it as a Pyro program.

Pyro traces model and guide in each evaluation, since a program may do something else each time. For a small problem
that costs more than the bound. A :class:`~pyro_vgpds.VGPDS` with an :class:`~pyro_vgpds.AutoOpperArchambeau` and no
priors on hyperparameters always does the same, unless an effect handler changes it: so after it has run once, the same
numbers are computed from its parts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, cast, runtime_checkable

import pyro
import torch
from pyro.poutine import runtime
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_vgpds.data.batch import Batch
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.mapping.explicit import ExplicitGP
from pyro_vgpds.mapping.explicit_outputs import ExplicitOutputs
from pyro_vgpds.mapping.group_terms import Known
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian, InducingPrior
from pyro_vgpds.mapping.psi import MappingValue
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.parameters import parameters_of
from pyro_vgpds.parameters.gradients import add_to_parameter
from pyro_vgpds.pyro_state import pyro_lock
from pyro_vgpds.temporal.covariance import PathMoments, TemporalCovariance
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.kl import known_divergence
from pyro_vgpds.temporal.known_path import KnownDiagonal, KnownPath, PathSource
from pyro_vgpds.temporal.path_reader import KernelReader

__all__ = [
    "BatchModel", "PlainGuide", "PlainModel", "batch_priors", "direct_gradients", "direct_loss", "is_plain",
    "keep_reader", "kept_reader", "run_backward",
]  # fmt: skip

_kinds: dict[tuple[type, type], bool] = {}
_readings: weakref.WeakKeyDictionary[object, _Reading] = weakref.WeakKeyDictionary()


@runtime_checkable
class PlainModel(Protocol):
    """A model whose parts can be read."""

    def is_plain(self, data: Sequences | Batch) -> bool:
        """Whether the model has run on these data before, as its class defines it, and nothing in it is random."""

    def path_prior(self, data: Sequences) -> TemporalGP:
        """p(X)."""

    def likelihood(self, x: Tensor, data: Sequences, kernel: MappingValue | None = None) -> SparseGP:
        """p(y given x)."""

    def known_bound(self, mean: Tensor, variance: Tensor, data: Sequences, kernel: MappingValue) -> Known | None:
        """The bound of the outputs with x integrated over N(mean, diag variance), and its gradients in ``mean``,
        ``variance`` and the parameters; None if they need autograd.
        """

    def parameters(self) -> Iterable[Tensor]:
        """All parameters, those of a ``torch.nn.Module``."""


class MappedModel(PlainModel, Protocol):
    """The same with its mapping, which is no method, so that this protocol cannot be checked."""

    @property
    def mapping(self) -> Callable[[], MappingValue]:
        """k_f."""


@runtime_checkable
class PlainGuide(Protocol):
    """A guide whose q(X) can be read."""

    def is_plain(self, model: object) -> bool:
        """Whether this is the guide of the model, as its class defines it, and nothing in it is random."""

    def make_posterior(self, prior: TemporalGP) -> OpperArchambeau:
        """q(X)."""

    def known_path(self, prior: PathSource) -> KnownPath | KnownDiagonal | None:
        """q(X) with its gradients, without autograd; None if there is no such form."""

    def read_parameters(self) -> Iterable[Tensor]:
        """The parameters that ``make_posterior`` reads."""


def _has_parts(kind: type, protocol: type) -> bool:
    """Whether a class has the methods of a protocol, which takes long to find out."""
    if (kind, protocol) not in _kinds:
        _kinds[kind, protocol] = issubclass(kind, protocol)
    return _kinds[kind, protocol]


def is_plain(model: object, guide: object, *args: object) -> bool:
    """Whether :func:`direct_loss` gives what the Pyro programs would: nothing is random, no effect handler is active,
    and Pyro's parameter store has the parameters of these modules.
    """
    if len(args) != 1 or not isinstance(args[0], (Sequences, Batch)) or runtime.am_i_wrapped():
        return False
    if not _has_parts(type(model), PlainModel) or not _has_parts(type(guide), PlainGuide):
        return False
    if not cast("PlainGuide", guide).is_plain(model) or not cast("PlainModel", model).is_plain(args[0]):
        return False
    with pyro_lock():
        stored = {id(value) for _, value in pyro.get_param_store().named_parameters()}
    used = [*cast("PlainGuide", guide).read_parameters(), *parameters_of(cast("nn.Module", model))]
    return stored.issuperset(map(id, used))


def direct_loss(model: object, guide: object, data: Sequences | Batch) -> Tensor:
    """Minus the bound of a :class:`PlainModel` and its :class:`PlainGuide`, on sequences or a batch."""
    if isinstance(data, Batch):
        return _on_batch(cast("BatchModel", model), cast("BatchGuide", guide), data)
    prior = cast("PlainModel", model).path_prior(data)
    return _loss(cast("PlainModel", model), prior, cast("PlainGuide", guide).make_posterior(prior), data)


def _loss(model: PlainModel, prior: TemporalGP, q: OpperArchambeau, data: Sequences) -> Tensor:
    assert data.y is not None
    divergence = (
        kl_divergence(q, prior) / data.column_communicator.size
    )  # of which each process with other columns has a part
    return divergence - model.likelihood(q.mean, data).integrate(q).log_prob(data.y)


def direct_gradients(model: object, guide: object, data: Sequences | Batch, retain_graph: bool) -> float:
    """Minus the bound, whose gradients are added to those of the parameters.

    If the gradients of the bound are known in the moments of q(X) and in the values of the other parameters, autograd
    begins there.
    """
    if isinstance(data, Batch):
        loss = direct_loss(model, guide, data)
    else:
        known = cast("PlainGuide", guide).known_path
        reader = kept_reader(model, data)
        path = None if reader is None else known(reader)
        if path is None:
            prior = cast("PlainModel", model).path_prior(data)
            path = known(prior.covariance) if data.column_communicator.size == 1 else None
            if path is not None:
                keep_reader(model, data, prior.covariance)
        if path is not None:
            return _path_loss(cast("MappedModel", model), path, data, retain_graph)
        q = cast("PlainGuide", guide).make_posterior(prior)
        found = _known_loss(cast("PlainModel", model), q, data)
        if found is not None:
            run_backward(found, retain_graph)
            return float(found.value)
        loss = _loss(cast("PlainModel", model), prior, q, data)
    if loss.requires_grad:
        loss.backward(retain_graph=retain_graph)
    return float(loss.detach())


def run_backward(known: Known, retain_graph: bool) -> None:
    """``torch.autograd.backward`` from the inputs of a known number, without its checks of their shapes: for small
    problems these take as long as the steps of autograd.
    """
    pairs = [(x, g) for x, g in zip(known.inputs, known.gradients, strict=True) if x.requires_grad]
    if pairs:
        tensors, gradients = zip(*pairs, strict=True)
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward(tensors, gradients, retain_graph, False, (), allow_unreachable=True, accumulate_grad=True)


def _path_loss(model: MappedModel, path: KnownPath | KnownDiagonal, data: Sequences, retain_graph: bool) -> float:
    """:func:`_loss`, whose gradients are added to those of the parameters."""
    assert data.y is not None
    mean, variance, kernel = path.mean.requires_grad_(), path.variance.requires_grad_(), model.mapping()
    outputs = model.known_bound(mean, variance, data, kernel)
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
        run_backward(Known(outputs.value, inputs, gradients), retain_graph)
    return path.divergence - float(outputs.value)


def _known_loss(model: PlainModel, q: OpperArchambeau, data: Sequences) -> Known | None:
    """:func:`_loss` with its gradients; None if the kernel of the mapping does not compute those of its part."""
    moments, lam = q.moments, q.lam
    known = PathMoments(*(x.detach() for x in moments))
    mean, variance = known.mu.requires_grad_(), known.s.clamp_min(0.0)
    divergence = known_divergence(known, lam.detach(), 1.0 / data.column_communicator.size)
    assert data.y is not None
    outputs = model.likelihood(mean, data).known_bound(mean, variance, data.y)
    if divergence is None or outputs is None:
        return None
    g_mean, g_variance, *others = (-g for g in outputs.gradients)
    q.take_gradients(mean, variance, g_mean, g_variance)
    g_variance = torch.where(known.s < 0.0, 0.0, g_variance)
    g_mu, g_s, *rest = divergence.gradients
    inputs = (*moments, lam, *outputs.inputs[2:])
    return Known(divergence.value - outputs.value, inputs, (g_mu + g_mean, g_s + g_variance, *rest, *others))


class BatchModel(MappedModel, Protocol):
    """A model whose parts on a batch can be read."""

    def inducing_prior(self, batch: Batch, kernel: MappingValue) -> InducingPrior:
        """p(U)."""

    def outputs_on(
        self, batch: Batch, x: Tensor, u: Tensor, prior: InducingPrior, kernel: MappingValue
    ) -> ExplicitGP | ExplicitOutputs:
        """p(y given x, u)."""


class BatchGuide(PlainGuide, Protocol):
    """A guide with a q(U)."""

    def inducing_posterior(self, prior: InducingPrior) -> InducingGaussian:
        """q(U)."""


def batch_priors(model: BatchModel, batch: Batch) -> tuple[MappingValue, TemporalGP, InducingPrior]:
    """k_f, and p(X) and p(U) on a batch, of a :class:`BatchModel` in which nothing is random."""
    kernel, path = model.mapping(), model.path_prior(batch.paths)
    path.rows, path.places = batch.path_rows, batch.places
    return kernel, path, model.inducing_prior(batch, kernel)


def _on_batch(model: BatchModel, guide: BatchGuide, batch: Batch) -> Tensor:
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
