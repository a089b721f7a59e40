# SPDX-License-Identifier: Apache-2.0
"""`fit` with batches: its arguments, the guide that it trains, and what is left in the guide that was given."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_vgpds.checks import check_choice, check_count
from pyro_vgpds.data.batches import DatasetLike, SequenceDataset, as_dataset
from pyro_vgpds.data.frame_batches import FrameDataset
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.data.shards import total_sizes
from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.inference.distributed_elbo import check_same
from pyro_vgpds.inference.explicit import AutoExplicit
from pyro_vgpds.inference.guides import AutoOpperArchambeau, OpperArchambeauGuide
from pyro_vgpds.inference.partial_guide import PartialGuide
from pyro_vgpds.inference.subsampling import model_of
from pyro_vgpds.pyro_state import own_store
from pyro_vgpds.threads import bound_work, threads_for
from pyro_vgpds.training.batch_problem import BatchProblem
from pyro_vgpds.training.checkpoints import read_snapshot
from pyro_vgpds.training.minibatch import SCHEDULES, BatchSettings, BatchSteps
from pyro_vgpds.training.result import FitResult
from pyro_vgpds.training.run import Observers, Run
from pyro_vgpds.training.settings import SAME_CALL, Settings
from pyro_vgpds.types import PathLike

__all__ = ["BatchFit", "BatchOptions"]

_EPOCHS = 20
_FULL_STEPS = 12  # after them, with all sequences: their gradients have no noise
_MEMORY = 1 << 24  # numbers of outputs up to which a step with all sequences is the default
_RATE = 0.1  # learning rate of Adam


@dataclass(frozen=True)
class BatchOptions:
    """The arguments of :func:`~pyro_vgpds.fit` that are for batches."""

    batch_size: int | None
    epochs: int | None
    schedule: str
    inducing_rate: float | None
    full_steps: int | None = None

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, SCHEDULES)

    def check_unused(self) -> None:
        """Raise a ValueError if an argument is given, although there are no batches."""
        given = {"epochs": self.epochs, "inducing_rate": self.inducing_rate, "full_steps": self.full_steps}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} needs batch_size, but got {name}={value!r} without it.")
        if self.schedule != "cosine":
            raise ValueError(f"schedule needs batch_size, but got schedule={self.schedule!r} without it.")

    def check_others(self, num_steps: int | None, method: str | None, num_restarts: int, processes: int) -> None:
        """Raise a ValueError if another argument contradicts batches."""
        if self.epochs is not None and num_steps is not None:
            raise ValueError(
                f"give epochs or num_steps, which counts batches, but got epochs={self.epochs!r} and "
                f"num_steps={num_steps!r}."
            )
        if method not in (None, "natural"):
            raise ValueError(f"method must be 'natural' with batch_size, but got {method!r}.")
        if num_restarts or processes != 1:
            raise ValueError(
                f"batch_size needs num_restarts=0 and processes=1, but got {num_restarts!r} and {processes!r}."
            )

    def plan(
        self, model: object, guide: OpperArchambeauGuide, data: DatasetLike, num_steps: int | None,
        numbers: tuple[float | None, float, int | None, float],
    ) -> BatchFit:  # fmt: skip
        """What is trained, and how, by the learning rate, the natural rate, the warm-up and the tolerance."""
        assert self.batch_size is not None
        _check_guide(model, guide)
        dataset, full_steps = as_dataset(data), self._full_steps(guide, data, num_steps)
        several, frames = dataset.total_sequences > 1, dataset.num_frames
        units, most = (dataset.total_sequences, dataset.fewest_sequences) if several else (frames, frames)
        batches = BatchSettings(self.batch_size, self.schedule, self.inducing_rate, units, most)
        if num_steps is None:
            epochs = _EPOCHS if self.epochs is None else self.epochs
            check_count("epochs", epochs)
            num_steps = epochs * batches.num_batches
        rate, natural_rate, warmup, tolerance = numbers
        settings = Settings(num_steps, "natural", _RATE if rate is None else rate, natural_rate, warmup, tolerance)
        every = [num_steps, full_steps, *settings.stored(), *batches.stored(num_steps)]
        dataset.communicator.check_equal("the settings of fit", every, SAME_CALL)
        return BatchFit(guide, dataset, settings, batches, full_steps)

    def _full_steps(self, guide: OpperArchambeauGuide, data: DatasetLike, num_steps: int | None) -> int:
        """The number of steps with all sequences, after the batches."""
        possible = isinstance(data, Sequences) and isinstance(guide, AutoOpperArchambeau)
        if self.full_steps is not None:
            check_count("full_steps", self.full_steps, 0)
            if self.full_steps and not possible:
                raise ValueError(
                    "full_steps needs all sequences in memory, as Sequences(t, y), and an AutoOpperArchambeau, but got "
                    f"{type(data).__name__} and {type(guide).__name__}."
                )
            return self.full_steps
        if not possible or self.epochs is not None or num_steps is not None:
            return 0
        assert isinstance(data, Sequences)
        frames, sequences = total_sizes(data)
        return _FULL_STEPS if sequences > 1 and frames * data.num_outputs <= _MEMORY else 0


@dataclass(frozen=True)
class BatchFit:
    """A run of training in batches."""

    guide: OpperArchambeauGuide
    data: SequenceDataset
    settings: Settings
    batches: BatchSettings
    full_steps: int  #: with all sequences, which follow this run

    def train(self, observers: Observers, resume: PathLike | None) -> FitResult:
        """Train. The bound of the result is that of all sequences at the last parameters."""
        snapshot, settings = None if resume is None else read_snapshot(resume, self.data), self.settings
        if snapshot is not None:
            settings = settings.resumed(snapshot["method"], snapshot["settings"])
        with own_store(), threads_for(self._work()):
            explicit = self._explicit()
            check_same(self.data.communicator, model_of(explicit), explicit)
            several = self.data.total_sequences > 1
            problem = BatchProblem(explicit, self.data if several else FrameDataset(self.data))
            try:
                result = Run(BatchSteps(problem, settings, self.batches), problem, settings, observers).result(snapshot)
            except FileFormatError as error:
                raise FileFormatError(f"{resume}: {error}") from None
            for parameter in problem.parameters:
                parameter.grad = None  # it belongs to another point
            result.bound = explicit.collect(self.batches.batch_size if several else 1)
            if isinstance(self.guide, AutoOpperArchambeau):
                found = explicit.collapsed()
                self.guide.set(found.mean_bar.detach(), found.lam.detach())
        return result

    def _explicit(self) -> AutoExplicit:
        """The guide that is trained: the one that was given, or one with its q(X)."""
        if isinstance(self.guide, AutoOpperArchambeau):
            return AutoExplicit.from_collapsed(self.guide, self.data)
        assert isinstance(self.guide, AutoExplicit)
        if self.guide.data.lengths != self.data.lengths:
            raise ValueError(f"guide was made for other sequences: {self.guide.data}, but data is {self.data}.")
        self.guide.data = self.data
        return self.guide

    def _work(self) -> float:
        """Multiply-adds of an evaluation of the bound on a batch."""
        frames = self.data.num_frames * self.batches.batch_size // self.batches.num_units
        model = model_of(self.guide)
        d, q, m = (int(getattr(model, name, 1)) for name in ("num_outputs", "latent_dim", "num_inducing"))
        return bound_work(frames, d, q, m)


def _check_guide(model: object, guide: object) -> None:
    if not isinstance(guide, (AutoExplicit, AutoOpperArchambeau)) or isinstance(guide, PartialGuide):
        raise TypeError(
            f"guide must be an AutoExplicit or AutoOpperArchambeau with batch_size, but got {type(guide).__name__}."
        )
    if model is not model_of(guide) and model is not guide.model:
        raise ValueError("guide was made for another model: give the model and its own guide, such as guide.model.")
    if isinstance(guide, AutoExplicit) and guide.is_free:
        raise ValueError("guide is free: train it with Pyro's SVI, or make an AutoExplicit without free=True.")
