# SPDX-License-Identifier: Apache-2.0
"""Errors of a trained model on its own data, output by output: candidates for the noise variance to predict with."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_vgpds.checks import check_count, check_probability
from pyro_vgpds.prediction.member import Trained
from pyro_vgpds.prediction.solver import Solver, check_solver
from pyro_vgpds.training.progress import check_progress, counting_bar

__all__ = ["hidden_variance", "residual_variance"]


def residual_variance(posterior: Trained) -> Tensor:
    """Mean squared residual of each output at the training frames, (D,)."""
    data = posterior.data
    fitted, total = posterior.impute(fill=False, include_noise=False), data.times.t.new_zeros(posterior.num_outputs)
    with torch.no_grad():
        for rows, index, mean, _ in fitted.blocks():
            part = data.read(int(index.min()), int(index.max()) + 1)[rows, index - index.min()]
            total[index] += torch.nan_to_num(part - mean, nan=0.0).square().sum(0)
    return total / data.output_counts[: len(total)].clamp_min(1)


def hidden_variance(
    posterior: Trained,
    share: float = 0.5,
    num_sequences: int = 8,
    num_frames: int = 250,
    *,
    solver: Solver | None = None,
    progress: bool | None = None,
) -> Tensor:
    """Mean squared error of each output where it is hidden, (D,).

    Arguments and errors as in :meth:`Posterior.hidden_variance <pyro_vgpds.Posterior.hidden_variance>`.
    """
    check_probability(share, "share")
    check_count("num_sequences", num_sequences)
    check_count("num_frames", num_frames)
    check_progress(progress)
    solver = Solver(num_starts=1, num_steps=60) if solver is None else check_solver(solver)
    data, num_outputs = posterior.data, posterior.num_outputs
    y, slices = data.read(0, num_outputs), data.times.slices()
    parts = min(max(2, round(1.0 / share)), num_outputs)
    total, count = (data.times.t.new_zeros(num_outputs) for _ in range(2))
    chosen = torch.randperm(len(slices))[:num_sequences].tolist()
    with counting_bar(parts * len(chosen), "hidden variance", progress) as bar:
        for i in chosen:
            rows = _window(slices[i], num_frames)
            for hidden in torch.randperm(num_outputs, device=y.device).tensor_split(parts):
                observed = y[rows].clone()
                observed[:, hidden] = torch.nan
                found = posterior.reconstruct(
                    data.times.t[rows], observed, include_noise=False, solver=solver, progress=False
                )
                error = (found.mean - y[rows])[:, hidden].square()
                total[hidden] += torch.nan_to_num(error, nan=0.0).sum(0)
                count[hidden] += torch.isfinite(error).sum(0)
                bar.update()
    variance = data.output_variances[:num_outputs].nan_to_num(0.0)
    expected = (variance * count).sum()  # squared errors of the mean of each output at the same entries
    relative = total.sum() / expected if bool(expected > 0.0) else expected
    return torch.where(count > 0, total / count.clamp_min(1.0), relative * variance)


def _window(rows: slice, num_frames: int) -> slice:
    """A random window of consecutive frames of a sequence, all of it if it is not longer."""
    spare = rows.stop - rows.start - num_frames
    if spare <= 0:
        return rows
    start = rows.start + int(torch.randint(spare + 1, ()))
    return slice(start, start + num_frames)
