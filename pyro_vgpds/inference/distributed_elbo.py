# SPDX-License-Identifier: Apache-2.0
"""The collapsed ELBO of data that several processes have together.

The loss is the sum of the parts that the processes compute: each has the KL divergence of its own sequences and 1/K of
everything else. Gradients of parameters that all processes have are summed in one operation after the backward pass;
those of q(X) stay with the process that has its sequences. Processes with the same frames and other columns all have
q(X): each has the terms of its own columns and 1/K of everything else, and all gradients are summed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, cast

import pyro
import torch
import torch.distributed as dist
from pyro import poutine
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pyro_vgpds.communication import SINGLE_PROCESS, Communicator, ProcessError
from pyro_vgpds.data.batches import Batch, SequenceDataset
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.mapping.output_sites import sites_of
from pyro_vgpds.parameters import parameters_of

__all__ = [
    "IndependentWarning", "check_same", "column_communicator_of", "communicator_of", "distributed_gradients",
    "distributed_loss", "independent", "refuse_wrapped", "shared_tensors", "warn_if_alone",
]  # fmt: skip

_independent = ContextVar("_independent", default=False)
_SAME = (
    "Create the model in the same way and with the same seed in all processes, or call distributed.same(model, guide, "
    "data)."
)
_WRAPPED = (
    "the collapsed bound cannot be trained with DistributedDataParallel: it is not a sum over processes, and q(X) "
    "belongs to the sequences of one process. Use the model itself, without DistributedDataParallel, on data = "
    "pyro_vgpds.distributed.shard(data): Collapsed_ELBO and fit then sum over the processes."
)


class IndependentWarning(UserWarning):
    """Each of several processes trains a model of its own.

    >>> import warnings
    >>> from pyro_vgpds import distributed
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", distributed.IndependentWarning)  # forgotten shard() becomes an error
    ...     distributed.shard(data).num_sequences
    2
    """


@contextmanager
def independent() -> Iterator[None]:
    """A block in which each process of a ``torch.distributed`` group trains a model of its own, without a warning.

    >>> from pyro_vgpds import distributed
    >>> with distributed.independent():
    ...     fit(model, guide, data, num_steps=1).stopped
    'steps'
    """
    token = _independent.set(True)
    try:
        yield
    finally:
        _independent.reset(token)


def communicator_of(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Communicator:
    """The processes that have the data together which a model is called with."""
    return next(
        (x.communicator for x in (*args, *kwargs.values()) if isinstance(x, (Sequences, Batch, SequenceDataset))),
        SINGLE_PROCESS,
    )


def column_communicator_of(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Communicator:
    """The processes that have the same frames of the data which a model is called with, and other columns."""
    return next((x.column_communicator for x in (*args, *kwargs.values()) if isinstance(x, Sequences)), SINGLE_PROCESS)


def refuse_wrapped() -> None:
    """Raise a RuntimeError within the forward pass of a ``DistributedDataParallel``."""
    if getattr(DistributedDataParallel, "_active_ddp_module", None) is not None:
        raise RuntimeError(_WRAPPED)


def warn_if_alone() -> None:
    """Warn if there are several processes and this one trains alone."""
    if _independent.get() or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    warnings.warn(
        f"torch.distributed has {dist.get_world_size()} processes, but the data are not shared by them: each process "
        "trains a model of its own. Share the data with pyro_vgpds.distributed.shard(data), or write `with "
        "pyro_vgpds.distributed.independent():` around training if this is intended.",
        IndependentWarning,
        stacklevel=4,
    )


def distributed_loss(communicator: Communicator, guide: object, evaluate: Callable[[], float]) -> float:
    """The loss of all processes, of which ``evaluate`` computes the part of this one.

    :raises NumericalError: if one of the processes has one.
    """
    with communicator.sharing_errors():
        _begin(communicator, guide)
        loss = evaluate()
    return float(communicator.all_reduce(torch.tensor([loss], dtype=torch.float64)))


def distributed_gradients(
    communicator: Communicator,
    model: object,
    guide: object,
    evaluate: Callable[[], float],
    traced: bool = True,
    same_frames: bool = False,
) -> float:
    """The loss of all processes, of which ``evaluate`` computes the part of this one; its gradients are left with the
    parameters.

    :param traced: whether the parameters are found by tracing the evaluation, and not only those of the modules.
    :param same_frames: whether all processes have the same frames, and so the parameters of q(X).
    :raises NumericalError: if one of the processes has one.
    """
    with communicator.sharing_errors():
        _begin(communicator, guide)
        before = _taken_gradients(model, guide)
        capture = poutine.trace(param_only=True)
        with capture if traced else nullcontext():
            loss = evaluate()
        own = _frame_parameters(guide, same_frames)
        parameters = _shared(model, guide, capture.trace if traced else None, own)
        every = [(parameter, parameter.grad) for parameter in parameters]
        shared = [(parameter, grad.double().flatten()) for parameter, grad in every if grad is not None]
        first = torch.tensor([loss, len(shared)], dtype=torch.float64)
        gradients = [gradient for _, gradient in shared]
        flat = torch.cat([first.to(gradients[0].device) if gradients else first, *gradients])
    total = communicator.all_reduce(flat)
    if float(total[1]) != communicator.size * len(shared):
        raise ProcessError(f"the processes have different parameters. {_SAME}")
    sums = total[2:].split([len(gradient) for gradient in gradients])
    for (parameter, _), gradient in zip(shared, sums, strict=True):
        parameter.grad = gradient.view_as(parameter).to(parameter)
    for parameter, gradient in before:
        parameter.grad = gradient if parameter.grad is None else gradient + parameter.grad
    return float(total[0])


def _frame_parameters(guide: object, same_frames: bool) -> set[int]:
    """The identities of parameters that belong to the frames of this process."""
    return set() if same_frames else {id(parameter) for parameter in getattr(guide, "frame_parameters", ())}


def _shared(model: object, guide: object, trace: Trace | None, own: set[int]) -> list[Tensor]:
    """Parameters of the modules and in Pyro's store that all processes have, in the same order everywhere."""
    found: dict[int, Tensor] = {}
    for module in (model, guide):
        if isinstance(module, nn.Module):
            found |= {id(parameter): parameter for parameter in parameters_of(module)}
    nodes = {} if trace is None else trace.nodes
    for name in sorted(nodes):
        leaf = cast("Any", nodes[name]["value"]).unconstrained()
        found.setdefault(id(leaf), leaf)
    return [parameter for key, parameter in found.items() if key not in own]


def check_same(communicator: Communicator, model: object, guide: object, same_frames: bool = False) -> None:
    """Raise a ProcessError in all processes if parameters or buffers differ, except those of their own frames."""
    with communicator.sharing_errors():
        named = dict(shared_tensors(model, guide, same_frames))
        communicator.check_equal(
            "the names and shapes of the parameters", {k: list(v.shape) for k, v in named.items()}, _SAME
        )
        sums = {name: float(value.double().sum()).hex() for name, value in named.items()}
        every = communicator.all_gather(sums)
        differing = [name for name in sums if any(other[name] != every[0][name] for other in every)]
        if differing:
            raise ProcessError(f"{', '.join(differing[:5])} must be the same in all processes, but differ. {_SAME}")


def shared_tensors(model: object, guide: object, same_frames: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Names and values of the parameters and buffers that all processes have."""
    own = _frame_parameters(guide, same_frames)
    if (sites := sites_of(model)) is not None:
        own |= {id(value) for value in sites.buffers()}
    for part, module in (("model", model), ("guide", guide)):
        if isinstance(module, nn.Module):
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if id(value) not in own:
                    yield f"{part}.{name}", value.detach()


def _begin(communicator: Communicator, guide: object) -> None:
    if not hasattr(guide, "frame_parameters"):
        raise TypeError(
            "training by several processes needs an AutoOpperArchambeau, AmortizedOpperArchambeau or AutoExplicit, "
            f"which know the parameters of each frame, but got {type(guide).__name__}."
        )
    if getattr(guide, "has_random_parameters", False):  # the same draws in all processes
        torch.set_rng_state(communicator.broadcast(torch.get_rng_state()))


def _taken_gradients(model: object, guide: object) -> list[tuple[Tensor, Tensor]]:
    """Gradients from before, which are sums over the processes already."""
    modules = [p for module in (model, guide) if isinstance(module, nn.Module) for p in parameters_of(module)]
    every = {id(p): p for p in (*modules, *(p for _, p in pyro.get_param_store().named_parameters()))}
    taken = [(p, p.grad) for p in every.values() if p.grad is not None]
    for parameter, _ in taken:
        parameter.grad = None
    return taken
