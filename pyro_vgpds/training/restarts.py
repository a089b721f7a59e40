# SPDX-License-Identifier: Apache-2.0
"""Runs of training from the same parameters with other inducing inputs, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.inference.elbo import Collapsed_ELBO
from pyro_vgpds.inference.guides import OpperArchambeauGuide
from pyro_vgpds.inference.start import draw_inducing
from pyro_vgpds.mapping.output_sites import sites_of
from pyro_vgpds.training.bundle import copies
from pyro_vgpds.training.checkpoints import Checkpoints, Snapshot
from pyro_vgpds.training.forking import can_fork, run_forked
from pyro_vgpds.training.problem import Problem, put_back
from pyro_vgpds.training.progress import counting_bar
from pyro_vgpds.training.result import FitResult, Record, pack_records, unpack_records
from pyro_vgpds.training.run import Observers, run
from pyro_vgpds.training.settings import Settings

__all__ = ["Runs"]


class Runs:
    """Runs from the current parameters, and from other inducing inputs."""

    def __init__(
        self,
        model: PyroModule,
        guide: OpperArchambeauGuide,
        data: Sequences,
        settings: Settings,
        progress: bool | None,
        callback: Callable[[Record], object] | None,
    ) -> None:
        self.model, self.guide, self.data, self.settings = model, guide, data, settings
        self.progress, self.callback = progress, callback
        self.parameters = [*model.parameters(), *guide.parameters()]
        self.outputs = sites_of(model)

    def values(self) -> list[Tensor]:
        """Copies of the parameters, and of the state of the outputs' factors if outputs are not Gaussian."""
        return copies(self.parameters) + ([] if self.outputs is None else [self.outputs.state])

    def restore(self, values: list[Tensor]) -> None:
        """Go back to values from before."""
        count = len(self.parameters)
        put_back(self.parameters, values[:count])
        if self.outputs is not None:
            self.outputs.set(values[count])

    def run(
        self, label: str, checkpoints: Checkpoints | None = None, snapshot: Snapshot | None = None
    ) -> tuple[FitResult, list[Tensor]]:
        """The result of a run, and the values that it reached."""
        problem = Problem(self.model, self.guide, self.data, natural=self.settings.method == "natural")
        result = run(problem, self.settings, Observers(label, self.progress, self.callback, checkpoints), snapshot)
        return result, self.values()

    def kept(self, found: Sequence[tuple[FitResult, list[Tensor]]]) -> FitResult:
        """The best run, with its values put back."""
        best, reached = max(found, key=lambda one: one[0].bound)
        self.restore(reached)
        if not self.guide.has_random_parameters:
            # that of the parameters themselves, now that mean_bar is computed from η
            best.bound = -float(Collapsed_ELBO().loss(self.model, self.guide, self.data))
        for parameter in self.parameters:
            parameter.grad = None  # it belongs to another point
        return best

    def best_of(self, count: int, processes: int) -> FitResult:
        """The best of several runs, the first of which has the current inducing inputs."""
        first = self.values()
        starts = [self.model.inducing.detach().clone()]
        starts += [draw_inducing(self.model.start, self.model.num_inducing, self.data) for _ in range(count - 1)]

        def run(i: int) -> tuple[FitResult, list[Tensor]]:
            self.restore(first)
            with torch.no_grad():
                self.model.inducing_unconstrained.copy_(starts[i])
            return self.run(f"run {i + 1}")

        if processes > 1 and can_fork():
            found = self._run_forked(run, count, processes)
        else:
            found = []
            for i in range(count):
                found.append(run(i))
                if found[-1][0].stopped == "interrupted":
                    break
        return self.kept(found)

    def _run_forked(
        self, run: Callable[[int], tuple[FitResult, list[Tensor]]], count: int, processes: int
    ) -> list[tuple[FitResult, list[Tensor]]]:
        def job(i: int) -> list[Any]:
            result, reached = run(i)
            return [result.bound, pack_records(result.history), result.stopped, result.num_undone, reached]

        shown, self.progress = self.progress, False  # one bar for all of them
        found: dict[int, tuple[FitResult, list[Tensor]]] = {}
        with counting_bar(count, "runs", shown) as bar:
            for i, row in run_forked([partial(job, i) for i in range(count)], processes):
                bound, history, stopped, num_undone, reached = row
                found[i] = FitResult(bound, unpack_records(history), stopped, num_undone, self.settings.method), reached
                bar.update()
                bar.set_postfix_str(f"bound={max(result.bound for result, _ in found.values()):.6g}")
        return [found[i] for i in range(count)]
