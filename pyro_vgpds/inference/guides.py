# SPDX-License-Identifier: Apache-2.0
"""The guide: q(X) in the Opper–Archambeau form, mean field for everything else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.infer.autoguide.effect import AutoNormalMessenger
from pyro.nn import PyroParam
from torch import Tensor

from pyro_vgpds.checks import check_callable, check_tensor, undefined
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.integrate import IntegrateMessenger
from pyro_vgpds.mapping.latent_gp import LatentGP
from pyro_vgpds.parameters import parameters_of, plain_value
from pyro_vgpds.pyro_state import own_store
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.path_gradients import DiagonalPath, MarkovPath, PathSource

_SITES = ("mean_bar_unconstrained", "lam_unconstrained")

__all__ = ["AutoOpperArchambeau", "OpperArchambeauGuide"]


class OpperArchambeauGuide(AutoNormalMessenger):
    """The common part of guides with an :class:`~pyro_vgpds.OpperArchambeau` at site ``x``.

    Latent hyperparameters get the mean-field Normals of ``AutoNormalMessenger``. Derived classes define
    :meth:`make_posterior`.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        check_callable("model", model, "a Pyro model")
        super().__init__(model, **options)
        self.init_loc_fn = functools.partial(_copied, self.init_loc_fn)

    @property
    def has_random_parameters(self) -> bool:
        """Whether the guide has met latent hyperparameters, each with a mean-field Normal of ``AutoNormalMessenger``.

        >>> guide.has_random_parameters
        False
        """
        locs = vars(self)["_modules"].get("locs")
        return locs is not None and bool(parameters_of(locs))

    def is_unmodified(self) -> bool:
        """Whether it runs as Pyro's messenger does, and has met no priors on hyperparameters."""
        kind = type(self)
        return (
            kind.forward is AutoNormalMessenger.forward
            and kind.__call__ is AutoNormalMessenger.__call__
            and not (self._forward_hooks or self._forward_pre_hooks)
            and not self.has_random_parameters
        )

    @property
    def frame_parameters(self) -> list[Tensor]:
        """Parameters that belong to single frames. Several processes that train together share all others.

        >>> [tuple(parameter.shape) for parameter in guide.frame_parameters]
        [(48, 3), (48, 3)]
        """
        return [getattr(self, name) for name in _SITES if hasattr(self, name)]

    def read_parameters(self) -> list[Tensor]:
        """The parameters that :meth:`make_posterior` reads besides sites that natural steps move. Default: none."""
        return []

    def posterior(self, *args: Any, **kwargs: Any) -> OpperArchambeau:
        """q(X) at the current parameters, without sampling. Arguments are those of the model.

        >>> q = guide.posterior(data)
        >>> q.mean.shape, q.variance.shape
        (torch.Size([48, 3]), torch.Size([48, 3]))
        """
        with own_store(), IntegrateMessenger():
            self(*args, **kwargs)
        q: Any = self.get_traces()[1].nodes["x"]["fn"]
        return q

    def take_hyperparameters(self, state: Mapping[str, Tensor], data: Sequences) -> None:
        """Make the distributions of hyperparameters with priors, with the parameters that another guide has for them.

        The model is called with ``data``. ``state`` is the ``state_dict()`` of the other guide; its q(X) is not read.
        """
        with own_store():
            self.median(data)
        own = {name: value for name, value in state.items() if name.startswith(("locs.", "scales."))}
        self.load_state_dict(own, strict=False)

    def get_posterior(self, name: str, prior: Any) -> Any:
        if name == "y":  # the data have no outputs: draw them from the model, and create no parameters
            return prior
        if isinstance(prior, LatentGP):  # Collapsed_ELBO integrates over the functions
            return prior.mean if self._computing_median else prior
        if not isinstance(prior, TemporalGP):
            return super().get_posterior(name, prior)
        q = self.make_posterior(prior)
        return q.mean if self._computing_median else q

    def make_posterior(self, prior: TemporalGP) -> OpperArchambeau:
        """q(X) on the prior of the model at the current hyperparameters."""
        raise undefined(self, "make_posterior(prior), which returns q(X)")

    def can_skip_trace(self, model: object) -> bool:
        """Whether q(X) can be computed without running the guide as a Pyro program: it is the guide of the model, as
        its class defines it, and has met no priors on hyperparameters. Default: False.

        :param model: the model.
        """
        return False

    def analytic_path(self, prior: PathSource) -> MarkovPath | DiagonalPath | None:
        """q(X) on a prior with its gradients, without autograd; None if they need it.
        :class:`~pyro_vgpds.NaturalGradient` swaps this method.

        :param prior: the covariance of the latent path at the current hyperparameters, or a reader of its kernel.

        >>> guide.analytic_path(guide.posterior(data).prior.covariance) is None
        True
        """
        return None

    def posterior_of(self, data: Sequences, prior: TemporalGP) -> OpperArchambeau:
        """q(X) of data on a prior at their times, outside of a call of the guide."""
        return self.make_posterior(prior)


class AutoOpperArchambeau(OpperArchambeauGuide):
    r"""Guide for :class:`~pyro_vgpds.VGPDS`: :class:`~pyro_vgpds.OpperArchambeau` at site ``x``.

    The 2QN parameters ``mean_bar`` and ``lam`` (N, Q), with the sequences one after the other, are the paper's
    :math:`\bar\mu` and :math:`\lambda`. Latent hyperparameters get the mean-field Normals of ``AutoNormalMessenger``;
    for priors on temporal hyperparameters see :class:`~pyro_vgpds.NaturalGradient`.

    :param model: a :class:`~pyro_vgpds.VGPDS`, or another Pyro model with a :class:`~pyro_vgpds.TemporalGP` at ``x``.
    :param mean_bar: initial ``mean_bar``. Default: from the model (``VGPDS.from_data``), otherwise zeros.
    :param lam: initial ``lam``. Default: from the model, otherwise ones.
    :param options: options of Pyro's ``AutoNormalMessenger``, for latent hyperparameters.
    :raises ValueError: if an initial value is not (N, Q) or not finite, or ``lam`` is not positive.

    >>> from pyro.infer import SVI
    >>> from pyro.optim import Adam
    >>> from pyro_vgpds import Collapsed_ELBO
    >>> new = VGPDS.from_data(data, latent_dim=2, num_inducing=10)
    >>> svi = SVI(new, AutoOpperArchambeau(new), Adam({"lr": 0.01}), Collapsed_ELBO())
    >>> loss = svi.step(data)  # minus the bound, without a sample
    >>> guide.mean_bar.shape, guide.lam.shape
    (torch.Size([48, 3]), torch.Size([48, 3]))
    """

    mean_bar: Any
    mean_bar_unconstrained: Any
    lam: Any
    lam_unconstrained: Any

    def __init__(
        self, model: Any, *, mean_bar: Tensor | None = None, lam: Tensor | None = None, **options: Any
    ) -> None:
        super().__init__(model, **options)
        if hasattr(model, "initial_posterior") and (mean_bar is None or lam is None):
            initial = model.initial_posterior() or (mean_bar, lam)
            mean_bar = initial[0] if mean_bar is None else mean_bar
            lam = initial[1] if lam is None else lam
        if mean_bar is not None or lam is not None:
            self.set(mean_bar, lam)

    def set(self, mean_bar: Tensor | None, lam: Tensor | None) -> None:
        """Set the parameters of q(X), in place if the guide has parameters of this shape.

        :param mean_bar: (N, Q); None for zeros.
        :param lam: (N, Q), positive; None for ones.
        :raises ValueError: if a shape is not (N, Q), a value is not finite, or ``lam`` is not positive.
        """
        check_tensor("mean_bar", mean_bar, optional=lam is not None)
        check_tensor("lam", lam, optional=True)
        known = lam if mean_bar is None else mean_bar
        assert known is not None
        mean_bar = torch.zeros_like(known) if mean_bar is None else mean_bar
        lam = torch.ones_like(known) if lam is None else lam
        if mean_bar.dim() != 2 or mean_bar.shape != lam.shape:
            raise ValueError(
                f"mean_bar and lam must both be (N, Q), but got {tuple(mean_bar.shape)} and {tuple(lam.shape)}."
            )
        if not bool((torch.isfinite(lam) & (lam > 0)).all() and torch.isfinite(mean_bar).all()):
            raise ValueError("mean_bar must be finite, and lam finite and positive.")
        # float32 has too few digits: K_t mean_bar would not be the mean that training found
        mean_bar, lam = mean_bar.double(), lam.double()
        if "lam" in self._pyro_params and self.lam_unconstrained.shape == lam.shape:
            with torch.no_grad():  # in place, so that optimisers keep their references
                self.mean_bar_unconstrained.copy_(mean_bar)
                self.lam_unconstrained.copy_(lam.log())
            return
        self.mean_bar = PyroParam(mean_bar.detach().clone(memory_format=torch.contiguous_format), event_dim=2)
        self.lam = PyroParam(
            lam.detach().clone(memory_format=torch.contiguous_format), constraint=constraints.positive, event_dim=2
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves to another device; ``mean_bar`` and ``lam`` stay float64."""
        kept = {name: p.detach().clone() for name, p in self.named_parameters() if name in _SITES}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            parameter = getattr(self, name)
            parameter.data = value.to(parameter.device)
        return self

    def get_posterior(self, name: str, prior: Any) -> Any:
        if isinstance(prior, TemporalGP):
            if not hasattr(self, "lam"):
                zeros = prior.covariance.diag().new_zeros(prior.event_shape)
                self.set(zeros, zeros + 1.0)
            if self.lam.shape != prior.event_shape:
                raise ValueError(
                    f"this guide is for {tuple(self.lam.shape)} = (frames, latent dimensions), but the model was "
                    f"called on {tuple(prior.event_shape)}. Make one guide for each data set; to predict, use "
                    "Posterior."
                )
        return super().get_posterior(name, prior)

    def can_skip_trace(self, model: object) -> bool:
        return (
            self.model is model
            and type(self).get_posterior is AutoOpperArchambeau.get_posterior
            and "lam" in self._pyro_params
            and self.is_unmodified()
        )

    def read_parameters(self) -> list[Tensor]:
        """The parameters that :meth:`make_posterior` reads: none with :class:`~pyro_vgpds.NaturalGradient`."""
        return [] if "make_posterior" in vars(self) else [getattr(self, name) for name in _SITES]

    def analytic_path(self, prior: PathSource) -> MarkovPath | DiagonalPath | None:
        return prior.diagonal_path(self.mean_bar_unconstrained, self.lam_unconstrained)

    def make_posterior(self, prior: TemporalGP) -> OpperArchambeau:
        """q(X) on a prior, from ``mean_bar`` and ``lam``. :class:`~pyro_vgpds.NaturalGradient` swaps this method.

        :param prior: the :class:`~pyro_vgpds.TemporalGP` of the model at the current hyperparameters.

        >>> prior = guide.posterior(data).prior
        >>> guide.make_posterior(prior)
        OpperArchambeau(frames=48, latent_dim=3, structure='markov')
        """
        mean_bar, lam = plain_value(self, "mean_bar"), plain_value(self, "lam")
        if mean_bar is None or lam is None:
            mean_bar, lam = self.mean_bar, self.lam
        return OpperArchambeau(prior, mean_bar, lam, validate_args=False)  # valid, or their moments are not finite


def _copied(init_loc_fn: Callable[[dict[str, Any]], Tensor], site: dict[str, Any]) -> Tensor:
    """A copy of an initial value: the mean of a Normal prior is the prior's own tensor, which training would change."""
    return init_loc_fn(site).clone(memory_format=torch.contiguous_format)
