# SPDX-License-Identifier: Apache-2.0
"""The function that trains a model: its arguments, its restarts, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.nn import PyroModule

from pyro_vgpds.checks import check_callable, check_choice, check_count, check_path
from pyro_vgpds.communication import SINGLE_PROCESS, collective
from pyro_vgpds.data.batches import DatasetLike
from pyro_vgpds.data.parts import check_data
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.inference.distributed_elbo import check_same
from pyro_vgpds.inference.elbo import Collapsed_ELBO, run_programs
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.partial_guide import PartialGuide
from pyro_vgpds.inference.subsampling import Subsampled
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.mapping.output_sites import sites_of
from pyro_vgpds.pyro_state import one_at_a_time, own_store
from pyro_vgpds.threads import bound_work, sizes_work, threads_for
from pyro_vgpds.training.batch_fit import BatchOptions
from pyro_vgpds.training.checkpoints import CheckpointOptions, read_snapshot
from pyro_vgpds.training.problem import NO_START
from pyro_vgpds.training.progress import check_progress
from pyro_vgpds.training.restarts import Runs
from pyro_vgpds.training.result import FitResult, Record, joined_results, later_record
from pyro_vgpds.training.run import Observers
from pyro_vgpds.training.settings import METHODS, SAME_CALL, Settings
from pyro_vgpds.types import PathLike

__all__ = ["fit"]


@one_at_a_time
@collective
def fit(
    model: PyroModule | Subsampled,
    guide: OpperArchambeauGuide,
    data: DatasetLike,
    num_steps: int | None = None,
    method: str | None = None,
    *,
    learning_rate: float | None = None,
    natural_rate: float = 0.7,
    warmup: int | None = None,
    tolerance: float = 1e-6,
    batch_size: int | None = None,
    epochs: int | None = None,
    schedule: str = "cosine",
    inducing_rate: float | None = None,
    full_steps: int | None = None,
    num_restarts: int = 0,
    processes: int = 1,
    progress: bool | None = None,
    callback: Callable[[Record], object] | None = None,
    checkpoint: PathLike | None = None,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float | None = None,
    resume: PathLike | None = None,
) -> FitResult:
    """Train ``model`` and ``guide`` on ``data``, in place, and leave them at the best parameters found.

    A step that lowers the bound badly, or leads to a failed Cholesky factorisation or a value that is not finite, is
    undone and repeated with half the step lengths; they grow back afterwards. Ctrl-C ends training after the step. With
    priors on hyperparameters the bound is an estimate from one draw of them, and the last parameters are kept.

    Calls in several Python threads wait for each other, because Pyro has one parameter store for all of them.
    Predictions do not wait.

    Pyro's global parameter store is the same afterwards as before: the results are in ``model`` and ``guide``, which
    own their parameters. ``SVI`` puts parameters into that store, where a later model finds those of the same names;
    call ``pyro.clear_param_store()`` between models. Trained modules keep their parameters.

    With ``batch_size`` each step reads a batch of the sequences only, the inducing variables are explicit, and the
    bounds of the history are estimates. Steps are undone only if values are not finite or rounding dominates. The last
    parameters are kept, and ``bound`` of the result is that of all sequences, by one more pass over them. The batches
    may be followed by a few steps with all sequences (``full_steps``), which are those without ``batch_size``.

    :param model: a :class:`~pyro_vgpds.VGPDS`, or another model with a TemporalGP at ``x`` and a SparseGP at ``y``.
    :param guide: its :class:`~pyro_vgpds.AutoOpperArchambeau` or :class:`~pyro_vgpds.AmortizedOpperArchambeau`; with
        ``batch_size`` its :class:`~pyro_vgpds.AutoExplicit` or AutoOpperArchambeau.
    :param data: the training sequences. With ``batch_size`` also a :class:`~pyro_vgpds.SequenceDataset` or any
        map-style dataset of (t, y).
    :param num_steps: maximum number of steps; each is one evaluation of the bound with all gradients. L-BFGS may exceed
        it to finish its last line search. More steps than the default raise the bound further, but on most data sets
        held-out errors did not become smaller. Default: 60, or as many as ``epochs`` need with ``batch_size``.
    :param method: ``"natural"``: natural gradient steps for q(X) (:class:`~pyro_vgpds.NaturalGradient`) and Adam for
        everything else; ``"lbfgs"``: L-BFGS over all parameters; ``"adam"``: Adam over all parameters, as Pyro's
        ``SVI`` with ``Collapsed_ELBO`` does. Default: ``"natural"``; ``"adam"`` for an amortised guide, which has no
        sites of its own to take natural steps with.
    :param learning_rate: learning rate of Adam (default: 0.07 with natural steps, 0.1 with batches, 0.02 alone) or
        L-BFGS (default: 1).
    :param natural_rate: ρ in (0, 1], the length of the natural steps.
    :param warmup: number of initial steps with a fixed noise, so that the model does not explain everything as noise.
        Default: a tenth of ``num_steps``, at most 20.
    :param tolerance: early stopping: relative change of the bound below which ten consecutive steps end training. So do
        50 steps in which the bound rises by less than that on average. 0 disables both. With ``batch_size``: the same
        for the averages of three consecutive epochs.
    :param batch_size: sequences of a batch, in all processes together, or frames if there is a single sequence.
        Default: all of them, with the collapsed bound.
    :param epochs: number of passes over the sequences, with ``batch_size`` and without ``num_steps``. Default: 20.
    :param schedule: of the learning rate with ``batch_size``: ``"cosine"`` falls to 2 % of it over all steps,
        ``"constant"`` stays.
    :param inducing_rate: ρ in (0, 1] of q(U), with ``batch_size``. Default: 0.3, or more if there are few batches,
        which falls with the learning rate to the share of a batch among all sequences. The first steps average what
        they see.
    :param full_steps: steps with all sequences after the batches, with ``batch_size``. They have no noise of batches,
        so that few of them raise the bound more than as many epochs. A checkpoint does not contain them: ``resume``
        repeats them. Default: 12 after the default number of epochs, if ``data`` are Sequences of up to 2²⁴ numbers
        and ``guide`` is an AutoOpperArchambeau, otherwise 0.
    :param num_restarts: additional runs from other inducing inputs (drawn with torch's generator); the best bound is
        kept.
    :param processes: number of processes in which the runs of ``num_restarts`` are made, each on one thread (Linux; on
        other systems they are made one after the other). The results are the same. ``callback`` needs 1.
    :param progress: show a progress bar. Default: on a terminal only.
    :param callback: called with each :class:`~pyro_vgpds.training.Record`.
    :param checkpoint: file for the state of training, which is complete at every moment.
    :param checkpoint_steps: write the checkpoint every this many steps.
    :param checkpoint_seconds: write the checkpoint if this many seconds have passed since the last one. Default: 60, or
        never if ``checkpoint_steps`` is given.
    :param resume: checkpoint of a run with the same model, guide, data and settings (``num_steps`` may be larger). The
        results are those of a run that was never stopped, bit for bit on the same machine.
    :raises ValueError: if an argument is out of its range, or does not fit others, or ``resume`` is of another run.
    :raises TypeError: if ``guide`` is of another type. Train other guides with Pyro's ``SVI``.
    :raises NumericalError: if the bound has no finite value at the initial parameters.

    Small problems use one thread, which is faster; see :func:`pyro_vgpds.threads.threads_for`.

    >>> new = VGPDS.from_data(data, latent_dim=2, num_inducing=10)
    >>> result = fit(new, AutoOpperArchambeau(new), data, num_steps=5, method="lbfgs", warmup=0)
    >>> result.stopped, len(result.history)
    ('steps', 6)
    """
    check_progress(progress)
    check_callable("callback", callback, optional=True)
    check_path("resume", resume, optional=True)
    files = CheckpointOptions(checkpoint, checkpoint_steps, checkpoint_seconds)
    batches = BatchOptions(batch_size, epochs, schedule, inducing_rate, full_steps)
    if getattr(data, "communicator", SINGLE_PROCESS).rank:
        progress = False  # the first process shows it
    if batch_size is not None:
        batches.check_others(num_steps, method, num_restarts, processes)
        plan = batches.plan(model, guide, data, num_steps, (learning_rate, natural_rate, warmup, tolerance))
        result = plan.train(Observers("batches", progress, callback, files.open(plan.data)), resume)
        if not plan.full_steps or result.stopped == "interrupted":
            return result
        assert isinstance(data, Sequences)
        assert isinstance(model, PyroModule)
        settings = Settings(plan.full_steps, "natural", learning_rate, natural_rate, 0, tolerance)
        with _prepared(model, guide, data):
            runs = Runs(model, guide, data, settings, progress, _later(callback, result))
            return joined_results(result, runs.kept([runs.run("natural")]))
    batches.check_unused()
    _check(model, guide, data, num_restarts)
    assert isinstance(data, Sequences)
    assert isinstance(model, PyroModule)
    num_steps, method = 60 if num_steps is None else num_steps, _method_for(guide, method)
    check_count("processes", processes)
    if processes > 1 and callback is not None:
        raise ValueError(f"callback needs processes=1, but got processes={processes}.")
    settings = Settings(num_steps, method, learning_rate, natural_rate, warmup, tolerance)
    if num_restarts and (checkpoint is not None or resume is not None):
        raise ValueError(f"checkpoint and resume need num_restarts=0, but got num_restarts={num_restarts}.")
    if data.communicator.size > 1:
        _check_processes(guide, data, settings, (num_restarts, processes), checkpoint)
    checkpoints, snapshot = files.open(data), None if resume is None else read_snapshot(resume, data)
    with _prepared(model, guide, data):
        runs = Runs(model, guide, data, settings, progress, callback)
        if num_restarts:
            return runs.best_of(num_restarts + 1, processes)
        try:
            return runs.kept([runs.run(method, checkpoints, snapshot)])
        except FileFormatError as error:
            raise FileFormatError(f"{resume}: {error}") from None


def _method_for(guide: OpperArchambeauGuide, method: str | None) -> str:
    """The method of training, by default the best that the guide has."""
    own_sites = isinstance(guide, AutoOpperArchambeau)
    method = ("natural" if own_sites else "adam") if method is None else method
    check_choice("method", method, METHODS)
    if method == "natural" and not own_sites:
        raise ValueError(
            f"method='natural' needs an AutoOpperArchambeau, but got {type(guide).__name__}. Use method='adam', or "
            "train guide.refine(data)."
        )
    return method


def _later(callback: Callable[[Record], object] | None, first: FitResult) -> Callable[[Record], object] | None:
    """A callback of a run that follows the run ``first``, whose last record it knows."""
    if callback is None:
        return None
    return lambda record: callback(later_record(first, record)) if record.step else None


@contextmanager
def _prepared(model: PyroModule, guide: OpperArchambeauGuide, data: Sequences) -> Iterator[None]:
    """A block with a parameter store of its own, because the parameters of other models in the store have the same
    names, and with the threads for this problem.
    """
    with own_store():
        with threads_for(sizes_work(model, data)):
            try:
                if sites_of(model) is None:
                    run_programs(guide, data)  # creates the parameters that are created late
                else:
                    with torch.no_grad():
                        Collapsed_ELBO().loss(model, guide, data)  # also creates the factors of the outputs
            except NumericalError as error:
                raise NumericalError(f"{NO_START} {error}") from error
        check_same(data.communicator, model, guide, data.column_communicator.size > 1)
        with threads_for(_work(guide, data)):
            yield


def _check(model: object, guide: object, data: object, num_restarts: int) -> None:
    check_data(data)
    assert isinstance(data, Sequences)
    if not data.num_observed:
        raise ValueError("data has no observed outputs: there is nothing to learn from.")
    if not isinstance(guide, OpperArchambeauGuide):
        raise TypeError(
            "guide must be an AutoOpperArchambeau or AmortizedOpperArchambeau, but got "
            f"{type(guide).__name__}. Train other guides with Pyro's SVI."
        )
    if isinstance(guide, PartialGuide):
        raise TypeError(
            "guide has some of the sequences only, with fixed sums over the others, and cannot be trained. Train the "
            "AutoExplicit that it is a part of."
        )
    if guide.model is not model:
        raise ValueError("guide was made for another model: give the model and its own guide, such as guide.model.")
    check_count("num_restarts", num_restarts, 0)
    if num_restarts and getattr(model, "start", None) is None:
        raise ValueError("num_restarts needs a model made by VGPDS.from_data, which can draw new inducing inputs.")


def _check_processes(
    guide: OpperArchambeauGuide, data: Sequences, settings: Settings, runs: tuple[int, int], checkpoint: PathLike | None
) -> None:
    """Raise an error in all processes if they have other settings, or such that need one process."""
    check_equal = data.communicator.check_equal
    check_equal("the settings of fit", [settings.num_steps, settings.method, *settings.stored()], SAME_CALL)
    check_equal("num_restarts and processes", list(runs), SAME_CALL)
    if settings.method == "lbfgs":
        raise ValueError("method='lbfgs' needs data in one process. Several processes can use 'natural' or 'adam'.")
    if runs[1] > 1:
        raise ValueError(f"data of several processes need processes=1, but got processes={runs[1]}.")
    frames = guide.frame_parameters if data.frame_communicator.size > 1 else []
    if checkpoint is not None and settings.method == "adam" and frames:
        raise ValueError("several processes can write a checkpoint with method='natural', but not with 'adam'.")


def _work(guide: OpperArchambeauGuide, data: Sequences) -> float:
    """Multiply-adds of torch's operations in an evaluation of the bound; the model has been called."""
    nodes = guide.get_traces()[0].nodes
    prior: Any = nodes["x"]["fn"]
    collapsed: Any = nodes["y"]["fn"]
    dense = data.times.lengths if prior.structure == "dense" else ()
    basis, latent_dim = collapsed.likelihood.basis, collapsed.likelihood.x.shape[-1]
    pair_work = 0 if basis.has_loops else basis.pair_work
    return bound_work(len(data.times), data.num_outputs, latent_dim, basis.size, dense, pair_work)
