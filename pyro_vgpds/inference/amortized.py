# SPDX-License-Identifier: Apache-2.0
"""The amortised guide: a network gives the sites of each frame, so that new sequences need no optimisation."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_vgpds.checks import check_count, check_not_negative, check_rate
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.ascent import Ascent, Damping
from pyro_vgpds.inference.encoder import Encoder, encoder_inputs, function_inputs, middle_likelihood
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.natural import natural_step
from pyro_vgpds.inference.point import Point, read_point
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.pyro_state import one_at_a_time
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP
from pyro_vgpds.temporal.gaussian import PathPosterior, least_lam
from pyro_vgpds.temporal.paths import GaussianPath

__all__ = ["AmortizedOpperArchambeau", "Refined", "refine_sites"]

_LOG_PRECISION = 30.0  # limits of log λ, far beyond any useful one
_LEAST_LENGTH = 1e-4  # of a step, relative to a full one; the ascent ends if it has to be shorter
_PATIENCE = 3  # consecutive steps with a small change that end the ascent
_Point: TypeAlias = "tuple[OpperArchambeau, Tensor, Tensor]"  # q(X), and the derivatives of F̂ in mean and variance


class AmortizedOpperArchambeau(OpperArchambeauGuide):
    r"""Guide whose q(X) comes from a network: :class:`~pyro_vgpds.OpperArchambeau` with the sites

    .. math:: \lambda_n = \exp b(y_n), \qquad \eta_n = \lambda_n \circ a(y_n),

    where the network maps the outputs of a frame to a and b, of Q numbers each. A site is a noisy observation of x_n at
    a(y_n) with precision λ_n; the pass through the prior is that of :class:`~pyro_vgpds.AutoOpperArchambeau`, so that
    frames without outputs follow their neighbours. The number of parameters does not grow with the number of frames,
    and ``posterior(data)`` takes new sequences.

    The network reads 2D numbers of each frame: the centred and scaled outputs, with 0 for missing ones, and then 1 for
    each observed output and 0 for each missing one. It returns 2Q numbers, a and b. A network of your own gets the
    frames of one sequence in each call, in the order of time, so that it can also read their neighbours, as a
    ``torch.nn.GRU`` does. It does not get the times. Of outputs that are not Gaussian the network reads functions that
    explain each of them alone, such as the logarithms of counts, centred and scaled.

    Train it with Pyro's ``SVI`` and :class:`~pyro_vgpds.Collapsed_ELBO`, or with :func:`~pyro_vgpds.fit`, whose
    default is then Adam over all parameters. Latent hyperparameters get the mean-field Normals of
    ``AutoNormalMessenger``.

    :param model: a :class:`~pyro_vgpds.VGPDS`.
    :param data: the training data. If given, the default network starts from the linear regression of the model's
        initial latent points (``VGPDS.from_data``) on the inputs.
    :param network: a ``torch.nn.Module`` that maps (n, 2D) to (n, 2Q), for the n frames of a sequence. Default: a
        linear map plus a network with one hidden layer, for each frame alone.
    :param num_hidden: units of the hidden layer of the default network.
    :param options: options of Pyro's ``AutoNormalMessenger``, for latent hyperparameters.
    :raises TypeError: if ``model`` is not a VGPDS, or ``network`` is not a module.
    :raises ValueError: if ``num_hidden`` is not a positive whole number, or a network is given as well.

    >>> from pyro_vgpds import AmortizedOpperArchambeau, Sequences
    >>> pyro.clear_param_store()
    >>> new = VGPDS.from_data(data, latent_dim=2, num_inducing=10)
    >>> encoder = AmortizedOpperArchambeau(new, data, num_hidden=16)
    >>> result_of_network = fit(new, encoder, data, num_steps=20)
    >>> another = Sequences(data.times.t[:9], data.read()[:9])
    >>> encoder.posterior(another).mean.shape
    torch.Size([9, 2])
    """

    network: nn.Module
    input_mean: Tensor
    input_scale: Tensor

    def __init__(
        self,
        model: Any,
        data: Sequences | None = None,
        *,
        network: nn.Module | None = None,
        num_hidden: int | None = None,
        **options: Any,
    ) -> None:
        if not all(hasattr(model, name) for name in ("latent_dim", "output_mean", "output_scale")):
            raise TypeError(f"model must be a VGPDS, but got {type(model).__name__}.")
        if network is not None and not isinstance(network, nn.Module):
            raise TypeError(f"network must be a torch.nn.Module, but got {type(network).__name__}.")
        if network is not None and num_hidden is not None:
            raise ValueError("num_hidden is for the default network, but a network was given.")
        num_hidden = 64 if num_hidden is None else num_hidden
        check_count("num_hidden", num_hidden)
        super().__init__(model, **options)
        if getattr(model, "output_likelihood", None) is not None:
            # of the start: the network would have to follow parameters that are learned
            outputs, scale = middle_likelihood(model.output_likelihood), model.output_scale.detach().clone()
            self.register_buffer("input_mean", outputs.moments(model.output_mean.unsqueeze(0))[0][0].clone())
            self.register_buffer("input_scale", torch.ones_like(scale) if outputs.likelihood.is_discrete else scale)
            if data is not None:
                self._check(data)
                f, seen = self._inputs(data).chunk(2, -1)
                spread = (f.square().sum(0) / seen.sum(0).clamp_min(1.0)).sqrt()
                self.input_scale *= torch.where(spread > 0.0, spread, 1.0)
        if network is None:
            network = Encoder(2 * len(model.output_mean), num_hidden, model.latent_dim)
            start = getattr(model, "start", None)
            if data is not None and start is not None:
                self._check(data)
                network.regress(self._inputs(data), start.x)
        self.network = network.to(dtype=model.output_mean.dtype, device=model.output_mean.device)

    def encode(self, data: Sequences) -> tuple[Tensor, Tensor]:
        """The sites η and λ (N, Q) that the network gives to the frames of any sequences.

        :param data: sequences with the outputs of the model; NaN marks missing ones.
        :raises ValueError: if there are no outputs, or of another number, or the network's result is not (n, 2Q).

        >>> eta, lam = encoder.encode(another)
        >>> eta.shape, bool((lam > 0).all())
        (torch.Size([9, 2]), True)
        """
        return self._encode(self.network, data)

    def frozen_encoder(self) -> Callable[[Sequences], tuple[Tensor, Tensor]]:
        """:meth:`encode` with the current weights, which later training does not change."""
        return functools.partial(self._encode, copy.deepcopy(self.network).requires_grad_(False))

    def _encode(self, network: nn.Module, data: Sequences) -> tuple[Tensor, Tensor]:
        latent = self._check(data).latent_dim
        inputs = self._inputs(data)
        parts = [inputs] if isinstance(network, Encoder) else inputs.split(data.lengths)
        result = torch.cat([_call(network, part, 2 * latent) for part in parts])
        place, log_precision = result.split(latent, -1)
        seen = inputs[:, inputs.shape[1] // 2 :].any(-1, keepdim=True)  # a frame without outputs has no information
        log_precision = torch.where(seen, log_precision, -_LOG_PRECISION)
        lam = log_precision.clamp(-_LOG_PRECISION, _LOG_PRECISION).exp()
        return lam * place, lam

    def make_posterior(self, prior: TemporalGP) -> OpperArchambeau:
        """q(X) on a prior, from the sites of the network for the data that the guide was called with.

        :param prior: the :class:`~pyro_vgpds.TemporalGP` of the model at the current hyperparameters.
        """
        args, kwargs = self.args_kwargs
        data = next((value for value in (*args, *kwargs.values()) if isinstance(value, Sequences)), None)
        if data is None:
            raise TypeError("the guide must be called with the Sequences(t, y) of the model.")
        return self.posterior_of(data, prior)

    def posterior_of(self, data: Sequences, prior: TemporalGP) -> OpperArchambeau:
        return OpperArchambeau.from_natural(prior, *self.encode(data))

    @one_at_a_time
    def refine(
        self, data: Sequences, num_steps: int = 200, *, natural_rate: float = 0.7, tolerance: float = 1e-6
    ) -> AutoOpperArchambeau:
        """A guide with one site for each frame that starts from those of the network, after natural gradient steps.

        The hyperparameters are fixed, those with priors at their medians. Use it with :class:`~pyro_vgpds.Posterior`,
        or train it further with :func:`~pyro_vgpds.fit`.

        :param data: the training data, or other sequences.
        :param num_steps: maximum number of steps; 0 copies the sites of the network.
        :param natural_rate: ρ in (0, 1], the length of the natural steps.
        :param tolerance: early stopping: change of the bound, in nats per observed number, that ends the steps.
        :raises ValueError: if an argument is out of its range.

        >>> fine = encoder.refine(data)
        >>> bool(Posterior(new, fine, data).bound >= Posterior(new, encoder, data).bound)
        True
        """
        refined, point = self._refined(data, num_steps, natural_rate, tolerance)
        guide = AutoOpperArchambeau(self.model, mean_bar=refined.q.mean_bar, lam=refined.q.lam)
        if point.values:
            guide.take_hyperparameters(self.state_dict(), data)
        return guide

    def gap(
        self, data: Sequences, num_steps: int = 200, *, natural_rate: float = 0.7, tolerance: float = 1e-6
    ) -> float:
        """The amortisation gap in nats: what :meth:`refine` adds to the bound at the same hyperparameters, at least 0.

        It is that of ``data`` alone, with a mapping of their own. For new sequences given the training data, compare
        the bounds of :meth:`Posterior.reconstruct <pyro_vgpds.Posterior.reconstruct>` with and without ``encode=True``.
        Arguments as in :meth:`refine`.

        >>> encoder.gap(data) > 0.0
        True
        """
        refined, _ = self._refined(data, num_steps, natural_rate, tolerance)
        return refined.bound - refined.first

    def _refined(self, data: Sequences, num_steps: int, rate: float, tolerance: float) -> tuple[Refined, Point]:
        self._check(data)
        point = read_point(self.model, self, data)
        return refine_sites(point.q, point.likelihood, data, num_steps, rate, tolerance), point

    def _inputs(self, data: Sequences) -> Tensor:
        model: Any = self.model
        if getattr(model, "output_likelihood", None) is None:
            return encoder_inputs(data, model.output_mean, model.output_scale)
        with torch.no_grad():
            return function_inputs(data, middle_likelihood(model.output_likelihood), self.input_mean, self.input_scale)

    def _check(self, data: Sequences) -> Any:
        """The model; raise a ValueError if ``data`` does not have its outputs."""
        model: Any = self.model
        check_data(data)
        if data.num_outputs != model.num_outputs:
            raise ValueError(f"data must have the {model.num_outputs} outputs of the model, but got {data!r:.80}.")
        return model


def _call(network: nn.Module, inputs: Tensor, width: int) -> Tensor:
    """The network's numbers for the frames of a sequence, (n, 2Q)."""
    result = network(inputs)
    if not isinstance(result, Tensor) or result.shape != (len(inputs), width):
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(
            f"network must return ({len(inputs)}, {width}) = (frames, twice the latent dimensions), but got {got}."
        )
    return result


class Refined(NamedTuple):
    """The end of the steps."""

    q: OpperArchambeau  #: the best q(X)
    bound: float  #: its bound
    first: float  #: the bound before the first step
    num_steps: int  #: natural steps that were taken


def refine_sites(
    q: PathPosterior, likelihood: SparseGP, data: Sequences, num_steps: int, rate: float, tolerance: float
) -> Refined:
    """Maximise the bound over the sites of q(X), from those that it has. The result is never worse.

    :param tolerance: change of the bound, in nats per observed number, that ends the steps.
    :raises ValueError: if an argument is out of its range.
    :raises NumericalError: if the first bound is not finite.
    """
    y = data.y
    assert isinstance(q, OpperArchambeau)
    assert y is not None
    if data.communicator.size > 1:
        raise ValueError(
            "refine needs the sequences of one process: refine the guide of the whole data, or of sequences that are "
            "not shared."
        )
    check_count("num_steps", num_steps, 0)
    check_rate("natural_rate", rate)
    check_not_negative("tolerance", tolerance)
    prior, least, small = q.prior, least_lam(q.prior.variance), tolerance * data.num_observed
    damping = Damping(drop=small, small=lambda bound: small, patience=_PATIENCE, least=_LEAST_LENGTH)

    def evaluate(q: OpperArchambeau) -> tuple[_Point, float]:
        mean, variance = (value.detach().clone().requires_grad_() for value in (q.mean, q.variance))
        with torch.enable_grad():
            # F̂ depends on q(X) through its marginals only: a path of independent frames has the same
            marginals = GaussianPath(mean, variance, lambda: torch.diag_embed(variance.mT))
            expected = likelihood.integrate(marginals).log_prob(y)
        d_mean, d_variance = torch.autograd.grad(expected, (mean, variance))
        bound = float(expected) - float(kl_divergence(q, prior))
        if bound != bound or not all(bool(torch.isfinite(d).all()) for d in (d_mean, d_variance)):
            raise NumericalError("the bound or one of its derivatives is not finite.")
        return (q, d_mean, d_variance), bound

    def advance(state: Ascent[_Point]) -> tuple[_Point, float]:
        now, d_mean, d_variance = state.point
        sites = natural_step(now.eta, now.lam, now.mean, d_mean, d_variance, least, rate * state.length)
        return evaluate(OpperArchambeau.from_natural(prior, *sites))

    with torch.no_grad():
        state = Ascent(*evaluate(q))
        first = best = state
        while state.step < num_steps and damping.stopped(state) is None:
            state = damping.step(state, advance)
            best = state if state.bound > best.bound else best
        return Refined(best.point[0], best.bound, first.bound, state.step)
