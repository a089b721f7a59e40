# SPDX-License-Identifier: Apache-2.0
"""Bach chorales: nats per frame of new sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from pyro_vgpds import datasets
from pyro_vgpds.baselines.glm import GLM
from pyro_vgpds.data.sequences import Sequences
from pyro_vgpds.experiments.answer import frames, parts
from pyro_vgpds.experiments.count_models import CountModel
from pyro_vgpds.experiments.record import Folder, compare, table
from pyro_vgpds.kernels import Bias, Matern12, White
from pyro_vgpds.likelihoods import Bernoulli
from pyro_vgpds.prediction.solver import Solver

__all__ = ["MODELS", "LogDensity", "independent_notes", "previous_frame", "run", "score"]

#: a function of training and test sequences: log p of each test sequence, or a lower bound on it, (S,)
LogDensity: TypeAlias = Callable[[Sequences, Sequences], np.ndarray]


def independent_notes(training: Sequences, test: Sequences) -> np.ndarray:
    """Each note sounds with its own probability in each frame."""
    y = frames(training)
    p = (y.sum(0) + 0.5) / (len(y) + 1.0)
    return np.array([float((part * np.log(p) + (1.0 - part) * np.log1p(-p)).sum()) for part in parts(test)])


def previous_frame(training: Sequences, test: Sequences) -> np.ndarray:
    """Logistic regression of each note on all notes of the frame before, and on whether there is one."""
    y = frames(training)
    used = y.sum(0) > 0  # a note that never sounds in training is no input, and has no weights
    model = GLM.fit(_before(training, used), y[:, used], "bernoulli", penalty=1.0)
    new = frames(test)
    p = 0.5 / (len(y) + 1.0)
    rare = new[:, ~used]
    each = model.log_prob(_before(test, used), new[:, used]).numpy().sum(1)
    each += (rare * np.log(p) + (1.0 - rare) * np.log1p(-p)).sum(1)
    return np.array([float(part.sum()) for part in np.split(each, np.cumsum(test.lengths)[:-1])])


#: Chosen on validation chorales, the first eight or every fifth. New chorales need several starts: the mapping is far
#: from linear, and from one start alone the latent path of many ends at a bad maximum
MODEL = CountModel(
    Bernoulli,
    latent_dim=16,
    num_inducing=60,
    temporal=lambda: Matern12(lengthscale=2.0) + White(1e-2) + Bias(0.3),
    num_steps=60,
    learning_rate=0.15,
    solver=Solver(num_starts=3, num_steps=100),
)
#: the models of the table. Add your own here
MODELS: dict[str, LogDensity] = {
    "independent notes": independent_notes,
    "previous frame": previous_frame,
    "Bernoulli VGPDS (a lower bound)": MODEL.log_density,
}
#: nats per frame of others, for comparison
PUBLISHED = {"Pyro's deep Markov model tutorial (each frame from those before)": 6.87}


def score(training: Sequences, test: Sequences, model: LogDensity) -> dict[str, float]:
    """Nats per frame of the test sequences, and CPU seconds."""
    start = time.process_time()
    log_density = np.asarray(model(training, test), dtype=np.float64)
    if log_density.shape != (test.num_sequences,):
        raise ValueError(f"a model must return ({test.num_sequences},) numbers, but returned {log_density.shape}.")
    return {"nats per frame": -float(log_density.sum()) / test.num_frames, "seconds": time.process_time() - start}


def run(name: str, folder: Folder, seeds: int | None, quick: bool, source: Mapping[str, Any]) -> None:
    """The table of nats per frame on validation and test sequences. There is nothing random, so seeds are not used."""
    data = datasets.load_jsb(**source)
    training = data.part("train")
    if quick:
        training = Sequences(data.t[:10], data.y[:10])
    models = {label: model for label, model in MODELS.items() if not (quick and "VGPDS" in label)}
    results = {}
    for part in ("valid", "test"):
        methods = {label: partial(_measure, training, data.part(part), model) for label, model in models.items()}
        _, results[part] = compare(folder, f"{name} {part}", methods, [0], {"frames": training.num_frames})
    rows: list[list[object]] = [
        [label, *(results[part][label]["nats per frame"] for part in results), results["test"][label]["seconds"]]
        for label in models
    ]
    rows += [[label, "", value, ""] for label, value in PUBLISHED.items()]
    text = table(["nats per frame", "validation", "test", "CPU seconds"], rows)
    folder.publish(name, text, results)


def _measure(training: Sequences, test: Sequences, model: LogDensity, case: int) -> dict[str, float]:
    return score(training, test, model)


def _before(data: Sequences, used: np.ndarray) -> np.ndarray:
    """The frame before each frame, and 1 for the first frame of a sequence."""
    shifted = []
    for part in parts(data):
        first = np.zeros((len(part), 1))
        first[0] = 1.0
        shifted.append(np.hstack([np.vstack([np.zeros((1, int(used.sum()))), part[:-1, used]]), first]))
    return np.concatenate(shifted)
