# SPDX-License-Identifier: Apache-2.0
"""The collapsed ELBO: Pyro's mean-field ELBO in which marked sites are integrated over the guide, not sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.poutine.trace_struct import Trace

from pyro_vgpds.checks import check_callable
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.distributed_elbo import (
    column_communicator_of,
    communicator_of,
    distributed_gradients,
    distributed_loss,
    refuse_wrapped,
    warn_if_alone,
)
from pyro_vgpds.inference.integrate import IntegrateMessenger, check_sites
from pyro_vgpds.inference.untraced import can_skip_trace, untraced_loss, untraced_loss_and_grads
from pyro_vgpds.mapping.explicit_outputs import ExpectedOutputs
from pyro_vgpds.mapping.latent_gp import CollapsedOutputs
from pyro_vgpds.mapping.output_sites import OutputSites
from pyro_vgpds.pyro_state import pyro_lock

__all__ = ["Collapsed_ELBO", "run_programs"]

#: steps of Pyro's evaluation that a subclass may define, and that evaluations without a trace would skip
_STEPS = ("_get_trace", "_get_traces", "_get_vectorized_trace", "_differentiable_loss_particle")


class Collapsed_ELBO(TraceMeanField_ELBO):
    r"""The paper's bound as a Pyro loss: :math:`-F = -\hat F + KL(q(X), p(X))` (its eq. 14).

    Use it with ``SVI`` like any other ELBO. With :class:`~pyro_vgpds.AutoOpperArchambeau` it is deterministic: no
    sample is drawn, and neither K_t nor S is factorised. Priors on hyperparameters stay ordinary latent sites, which
    are sampled. Every guide works whose site ``x`` has a ``mean`` and a ``variance``. Arguments are those of Pyro's
    ``TraceMeanField_ELBO``.

    :raises ValueError: if the guide has an ``OpperArchambeau`` site that no observed site is integrated over.
    :raises TypeError: if the guide's distribution of an integrated site has no mean or no variance.

    On data that several processes have together (:func:`~pyro_vgpds.distributed.shard`), ``loss`` and
    ``loss_and_grads`` are those of all processes, which must call them at the same time.

    Outputs that are not Gaussian have Gaussian factors, which ``loss_and_grads`` updates after the backward pass
    (:class:`~pyro_vgpds.mapping.output_sites.OutputSites`). ``loss`` leaves them as they are; after the backward pass
    of ``differentiable_loss`` call ``model.sites.step()``. Their functions, the site ``f``, are integrated out; a guide
    that has a site ``f`` of its own, as Pyro's autoguides do, gets the ELBO with draws of f instead.

    A model and guide in which nothing is random and that no other effect handler watches are evaluated without a trace
    after the first time, which has the same result. A subclass that defines one of Pyro's steps, such as
    ``_differentiable_loss_particle(model_trace, guide_trace)``, always gets the traces.

    >>> from pyro_vgpds import Collapsed_ELBO
    >>> loss = Collapsed_ELBO().loss(model, guide, data)
    >>> abs(loss + result.bound) < 1e-6  # the bound that training reached
    True
    """

    _sites: tuple[OutputSites, ...] = ()  # whose factors the current evaluation has used

    def _can_skip_trace(self, model: object, guide: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        refuse_wrapped()
        if any(getattr(type(self), step) is not getattr(Collapsed_ELBO, step) for step in _STEPS):
            return False
        return self.num_particles == 1 and not kwargs and can_skip_trace(model, guide, *args)

    def loss(self, model: Callable[..., object], guide: Callable[..., object], *args: Any, **kwargs: Any) -> float:
        """Minus the bound.

        :param model: the model.
        :param guide: its guide.
        """
        self._sites = ()
        communicator, skips_trace = communicator_of(args, kwargs), self._can_skip_trace(model, guide, args, kwargs)

        def evaluate() -> float:
            if not skips_trace:
                return TraceMeanField_ELBO.loss(self, model, guide, *args, **kwargs)
            with torch.no_grad():
                return float(untraced_loss(model, guide, *args))

        return evaluate() if communicator.size == 1 else distributed_loss(communicator, guide, evaluate)

    def loss_and_grads(
        self, model: Callable[..., object], guide: Callable[..., object], *args: Any, **kwargs: Any
    ) -> float:
        """Minus the bound, whose gradients are left with the parameters.

        :param model: the model.
        :param guide: its guide.
        """
        self._sites = ()
        communicator, skips_trace = communicator_of(args, kwargs), self._can_skip_trace(model, guide, args, kwargs)

        def evaluate() -> float:
            if not skips_trace:
                return TraceMeanField_ELBO.loss_and_grads(self, model, guide, *args, **kwargs)
            return untraced_loss_and_grads(model, guide, args[0], bool(self.retain_graph))

        if communicator.size > 1:
            options = {"traced": not skips_trace, "same_frames": column_communicator_of(args, kwargs).size > 1}
            loss = distributed_gradients(communicator, model, guide, evaluate, **options)
        else:
            warn_if_alone()
            loss = evaluate()
        self._step()
        return loss

    def _step(self) -> None:
        for sites in self._sites:
            if not sites.is_held:
                sites.step()

    def differentiable_loss(
        self, model: Callable[..., object], guide: Callable[..., object], *args: Any, **kwargs: Any
    ) -> Any:
        """Minus the bound as a tensor.

        :param model: the model.
        :param guide: its guide.
        :raises ValueError: if several processes have the data together.
        """
        self._sites = ()
        if communicator_of(args, kwargs).size > 1:
            raise ValueError(
                "differentiable_loss would have the gradients of this process only. Use loss_and_grads, which sums "
                "them over the processes."
            )
        return super().differentiable_loss(model, guide, *args, **kwargs)

    def _get_trace(
        self, model: Callable[..., object], guide: Callable[..., object], args: Any, kwargs: Any
    ) -> tuple[Trace, Trace]:
        check_callable("model", model)
        check_callable("guide", guide)
        share, paths = 1.0 / communicator_of(args, kwargs).size, column_communicator_of(args, kwargs).size > 1
        with pyro_lock(), IntegrateMessenger(self._collect_sites, share, paths) as messenger:
            model_trace, guide_trace = super()._get_trace(model, guide, args, kwargs)
        messenger.check()
        check_sites(model_trace, guide_trace)
        return model_trace, guide_trace

    def _collect_sites(self, outputs: CollapsedOutputs | ExpectedOutputs) -> None:
        sites = outputs.sites
        if all(sites is not other for other in self._sites):
            sites.clear()  # evaluations before this one whose gradients were not used
            self._sites += (sites,)


def run_programs(guide: Callable[..., object], data: Sequences) -> None:
    """Run a guide and its model as :class:`Collapsed_ELBO` does, without computing the bound: afterwards all parameters
    and the traces of the guide exist.

    :param guide: a guide messenger, which calls its model.
    :param data: the sequences, of which several processes may each have a part.
    """

    def run() -> float:
        with pyro_lock(), IntegrateMessenger() as messenger:
            guide(data)
        messenger.check()
        return 0.0

    with torch.no_grad():
        if data.communicator.size == 1:
            run()
        else:
            distributed_loss(data.communicator, guide, run)
