# SPDX-License-Identifier: Apache-2.0
"""Integration of marked sites over the guide's distribution of a latent site, instead of over samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.score_parts import ScoreParts
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace

from pyro_vgpds.inference.distributed_elbo import refuse_wrapped
from pyro_vgpds.mapping.explicit_outputs import ExpectedOutputs
from pyro_vgpds.mapping.inducing_gaussian import InducingGaussian
from pyro_vgpds.mapping.latent_gp import CollapsedLatent, CollapsedOutputs, GivenLatent, LatentGP
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP

__all__ = ["IntegrateMessenger", "check_sites"]


class IntegrateMessenger(Messenger):
    """Integrates observed sites over the guide's distribution of a latent site.

    An observed site marked ``infer={"integrate": name}`` gets its distribution replaced by ``fn.integrate(q)``, where
    q is the guide's distribution of the latent site ``name``; a tuple of names gives one argument for each. A marked
    :class:`~pyro_vgpds.mapping.latent_gp.LatentGP` that the guide does not have is integrated out, too: the site
    disappears, and outputs marked with its name are integrated over it. A latent site whose q is an
    :class:`~pyro_vgpds.OpperArchambeau` is not sampled: its value is the mean of q, and its log-density is never
    computed, because its KL divergence is analytic. Without this messenger the mark has no effect.

    :param meet: is called with the outputs that are integrated over their functions, before their log-probability is
        computed. Default: nothing.
    :param share: factor of latent sites other than integrated ones, such as hyperparameters with priors: 1/K if each of
        K processes adds this term.
    :param shares_paths: whether latent paths have this factor, too: all processes have the same frames.
    :raises TypeError: if the guide's distribution of an integrated site has no mean or no variance.

    >>> import pyro
    >>> from pyro_vgpds.inference import IntegrateMessenger
    >>> with IntegrateMessenger():
    ...     x = guide(data)["x"]  # the mean of q(X), the same in every run
    >>> x.equal(guide.posterior(data).mean)
    True
    """

    def __init__(
        self, meet: Callable[..., object] = lambda outputs: None, share: float = 1.0, shares_paths: bool = False
    ) -> None:
        super().__init__()
        self._collect_sites, self._share, self._shares_paths = meet, share, shares_paths
        self._posteriors: dict[str, Any] = {}
        self._integrated: set[str] = set()

    def _pyro_sample(self, msg: Message) -> None:
        name, *others = _mark(msg)
        if name in self._posteriors:
            refuse_wrapped()
        if self._share != 1.0 and (self._shares_paths or not isinstance(msg["fn"], (OpperArchambeau, TemporalGP))):
            self._divide(msg, name)
        if isinstance(msg["fn"], LatentGP) and msg["name"] not in self._posteriors and name in self._posteriors:
            self._collapse(msg, msg["fn"], name)
        elif not msg["is_observed"]:
            if msg["value"] is None and isinstance(fn := msg["fn"], _ANALYTIC):
                msg["value"], msg["done"] = fn.mean, True
        elif name in self._posteriors:
            posterior, likelihood = self._posteriors[name], cast("Any", msg["fn"])
            if isinstance(likelihood, GivenLatent):
                if isinstance(posterior, CollapsedLatent):  # otherwise the guide has the functions, which are drawn
                    msg["fn"] = likelihood.integrate(posterior)
                return
            self._integrated.update((name, *others))
            rest = [self._posteriors[other] for other in others]
            msg["fn"] = likelihood.integrate(_with_moments(posterior, name, msg["name"]), *rest)

    def _divide(self, msg: Message, name: str) -> None:
        """Take the part of this process of a site that all of them have."""
        if isinstance(msg["fn"], LatentGP):
            if msg["name"] in self._posteriors:
                raise ValueError(
                    f"several processes cannot train a guide with a site {msg['name']!r} of its own, which has the "
                    "functions of all frames. Use a guide without it: the functions are then integrated out."
                )
            return
        if msg["is_observed"] and name not in self._posteriors:
            raise ValueError(
                f"several processes cannot train a model with the observed site {msg['name']!r}, which is not "
                "integrated over the latent path: it is not known whether it belongs to the frames of one process."
            )
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self._share

    def _collapse(self, msg: Any, gp: LatentGP, name: str) -> None:
        """Take the functions of a site out of the traces: the outputs are integrated over them."""
        self._integrated.add(name)
        self._posteriors[msg["name"]] = gp.integrate(_with_moments(self._posteriors[name], name, msg["name"]))
        msg["value"], msg["done"] = gp.output_mean.new_zeros(()).expand(gp.shape()), True
        msg["infer"].update(is_auxiliary=True, _do_not_trace=True)

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["is_observed"]:
            if isinstance(outputs := msg["fn"], (CollapsedOutputs, ExpectedOutputs)):
                outputs.share = _share(msg)
                self._collect_sites(outputs)
            return
        # The guide runs first (a guide messenger: site by site), so the first distribution of a name is the guide's.
        posterior = self._posteriors.setdefault(str(msg["name"]), msg["fn"])
        if isinstance(posterior, _ANALYTIC):
            _skip_log_prob(msg)

    def check(self) -> None:
        """Raise an error if a site was replaced by its mean although nothing integrates over it.

        :raises ValueError: if no observed site is marked with the name of an ``OpperArchambeau`` site.
        """
        for name, posterior in self._posteriors.items():
            if isinstance(posterior, _ANALYTIC) and name not in self._integrated:
                kind = next(kind.__name__ for kind in _ANALYTIC if isinstance(posterior, kind))
                raise ValueError(
                    f"the guide's site {name!r} is an {kind}, but no observed site of the model is marked "
                    f"infer={{'integrate': {name!r}}}. Mark the site of the outputs, or use Trace_ELBO."
                )


#: posteriors that are integrated and never drawn; their KL divergence is analytic
_ANALYTIC = (OpperArchambeau, InducingGaussian)


def _mark(msg: Message) -> tuple[str, ...]:
    """The latent sites that a site is integrated over, the latent path first."""
    infer: Mapping[str, Any] = msg["infer"] or {}
    names: str | tuple[str, ...] = infer.get("integrate", "")
    return (names,) if isinstance(names, str) else names


def _with_moments(posterior: TorchDistribution, name: str, observed: str | None) -> TorchDistribution:
    try:
        if posterior.mean is not None and posterior.variance is not None:
            return posterior
    except (AttributeError, NotImplementedError):
        pass
    raise TypeError(
        f"site {observed!r} is integrated over {name!r}, so the guide's distribution of {name!r} must have a mean and "
        f"a variance, but it is {type(posterior).__name__}."
    )


def check_sites(model: Trace, guide: Trace) -> None:
    """Raise a ValueError if the guide does not have a site that another one is integrated over."""
    for name in {name for site in model.nodes.values() if site["type"] == "sample" for name in _mark(site)}:
        if name in model.stochastic_nodes and name not in guide:
            found = ", ".join(guide.stochastic_nodes) or "none"
            raise ValueError(f"guide has no latent site {name!r}; its latent sites are {found}. Rename one of them.")


def _skip_log_prob(msg: Any) -> None:
    """Fill in zeros, which Pyro takes as computed already: the density would need a factorisation of K_t."""
    zero = torch.zeros(msg["fn"].batch_shape)
    msg["log_prob"] = msg["unscaled_log_prob"] = zero
    msg["log_prob_sum"] = zero.sum()
    msg["score_parts"] = ScoreParts(zero, 0, zero)  # type: ignore[arg-type]


def _share(site: Message) -> float:
    """What the gradients of a site's log-probability are multiplied by; 0 if it is masked."""
    scale, mask = site.get("scale", 1.0), site.get("mask")
    return float(scale) if mask is None or mask is True else 0.0
