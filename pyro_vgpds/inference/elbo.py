# SPDX-License-Identifier: Apache-2.0
"""The collapsed ELBO: Pyro's mean-field ELBO in which marked sites are integrated over the guide, not sampled."""

from __future__ import annotations

from typing import Any

import torch
from pyro import poutine
from pyro.distributions.score_parts import ScoreParts
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.trace_mean_field_elbo import _check_mean_field_requirement
from pyro.infer.util import is_validation_enabled
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, check_site_shape

from pyro_vgpds.temporal.distributions import OpperArchambeau

__all__ = ["Collapsed_ELBO", "IntegrateMessenger"]


class IntegrateMessenger(Messenger):
    """Integrates observed sites over the guide's distribution of a latent one.

    An observed site marked ``infer={"integrate": name}`` gets its distribution replaced by ``fn.integrate(q)``, where
    q is the distribution that the guide gave to the latent site ``name``. Where q is an
    :class:`~pyro_vgpds.OpperArchambeau`, whose KL is analytic, that site is not sampled either: its value is q's mean.
    Without this messenger the mark does nothing.

    :param names: latent sites that are known to be integrated; more are learned from the marks that are met.
    :raises TypeError: where the guide's distribution of an integrated site has no mean or no variance.
    """

    def __init__(self, names: set[str] | None = None) -> None:
        super().__init__()
        self.names = set() if names is None else names
        self.posteriors: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            known = msg["name"] in self.names or msg["infer"].get("integrated")
            if known and msg["value"] is None and isinstance(msg["fn"], OpperArchambeau):
                msg["value"], msg["done"] = msg["fn"].mean, True
        elif (name := msg["infer"].get("integrate")) in self.posteriors:
            self.names.add(name)
            posterior = self.posteriors[name]
            if not _has_moments(posterior):
                raise TypeError(
                    f"site {msg['name']!r} is integrated over {name!r}, so the guide's distribution there must have a "
                    f"mean and a variance, but it is {type(posterior).__name__}."
                )
            msg["fn"] = msg["fn"].integrate(posterior)

    def _pyro_post_sample(self, msg: Any) -> None:
        # The guide runs first (or, for a guide messenger, site by site): keep the first distribution of a name.
        if not msg["is_observed"]:
            self.posteriors.setdefault(msg["name"], msg["fn"])


def _has_moments(fn: Any) -> bool:
    try:
        return fn.mean is not None and fn.variance is not None
    except (AttributeError, NotImplementedError):
        return False


class Collapsed_ELBO(TraceMeanField_ELBO):
    r"""The paper's bound as a Pyro loss: :math:`-F = -\hat F + KL(q(X), p(X))` (its eq. 14).

    Use it with ``SVI`` like any other ELBO. With :class:`~pyro_vgpds.AutoOpperArchambeau` it is deterministic: no
    sample is drawn, and neither K_t nor S is factorised. Priors on hyperparameters stay ordinary latent sites, which
    are sampled. Any guide works whose site ``x`` has a ``mean`` and a ``variance``. Arguments are those of Pyro's
    ``TraceMeanField_ELBO``, and raise as there.

    >>> from pyro_vgpds import Collapsed_ELBO
    >>> loss = Collapsed_ELBO().loss(model, guide, data)
    >>> abs(loss + result.bound) < 1e-6  # the bound that training reached
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._integrated: set[str] = set()

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        with IntegrateMessenger(self._integrated):
            model_trace, guide_trace = _run(model, guide, args, kwargs)
        for name in self._integrated & guide_trace.nodes.keys():
            if isinstance(guide_trace.nodes[name]["fn"], OpperArchambeau):
                _skip_log_prob(model_trace.nodes[name])
                _skip_log_prob(guide_trace.nodes[name])
        model_trace.compute_log_prob()
        guide_trace.compute_score_parts()
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, self.max_plate_nesting)
            for trace in (model_trace, guide_trace):
                for site in trace.nodes.values():
                    if site["type"] == "sample":
                        check_site_shape(site, self.max_plate_nesting)
            _check_mean_field_requirement(model_trace, guide_trace)
        return model_trace, guide_trace


def _run(model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Traces of model and guide, as ``pyro.infer.enum.get_importance_trace`` makes them, before any density."""
    messenger = poutine.unwrap(guide)
    if isinstance(messenger, Messenger):
        guide(*args, **kwargs)
        model_trace, guide_trace = messenger.get_traces()  # type: ignore[attr-defined]
    else:
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
    return prune_subsample_sites(model_trace), prune_subsample_sites(guide_trace)


def _skip_log_prob(site: Any) -> None:
    """Its KL is analytic, so a log-density, and the factorisation it would take, is never read."""
    zero = torch.zeros(site["fn"].batch_shape)
    site["log_prob"] = site["unscaled_log_prob"] = zero
    site["log_prob_sum"] = zero.sum()
    site["score_parts"] = ScoreParts(zero, 0, zero)  # type: ignore[arg-type]
