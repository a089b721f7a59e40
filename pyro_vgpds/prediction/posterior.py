# SPDX-License-Identifier: Apache-2.0
"""Prediction with a trained model: forecast, reconstruct, generate, score.

Longer than 300 lines because the methods of one class and their documentation belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.checks import check_count, check_flags, check_rate
from pyro_vgpds.data.reading import is_list
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import hold_out
from pyro_vgpds.formatting import Default
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.mapping.inducing import InducingPosterior
from pyro_vgpds.mapping.posterior_gp import PosteriorGP
from pyro_vgpds.prediction.arguments import (
    ONLY,
    OneSequence,
    SequenceLike,
    describe_parts,
    read_new_data,
    read_new_times,
    resolve_sequence,
    resolve_sequences,
)
from pyro_vgpds.prediction.conditioning import condition, extend
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.fitted import FittedModel
from pyro_vgpds.prediction.latent import Latent
from pyro_vgpds.prediction.noise_settings import calibrated, hidden_variance, residual_variance
from pyro_vgpds.prediction.outputs import Parts
from pyro_vgpds.prediction.predictions import Prediction, Reconstruction
from pyro_vgpds.prediction.reconstruction import NewFrames
from pyro_vgpds.prediction.residual_choice import choose_residual
from pyro_vgpds.prediction.residuals import Correlation, every_frame, pair_frames, training_frames
from pyro_vgpds.prediction.solver import Solver, check_solver, solve
from pyro_vgpds.temporal.gaussian import GaussianPosterior
from pyro_vgpds.threads import thread_limited
from pyro_vgpds.training.progress import CountLike, check_progress
from pyro_vgpds.types import ArrayLike, DataLike

__all__ = ["Posterior"]

_CHOSEN = Default("chosen by hidden entries")


class Posterior(FittedModel):
    """Predictions of a trained model for new times, new outputs and new sequences.

    It reads the parameters once, so later training does not change it. Hyperparameters with priors are fixed at the
    medians of the guide. q(U) and the factors that predictions share are computed once.

    :param model: a trained :class:`~pyro_vgpds.VGPDS`.
    :param guide: its :class:`~pyro_vgpds.AutoOpperArchambeau`, or any other guide whose site ``x`` has a mean and a
        variance: Pyro's autoguides, a function, a network. Predictions take q(X) as Gaussian, with independent latent
        dimensions and sequences; frames are correlated as the guide's ``covariance_matrix`` says. A guide that is a
        point, such as ``AutoDelta``, has variance 0, and ``bound`` is then its log-density.
    :param data: the :class:`~pyro_vgpds.Sequences` that they were trained on.
    :param noise_variance: noise variance to predict with, one number or (D,), in squared units of the data. Default:
        the trained one. The model assumes independent noise. If the residuals are correlated, many outputs contain less
        information on the latent path than the model assumes. A larger variance, chosen on held-out sequences, then
        reconstructs better; multiples of :meth:`hidden_variance` are good candidates.
    :param output_scale: scales (D,) of the outputs to predict with. Default: those of the model. The noise variance in
        the data's units does not change, so an output with a smaller scale is fitted less closely.
    :param residual: a kernel of time for residuals that are not white: ``Bias() + White()`` for an offset that is
        constant over a sequence, ``Matern32(1.0, 0.3) + White(0.5)`` for one that drifts. It divides the noise variance
        (only its correlations count), separately for each output and sequence, and carries the residuals of observed
        frames to the other frames of the sequence. A sequence of n frames costs O(n), or O(n³) for each pattern of
        observed frames if the kernel has no state-space form. Predictions without noise are of the mapping alone.
        Student-t outputs have a sum of ``White()`` and another kernel, whose variances are relative to their squared
        scale, and cost O(n³) for each output without a state-space form. None for white noise. Default: white noise, or
        if entries of the data are missing and the outputs are Gaussian or Student-t, the best of a few kernels by the
        density of hidden training entries (:doc:`/mathematics`), which takes about a third of the time of training.
    :param widening: multiply the variance of the function at missing entries of training frames by the square root of
        the length of the gap, at most ten frames, if other outputs of the frame were observed (:doc:`/mathematics`).
        Default: if ``residual`` is not given and the outputs are Gaussian.
    :raises ValueError: if guide, model and data do not belong together, ``noise_variance`` is not positive, or outputs
        that are not Gaussian cannot have such residuals.
    :raises TypeError: if ``guide``, ``residual`` or ``widening`` has another type, or ``x`` of the guide has no mean or
        variance.

    If the data have lags (:meth:`Sequences.lagged <pyro_vgpds.Sequences.lagged>`), all methods take and return the
    data's own D outputs only, and make the lagged copies of new outputs themselves.

    ``sequence`` means the same in all methods: the index of the training sequence that ``t`` belongs to (negative
    indices count from the end), its name if the data have names, or None for a new, independent sequence. Methods that
    take several sequences also take a list with one entry for each. The default is None, except in :meth:`forecast` and
    :meth:`extended`, which continue the only training sequence. ``t`` can lie inside, between or beyond the training
    times. If the training times were dates, ``t`` are dates, or seconds since the first of them.

    >>> post = Posterior(model, guide, data)
    >>> post.num_outputs, post.q.mean.shape, post.inducing_mean.shape
    (5, torch.Size([48, 3]), torch.Size([12, 5]))
    >>> abs(post.bound - result.bound) < 1e-6
    True
    """

    def __init__(
        self,
        model: PyroModule,
        guide: Callable[..., Any],
        data: Sequences,
        *,
        noise_variance: ArrayLike | float | None = None,
        output_scale: ArrayLike | None = None,
        residual: Kernel | Default | None = _CHOSEN,
        widening: bool | None = None,
    ) -> None:
        given = None if isinstance(residual, Default) else residual
        super().__init__(
            model, guide, data, noise_variance=noise_variance, output_scale=output_scale, residual=given,
            widening=False if widening is None else widening,
        )  # fmt: skip
        if isinstance(residual, Default):
            self._choose_residual()
            if widening is None:
                self.origin = self.origin._replace(widening=self.likelihood is None)

    @thread_limited
    def _choose_residual(self) -> None:
        kernel = choose_residual(self)
        if kernel is not None:
            self.origin = self.origin._replace(residual=kernel)
            self.correlation = Correlation.read(kernel, self.data.times.t)

    @thread_limited
    def residual_variance(self) -> Tensor:
        """Mean squared residual of each output at the training frames, (D,): what q(X) and q(U) do not explain.

        >>> post.residual_variance().shape
        torch.Size([5])
        """
        self.need_gaussian("residual_variance")
        return residual_variance(self)

    @thread_limited
    def hidden_variance(
        self,
        share: float = 0.5,
        num_sequences: int = 8,
        num_frames: int = 250,
        *,
        solver: Solver | None = None,
        progress: bool | None = None,
    ) -> Tensor:
        """Mean squared error of each output where it is hidden, (D,).

        Random training sequences, or random windows of long ones, are reconstructed as new sequences from a part of
        their outputs, until every output has been hidden once. Outputs that the others do not determine have a large
        error, also if their training residuals are small. Two to four times this is a good ``noise_variance`` to
        reconstruct hidden outputs with.

        :param share: share of the outputs that is hidden at a time, at most half of them and at least one output.
            Small shares are slow: each sequence is reconstructed 1 / ``share`` times, at most D times.
        :param num_sequences: maximum number of training sequences to use.
        :param num_frames: maximum number of consecutive frames of each of them to use, at a random place. An output
            that is not observed in any of these frames gets the mean error of the others, relative to its variance.
        :param solver: Default: ``Solver(num_starts=1, num_steps=60)``.
        :param progress: show a progress bar over the reconstructions. Default: on a terminal only.
        :raises ValueError: if ``share`` is not in (0, 1), or ``num_sequences`` or ``num_frames`` is not a positive
            whole number.
        :raises TypeError: if ``solver`` is not a :class:`~pyro_vgpds.Solver`.

        >>> post.hidden_variance(num_sequences=1).shape
        torch.Size([5])
        """
        self.need_gaussian("hidden_variance")
        return hidden_variance(self, share, num_sequences, num_frames, solver=solver, progress=progress)

    @thread_limited
    def condition(self, data: Sequences, sequences: Sequence[OneSequence] | None = None) -> Posterior:
        """The posterior of other data at the same hyperparameters, without training: for a new origin of a forecast, or
        with more or fewer observed entries. q(X) and q(U) are found again.

        :param data: sequences of the same outputs.
        :param sequences: for each of them the training sequence that it continues or repeats, or None. Default: the
            same order.
        :raises ValueError: if the number of outputs or sequences differs.

        >>> longer = post.condition(data)
        >>> abs(longer.bound - post.bound) < 0.05 * abs(post.bound)
        True
        """
        return condition(self, data, sequences)

    @thread_limited
    def extended(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike | Default = ONLY,
        *,
        free: bool = False,
        solver: Solver | None = None,
    ) -> Posterior:
        """The posterior with new frames as well, without training: forecasts continue from the new end.

        The hyperparameters and inducing inputs stay. The q(X) of the new frames is found as in :meth:`reconstruct`; the
        other frames change through the temporal prior that they share with them. q(U) is that of all frames, so the
        mapping learns from the new ones. Frames in which nothing is observed change nothing.

        :param t: times (T,) of the new frames, or a list of them for several sequences. They may also lie before or
            between the training times.
        :param y: outputs (T, D), or a list of them; NaN for missing ones. At a training time they are added to that
            frame, and replace numbers that it has already.
        :param sequence: see :class:`Posterior`; may be a list. Default: the only training sequence. None: the frames
            become a further training sequence.
        :param free: optimise the training frames' q(X) as well; a step then costs as much as one of training. This is
            always done for data with lags, and if ``t`` has training times.
        :param solver: of the search for the q(X) of the new frames. Default: ``Solver(num_starts=2)``.
        :returns: a new posterior with its own ``data``; this one does not change.
        :raises ValueError: if D differs, times are not finite or do not increase, or the sequence is unknown, or
            required.

        >>> data.lengths
        (25, 23)
        >>> more = post.extended([2.6, 2.7], data.read()[-2:], sequence=0)
        >>> more.data.lengths, more.forecast([2.8, 2.9], sequence=0).mean.shape
        ((27, 23), torch.Size([2, 5]))
        """
        return extend(self, t, y, sequence, free=free, solver=solver)

    @thread_limited
    def calibrate(
        self, task: str = "impute", *, share: float = 0.1, horizon: int | None = None, seed: int = 0
    ) -> Ensemble:
        """The same model with intervals that hold on held-out parts of its training data.

        A part of the data is hidden, q(X) and q(U) are found again without it, and the hidden numbers are predicted
        with several settings of the noise and of its correlation in time. The best of them is kept, and the widths of
        intervals are set to what the errors need. The hyperparameters have seen the hidden numbers, so that intervals
        are often slightly too narrow; those of :func:`~pyro_vgpds.auto` have not seen them.

        :param task: what will be predicted: ``"impute"``, ``"reconstruct"`` or ``"forecast"``, see
            :func:`~pyro_vgpds.evaluation.hold_out`.
        :param share: share of the data to hide.
        :param horizon: number of frames to forecast.
        :param seed: of the random choice.
        :returns: an :class:`~pyro_vgpds.Ensemble` with one member.
        :raises ValueError: if an argument is out of its range.

        >>> post.calibrate("forecast", horizon=3).forecast([2.6, 2.7], sequence=0).interval(0.95)[0].shape
        torch.Size([2, 5])
        """
        self.need_gaussian("calibrate")
        split = hold_out(self.data, task, share=share, horizon=horizon, seed=seed)
        return calibrated(self, split)

    # predictions

    @thread_limited
    def forecast(
        self,
        t: ArrayLike,
        sequence: OneSequence | Default = ONLY,
        *,
        given: ArrayLike | None = None,
        include_noise: bool = True,
        full_cov: bool = False,
    ) -> Prediction:
        r"""Outputs at new times, from the times alone (the paper's section 3.1).

        The latent path is :meth:`OpperArchambeau.forecast <pyro_vgpds.OpperArchambeau.forecast>`; q(U) maps it to

        .. math:: E[f_*] = B^\top \psi_1, \qquad
                  \mathrm{Cov}[f_*] = B^\top (\Psi_2 - \psi_1 \psi_1^\top) B + \psi_0 I
                  - \mathrm{tr}\,[(K_{MM}^{-1} - (K_{MM} + \beta \Psi_2^{train})^{-1})\, \Psi_2]\, I,

        with :math:`B = E[K_{MM}^{-1} U]` and the Ψ statistics of one new frame.

        :param t: times (T,), in any order. A training time is a new frame here, with its own draw of the temporal
            kernel's white noise; for the training frame itself use :meth:`impute`.
        :param sequence: see :class:`Posterior`. Default: the only training sequence. The latent path of a new sequence
            is that of the prior.
        :param given: outputs that are known at these times already, such as the forecast of a temperature or numbers of
            a calendar: (T, D) with NaN for unknown ones, or a DataFrame with some of the columns. The result is that of
            :meth:`reconstruct` for frames of the sequence, and returns these numbers unchanged. ``t`` must increase.
        :param include_noise: predict the outputs; if False, the function without their noise.
        :param full_cov: compute the covariance (T, D, D) of outputs within a time, and use it in ``log_prob``. Not with
            ``given``.
        :returns: a :class:`~pyro_vgpds.Prediction` of (T, D).
        :raises ValueError: if ``t`` is not (T,) and finite, the sequence is unknown, or required, or ``given`` does not
            fit.
        :raises TypeError: if ``t`` has dates and the training times are numbers.

        >>> ahead = post.forecast([2.6, 2.7, 2.8], sequence=0)
        >>> ahead
        Prediction(3 times from 2.6 to 2.8, 5 outputs)
        >>> lower, upper = ahead.interval(0.95)
        """
        check_flags(include_noise=include_noise, full_cov=full_cov)
        times = read_new_times(t, self.data)
        which = resolve_sequence(sequence, self.data)
        if given is not None:
            if full_cov:
                raise ValueError("full_cov=True cannot be combined with given: use .covariance of the result.")
            self.check_new(read_new_data(t, given, self.data, "given"), "given")  # errors name this argument
            return self.reconstruct(t, given, which, fill=True, include_noise=include_noise)
        with torch.no_grad():
            path, rows = self.q.forecast(times, which), training_frames(self.data, which)
            carried = self.residuals(self.inducing, times, [(rows, torch.arange(len(times), device=rows.device))])
            return self.predict(
                times, path, self.inducing, include_noise=include_noise, full_cov=full_cov, residuals=carried
            )

    @thread_limited
    def impute(self, *, fill: bool = True, include_noise: bool = True) -> Prediction:
        """Outputs at the training frames, (N, D), sequences one after the other.

        :param fill: return observed numbers unchanged and predict only missing ones.
        :param include_noise: predict the outputs; if False, the function without their noise.

        >>> post.impute().mean.equal(data.y)  # nothing is missing here
        True
        """
        check_flags(fill=fill, include_noise=include_noise)
        observed, t = self.data.read(0, self.num_outputs) if fill else None, self.data.times.t
        carried = self.residuals(self.inducing, t, every_frame(self.data))
        return self.predict(
            t, self.q, self.inducing, include_noise=include_noise, observed=observed, residuals=carried,
            correlations=self.correlations, widening=self.origin.widening and self.data.num_missing > 0,
            parts=Parts.of(self.data),
        )  # fmt: skip

    @thread_limited
    def reconstruct(
        self,
        t: DataLike,
        y: DataLike,
        sequence: SequenceLike = None,
        *,
        factorised: bool = False,
        free: bool = False,
        encode: bool = False,
        trust: float = 1.0,
        fill: bool = False,
        include_noise: bool = True,
        solver: Solver | None = None,
        progress: CountLike = False,
    ) -> Reconstruction:
        """Hidden outputs of partly observed frames (the paper's section 3.2).

        The bound on training and new frames together is maximised over q(X, X*) by natural-gradient steps from several
        starts: the forecast, and the sites of the nearest training frames. The best bound is kept. The hyperparameters
        are fixed, and q(U) is updated with the observed outputs of the new frames.

        :param t: times (T,), or a list of them for several sequences.
        :param y: outputs (T, D), or a list of them. NaN marks hidden outputs, in any pattern; columns that a DataFrame
            does not have are hidden.
        :param sequence: see :class:`Posterior`; may be a list.
        :param factorised: use q(X, X*) = q(X) q(X*), in which the training frames are fixed. Faster for frames of a
            training sequence, but it ignores the uncertainty of the training frames. For new sequences it is the same.
        :param free: optimise the training frames' q(X) as well, as the paper does; a step then costs as much as one of
            training. Otherwise their sites are fixed, and they change only through the prior that they share with the
            new frames.
        :param encode: take the sites of the new frames from the network of an
            :class:`~pyro_vgpds.AmortizedOpperArchambeau`, without an optimisation.
        :param trust: in (0, 1], the weight of an observed number of a new frame relative to one of training. The model
            assumes independent noise. If it is not, thousands of pixels contain less information on the latent path
            than the model assumes; a smaller weight, chosen on held-out frames, relies more on the times.
        :param fill: return observed numbers unchanged, with variance 0.
        :param include_noise: predict the outputs; if False, the function without their noise.
        :param solver: Default: ``Solver()``.
        :param progress: show a progress bar over the steps of all starts; a start that converges skips the rest of its
            steps. None: on a terminal only. Or a function that is called with the number of steps done and of all.
        :returns: a :class:`~pyro_vgpds.prediction.Reconstruction`; the frames of several sequences one after the other,
            which ``split()`` gives back apart.
        :raises ValueError: if D differs, times are not finite or do not increase, or the sequence is unknown.

        >>> seen = data.read()[:10].clone()
        >>> seen[:, 3:] = float("nan")  # two of five outputs are hidden
        >>> whole = post.reconstruct(data.times.t[:10], seen)
        >>> whole.mean.shape, whole.latent.mean.shape
        (torch.Size([10, 5]), torch.Size([10, 3]))
        """
        check_flags(factorised=factorised, free=free, encode=encode, fill=fill, include_noise=include_noise)
        check_progress(progress)
        new = read_new_data(t, y, self.data)
        self.check_new(new)
        belongs = resolve_sequences(sequence, self.data, new.num_sequences)
        if factorised and free:
            raise ValueError("factorised=True fixes the training frames, so it cannot be combined with free=True.")
        if encode and (self.encode is None or free):
            raise ValueError(
                "encode=True needs a posterior whose guide is an AmortizedOpperArchambeau, and free=False, but the "
                f"guide is {type(self.origin.guide).__name__} and free={free}."
            )
        check_rate("trust", trust)
        if isinstance(self.q, GaussianPosterior) and (free or (not factorised and set(belongs) != {None})):
            raise ValueError(
                "the joint q(X, X*) of old and new frames needs a posterior whose guide has an OpperArchambeau. Use "
                "post.condition(post.data), which finds such a q(X), or reconstruct with factorised=True without free."
            )
        with torch.no_grad():
            sites = self.encode(new) if encode and self.encode is not None else None
            frames = NewFrames(new, belongs, free, factorised, trust)
            joint, solution, bounds = solve(self.training, frames, check_solver(solver), sites=sites, progress=progress)
            moments = joint.moments(solution)
            inducing = InducingPosterior(
                joint.mapping(solution), *moments, joint.combined, joint.weight, self.training.sums
            )
            result = self.predict_from(
                new.times.t,
                joint.path(solution),
                inducing,
                include_noise=include_noise,
                observed=new.read(0, self.num_outputs) if fill else None,
                residuals=self.residuals(inducing, new.times.t, pair_frames(self.data, new, belongs)),
                correlations=joint.correlations(solution, inducing),
                parts=describe_parts(self.data, new, belongs),
            )
        result.bound, result.bounds, result.num_steps = solution.bound, bounds, solution.num_steps
        return result

    @thread_limited
    def generate(
        self, t: ArrayLike, num_samples: int = 1, sequence: OneSequence = None, *, include_noise: bool = True
    ) -> Tensor:
        """Draws of whole sequences at these times, (num_samples, T, D), coherent in time.

        Each draw has its own latent path and its own function: the path from the prior for a new sequence, or from
        q(X*) as the continuation of a training sequence, and the function from q(U).

        :param t: times (T,).
        :param num_samples: number of draws.
        :param sequence: see :class:`Posterior`.
        :param include_noise: draw the outputs; if False, the function without their noise.

        >>> post.generate([0.0, 0.1, 0.2], num_samples=4).shape
        torch.Size([4, 3, 5])
        """
        check_count("num_samples", num_samples)
        return self.forecast(t, sequence, include_noise=include_noise).sample(num_samples)

    def as_model(
        self, sequence: OneSequence = None, *, include_noise: bool = True
    ) -> Callable[[ArrayLike | Sequences], Tensor]:
        """:meth:`generate` as a Pyro model of times, with sample sites ``x`` (T, Q) and ``y`` (T, D), and ``f`` if
        outputs are not Gaussian.

        :param sequence: see :class:`Posterior`.
        :param include_noise: as in :meth:`generate`.
        :raises ValueError: if noise is included and the posterior has a ``residual`` kernel, given or chosen.

        >>> from pyro.infer import Predictive
        >>> Predictive(post.as_model(), num_samples=4)([0.0, 0.1, 0.2])["y"].shape
        torch.Size([4, 3, 5])
        """
        check_flags(include_noise=include_noise)
        if self.correlation is not None and include_noise:
            raise ValueError("as_model draws white noise: use a Posterior with residual=None, or include_noise=False.")
        which, outputs = resolve_sequence(sequence, self.data), self.likelihood

        def model(t: ArrayLike | Sequences) -> Tensor:
            times = t.times.t if isinstance(t, Sequences) else read_new_times(t, self.data)
            x = pyro.sample("x", self.q.forecast(times, which))
            if outputs is None:
                return pyro.sample("y", PosteriorGP(x, self.inducing, include_noise))
            f = pyro.sample("f", PosteriorGP(x, self.inducing, include_noise=False))
            given = outputs.distribution(f)
            return pyro.sample("y", given.to_event(2)) if include_noise else pyro.deterministic("y", given.mean)

        return model

    # scores

    @thread_limited
    def project(self, t: DataLike, y: DataLike, sequence: SequenceLike = None, **options: Any) -> Latent:
        """Latent positions of new data: ``mean`` and ``variance`` (T, Q). Arguments as in :meth:`reconstruct`.

        >>> mean, variance = post.project(data.times.t[:10], data.read()[:10])
        >>> mean.shape
        torch.Size([10, 3])
        """
        return self.reconstruct(t, y, sequence, **options).latent

    @thread_limited
    def log_density(self, t: DataLike, y: DataLike, *, solver: Solver | None = None) -> Tensor:
        r"""A lower bound on log p(y given the training data) of new sequences; NaN is ignored.

        With q(X) fixed, the bound on both data sets minus that on the training data is

        .. math:: \max_{q(X_*), q(U)} E[\log p(y_* | x_*, u)] - KL(q(X_*), p(X_*)) - KL(q(U), q_{train}(U))
                  \le \log \int p(y_* | x_*, u)\, p(x_*)\, q_{train}(u),

        the density of the sequence under the trained q(U).

        :param t: times of one sequence, or a list for several, which are scored separately.
        :param y: their outputs.
        :param solver: Default: ``Solver()``.
        :returns: one number, or (S,) for a list.

        >>> own, noise = data.read()[:10], 3.0 * data.read()[:10].flip(1)
        >>> bool(post.log_density(data.times.t[:10], own) > post.log_density(data.times.t[:10], noise))
        True
        """
        new, solver = read_new_data(t, y, self.data), check_solver(solver)
        self.check_new(new)
        scores, outputs = [], new.read()
        with torch.no_grad():
            for rows in new.times.slices():
                one = Sequences(new.times.t[rows], outputs[rows], dtype=new.dtype, device=new.device)
                _, best, _ = solve(self.training, NewFrames(one, [None], factorised=True), solver)
                scores.append(best.bound - self.bound)
        result = new.times.t.new_tensor(scores)
        return result if is_list(t) else result[0]
