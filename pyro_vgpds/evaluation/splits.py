# SPDX-License-Identifier: Apache-2.0
"""Held-out parts of data, of the kind that a model is to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyro_vgpds.checks import (
    check_choice,
    check_count,
    check_horizon,
    check_list,
    check_parts,
    check_probability,
    check_seed,
    find_output,
)
from pyro_vgpds.data.parts import base_outputs, check_data, split_outputs, take_frames, with_outputs
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.gaps import (
    choose_columns,
    hide_blocks,
    hide_entries,
    hide_like_missing,
    hide_spans,
    keep_enough,
    mean_length,
)
from pyro_vgpds.evaluation.held_out import HeldOut, Predicted, Predictor
from pyro_vgpds.formatting import counted

__all__ = [
    "TASKS", "HeldOut", "Predicted", "Predictor", "Split", "check_hidden", "check_task", "count_gaps", "default_task",
    "gap_length", "hold_out",
]  # fmt: skip

TASKS = ("impute", "reconstruct", "forecast")


@dataclass(frozen=True)
class Split:
    """Training data, and frames of which some entries are hidden.

    >>> from pyro_vgpds.evaluation import hold_out
    >>> split = hold_out(data, "forecast", horizon=4)
    >>> split
    Split(forecast: 40 hidden entries, trained on Sequences(2 sequences, 40 frames, 5 outputs))
    >>> split.predict(post.condition(split.train)).mean.shape
    torch.Size([40])
    """

    task: str  #: "impute", "reconstruct" or "forecast"
    train: Sequences  #: what is left to train on
    t: list[Tensor]  #: times of the frames to predict, for each sequence
    y: list[Tensor]  #: what is observed there, (T, D) each, NaN if hidden
    truth: list[Tensor]  #: the hidden numbers, (T, D) each, NaN if they were never known
    sequence: list[int | None]  #: the training sequence that they belong to
    kept: list[int]  #: for each training sequence its index in the data before the split
    exposure: list[Tensor] | None = None  #: of frames to forecast, (T, D) each, if each entry of the data has its own

    def __repr__(self) -> str:
        hidden = sum(int(part.isfinite().sum()) for part in self.truth)
        return f"Split({self.task}: {hidden} hidden entries, trained on {self.train})"

    def outputs(self, predictor: Predictor) -> list[Predicted]:
        """The predictions of all frames; several sequences may be in one of them, in their order.

        :param predictor: a model of the training data.
        """
        check_parts("predictor", predictor, "a predictor, such as a Posterior", self.task)
        if self.task == "impute":
            return [predictor.impute(fill=False)]
        if self.task == "forecast" and getattr(predictor, "fills_all", False) and self.exposure is None:
            return [predictor.reconstruct(self.t, self.y, self.sequence)]
        if self.task == "forecast":
            found = [predictor.forecast(t, s) for t, s in zip(self.t, self.sequence, strict=True)]
            if self.exposure is None:
                return found
            return [part.with_exposure(e) for part, e in zip(found, self.exposure, strict=True)]  # type: ignore[attr-defined]
        return [predictor.reconstruct(self.t, self.y, self.sequence)]

    def predict(self, predictor: Predictor) -> HeldOut:
        """The hidden numbers and their predictions.

        :param predictor: a model of the training data.
        """
        return self.held_out(self.outputs(predictor))

    def held_out(self, found: Sequence[Predicted]) -> HeldOut:
        """The hidden numbers and their predictions, with their own log-densities if they are not Gaussian.

        :param found: predictions of all frames, as of :meth:`outputs`.
        """
        check_list("found", found, "the predictions of all frames")
        for part in found:
            check_parts("found", part, "the predictions of all frames", "mean", "variance")
        if sum(len(part.mean) for part in found) != sum(len(part) for part in self.truth):
            raise ValueError(f"found must predict the {sum(len(part) for part in self.truth)} frames of the split.")
        mean, variance = torch.cat([part.mean for part in found]), torch.cat([part.variance for part in found])
        density = None
        if not all(getattr(part, "is_gaussian", True) for part in found):
            truth = torch.cat(self.truth).split([len(part.mean) for part in found])
            density = torch.cat([part.log_probs(y) for part, y in zip(found, truth, strict=True)])  # type: ignore[attr-defined]
        return self.select(mean, variance, density)

    def select(self, mean: Tensor, variance: Tensor, log_density: Tensor | None = None) -> HeldOut:
        """The hidden entries of predictions of all frames.

        :param mean: (T, D).
        :param variance: (T, D).
        :param log_density: (T, D). Default: that of Gaussians.
        """
        truth = torch.cat(self.truth)
        at = truth.isfinite()
        frame = torch.cat([torch.arange(1, 1 + len(t)) for t in self.t]) * (self.task == "forecast")
        rows, columns = at.nonzero(as_tuple=True)
        density = None if log_density is None else log_density[at]
        return HeldOut(truth[at], mean[at], variance[at], columns, frame.to(rows)[rows], density)


def check_task(task: str) -> None:
    """:raises ValueError: if it is not one of the tasks."""
    check_choice("task", task, TASKS)


def default_task(data: Sequences, horizon: int | None, hidden: Sequence[int | str] | None) -> str:
    """What is probably to be predicted: hidden columns or frames ahead if they are given, else what is missing."""
    if hidden is not None:
        return "reconstruct"
    return "impute" if data.num_missing and horizon is None else "forecast"


def check_hidden(hidden: Sequence[int | str] | None, data: Sequences, task: str) -> list[int] | None:
    """The indices of columns that are given by name or index.

    :raises ValueError: if the task is not ``"reconstruct"``, a column does not exist, or none or all are given.
    """
    if hidden is None:
        return None
    check_list("hidden", hidden, "a list of columns")
    if task != "reconstruct":
        raise ValueError(f"hidden requires the task 'reconstruct', but the task is {task!r}.")
    count = data.num_base_outputs
    found = sorted({find_output("hidden", column, data.base_columns, count) for column in hidden})
    if not 0 < len(found) < count:
        raise ValueError(f"hidden must be some of the {counted(count, 'column')}, but not all, and got {len(found)}.")
    return found


def count_gaps(split: Split) -> float:
    """About how many separate gaps are hidden, of the kind (lost frames, lost columns) that has fewer of them.

    A new sequence counts as three.
    """
    if split.task == "reconstruct":
        return 3.0 * len(split.t)
    hidden = [part.isfinite().cpu().numpy() for part in split.truth]
    lost = [~part.isfinite().any(1, keepdim=True).cpu().numpy() for part in split.y]
    found = []
    for kind in (lost, [~part for part in lost]):
        masks = [part & rows for part, rows in zip(hidden, kind, strict=True)]
        if frames := sum(int(mask.any(1).sum()) for mask in masks):
            found.append(frames / mean_length(masks))
    return min(found, default=1.0)


def gap_length(splits: Sequence[Split]) -> float:
    """The mean length of hidden gaps in columns, each with the weight of its length."""
    return mean_length([part.isfinite().cpu().numpy() for split in splits for part in split.truth])


def hold_out(
    data: Sequences,
    task: str,
    *,
    share: float = 0.1,
    horizon: int | None = None,
    skip: int = 0,
    pattern: str | None = None,
    hidden: Sequence[int | str] | None = None,
    seed: int = 0,
) -> Split:
    """Hide a part of the data.

    ``"impute"`` hides observed entries: gaps like those that the data have, or random entries if nothing is missing.
    ``"reconstruct"`` holds out whole sequences, or spans of frames of a single one, and hides some of their columns.
    ``"forecast"`` removes the last frames of every sequence.

    :param data: the sequences.
    :param task: what to predict.
    :param share: share of the observed entries or frames to hold out.
    :param horizon: number of frames at the end of a sequence. Default: an eighth of the median sequence.
    :param skip: number of frames at the end that are not used at all, for earlier origins of a forecast.
    :param pattern: ``"entries"``, ``"blocks"`` (some frames by half of the columns), ``"spans"`` (some whole frames) or
        ``"missing"`` (like the gaps of the data), for ``"impute"``. Default: ``"missing"`` if something is missing,
        else ``"entries"``.
    :param hidden: names or indices of the columns that ``"reconstruct"`` hides, such as those of a sensor that new
        recordings do not have. Default: a random half of the columns.
    :param seed: of the random choice.
    :raises ValueError: if an argument is out of its range, or there are too few frames.

    >>> from pyro_vgpds.evaluation import hold_out
    >>> hold_out(data, "impute", share=0.2, pattern="blocks").train
    Sequences(2 sequences, 48 frames, 5 outputs, 24.6 % missing)
    """
    check_data(data)
    check_task(task)
    check_probability(share, "share")
    check_seed(seed)
    check_count("skip", skip, 0)
    if horizon is not None:
        check_horizon(horizon)
    if pattern is not None:
        check_choice("pattern", pattern, ("entries", "blocks", "spans", "missing"))
    columns, rng = check_hidden(hidden, data, task), np.random.default_rng(seed)
    if task == "forecast":
        return _ends(data, horizon, skip)
    return _sequences(data, share, columns, rng) if task == "reconstruct" else _entries(data, share, pattern, rng)


def _entries(data: Sequences, share: float, pattern: str | None, rng: np.random.Generator) -> Split:
    y = base_outputs(data)
    masks = [part.isfinite().cpu().numpy() for part in y.split(data.lengths)]
    pattern = ("missing" if bool(y.isnan().any()) else "entries") if pattern is None else pattern
    if pattern == "missing":
        hidden = hide_like_missing(masks, share, rng)
    else:
        hide = {"entries": hide_entries, "blocks": hide_blocks, "spans": hide_spans}[pattern]
        hidden = [hide(seen, share, rng) for seen in masks]
    hidden = keep_enough(masks, hidden)
    if not any(part.any() for part in hidden):
        hidden = keep_enough(masks, [hide_entries(seen, max(share, 0.2), rng) for seen in masks])
    gone = torch.from_numpy(np.concatenate(hidden)).to(y.device)
    if not bool(gone.any()):
        raise ValueError(f"data must have more observed entries to hold out some of them, but it is {data}.")
    train, everything = with_outputs(data, y.masked_fill(gone, torch.nan)), range(data.num_sequences)
    t, seen_parts = split_outputs(train)
    truth = y.masked_fill(~gone, torch.nan).split(data.lengths)
    return Split("impute", train, t, seen_parts, list(truth), list(everything), list(everything))


def _ends(data: Sequences, horizon: int | None, skip: int) -> Split:
    t, y = split_outputs(data)
    lengths = [int(part.isfinite().any(1).nonzero()[-1:].sum()) + 1 for part in y]  # to the last observed frame
    given, horizon = horizon, max(1, int(np.median(lengths)) // 8) if horizon is None else horizon
    keep = [n - skip - horizon for n in lengths]
    if max(keep) < 3:
        name = f"horizon={horizon}" if given else f"horizon (by default {horizon} here)"
        raise ValueError(
            f"{name}{f' and skip={skip}' if skip else ''} must leave 3 training frames, but the longest "
            f"sequence has {counted(max(lengths), 'frame')}."
        )
    train = take_frames(data, [slice(0, n if n >= 3 else None) for n in keep])
    ends = [(i, slice(n, n + horizon)) for i, n in enumerate(keep) if n >= 3]
    truth, everything = [y[i][rows] for i, rows in ends], list(range(data.num_sequences))
    hidden = [torch.full_like(part, torch.nan) for part in truth]
    exposure = None
    if data.exposure is not None and data.exposure.dim() > 1:
        each = data.exposure.split(data.lengths)
        exposure = [each[i][rows] for i, rows in ends]
    times, belongs = [t[i][rows] for i, rows in ends], [i for i, _ in ends]
    return Split("forecast", train, times, hidden, truth, list(belongs), everything, exposure)


def _sequences(data: Sequences, share: float, columns: list[int] | None, rng: np.random.Generator) -> Split:
    t, y = split_outputs(data)
    count = data.num_sequences
    if count >= 2:
        out = np.sort(rng.permutation(count)[: max(1, min(count // 2, round(2 * share * count)))]).tolist()
        train = take_frames(data, [slice(0, 0 if i in out else n) for i, n in enumerate(data.lengths)])
        parts, belongs = [(t[i], y[i]) for i in out], [None] * len(out)
        kept = [i for i in range(count) if i not in out]
    else:
        kept = list(range(count))
        spans = [hide_spans(np.ones((n, 1), dtype=bool), 2 * share, rng)[:, 0] for n in data.lengths]
        train = take_frames(data, [torch.from_numpy(~span) for span in spans])
        parts = [(t[i][span], y[i][span]) for i, span in enumerate(map(torch.from_numpy, spans)) if bool(span.any())]
        belongs = [i for i, span in enumerate(spans) if span.any()]  # type: ignore[misc]
    if not parts:
        raise ValueError(f"data must have more frames to hold out some of them, but it is {data}.")
    seen, truth = [], []
    for k, (_, part) in enumerate(parts):
        hidden = torch.zeros_like(part, dtype=torch.bool)
        # a sensor that fails on the way, or one that was never there
        first = len(part) // 2 if count >= 2 and k % 2 else 0
        known = part[first:].isfinite().any(0).nonzero().squeeze(-1)
        if columns is not None:
            hidden[first:, columns] = True
        elif len(known):
            hidden[first:, known[torch.from_numpy(choose_columns(len(known), rng)).to(known.device)]] = True
        seen.append(part.masked_fill(hidden, torch.nan))
        truth.append(part.masked_fill(~hidden, torch.nan))
    if not any(bool(part.isfinite().any()) for part in truth):
        raise ValueError(f"data must have more observed entries to hold out some of them, but it is {data}.")
    return Split("reconstruct", train, [times for times, _ in parts], seen, truth, list(belongs), kept)
