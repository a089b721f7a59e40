# SPDX-License-Identifier: Apache-2.0
"""One candidate: trained without the held-out data, scored on them, and trained on all data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, cast

import torch
from torch import Tensor

from pyro_vgpds.baselines import BaselinePosterior, OutputBaseline
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.evaluation.splits import HeldOut, Split, gap_length
from pyro_vgpds.files.models import load_metadata
from pyro_vgpds.inference.data_checks import TimeScaleWarning
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.prediction.combination import Combination
from pyro_vgpds.prediction.ensemble import Ensemble
from pyro_vgpds.prediction.intervals import Calibration
from pyro_vgpds.prediction.noise_settings import TRAINED, NoiseSettings, apply_settings, choose_settings
from pyro_vgpds.prediction.posterior import Posterior
from pyro_vgpds.prediction.predictor import BasePredictor
from pyro_vgpds.prediction.storage import load_posterior, save_posterior
from pyro_vgpds.selection.configuration import Configuration
from pyro_vgpds.selection.distributions import predict_distribution, with_gaussian
from pyro_vgpds.selection.likelihoods import LikelihoodLike, are_continuous, check_likelihood
from pyro_vgpds.selection.named_baselines import choose_setting, make_baseline
from pyro_vgpds.selection.output_baselines import fit_to_held_out
from pyro_vgpds.threads import threads_for

__all__ = [
    "Candidate", "Trial", "finish", "load_member", "load_trial", "name_of", "save_member", "save_trial", "try_out",
]  # fmt: skip

Candidate = str | Configuration  #: the name of a baseline, or a model

_BASELINE_WORK = 100.0  # multiply-adds for each number of the data, between two small operations of a baseline


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained on the first split's training data, and its predictions of held-out entries."""

    candidate: Candidate
    predictor: BasePredictor
    settings: NoiseSettings
    found: HeldOut
    seconds: float  #: CPU time
    setting: float | None = None  #: of a baseline, which all parts share

    @property
    def name(self) -> str:
        return name_of(self.candidate)

    @property
    def is_baseline(self) -> bool:
        return isinstance(self.candidate, str)


def name_of(candidate: Candidate) -> str:
    """The name of a baseline or a model."""
    return candidate if isinstance(candidate, str) else candidate.name


def try_out(
    candidate: Candidate,
    splits: Sequence[Split],
    seed: int,
    known: Trial | None = None,
    likelihood: LikelihoodLike = None,
    data: Sequences | None = None,
) -> Trial:
    """Train a candidate on the first split's training data and predict what is held out.

    :param splits: held-out parts. The candidate is trained again for each of them, also for later origins of a
        forecast: hyperparameters of fewer frames do not fit the new ones.
    :param seed: of the initial values.
    :param known: its trial on the first split, which is not repeated.
    :param likelihood: of the outputs. Default: Gaussian outputs.
    :param data: that the parts are held out from, in which a period is looked for. Default: the training data.
    """
    if isinstance(candidate, Configuration):
        return _try_model(candidate, splits, seed, known)
    outputs = check_likelihood(likelihood)
    if outputs is None:
        return _try_baseline(candidate, splits, known, data)
    if are_continuous(outputs):  # Gaussian baselines, with their densities
        trial = _try_baseline(candidate, splits, known, data)
        return replace(trial, found=with_gaussian(trial.found))
    return _try_outputs(candidate, splits, outputs)


def _try_model(model: Configuration, splits: Sequence[Split], seed: int, known: Trial | None) -> Trial:
    """As :func:`try_out`. Models with Gaussian outputs have settings; others have a distribution of their own."""
    start = process_time()
    is_gaussian = check_likelihood(model.likelihood) is None
    predict = Split.predict if is_gaussian else predict_distribution
    if known is None:
        posterior = _fit(model, splits[0].train, seed)
        if is_gaussian:
            settings, first = choose_settings(posterior, splits[0])
        else:
            settings, first = TRAINED, predict(splits[0], posterior)
    else:
        start -= known.seconds
        posterior, settings, first = cast("Posterior", known.predictor), known.settings, known.found
    others = [predict(split, apply_settings(_fit(model, split.train, seed), settings)) for split in splits[1:]]
    found = HeldOut.join([first, *others])
    if is_gaussian and model.likelihood is not None:  # in a pool with outputs that are not
        found = with_gaussian(found)
    return Trial(model, posterior, settings, found, process_time() - start)


def _try_baseline(name: str, splits: Sequence[Split], known: Trial | None, data: Sequences | None) -> Trial:
    """As :func:`try_out`. All parts share the variances, or the setting, of the first."""
    start = process_time() - (0.0 if known is None else known.seconds)
    train, left = splits[0].train, splits if known is None else splits[1:]
    with threads_for(_BASELINE_WORK * train.num_frames * train.num_outputs):
        setting = _setting(name, splits[0], data) if known is None else known.setting
        rival = (
            make_baseline(name, train, setting=setting) if known is None else cast("BaselinePosterior", known.predictor)
        )
        rivals = [
            rival if split.train is train
            else make_baseline(name, split.train, rival.variance, setting=setting)
            for split in left
        ]  # fmt: skip
        new = [split.predict(one) for split, one in zip(left, rivals, strict=True)]
        found = HeldOut.join(new if known is None else [known.found, *new])
        if all(torch.equal(part.variance, rival.variance.to(part.variance)[part.output]) for part in new):
            # a baseline without variances: its mean squared errors take their place
            square = _mean_squares(found, train.output_scales[: rival.num_outputs], gap_length(splits))
            found = replace(found, variance=square[found.output].clamp_min(1e-300))
    return Trial(name, rival, TRAINED, found, process_time() - start, setting)


def _setting(name: str, split: Split, data: Sequences | None) -> float | None:
    """A setting of a baseline that serves all parts, whose gaps are of one kind."""
    return None if split.task == "reconstruct" else choose_setting(name, split.train, data)


def _try_outputs(name: str, splits: Sequence[Split], likelihood: Likelihood) -> Trial:
    """As :func:`try_out`, for a baseline of outputs that are not Gaussian: its errors decide on its likelihood."""
    start = process_time()
    rivals = [OutputBaseline(name, split.train, likelihood) for split in splits]
    fitted, found = fit_to_held_out(rivals, splits)
    final = OutputBaseline(name, splits[0].train, fitted)
    return Trial(name, final, TRAINED, found, process_time() - start)


def finish(trial: Trial, split: Split, data: Sequences, seed: int) -> BasePredictor:
    """The candidate of a trial, trained on all data.

    :param split: the one that the trial was trained on.
    """
    if isinstance(trial.predictor, OutputBaseline):
        return trial.predictor.condition(data)
    if isinstance(trial.candidate, str):
        scale = data.output_scales[: data.num_base_outputs]
        variance = _mean_squares(trial.found, scale, gap_length([split]))
        return make_baseline(trial.candidate, data, variance, setting=trial.setting)  # of which the errors are known
    # from the start: kernels and initial values that were chosen without the held-out part do not suit all data
    return apply_settings(_fit(trial.candidate, data, seed), trial.settings)


def _fit(candidate: Configuration, data: Sequences, seed: int) -> Posterior:
    """Train without the warnings of :meth:`Configuration.check`, which was called before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TimeScaleWarning)
        return candidate.fit(data, seed)


def _mean_squares(found: HeldOut, scale: Tensor, length: float) -> Tensor:
    """Mean squared held-out error of each output (D,); that of all outputs counts for ten gaps of this length.

    :param scale: (D,), the units in which errors of different outputs are compared.
    """
    scale = scale.to(found.mean)
    square, pseudo = ((found.mean - found.truth) / scale[found.output]).square(), 10.0 * length
    total = torch.zeros_like(scale).index_add_(0, found.output, square)
    count = torch.zeros_like(scale).index_add_(0, found.output, torch.ones_like(square))
    return scale.square() * (total + pseudo * square.mean()) / (count + pseudo)


def save_trial(path: Path, trial: Trial) -> None:
    """Write a trial to a file; the candidate itself is not written, since the reader asks for it."""
    about = {
        "settings": asdict(trial.settings),
        "found": vars(trial.found),
        "seconds": trial.seconds,
        "setting": trial.setting,
    }
    save_member(path, trial.predictor, {"trial": about})


def load_trial(path: Path, candidate: Candidate) -> Trial:
    """The trial of a candidate that :func:`save_trial` wrote."""
    about = cast("dict[str, Any]", load_metadata(path)["trial"])
    kept = about["settings"]
    residual = None if kept["residual"] is None else (kept["residual"][0], kept["residual"][1])
    settings = NoiseSettings(kept["noise"], residual, kept.get("smooth", False))
    found = HeldOut(**about["found"])
    return Trial(candidate, load_member(path), settings, found, about["seconds"], about["setting"])


def save_member(path: Path, member: BasePredictor, metadata: dict[str, object] | None = None) -> None:
    """Write a predictor, as an ensemble of one."""
    d = member.num_outputs
    alone = Combination(torch.ones(1, d, dtype=torch.float64), Calibration.none(d))
    save_posterior(path, Ensemble([member], {"impute": alone}), metadata)


def load_member(path: Path) -> BasePredictor:
    """The predictor that :func:`save_member` or :func:`save_trial` wrote."""
    return cast("Ensemble", load_posterior(path)).members[0]
