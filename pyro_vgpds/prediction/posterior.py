# SPDX-License-Identifier: Apache-2.0
"""Prediction with a trained model: forecast, reconstruct, generate, score."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_vgpds.checks import check_count, check_noise, is_whole
from pyro_vgpds.data.sequences import Sequences, is_list, read_times
from pyro_vgpds.formatting import Default
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.kernels import Kernel
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.inducing import InducingPosterior, PosteriorGP
from pyro_vgpds.mapping.sparse_gp import SparseGP
from pyro_vgpds.prediction.outputs import Latent, Prediction, Reconstruction
from pyro_vgpds.prediction.reconstruction import Joint, Solution, Training, nearest_starts
from pyro_vgpds.prediction.residuals import Correlation, Residuals
from pyro_vgpds.temporal.distributions import OpperArchambeau, TemporalGP

__all__ = ["Posterior"]

_ONLY = Default("the only sequence")


class Posterior:
    """What a trained model says of new times, new outputs and new sequences.

    It reads the parameters once, so later training does not change it; hyperparameters with priors stand at the
    medians of the guide. q(U) and the factors that predictions share are made once.

    :param model: a trained :class:`~pyro_vgpds.VGPDS`.
    :param guide: its :class:`~pyro_vgpds.AutoOpperArchambeau`.
    :param data: the :class:`~pyro_vgpds.Sequences` that they were trained on.
    :param noise: a noise variance, one number or (D,), to predict with in place of the trained one. The model takes the
        outputs' noise to be independent. Where what it leaves unexplained is correlated, many outputs say less of the
        latent path than it believes, and a larger noise, chosen on sequences held out, reconstructs better;
        :meth:`hidden_variance` is a good pattern for it.
    :param residual: a kernel of time for what the mapping leaves unexplained, where that is not white:
        ``Bias() + White()`` for an offset that stays over a sequence, ``Matern32(1.0, 0.3) + White(0.5)`` for one that
        drifts. It shares out the noise's variance (only its correlations count), for each output and sequence by
        itself, and carries what is seen of an output to the other frames of its sequence. A sequence of n frames costs
        O(n³) for each pattern of seen frames. Predictions without noise are of the mapping, and carry nothing.
    :raises ValueError: where guide, model and data do not belong together, or ``noise`` is not positive.
    :raises TypeError: where ``guide`` or ``residual`` is something else.

    :ivar bound: the lower bound on log p(Y) that training reached.

    In all methods ``sequence`` is the index of the training sequence whose times ``t`` belong to, inside it or beyond
    its end, and None stands for a new, independent sequence. Where training had dates, ``t`` are dates, or seconds
    since the first of them.

    >>> post = Posterior(model, guide, data)
    >>> post.num_outputs, post.q.mean.shape, post.inducing_mean.shape
    (5, torch.Size([48, 3]), torch.Size([12, 5]))
    >>> abs(post.bound - result.bound) < 1e-6
    True
    """

    def __init__(
        self,
        model: PyroModule,
        guide: AutoOpperArchambeau,
        data: Sequences,
        *,
        noise: Any = None,
        residual: Kernel | None = None,
    ) -> None:
        if not isinstance(guide, AutoOpperArchambeau):
            raise TypeError(f"guide must be an AutoOpperArchambeau, but got {type(guide).__name__}.")
        if not isinstance(data, Sequences) or data.y is None:
            raise ValueError(f"data must be the Sequences(t, y) of training, with outputs, but got {data!r:.80}.")
        if guide.model is not model:
            raise ValueError("guide was made for another model: give the model and the guide that were trained.")
        with torch.no_grad():
            self._correlation = None if residual is None else Correlation.read(residual, data.times.t)
            self._training = _read(guide, data)
            q, likelihood, _ = self._training
            if noise is not None:
                given = check_noise(noise, len(likelihood.output_mean)).to(data.times.t).reshape(-1)
                likelihood = likelihood.replaced(noise_variance=given)
                self._training = self._training._replace(likelihood=likelihood)
            self._inducing = InducingPosterior(likelihood, q.mean, q.variance, data)
            expected = likelihood.integrate(q).log_prob(data.y)
            self.bound = float(expected) - float(kl_divergence(q, q.prior))

    @property
    def q(self) -> OpperArchambeau:
        """The posterior of the latent path at the training frames, event shape (N, Q)."""
        return self._training.q

    @property
    def data(self) -> Sequences:
        """The training sequences."""
        return self._training.data

    @property
    def num_outputs(self) -> int:
        """D, how many outputs there are."""
        return self._inducing.num_outputs

    @property
    def noise(self) -> Tensor:
        """The noise variance that it predicts with, (1,) or (D,)."""
        return self._inducing.noise

    def __repr__(self) -> str:
        return f"Posterior(of {self.data}, bound={self.bound:.6g})"

    def residual_variance(self) -> Tensor:
        """What q(X) and q(U) leave unexplained of each output at the training frames: the mean square, (D,).

        Multiples of it are candidates for ``noise``.

        >>> post.residual_variance().shape
        torch.Size([5])
        """
        fitted, total = self.impute(fill=False, noise=False), self.data.times.t.new_zeros(self.num_outputs)
        with torch.no_grad():
            for rows, index, mean, _ in fitted.blocks():
                part = self.data.read(int(index.min()), int(index.max()) + 1)[rows, index - index.min()]
                total[index] += torch.nan_to_num(part - mean, nan=0.0).square().sum(0)
        return total / self.data.output_counts.clamp_min(1)

    def hidden_variance(self, share: float = 0.5, num_sequences: int = 8, **options: Any) -> Tensor:
        r"""What is wrong with each output where it is hidden: the mean squared error, (D,).

        Training sequences, drawn at random, are reconstructed as if they were new from a part of the outputs, until
        every output has been hidden once. Outputs that the others do not tell have a large one, also where the
        residuals of training are small. Twice to four times this is a good ``noise`` to reconstruct hidden outputs
        with: it says how far each output that is seen should be followed.

        :param share: of the outputs that is hidden at a time.
        :param num_sequences: how many of the training sequences are tried, at the most.
        :param options: of :meth:`reconstruct`.
        :raises ValueError: where ``share`` is not in (0, 1) or ``num_sequences`` is not a positive whole number.

        >>> post.hidden_variance(num_sequences=1).shape
        torch.Size([5])
        """
        if not 0.0 < share < 1.0:
            raise ValueError(f"share must be between 0 and 1, but got {share!r}.")
        check_count("num_sequences", num_sequences)
        options = {"num_starts": 1, "num_steps": 60} | options
        y, slices = self.data.read(), self.data.times.slices()
        total, count = (self.data.times.t.new_zeros(self.num_outputs) for _ in range(2))
        for i in torch.randperm(len(slices))[:num_sequences].tolist():
            rows = slices[i]
            parts = max(2, round(1.0 / share))
            for hidden in torch.randperm(self.num_outputs, device=y.device).tensor_split(parts):
                seen = y[rows].clone()
                seen[:, hidden] = torch.nan
                found = self.reconstruct(self.data.times.t[rows], seen, noise=False, **options)
                wrong = (found.mean - y[rows])[:, hidden].square()
                total[hidden] += torch.nan_to_num(wrong, nan=0.0).sum(0)
                count[hidden] += torch.isfinite(wrong).sum(0)
        return total / count.clamp_min(1.0)

    # q(U)

    @property
    def inducing_mean(self) -> Tensor:
        """E[U], (M, D), without the outputs' means."""
        return self._inducing.mean()

    def inducing_covariance(self, output: int = 0) -> Tensor:
        """Cov[u_d] of one output, (M, M). Outputs that were observed in the same frames and share a noise share it.

        :param output: its number.
        :raises ValueError: where there is no such output.
        """
        if not -self.num_outputs <= output < self.num_outputs:
            raise ValueError(f"output must be one of the {self.num_outputs} outputs, but got {output}.")
        return self._inducing.covariance(output)

    # predictions

    def forecast(self, t: Any, sequence: Any = _ONLY, *, noise: bool = True, full_cov: bool = False) -> Prediction:
        r"""Outputs at new times, from the times alone (the paper's section 3.1).

        The latent path there is :meth:`OpperArchambeau.forecast <pyro_vgpds.OpperArchambeau.forecast>`; q(U) maps it to

        .. math:: E[f_*] = B^\top \psi_1, \qquad
                  \mathrm{Cov}[f_*] = B^\top (\Psi_2 - \psi_1 \psi_1^\top) B + \psi_0 I
                  - \mathrm{tr}\,[(K_{MM}^{-1} - (K_{MM} + \beta \Psi_2^{train})^{-1})\, \Psi_2]\, I,

        with :math:`B = E[K_{MM}^{-1} U]` and the Ψ statistics of one new frame.

        :param t: times (T,), in any order: inside, between or beyond the training times. A time that was trained on is
            a new frame there, with its own draw of the temporal kernel's white noise; :meth:`impute` has the frame.
        :param sequence: which training sequence they belong to; may be left out where there is one. None gives a new
            sequence, whose latent path is that of the prior.
        :param noise: of the outputs, or of the function without their noise.
        :param full_cov: make the covariance (T, D, D) of outputs within a time, which ``log_prob`` then uses.
        :returns: a :class:`~pyro_vgpds.Prediction` of (T, D).
        :raises ValueError: where ``t`` is not (T,) and finite, or the sequence is unknown, or must be said.
        :raises TypeError: where ``t`` has dates and the training times are numbers.

        >>> ahead = post.forecast([2.6, 2.7, 2.8], sequence=0)
        >>> ahead
        Prediction(3 times from 2.6 to 2.8, 5 outputs)
        >>> lower, upper = ahead.interval(0.95)
        """
        times = self._times(t)
        with torch.no_grad():
            which = self._sequence(sequence)
            path = self.q.forecast(times, which)
            rows = self._rows(which)
            carried = self._carried(self._inducing, times, [(rows, torch.arange(len(times), device=rows.device))])
            return Prediction(times, path, self._inducing, noise=noise, full_cov=full_cov, residuals=carried)

    def impute(self, *, fill: bool = True, noise: bool = True) -> Prediction:
        """Outputs at the training frames, (N, D), sequences one after the other.

        :param fill: keep what was observed, so that only what was missing is predicted.
        :param noise: of the outputs, or of the function without their noise.

        >>> post.impute().mean.equal(data.y)  # nothing is missing here
        True
        """
        observed, t = self.data.read() if fill else None, self.data.times.t
        every = [(rows, rows) for rows in map(self._rows, range(self.data.num_sequences))]
        carried = self._carried(self._inducing, t, every)
        return Prediction(t, self.q, self._inducing, noise=noise, observed=observed, residuals=carried)

    def reconstruct(
        self,
        t: Any,
        y: Any,
        sequence: Any = None,
        *,
        factorised: bool = False,
        free: bool = False,
        trust: float = 1.0,
        fill: bool = False,
        noise: bool = True,
        num_starts: int = 3,
        num_steps: int = 200,
        natural_rate: float = 0.7,
        tolerance: float = 1e-5,
    ) -> Reconstruction:
        """What is hidden of partly observed frames (the paper's section 3.2).

        The bound on training and new frames together is maximised over q(X, X*) by natural steps, from several starts:
        the forecast, and the sites of the nearest training frames; the best bound is kept. The hyperparameters stay as
        they are, and q(U) takes in what was seen of the new frames.

        :param t: times (T,), or a list of them for several sequences.
        :param y: outputs (T, D), or a list of them; NaN marks what is hidden, in any pattern, and so do columns that a
            DataFrame does not have.
        :param sequence: the training sequence that the frames belong to, None for a new one, or a list with one entry
            for each sequence of ``t``.
        :param factorised: the quick way, q(X, X*) = q(X) q(X*), in which the training frames stay as they were trained.
            For new sequences this is what holding them means anyway; for times of a training sequence it ignores that
            the training frames are uncertain.
        :param free: let the training frames' q(X) move as well, as the paper does; a step then costs as much as one of
            training. Else their sites are held, and move only through the prior that they share with the new frames.
        :param trust: in (0, 1], what a seen number of a new frame weighs beside one of training. The model takes the
            noise of the outputs to be independent. Where it is not, thousands of pixels say less of the latent path
            than it believes, and less trust, chosen on frames held out, leaves more to the times.
        :param fill: return what was observed as it was, with no variance.
        :param noise: of the outputs, or of the function without their noise.
        :param num_starts: starting points; with 1 the nearest training frames, with 2 the forecast as well.
        :param num_steps: natural steps at the most, from each start.
        :param natural_rate: ρ in (0, 1], their length.
        :param tolerance: nats for each number seen; the iteration ends where the bound changes by less.
        :returns: a :class:`~pyro_vgpds.prediction.Reconstruction`; the frames of several sequences one after the other.
        :raises ValueError: where D differs, times are not finite or do not increase, or the sequence is unknown.

        >>> seen = data.read()[:10].clone()
        >>> seen[:, 3:] = float("nan")  # two of five outputs are hidden
        >>> whole = post.reconstruct(data.times.t[:10], seen)
        >>> whole.mean.shape, whole.latent.mean.shape
        (torch.Size([10, 5]), torch.Size([10, 3]))
        """
        new = self._new_data(t, y)
        belongs = self._belongs(sequence, new.num_sequences)
        if factorised and free:
            raise ValueError("factorised=True holds the training frames, so free=True cannot be asked for with it.")
        if not 0.0 < trust <= 1.0:
            raise ValueError(f"trust must be in (0, 1], but got {trust!r}.")
        _check_steps(num_starts, num_steps, natural_rate, tolerance)
        with torch.no_grad():
            joint, solution, bounds = self._solve(
                new, belongs, factorised, free, num_starts, num_steps, natural_rate, tolerance, trust
            )
            moments = joint.moments(solution)
            inducing = InducingPosterior(self._training.likelihood, *moments, joint.combined, joint.weight)
            observed, carried = new.read() if fill else None, self._carried_to(new, belongs, inducing)
            path = joint.path(solution)
            result = Reconstruction(new.times.t, path, inducing, noise=noise, observed=observed, residuals=carried)
        result.bound, result.bounds, result.num_steps = solution.bound, bounds, solution.num_steps
        return result

    def _solve(
        self,
        new: Sequences,
        belongs: Sequence[int | None],
        factorised: bool,
        free: bool,
        num_starts: int,
        num_steps: int,
        rate: float,
        tolerance: float,
        trust: float = 1.0,
    ) -> tuple[Joint, Solution, list[float]]:
        combined = self.data.joined(new)
        seen = new.num_observed
        limit = tolerance * seen
        held = Joint(self._training, new, belongs, combined, factorised=factorised, trust=trust)
        blank = torch.zeros(new.num_frames, self.q.event_shape[-1], dtype=new.dtype, device=new.device)
        starts = [*nearest_starts(self._training, new, num_starts - (num_starts > 1)), (blank, blank)] if seen else []
        starts = starts[:num_starts] or [(blank, blank)]
        solutions: list[Solution] = []
        failure: NumericalError | None = None
        for eta, lam in starts:
            try:
                solutions.append(held.solve(*held.sites(eta, lam), num_steps if seen else 0, rate, limit))
            except NumericalError as error:  # of one start; another may do
                failure = error
        if not solutions:
            assert failure is not None
            raise failure
        solutions.sort(key=lambda s: -s.bound)
        best, bounds = solutions[0], [s.bound for s in solutions]
        if not free or not seen:
            return held, best, bounds
        freed = Joint(self._training, new, belongs, combined, free=True, trust=trust)
        return freed, freed.solve(*freed.sites(*held.new_sites(best)), num_steps, rate, limit), bounds

    def generate(self, t: Any, num_samples: int = 1, sequence: int | None = None, *, noise: bool = True) -> Tensor:
        """Draws of whole sequences at these times, (num_samples, T, D), coherent in time.

        Each draw has a latent path and a function of its own: the path from the prior for a new sequence (None), or
        from q(X*) as the continuation of a training sequence, and the function from q(U).

        :param t: times (T,).
        :param num_samples: how many draws.
        :param sequence: as in :meth:`forecast`.
        :param noise: of the outputs, or of the function without their noise.

        >>> post.generate([0.0, 0.1, 0.2], num_samples=4).shape
        torch.Size([4, 3, 5])
        """
        check_count("num_samples", num_samples)
        return self.forecast(t, sequence, noise=noise).sample(num_samples)

    def as_model(self, sequence: int | None = None, *, noise: bool = True) -> Callable[[Any], Tensor]:
        """:meth:`generate` as a Pyro model of times, with sample sites ``x`` (T, Q) and ``y`` (T, D).

        :param sequence: as in :meth:`generate`.
        :param noise: likewise.

        >>> from pyro.infer import Predictive
        >>> Predictive(post.as_model(), num_samples=4)([0.0, 0.1, 0.2])["y"].shape
        torch.Size([4, 3, 5])
        """
        if self._correlation is not None:
            raise ValueError("as_model draws white noise: make it of a Posterior without residual.")
        which = self._sequence(sequence)

        def model(t: Any) -> Tensor:
            times = t.times.t if isinstance(t, Sequences) else self._times(t)
            x = pyro.sample("x", self.q.forecast(times, which))
            return pyro.sample("y", PosteriorGP(x, self._inducing, noise))

        return model

    # scores

    def project(self, t: Any, y: Any, sequence: Any = None, **options: Any) -> Latent:
        """Latent positions of new data: ``mean`` and ``variance`` (T, Q). Arguments are those of :meth:`reconstruct`.

        >>> mean, variance = post.project(data.times.t[:10], data.read()[:10])
        >>> mean.shape
        torch.Size([10, 3])
        """
        return self.reconstruct(t, y, sequence, **options).latent

    def log_density(
        self,
        t: Any,
        y: Any,
        *,
        num_starts: int = 3,
        num_steps: int = 200,
        natural_rate: float = 0.7,
        tolerance: float = 1e-5,
    ) -> Tensor:
        r"""A lower bound on log p(y given the training data) of new sequences; NaN is left out.

        With q(X) held, the bound on both data sets less that on the training data is

        .. math:: \max_{q(X_*), q(U)} E[\log p(y_* | x_*, u)] - KL(q(X_*), p(X_*)) - KL(q(U), q_{train}(U))
                  \le \log \int p(y_* | x_*, u)\, p(x_*)\, q_{train}(u),

        the density of the sequence under the trained q(U).

        :param t: times of one sequence, or a list for several, each of which is scored by itself.
        :param y: their outputs.
        :param num_starts: this and what follows as in :meth:`reconstruct`.
        :returns: one number, or (S,) for a list.

        >>> own, noise = data.read()[:10], 3.0 * data.read()[:10].flip(1)
        >>> bool(post.log_density(data.times.t[:10], own) > post.log_density(data.times.t[:10], noise))
        True
        """
        new = self._new_data(t, y)
        _check_steps(num_starts, num_steps, natural_rate, tolerance)
        scores, outputs = [], new.read()
        with torch.no_grad():
            for rows in new.times.slices():
                one = Sequences(new.times.t[rows], outputs[rows], dtype=new.dtype, device=new.device)
                _, best, _ = self._solve(one, [None], True, False, num_starts, num_steps, natural_rate, tolerance)
                scores.append(best.bound - self.bound)
        result = new.times.t.new_tensor(scores)
        return result if is_list(t) else result[0]

    # residuals

    def _rows(self, sequence: int | None) -> Tensor:
        """The training frames of a sequence; none for a new one."""
        rows = slice(0, 0) if sequence is None else self.data.times.slices()[sequence]
        return torch.arange(rows.start, rows.stop, device=self.data.device)

    def _carried(
        self, inducing: InducingPosterior, t: Tensor, sequences: list[tuple[Tensor, Tensor]]
    ) -> Residuals | None:
        return None if self._correlation is None else Residuals(self._correlation, inducing, t, sequences)

    def _carried_to(self, new: Sequences, belongs: list[int | None], inducing: InducingPosterior) -> Residuals | None:
        """To new frames, from the training frames of the sequences they belong to, and from what was seen of them."""
        together: dict[Any, list[Tensor]] = {}
        for i, (rows, sequence) in enumerate(zip(new.times.slices(), belongs, strict=True)):
            frames = torch.arange(rows.start, rows.stop, device=new.device)
            together.setdefault(("new", i) if sequence is None else sequence, []).append(frames)
        sequences = []
        for key, parts in together.items():
            target = torch.cat(parts)
            sequences.append(
                (torch.cat([self._rows(key if isinstance(key, int) else None), self.data.num_frames + target]), target)
            )
        return self._carried(inducing, new.times.t, sequences)

    # arguments

    def _times(self, t: Any) -> Tensor:
        stamps = self._stamps(t, increasing=False)
        if is_list(t):
            raise ValueError(f"t must be the times of one sequence, (T,), but got a list of {len(stamps)}.")
        return torch.from_numpy(stamps[0]).to(self.data.times.t)

    def _stamps(self, t: Any, increasing: bool = True) -> list[np.ndarray]:
        """Times in the units of the training times, one array for each sequence."""
        stamps, origin = read_times(t, self.data.time_origin, increasing)
        if origin is not None and self.data.time_origin is None:
            raise TypeError("t has dates, but the training times are numbers; give numbers.")
        return stamps

    def _sequence(self, sequence: Any) -> int | None:
        count = self.data.num_sequences
        if sequence is _ONLY:
            if count > 1:
                raise ValueError(
                    f"sequence must be said, as there are {count}: 0 to {count - 1}, or None for a new sequence."
                )
            return 0
        if sequence is None:
            return None
        if not is_whole(sequence):
            raise TypeError(f"sequence must be a whole number or None, but got {sequence!r}.")
        if not -count <= int(sequence) < count:
            raise ValueError(f"sequence must be 0 to {count - 1} or None (a new one), but got {sequence}.")
        return int(sequence) % count

    def _belongs(self, sequence: Any, parts: int) -> list[int | None]:
        given = list(sequence) if isinstance(sequence, (list, tuple)) else [sequence] * parts
        if len(given) != parts:
            raise ValueError(f"sequence has {len(given)} entries, but t has {parts} sequences.")
        return [self._sequence(s) for s in given]

    def _aligned(self, y: Any) -> Any:
        """A DataFrame with the columns of training, in their order; those that it does not have are hidden."""
        columns = self.data.columns
        if columns is None or not hasattr(y, "reindex"):
            return y
        y = y.rename(columns=str)
        unknown = [name for name in y.columns if name not in columns]
        if unknown:
            raise ValueError(f"y must have columns of the training data, but has {unknown[0]!r}.")
        return y.reindex(columns=columns)

    def _new_data(self, t: Any, y: Any) -> Sequences:
        """New times and outputs, checked against the training data."""
        if y is None:
            raise ValueError("y is needed: outputs with NaN where they are hidden; forecast() is for times alone.")
        options: Any = {"dtype": self.data.dtype, "device": self.data.device}
        stamps = self._stamps(t)
        y = [self._aligned(part) for part in y] if is_list(t) and isinstance(y, (list, tuple)) else self._aligned(y)
        new = Sequences(stamps if is_list(t) else stamps[0], y, **options)
        if new.num_outputs != self.num_outputs:
            raise ValueError(f"y has {new.num_outputs} outputs, but the model has {self.num_outputs}.")
        return new


def _read(guide: AutoOpperArchambeau, data: Sequences) -> Training:
    """q(X) and the mapping at the parameters of now, detached; hyperparameters with priors at their medians."""
    with pyro.get_param_store().scope():
        guide.median(data)
    trace = guide.get_traces()[0]
    prior: Any = trace.nodes["x"]["fn"]
    likelihood: Any = trace.nodes["y"]["fn"]
    if not isinstance(prior, TemporalGP) or not isinstance(likelihood, SparseGP):
        raise TypeError(
            "the model must have a TemporalGP at site 'x' and a SparseGP at site 'y', but has "
            f"{type(prior).__name__} and {type(likelihood).__name__}."
        )
    likelihood = copy.copy(likelihood)  # copies of what an optimiser may change in place
    likelihood.inducing, likelihood.noise = likelihood.inducing.clone(), likelihood.noise.clone()
    return Training(OpperArchambeau(prior, guide.mean_bar.clone(), guide.lam.clone()), likelihood, data)


def _check_steps(num_starts: int, num_steps: int, natural_rate: float, tolerance: float) -> None:
    check_count("num_starts", num_starts)
    check_count("num_steps", num_steps)
    if not 0.0 < natural_rate <= 1.0:
        raise ValueError(f"natural_rate must be in (0, 1], but got {natural_rate!r}.")
    if not 0.0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be 0 or more, but got {tolerance!r}.")
