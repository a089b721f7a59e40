# SPDX-License-Identifier: Apache-2.0
"""Influenza, eight weeks ahead, from many origins: ``python -m benchmarks.flu_ahead [--first 260] [--every 4]``.

``pyro-vgpds experiment flu`` has ten origins, of which one decides. Here a forecast starts every fourth week of the
test period, and each row is compared with one baseline at the same origins. The pool is that of
``auto(data, "forecast", likelihood="negative-binomial")``, with weights from seven earlier origins, but each model is
trained once for each origin and not again for every pool that has it as an earlier one. Weeks before 260 are for
choices (``--first 164 --stop 253``).

Prints one JSON line for each row: means over the origins of the Poisson score of the predicted mean, of the log score
of the predictor's own distribution and of the RMSE, and the mean differences from the baseline with their standard
errors. The windows overlap if ``--every`` is less than 8, so the errors include the covariance of overlapping windows,
with Bartlett's weights. ``--folder`` keeps finished parts, and ``--json`` prints the scores of each origin, too.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from pyro_vgpds import Sequences, datasets, metrics
from pyro_vgpds.baselines import OutputBaseline
from pyro_vgpds.datasets.discrete import CaseCounts
from pyro_vgpds.evaluation import HeldOut, hold_out
from pyro_vgpds.evaluation.splits import Split
from pyro_vgpds.experiments.answer import exposed
from pyro_vgpds.experiments.flu import AHEAD, forecast_cases
from pyro_vgpds.experiments.record import Folder
from pyro_vgpds.likelihoods import NegativeBinomial
from pyro_vgpds.prediction.combination import find_growth_limits
from pyro_vgpds.selection.distributions import predict_distribution
from pyro_vgpds.selection.output_baselines import fit_to_held_out
from pyro_vgpds.selection.pooling import pool, pool_weights
from pyro_vgpds.selection.proposals import propose_models

HORIZON, EARLIER = 8, 7  # weeks; earlier origins that the weights of the pool come from
FLOOR = 1e-3  # least mean count
LIKELIHOOD = "negative-binomial"
CYCLE, POOL = "common cycle", "auto: pool"
COLUMNS = ("Poisson score", "log score", "RMSE")


class Origins:
    """Forecasts of the candidates of ``auto`` from each origin, trained once."""

    def __init__(self, data: CaseCounts, folder: Folder) -> None:
        self.data, self.folder = data, folder
        self.models = {model.name: model for model in propose_models(self.part(200), "forecast", LIKELIHOOD)}
        self.of_model = cache(self._of_model)

    def part(self, stop: int) -> Sequences:
        """The first weeks."""
        assert self.data.dates is not None
        part = Sequences(self.data.dates[0][:stop], self.data.y[0][:stop], columns=self.data.columns)
        return exposed(part, self.data.exposure)

    def split(self, origin: int, earlier: int = 0) -> Split:
        """Eight weeks after the origin, or as many as ``earlier`` times before it."""
        return hold_out(self.part(origin + HORIZON), "forecast", horizon=HORIZON, skip=HORIZON * earlier)

    def _of_model(self, name: str, origin: int) -> HeldOut:
        def compute(_: Path) -> dict[str, Any]:
            split = self.split(origin)
            found = predict_distribution(split, self.models[name].fit(split.train, 0))
            return {key: value.numpy() for key, value in vars(found).items()}

        kept = self.folder.once(f"{name.replace(' ', '-')}-{origin}", {"name": name, "origin": origin}, compute)
        output = {key: kept[key].astype(np.int64) for key in ("output", "ahead")}
        names = vars(HeldOut)["__dataclass_fields__"]
        return HeldOut(**{key: torch.from_numpy(value) for key, value in {**kept, **output}.items() if key in names})

    def of_cycle(self, origin: int) -> tuple[HeldOut, HeldOut]:
        """The baseline at the earlier origins, whose errors decide on its likelihood, and at this one."""
        known = self.part(origin)
        splits = [hold_out(known, "forecast", horizon=HORIZON, skip=HORIZON * k) for k in range(EARLIER - 1, -1, -1)]
        rivals = [OutputBaseline(CYCLE, split.train, NegativeBinomial()) for split in splits]
        likelihood, found = fit_to_held_out(rivals, splits)
        split = self.split(origin)
        return found, predict_distribution(split, OutputBaseline(CYCLE, split.train, likelihood))

    def scores(self, origin: int) -> dict[str, dict[str, float]]:
        """Of the models, the common cycle and the pool."""
        before, cycle = self.of_cycle(origin)
        earlier = [origin - HORIZON * k for k in range(EARLIER, 0, -1)]
        found = [*(HeldOut.join([self.of_model(name, week) for week in earlier]) for name in self.models), before]
        tests = {**{name: self.of_model(name, origin) for name in self.models}, CYCLE: cycle}
        known = self.part(origin)
        limits = find_growth_limits(known, NegativeBinomial())
        assert limits is not None
        weights = pool_weights([limits.clamp_means(member) for member in found], known.output_scales)
        used = weights > 0.0
        members = [limits.clamp_means(test) for test, use in zip(tests.values(), used.tolist(), strict=True) if use]
        tests[POOL] = pool(members, weights[used])
        return {name: _scores(test) for name, test in tests.items()}


def _scores(found: HeldOut) -> dict[str, float]:
    assert found.log_density is not None
    truth, mean = found.truth.numpy(), found.mean.numpy()
    poisson = metrics.poisson_log_prob(truth, mean, FLOOR)
    values = poisson.mean(), float(found.log_density.mean()), metrics.mse(truth, mean) ** 0.5
    return dict(zip(COLUMNS, map(float, values), strict=True))


def standard_error(differences: np.ndarray, overlap: int) -> float:
    """Of the mean of differences (n,), of which those at a distance of at most ``overlap`` are dependent."""
    n, centred = len(differences), differences - differences.mean()
    total = float(centred @ centred)
    for lag in range(1, min(overlap, n - 1) + 1):
        total += 2.0 * (1.0 - lag / (overlap + 1)) * float(centred[lag:] @ centred[:-lag])
    return float(np.sqrt(max(total, 0.0) / max(n - 1, 1) / n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=int, default=260)
    parser.add_argument("--stop", type=int, default=409)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--baseline", default="district x week", help="that all others are compared with")
    parser.add_argument("--methods", nargs="*", choices=list(AHEAD), help="methods of the experiment, all by default")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true", help="the scores of each origin, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # those below would train models again that the pool has
    slow = {"auto: pool with VGPDS", "negative-binomial VGPDS"}
    names: Sequence[str] = [name for name in (args.methods or AHEAD) if name not in slow]
    with TemporaryDirectory() as temporary:
        folder, data = Folder(args.folder or temporary, progress=False), datasets.load_flu()
        origins, rows = Origins(data, folder), dict[str, list[dict[str, float]]]()
        for origin in range(args.first, args.stop, args.every):
            found = origins.scores(origin)
            for name in names:
                settings = {"name": name, "origin": origin}
                found[name] = folder.once(_key(name, origin), settings, _measure(data, name, origin))
            for name, scores in found.items():
                rows.setdefault(name, []).append(scores)
                if args.json:
                    line = {"origin": origin, "name": name, **{key: scores[key] for key in COLUMNS}}
                    print(json.dumps(line), flush=True)
    overlap = -(-HORIZON // args.every) - 1
    values = {name: np.array([[run[key] for key in COLUMNS] for run in runs]) for name, runs in rows.items()}
    for name, found_values in values.items():
        difference = found_values - values[args.baseline]
        row: dict[str, object] = {"name": name, "origins": len(found_values)}
        for k, key in enumerate(COLUMNS):
            error = standard_error(difference[:, k], overlap)
            row[key] = round(float(found_values[:, k].mean()), 4)
            row[f"{key} - {args.baseline}"] = f"{difference[:, k].mean():+.4f} ± {error:.4f}"
        print(json.dumps(row, ensure_ascii=False), flush=True)


def _key(name: str, origin: int) -> str:
    return f"{''.join(c if c.isalnum() else '-' for c in name)}-{origin}"


def _measure(data: CaseCounts, name: str, origin: int) -> Callable[[Path], dict[str, float]]:
    return lambda _: forecast_cases(data, origin, AHEAD[name](data.exposure))


if __name__ == "__main__":
    main()
