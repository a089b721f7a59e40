# SPDX-License-Identifier: Apache-2.0
"""The work of a comparison: in this process, in worker processes, and kept in a folder so that it can be continued.

A problem is data, a task, a horizon and a seed; a job is one candidate of it, to be tried on the first held-out part
("try"), on the others ("more"), or to be trained on all data ("final").
The name of a job's file is a digest of everything that its result depends on. A worker is another Python process that
reads the problem from the folder, takes jobs that no process has started, and writes their results there. A job counts
as started only if a running process of the same call has started it: others in the same folder never wait for each
other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import torch

from pyro_vgpds.files.container import FileFormatError
from pyro_vgpds.files.processes import is_running
from pyro_vgpds.linalg import NumericalError
from pyro_vgpds.prediction.predictor import BasePredictor
from pyro_vgpds.selection.configuration import Configuration
from pyro_vgpds.selection.problem import Problem
from pyro_vgpds.selection.trials import (
    Candidate,
    Trial,
    finish,
    load_member,
    load_trial,
    name_of,
    save_member,
    save_trial,
    try_out,
)

__all__ = ["Workplace", "workplace"]

R = TypeVar("R")

FAILURES = (ValueError, NumericalError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
_LARGE = 20_000  # observed numbers from which worker processes pay for their start


class Workplace:
    """Runs the jobs of a problem.

    :param problem: what the jobs are about.
    :param folder: keeps results; None if there are no workers and nothing is kept.
    :param processes: number of processes, this one included.
    :param leader: process id of the process that started the workers. Default: this one.
    """

    def __init__(self, problem: Problem, folder: Path | None, processes: int = 1, leader: int | None = None) -> None:
        self.problem, self.folder, self.processes = problem, folder, processes
        self._leader = os.getpid() if leader is None else leader
        self._workers: list[subprocess.Popen[bytes]] = []

    def tries(
        self, candidates: Sequence[Candidate], deadline: float, starting: Callable[[str], object]
    ) -> Iterator[tuple[Candidate, Trial | str | None]]:
        """Each candidate with its trial on the first held-out part, the reason of its failure, or None if there was no
        time for it.

        :param candidates: what to try.
        :param deadline: time of ``time.monotonic`` from which no further candidate is started, except for the first.
        :param starting: called with the name of each candidate that this process begins.
        """
        self._hire("try", candidates, deadline)
        waiting, began = [], False
        for candidate in candidates:
            known = self._kept("try", candidate)
            if known is None and began and monotonic() > deadline:
                yield candidate, None
            elif known is None and not self._claim(candidate, "try"):
                waiting.append(candidate)
            else:
                starting(name_of(candidate))
                began = True
                yield candidate, known if known is not None else self.run(candidate)
        for candidate in waiting:
            yield candidate, self._wait(candidate, "try", partial(self._kept, "try"), partial(self.run, candidate))

    def complete(
        self, trials: Sequence[Trial], starting: Callable[[str], object]
    ) -> Iterator[tuple[Trial, Trial | str]]:
        """Each trial of the first held-out part with that of all parts, or the reason of its failure.

        :param starting: called with the name of each candidate that this process begins.
        """

        def run(trial: Trial) -> Trial | str:
            starting(trial.name)
            return self.go_on(trial)

        self._hire("more", [trial.candidate for trial in trials], math.inf)
        return self._each("more", trials, partial(self._kept, "more"), run)

    def finals(self, trials: Sequence[Trial]) -> list[BasePredictor]:
        """The candidates of trials, trained on all data."""
        self._hire("final", [trial.candidate for trial in trials if not trial.is_baseline], math.inf)
        found = {trial.name: member for trial, member in self._each("final", trials, self._finished, self.finish)}
        return [found[trial.name] for trial in trials]

    def _each(
        self, kind: str, trials: Sequence[Trial], known: Callable[[Candidate], R | None], run: Callable[[Trial], R]
    ) -> Iterator[tuple[Trial, R]]:
        """The results of jobs of a kind, first those of this process."""
        waiting = []
        for trial in trials:
            kept = known(trial.candidate)
            if kept is None and not self._claim(trial.candidate, kind):
                waiting.append(trial)
            else:
                yield trial, kept if kept is not None else run(trial)
        for trial in waiting:
            yield trial, self._wait(trial.candidate, kind, known, partial(run, trial))

    def run(self, candidate: Candidate) -> Trial | str:
        """Try a candidate on the first held-out part and keep the result; a failure is its reason."""
        return self._try("try", candidate, 1, None)

    def go_on(self, trial: Trial) -> Trial | str:
        """Continue the trial of the first held-out part with the others and keep the result."""
        return self._try("more", trial.candidate, len(self.problem.splits), trial)

    def _try(self, kind: str, candidate: Candidate, parts: int, known: Trial | None) -> Trial | str:
        try:
            problem = self.problem
            splits = problem.splits[:parts]
            trial = try_out(candidate, splits, problem.seed, known, problem.likelihood, problem.data)
            if (path := self._path(candidate, kind)) is not None:
                save_trial(path, trial)
            return trial
        except FAILURES as error:
            return str(error)
        finally:
            self._release(candidate, kind)

    def finish(self, trial: Trial) -> BasePredictor:
        """Train the candidate of a trial on all data and keep the result."""
        try:
            member = finish(trial, self.problem.splits[0], self.problem.data, self.problem.seed)
            if not trial.is_baseline and (path := self._path(trial.candidate, "final")) is not None:
                save_member(path, member)
            return member
        finally:
            self._release(trial.candidate, "final")

    def work(self, kind: str, candidates: Sequence[Candidate], seconds: float) -> None:
        """What a worker does: jobs that no process has started, the last ones first."""
        deadline = monotonic() + seconds
        for candidate in reversed(candidates):
            path = self._path(candidate, kind)
            if path is None or path.exists() or monotonic() > deadline or not self._claim(candidate, kind):
                continue
            if kind == "try":
                self.run(candidate)
            elif (trial := self._kept("try", candidate)) is not None:
                (self.go_on if kind == "more" else self.finish)(trial)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait()
        if self.folder is not None:
            for begun in self.folder.glob(f"*.{self._leader}.begun"):
                begun.unlink(missing_ok=True)

    # files

    def _path(self, candidate: Candidate, kind: str) -> Path | None:
        if self.folder is None:
            return None
        about = candidate if isinstance(candidate, str) else candidate.settings()
        digest = hashlib.sha256(json.dumps([self.problem.digest, kind, about]).encode()).hexdigest()
        return self.folder / f"{kind}-{digest[:24]}.safetensors"

    def _kept(self, kind: str, candidate: Candidate) -> Trial | None:
        """The trial of a job that is done; None if its file does not exist or is damaged."""
        return _loaded(self._path(candidate, kind), lambda path: load_trial(path, candidate))

    def _finished(self, candidate: Candidate) -> BasePredictor | None:
        return _loaded(self._path(candidate, "final"), load_member)

    def _claim(self, candidate: Candidate, kind: str) -> bool:
        """Start a job, unless a running process of the same call has started it."""
        path = self._path(candidate, kind)
        if path is None:
            return True
        begun = self._mark(path)
        if not _is_alive(begun):
            begun.unlink(missing_ok=True)
        try:
            with begun.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return begun.read_text() == str(os.getpid())
        return True

    def _mark(self, path: Path) -> Path:
        """The file that names the process that has started a job; each call of :func:`~pyro_vgpds.auto` has its own."""
        return path.with_suffix(f".{self._leader}.begun")

    def _release(self, candidate: Candidate, kind: str) -> None:
        if (path := self._path(candidate, kind)) is not None:
            self._mark(path).unlink(missing_ok=True)

    # workers

    def _hire(self, kind: str, candidates: Sequence[Candidate], deadline: float) -> None:
        """Start workers for jobs of a kind."""
        count = min(self.processes - 1, sum(isinstance(c, Configuration) for c in candidates) - (kind == "final"))
        if self.folder is None or count < 1:
            return
        problem = self.folder / f"problem-{self.problem.digest[:24]}.safetensors"
        if not problem.exists():
            self.problem.write(problem)
        models = [c.settings() if isinstance(c, Configuration) else c for c in candidates]
        seconds = max(0.0, deadline - monotonic())
        home = str(Path(__file__).parents[2])
        paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "pyro_vgpds.selection.worker", kind, str(problem), json.dumps(models)]
        for _ in range(count):
            self._workers.append(
                subprocess.Popen(
                    [*command, repr(seconds), str(os.getpid())],
                    env={**os.environ, "PYTHONPATH": paths},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def _wait(self, candidate: Candidate, kind: str, known: Callable[[Candidate], R | None], run: Callable[[], R]) -> R:
        """The result of another process, or of this one if the other process has failed."""
        while True:
            for worker in self._workers:
                worker.poll()  # a process that has ended counts as alive until it is asked
            found = known(candidate)
            if found is not None:
                return found
            if self._claim(candidate, kind):
                return run()
            sleep(0.05)


def _loaded(path: Path | None, load: Callable[[Path], R]) -> R | None:
    """What a file holds; None if it does not exist or is damaged."""
    try:
        return None if path is None or not path.exists() else load(path)
    except FileFormatError:
        return None


def _is_alive(begun: Path) -> bool:
    """Whether the process that wrote the mark is running; a mark without a number is just being written."""
    try:
        return is_running(int(begun.read_text() or os.getpid()))
    except (ValueError, FileNotFoundError):
        return False


@contextmanager
def workplace(problem: Problem, folder: Path | None, processes: int | None) -> Iterator[Workplace]:
    """A workplace whose workers end with the block.

    :param folder: where results are kept. Default: a temporary folder if there are workers, else none.
    :param processes: Default: one for each core, if the data are large enough.
    """
    if processes is None:
        processes = (os.cpu_count() or 1) if problem.data.num_observed >= _LARGE else 1
    with tempfile.TemporaryDirectory(prefix="pyro-vgpds-") as temporary:
        place = folder if folder is not None else (Path(temporary) if processes > 1 else None)
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            for begun in place.glob("*.begun"):
                if not _is_alive(begun):
                    begun.unlink(missing_ok=True)
        found = Workplace(problem, place, processes)
        try:
            yield found
        finally:
            found.close()
