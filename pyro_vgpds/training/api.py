# SPDX-License-Identifier: Apache-2.0
"""Training: natural gradients for q(X) and Adam for the rest, L-BFGS, or Adam for all."""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor
from tqdm import tqdm

from pyro_vgpds.checks import check_count
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.formatting import counted
from pyro_vgpds.inference.elbo import Collapsed_ELBO
from pyro_vgpds.inference.guides import AutoOpperArchambeau
from pyro_vgpds.inference.natural import NaturalGradient
from pyro_vgpds.inference.pca import kmeans
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.training.checkpoints import Checkpoints, read_checkpoint

__all__ = ["FitResult", "Record", "fit"]

METHODS = ("natural", "lbfgs", "adam")
_BAD_DROP = 0.05  # nats for each observed number that a step may lower the bound by before it is undone
_LEAST_DAMPING = 1e-4  # of the learning rates; a run that needs less has nowhere left to go
_PACE = 2.0  # of the learning rate of scales beside that of inducing inputs, with natural steps
# A period is known to about its length over the number of cycles, and the bound has many peaks in it. Adam's steps are
# as long for small gradients as for large ones, and would walk off.
_PERIOD_PACE = 0.03
# Gradients are huge at the start and small later on: a long memory of their squares would keep Adam's steps tiny.
_BETAS = {"natural": (0.9, 0.95), "adam": (0.9, 0.999)}
_LBFGS_CHUNK = 20  # evaluations between two moments at which an L-BFGS run can be written to a file
_PATIENCE = 10  # steps in a row with a small relative change that end training


@dataclass(frozen=True)
class Record:
    """One evaluation of the bound.

    >>> result.history[0].step, result.history[-1].step
    (0, 30)
    """

    step: int  #: 0 is before the first step
    seconds: float  #: since training began
    bound: float  #: in nats


@dataclass
class FitResult:
    """What :func:`fit` did. The model and the guide hold the parameters that ``bound`` belongs to.

    >>> result.stopped, result.num_steps, result.method
    ('steps', 30, 'natural')
    >>> result.bound >= result.history[0].bound
    True
    """

    bound: float  #: the lower bound on log p(Y), in nats
    history: list[Record] = field(repr=False)  #: every evaluation
    stopped: str  #: "steps", "converged", "interrupted" or "stuck"
    num_undone: int  #: steps that were undone and damped
    method: str  #: "natural", "lbfgs" or "adam"

    @property
    def num_steps(self) -> int:
        """Steps that were taken."""
        return self.history[-1].step if self.history else 0

    @property
    def seconds(self) -> float:
        """Wall time of training."""
        return self.history[-1].seconds if self.history else 0.0

    def __repr__(self) -> str:
        undone = f", {self.num_undone} undone" if self.num_undone else ""
        steps = counted(self.num_steps, f"{self.method} step")
        return f"FitResult(bound={self.bound:.6g}, {steps} in {self.seconds:.1f} s{undone}, stopped: {self.stopped})"

    def plot(self, ax: Any = None) -> Any:
        """The bound over the steps, by :func:`~pyro_vgpds.plotting.plot_training`.

        :param ax: axes to draw on; left out, those of a new figure.
        :returns: the axes.
        """
        from pyro_vgpds.plotting import plot_training  # here: training alone does not wait for matplotlib

        return plot_training(self, ax)


def fit(
    model: PyroModule,
    guide: AutoOpperArchambeau,
    data: Sequences,
    num_steps: int = 500,
    method: str = "natural",
    *,
    learning_rate: float | None = None,
    natural_rate: float = 0.7,
    warmup: int | None = None,
    tolerance: float = 1e-6,
    num_restarts: int = 0,
    progress: bool | None = None,
    callback: Callable[[Record], Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> FitResult:
    """Train ``model`` and ``guide`` on ``data``, in place, and leave them at the best parameters that were met.

    A step that lowers the bound badly, or runs into a failed Cholesky factorisation or a number that is not finite, is
    undone and repeated with half the step lengths; they grow back afterwards. Ctrl-C ends training after the step. With
    priors on hyperparameters the bound is an estimate from one draw of them, and the last parameters are kept.

    :param model: a :class:`~pyro_vgpds.VGPDS`, or another model with a TemporalGP at ``x`` and a SparseGP at ``y``.
    :param guide: its :class:`~pyro_vgpds.AutoOpperArchambeau`.
    :param data: the training sequences.
    :param num_steps: steps at the most; each is one evaluation of the bound with all gradients.
    :param method: ``"natural"``: natural gradient steps for q(X) (:class:`~pyro_vgpds.NaturalGradient`) and Adam for
        everything else; ``"lbfgs"``: L-BFGS over all parameters; ``"adam"``: Adam over all, which is what Pyro's
        ``SVI`` with ``Collapsed_ELBO`` does.
    :param learning_rate: of Adam (0.07 with natural steps, 0.02 alone) or L-BFGS (1).
    :param natural_rate: ρ in (0, 1], the length of the natural steps.
    :param warmup: steps in which the noise is held, so that the model does not begin by calling everything noise; left
        out, a tenth of ``num_steps``, at most 20.
    :param tolerance: training ends after ten steps in a row that each change the bound by less than this part of it; 0
        for never.
    :param num_restarts: more runs from other inducing inputs (drawn with torch's generator); the best bound is kept.
    :param progress: show a progress bar; left out, on a terminal only.
    :param callback: called with each :class:`~pyro_vgpds.training.Record`.
    :param checkpoint: a file that the state of training is written to as it goes; it is a complete one at every moment.
    :param checkpoint_steps: write it every so many steps.
    :param checkpoint_seconds: write it where so many seconds have passed; left out with ``checkpoint_steps``, 60.
    :param resume: a checkpoint of a run with the same model, guide, data and settings (``num_steps`` may be larger);
        the results are those of a run that was never stopped, bit for bit on the same machine.
    :raises ValueError: where an argument is out of its range, or ``resume`` is of another run.
    :raises TypeError: where ``guide`` is of another kind.
    :raises NumericalError: where the bound has no finite value at the start.

    >>> new = VGPDS.from_data(data, latent_dim=2, num_inducing=10)
    >>> result = fit(new, AutoOpperArchambeau(new), data, num_steps=5, method="lbfgs", warmup=0)
    >>> result.stopped, len(result.history)
    ('steps', 6)
    """
    _check(model, guide, data, num_steps, method, learning_rate, natural_rate, warmup, tolerance, num_restarts)
    checkpoints = None
    if checkpoint is not None:
        checkpoints = Checkpoints(checkpoint, checkpoint_steps, checkpoint_seconds)
    if num_restarts and (checkpoint is not None or resume is not None):
        raise ValueError("checkpoint and resume are for single runs: num_restarts must be 0.")
    rate = learning_rate or {"natural": 0.07, "lbfgs": 1.0, "adam": 0.02}[method]
    hold = min(20, num_steps // 10) if warmup is None else warmup
    # a store of our own: parameters of other models there have the same names
    with pyro.get_param_store().scope():
        Collapsed_ELBO().loss(model, guide, data)  # makes parameters that are made late
        first = _State.of(model, guide)
        best: tuple[FitResult, _State] | None = None
        for run in range(num_restarts + 1):
            if run > 0:
                first.restore()
                _redraw_inducing(model)
            trainer = _Trainer(model, guide, data, method, rate, natural_rate, hold, tolerance)
            label = f"run {run + 1}" if num_restarts else method
            result = trainer.run(num_steps, progress, callback, label, checkpoints, resume, warmup is not None)
            if best is None or result.bound > best[0].bound:
                best = result, _State.of(model, guide)
            if result.stopped == "interrupted":
                break
        assert best is not None
        best[1].restore()
        if not trainer.random:  # that of the parameters as they are, after η has become mean_bar
            best[0].bound = -float(Collapsed_ELBO().loss(model, guide, data))
        for parameter in (*model.parameters(), *guide.parameters()):
            parameter.grad = None  # of a point that was left
    return best[0]


def _check(
    model: Any,
    guide: Any,
    data: Any,
    num_steps: int,
    method: str,
    learning_rate: float | None,
    natural_rate: float,
    warmup: int | None,
    tolerance: float,
    num_restarts: int,
) -> None:
    if not isinstance(data, Sequences) or data.y is None:
        raise ValueError(f"data must be Sequences(t, y) with outputs, but got {data!r:.80}.")
    if not isinstance(guide, AutoOpperArchambeau):
        raise TypeError(f"guide must be an AutoOpperArchambeau, but got {type(guide).__name__}; train others with SVI.")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, but got {method!r}.")
    for name, value, least in (
        ("num_steps", num_steps, 1),
        ("warmup", warmup, 0),
        ("num_restarts", num_restarts, 0),
    ):
        if value is not None:
            check_count(name, value, least)
    if learning_rate is not None and not 0.0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive, but got {learning_rate!r}.")
    if not 0.0 < natural_rate <= 1.0:
        raise ValueError(f"natural_rate must be in (0, 1], but got {natural_rate!r}.")
    if not tolerance >= 0.0:
        raise ValueError(f"tolerance must be 0 or more, but got {tolerance!r}.")
    if num_restarts and getattr(model, "start", None) is None:
        raise ValueError("num_restarts needs a model made by VGPDS.from_data, whose start can be drawn again.")


def _progress_bar() -> type[tqdm]:
    """The widget in Jupyter where it can be shown, and else a line of text: ``tqdm.auto`` alone would fail there."""
    if importlib.util.find_spec("ipywidgets") is None:
        return tqdm
    from tqdm.auto import tqdm as widget

    return widget


def _redraw_inducing(model: Any) -> None:
    with torch.no_grad():
        model.inducing_unconstrained.copy_(kmeans(model.start.x, model.num_inducing))


class _State:
    """A copy of everything that a step changes, to go back to."""

    def __init__(self, parameters: Sequence[Tensor], natural: NaturalGradient | None) -> None:
        self._parameters, self._natural = parameters, natural
        self._values = [p.detach().clone() for p in parameters]
        self._sites = None if natural is None else (natural.eta, natural.lam)  # never changed in place

    def values(self) -> list[Tensor]:
        return [*self._values, *(self._sites or ())]

    def replaced(self, values: list[Tensor]) -> _State:
        """The same with other values, which must have the same shapes."""
        shapes = [tuple(value.shape) for value in self.values()]
        if [tuple(value.shape) for value in values] != shapes:
            raise ValueError("resume: the checkpoint's parameters are not those of this model and guide.")
        self._values = values[: len(self._values)]
        if self._sites is not None:
            self._sites = values[-2], values[-1]
        return self

    @classmethod
    def of(cls, model: PyroModule, guide: PyroModule) -> _State:
        return cls([*model.parameters(), *guide.parameters()], None)

    def restore(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._values, strict=True):
                parameter.copy_(value)
        if self._natural is not None and self._sites is not None:
            self._natural.eta, self._natural.lam = self._sites


class _Trainer:
    """One run of :func:`fit`."""

    def __init__(
        self,
        model: PyroModule,
        guide: AutoOpperArchambeau,
        data: Sequences,
        method: str,
        rate: float,
        natural_rate: float,
        warmup: int,
        tolerance: float,
    ) -> None:
        self.model, self.guide, self.data, self.method = model, guide, data, method
        self.rate, self.natural_rate, self.warmup, self.tolerance = rate, natural_rate, warmup, tolerance
        self.elbo = Collapsed_ELBO()
        self.observed = data.num_observed
        self.natural = NaturalGradient(guide, data) if method == "natural" else None
        own = {id(guide.mean_bar_unconstrained), id(guide.lam_unconstrained)} if self.natural else set()
        everything = [*model.parameters(), *guide.parameters()]
        self.parameters = [p for p in everything if p.requires_grad and id(p) not in own]
        self.noise = getattr(model, "noise_unconstrained", None)
        # priors on hyperparameters make the bound an estimate from one draw: the best of many is only the luckiest
        self.random = any(name.startswith("locs.") for name, _ in guide.named_parameters())
        # nor is its fall a bad step; and Adam goes down on its way up
        self.drop = math.inf if self.random or method == "adam" else _BAD_DROP * self.observed
        self.history: list[Record] = []
        self.num_undone = 0
        self.interrupted, self.stopped = False, "steps"
        self.best, self.best_bound = self._state(), -math.inf
        self.loop: dict[str, Any] | None = None  # where the run is, between two steps; None where it cannot be left

    def run(
        self,
        num_steps: int,
        progress: bool | None,
        callback: Callable[[Record], Any] | None,
        label: str,
        checkpoints: Checkpoints | None = None,
        resume: str | os.PathLike[str] | None = None,
        own_warmup: bool = True,
    ) -> FitResult:
        show = sys.stderr.isatty() if progress is None else progress
        steps = self._lbfgs_steps if self.method == "lbfgs" else self._gradient_steps
        context: AbstractContextManager[Any] = self.natural if self.natural is not None else nullcontext()
        with self._catch_interrupt(), _progress_bar()(total=num_steps, desc=label, disable=not show) as bar, context:
            if resume is not None:
                self._restore(read_checkpoint(resume), own_warmup)
            start = time.perf_counter() - (self.history[-1].seconds if self.history else 0.0)
            try:
                self._loop(steps(num_steps), start, bar if show else None, callback, checkpoints)
            finally:
                self.best.restore()
        return FitResult(self.best_bound, self.history, self.stopped, self.num_undone, self.method)

    def _loop(
        self,
        steps: Iterator[tuple[float, str | None]],
        start: float,
        bar: tqdm | None,
        callback: Callable[[Record], Any] | None,
        checkpoints: Checkpoints | None,
    ) -> None:
        for bound, reason in steps:
            record = Record(len(self.history), time.perf_counter() - start, bound)
            self.history.append(record)
            if checkpoints is not None and self.loop is not None:
                checkpoints.offer(record, self._snapshot)
            if callback is not None:
                callback(record)
            if bar is not None:
                self._describe(bar, bound)
            if reason is not None or self.interrupted:
                self.stopped = reason or "interrupted"
                break
        if checkpoints is not None and self.loop is not None:
            checkpoints.write(self._snapshot)

    def _state(self) -> _State:
        return _State(self.parameters, self.natural)

    def _settings(self) -> list[float]:
        return [self.rate, self.natural_rate, self.warmup, self.tolerance]

    def _snapshot(self) -> dict[str, Any]:
        """All that :meth:`_restore` needs to go on as if nothing had happened."""
        return {
            "method": self.method,
            "settings": self._settings(),
            "state": self._state().values(),
            "best": self.best.values(),
            "best_bound": self.best_bound,
            "history": [[record.step, record.seconds, record.bound] for record in self.history],
            "num_undone": self.num_undone,
            "loop": self.loop,
        }

    def _restore(self, snapshot: dict[str, Any], own_warmup: bool) -> None:
        if not own_warmup:  # the default depends on num_steps, which may be larger now
            self.warmup = snapshot["settings"][2]
        settings = self._settings()
        if snapshot["method"] != self.method or snapshot["settings"] != settings:
            raise ValueError(
                f"resume: the run was {snapshot['method']!r} with rates, warm-up and tolerance {snapshot['settings']}, "
                f"but this one is {self.method!r} with {settings}; they must be the same."
            )
        self.best = self._state().replaced(snapshot["best"])
        self.best_bound, self.num_undone = snapshot["best_bound"], snapshot["num_undone"]
        self.history = [Record(*entry) for entry in snapshot["history"]]
        self._state().replaced(snapshot["state"]).restore()
        self.loop = snapshot["loop"]
        torch.set_rng_state(snapshot["loop"]["generator"])

    def _describe(self, bar: tqdm, bound: float) -> None:
        bar.update(len(self.history) - 1 - bar.n)
        facts = {"bound": f"{bound:.6g}"}
        if self.noise is not None:
            facts["noise"] = f"{self.noise.detach().exp().mean().item():.3g}"
        with suppress(AttributeError, ValueError):  # of a model that is not a VGPDS, or has no weights
            facts["active"] = str(int(self.model.relevance().active.sum()))
        bar.set_postfix(facts)

    def _evaluate(self) -> float | None:
        """The bound, its gradients left with the parameters; None where it has no finite value."""
        for parameter in (*self.model.parameters(), *self.guide.parameters()):
            parameter.grad = None
        try:
            bound = -float(self.elbo.loss_and_grads(self.model, self.guide, self.data))
        except NumericalError:
            return None
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.natural is not None:
            gradients += self.natural.derivatives()
        if not math.isfinite(bound) or not all(bool(torch.isfinite(g).all()) for g in gradients):
            return None
        if bound > self.best_bound or self.random:
            self.best, self.best_bound = self._state(), bound
        return bound

    def _gradient_steps(self, num_steps: int) -> Iterator[tuple[float, str | None]]:
        """Evaluate, go back where that was bad, else move on: the bound of each good evaluation."""
        adam = torch.optim.Adam(self._groups(), betas=_BETAS[self.method]) if self.parameters else None
        first, damping, quiet, last = 0, 1.0, 0, -math.inf
        resumed = self.loop is not None
        if self.loop is not None:
            first, damping, quiet, last = (self.loop[key] for key in ("step", "damping", "quiet", "last"))
            if adam is not None:
                adam.load_state_dict(self.loop["adam"])
        good: tuple[_State, Any, float] | None = None
        for step in range(first, num_steps + 1):
            generator = torch.get_rng_state()  # priors on hyperparameters are sampled in the evaluation
            bound = self._evaluate()
            if resumed and bound != last:
                raise ValueError(f"resume: the bound was {last!r} and is {bound!r} now; data or machine are others.")
            if not resumed and (bound is None or bound < last - self.drop):
                if good is None:
                    raise NumericalError(
                        "the bound has no finite value at the start: check the scale of the data and the parameters."
                    )
                # evaluate the last good point again and leave it by a shorter way
                self.num_undone += 1
                damping *= 0.5
                good[0].restore()
                if damping < _LEAST_DAMPING:
                    yield good[2], "stuck"
                    return
                if adam is not None:
                    adam.load_state_dict(good[1])
                generator = torch.get_rng_state()
                bound = self._evaluate()
                quiet = 0
            elif not resumed and bound is not None:
                quiet = quiet + 1 if abs(bound - last) <= self._small(bound) else 0
            assert bound is not None
            last = bound
            state = None if adam is None else copy.deepcopy(adam.state_dict())
            self.loop = {"step": step, "damping": damping, "quiet": quiet, "last": last, "adam": state}
            self.loop["generator"] = generator
            done = "converged" if self.tolerance and quiet >= _PATIENCE else None
            if not resumed:
                yield bound, done
            resumed = False
            if done or step == num_steps:
                return
            good = self._state(), state, bound
            self._move(adam, damping, held=step < self.warmup)
            damping = min(1.0, 1.2 * damping)

    def _groups(self) -> list[dict[str, Any]]:
        """Beside natural steps, scales are given a faster pace than inducing inputs: they have further to go. Periods
        go slowly.
        """
        inducing = getattr(self.model, "inducing_unconstrained", None)
        pace = _PACE if self.method == "natural" else 1.0
        named = {id(p): name for name, p in self.model.named_parameters()}
        points = [p for p in self.parameters if p is inducing]
        periods = [p for p in self.parameters if named.get(id(p), "").endswith("period_unconstrained")]
        taken = {id(p) for p in (*points, *periods)}
        scales = [p for p in self.parameters if id(p) not in taken]
        groups = [
            {"params": points, "pace": 1.0},
            {"params": scales, "pace": pace},
            {"params": periods, "pace": _PERIOD_PACE * pace},
        ]
        return [{**group, "lr": self.rate} for group in groups if group["params"]]

    def _small(self, bound: float) -> float:
        """A change of the bound that counts as none. The bound may cross zero, so its size alone is no measure."""
        return self.tolerance * max(abs(bound), self.observed)

    def _move(self, adam: torch.optim.Adam | None, damping: float, held: bool) -> None:
        if held and self.noise is not None:
            self.noise.grad = None
        if self.natural is not None:
            self.natural.step(self.natural_rate * damping)
        if adam is not None:
            for group in adam.param_groups:
                group["lr"] = group["pace"] * self.rate * damping
            adam.step()

    def _lbfgs_steps(self, num_steps: int) -> Iterator[tuple[float, str | None]]:
        """L-BFGS with a strong Wolfe line search; every evaluation counts as a step."""
        others = [p for p in self.parameters if p is not self.noise]
        warmup = min(self.warmup, num_steps) if len(others) < len(self.parameters) else 0
        phases = [(others, warmup), (self.parameters, num_steps + 1 - warmup)]
        loop = self.loop or {"phase": 0, "spent": 0, "last": -math.inf, "optimiser": None}
        for phase in range(loop["phase"], len(phases)):
            parameters, budget = phases[phase]
            # a new optimiser where the noise is let go: the old curvature is that of another problem
            optimiser = torch.optim.LBFGS(
                parameters, lr=self.rate, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=0.0,
                tolerance_change=0.0,
            )  # fmt: skip
            spent, last = (loop["spent"], loop["last"]) if phase == loop["phase"] else (0, -math.inf)
            if phase == loop["phase"] and loop["optimiser"] is not None:
                optimiser.load_state_dict(loop["optimiser"])
            while spent < budget:
                most = min(_LBFGS_CHUNK, budget - spent)
                optimiser.param_groups[0].update(max_iter=most, max_eval=most)
                bounds: list[float] = []
                self.loop = None  # nothing to resume from within a chunk
                optimiser.step(self._closure(parameters, bounds))
                spent += max(1, len(bounds))
                gain, before = max(bounds, default=last) - last, last
                last = max(bounds, default=last)
                for bound in bounds[:-1]:
                    yield bound, None
                self.loop = {"phase": phase, "spent": spent, "last": last, "generator": torch.get_rng_state()}
                self.loop["optimiser"] = optimiser.state_dict()
                small = gain <= (self._small(before) if math.isfinite(before) else 0.0)
                if bounds:
                    yield bounds[-1], "converged" if small and parameters is self.parameters else None
                if small:
                    break

    def _closure(self, parameters: Sequence[Tensor], bounds: list[float]) -> Callable[[], float]:
        def closure() -> float:
            bound = self._evaluate()
            if bound is not None:
                bounds.append(bound)
                return -bound
            # what the line search sees where the bound has no value: a wall, so that it looks closer by
            self.num_undone += 1
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            return 100.0 * (1.0 + abs(self.best_bound)) - self.best_bound

        return closure

    @contextmanager
    def _catch_interrupt(self) -> Iterator[None]:
        """Ctrl-C sets a flag that is read after the step; a second one interrupts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: Any) -> None:
            if self.interrupted:
                signal.signal(signal.SIGINT, before)
                raise KeyboardInterrupt
            self.interrupted = True

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
