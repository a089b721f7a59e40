# SPDX-License-Identifier: Apache-2.0
"""The whole guide and data of several processes, in the first of them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from pyro_vgpds.checks import check_kind
from pyro_vgpds.data.column_shards import ColumnShard, gather_columns
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import Shard, gather_sequences
from pyro_vgpds.inference.distributed_elbo import shared_tensors
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.mapping.output_sites import sites_of

__all__ = ["gather", "gathered", "same"]

_GUIDE = "an AutoOpperArchambeau or AmortizedOpperArchambeau"


def gather(guide: OpperArchambeauGuide, data: Sequences) -> tuple[OpperArchambeauGuide, Sequences] | None:
    """The guide and the data of all processes in the first one, for predictions; all processes must call it.

    Sequences are in the order of the processes. The model is the same everywhere, except for the Gaussian factors of
    outputs that are not Gaussian: the guide then belongs to a copy of the model that has those of all frames.

    :param guide: the guide of this process.
    :param data: the sequences of this process.
    :returns: guide and data in the first process, None in the others. Data that are not shared, and their guide, are
        returned as they are.

    >>> from pyro_vgpds import distributed
    >>> whole = distributed.gather(guide, data)
    >>> if whole is not None:
    ...     post = Posterior(whole[0].model, *whole)
    """
    check_kind("guide", guide, OpperArchambeauGuide, _GUIDE)
    check_data(data)
    return gathered(guide, data)


def gathered(guide: OpperArchambeauGuide, data: Sequences) -> tuple[OpperArchambeauGuide, Sequences] | None:
    """:func:`gather` without checks of the arguments."""
    if isinstance(data, ColumnShard):
        with data.communicator.sharing_errors():
            every = gather_columns(data)
        return None if every is None else (guide, every)
    if not isinstance(data, Shard):
        return guide, data
    if hasattr(guide, "collapsed"):
        raise TypeError(
            "the parts of an AutoExplicit cannot be gathered. Give guide.collapsed(), whose sites are those of the "
            "sequences of this process."
        )
    with data.communicator.sharing_errors():
        sites = None
        if isinstance(guide, AutoOpperArchambeau):
            sites = [data.communicator.gather_rows(value.detach()) for value in (guide.mean_bar, guide.lam)]
        outputs, factors = sites_of(guide.model), None
        if outputs is not None:
            factors = data.communicator.gather_rows(outputs.state.movedim(1, 0))  # (N, 2, F)
        whole = gather_sequences(data)
    if whole is None:
        return None
    if factors is not None:
        guide = _with_factors(guide, factors.movedim(0, 1), whole)
    if sites is None:  # a network, which all processes have
        return guide, whole
    new = AutoOpperArchambeau(guide.model, mean_bar=sites[0], lam=sites[1])
    if guide.has_random_parameters:
        new.take_hyperparameters(guide.state_dict(), whole)
    return new, whole


def _with_factors(guide: OpperArchambeauGuide, factors: Tensor, whole: Sequences) -> OpperArchambeauGuide:
    """A copy of a guide and its model, which has the factors of the outputs of all sequences."""
    new = copy.deepcopy(guide)
    outputs = sites_of(new.model)
    assert outputs is not None
    outputs.set(factors)
    outputs.belong_to(whole)
    return new


@torch.no_grad()
def same(model: torch.nn.Module, guide: OpperArchambeauGuide | None, data: Sequences) -> None:
    """Give all processes the parameters of the first one, except those of the frames of each; all must call it.

    :param model: the model.
    :param guide: its guide, or None.
    :param data: the sequences of this process, by which it knows the others.
    :raises ProcessError: if the processes have parameters of different names or shapes.

    >>> from pyro_vgpds import distributed
    >>> distributed.same(model, guide, data)  # nothing to do for data that are not shared
    """
    check_kind("model", model, torch.nn.Module, "a module")
    check_kind("guide", guide, OpperArchambeauGuide, _GUIDE, optional=True)
    check_data(data)
    communicator = data.communicator
    with communicator.sharing_errors():
        named = dict(shared_tensors(model, guide, data.column_communicator.size > 1))
        hint = "Create the model in the same way in all processes."
        communicator.check_equal(
            "the names and shapes of the parameters", {k: list(v.shape) for k, v in named.items()}, hint
        )
        for value in named.values():
            value.copy_(communicator.broadcast(value))
