# SPDX-License-Identifier: Apache-2.0
"""Posteriors from files predict what they predicted before, bit for bit."""

import math
from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from problems import GOLDEN, fit_posterior, make_data, make_problem

from pyro_vgpds import (
    VGPDS,
    FileFormatError,
    Posterior,
    PosteriorMixture,
    Sequences,
    Solver,
    auto,
    fit,
    load,
    load_metadata,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.baselines import BaselinePosterior
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.kernels import Bias, Kernel, Matern32, White
from pyro_vgpds.prediction import Calibration, Combination, Ensemble
from pyro_vgpds.selection import Configuration, Report
from pyro_vgpds.selection.named_baselines import BASELINES, make_baseline

T_NEW = torch.tensor([1.3, 2.1, 3.2])
NOISE = [0.05, 0.2, 0.1, 0.02, 0.4]


def make_posterior(lags=(), settings=None, temporal=None, seed=0, **options):
    data = make_data(missing=0.2)
    data = data.lagged(lags) if lags else data
    torch.manual_seed(seed)
    model = VGPDS.from_data(data, 2, 6, temporal, **options)
    return fit_posterior(model, data, 4, **(settings or {}))


def assert_same(a, b):
    seen = make_data(missing=0.2).y[:3]
    for sequence in (0, None):
        torch.manual_seed(0)
        one = [a.forecast(T_NEW, sequence), a.impute(), a.reconstruct(T_NEW, seen, solver=Solver(2, 5))]
        torch.manual_seed(0)
        other = [b.forecast(T_NEW, sequence), b.impute(), b.reconstruct(T_NEW, seen, solver=Solver(2, 5))]
        for x, y in zip(one, other, strict=True):
            assert torch.equal(x.mean, y.mean)
            assert torch.equal(x.variance, y.variance)
            assert x.columns == y.columns
        torch.manual_seed(0)
        draws = a.generate(T_NEW, 3, sequence)
        torch.manual_seed(0)
        assert torch.equal(b.generate(T_NEW, 3, sequence), draws)


CASES = {
    "plain": {},
    "noise": {"settings": {"noise_variance": 0.3}},
    "noise each": {"settings": {"noise_variance": NOISE}, "noise_per_output": True},
    "scale": {"settings": {"output_scale": [1.0, 2.0, 0.5, 3.0, 0.1]}, "scale_outputs": True},
    "residual": {"settings": {"residual": Matern32(2.0, 0.5).fix("variance") + White(0.4), "noise_variance": NOISE}},
    "lags": {"lags": (-1, 2), "settings": {"noise_variance": NOISE, "residual": Bias() + White()}},
    "priors": {"temporal": Matern32(0.9, dist.LogNormal(0.0, 1.0)) + White(0.1)},
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_round_trip(tmp_path, case):
    posterior = make_posterior(**CASES[case])
    path = tmp_path / "posterior.safetensors"
    save_posterior(path, posterior, metadata={"unit": "cm"})
    again = load_posterior(path)
    assert isinstance(again, Posterior)
    assert again.bound == posterior.bound
    assert torch.equal(again.noise_variance, posterior.noise_variance)
    assert again.data.lags == posterior.data.lags
    assert_same(posterior, again)
    assert load_metadata(path) == {"unit": "cm"}
    model, guide, data = load(path)  # the model alone
    assert data.lengths == posterior.data.lengths
    assert torch.equal(guide.lam, posterior.q.lam)
    assert Posterior(model, guide, data).bound == Posterior(*posterior.origin[:2], posterior.data).bound
    small = load_posterior(path, dtype=torch.float32)
    assert small.forecast(T_NEW, 0).mean.dtype == torch.float32


@pytest.mark.long
def test_mixtures_round_trip_and_share_their_data(tmp_path):
    parts = [make_posterior(), make_posterior(seed=1, settings={"noise_variance": NOISE})]
    parts.append(make_posterior(lags=(-1, 2), seed=2))
    mixture = PosteriorMixture(parts, [0.2, 0.5, 0.3])
    path = tmp_path / "mixture.safetensors"
    save_posterior(path, mixture, metadata={"names": ["a"]})
    again = load_posterior(path)
    assert isinstance(again, PosteriorMixture)
    assert torch.equal(again.weights, mixture.weights)
    assert again.posteriors[1].data is again.posteriors[0].data
    assert again.posteriors[2].data.lags == (-1, 2)
    assert sum(name.endswith("data.y") for name in read_file(path, "mixture")[1]) == 2
    assert_same(mixture, again)
    assert load_metadata(path) == {"names": ["a"]}
    with pytest.raises(FileFormatError, match=r"holds a mixture of several models\. Use load_posterior"):
        load(path)


def test_the_same_posterior_twice(tmp_path):
    """Members may share tensors, which safetensors refuses."""
    one = make_posterior(settings={"noise_variance": NOISE})
    mixture = PosteriorMixture([one, one], [0.25, 0.75])
    save_posterior(tmp_path / "a", mixture)
    again = load_posterior(tmp_path / "a")
    assert torch.equal(again.weights, mixture.weights)
    assert_same(mixture, again)


def test_it_is_the_posterior_of_the_moment_it_was_made(tmp_path):
    posterior = make_posterior()
    model, guide = posterior.origin[:2]
    fit(model, guide, posterior.data, num_steps=2, progress=False)
    save_posterior(tmp_path / "a", posterior)
    assert load_posterior(tmp_path / "a").bound == posterior.bound
    model.temporal.fix()
    with pytest.raises(ValueError, match="the model was changed after the posterior was made"):
        save_posterior(tmp_path / "a", posterior)


def test_files_of_models_are_posteriors(tmp_path):
    model, guide, data = make_problem()
    save(tmp_path / "a", model, guide, data)
    assert load_posterior(tmp_path / "a").bound == Posterior(model, guide, data).bound
    answers = np.load(GOLDEN / "old_answers.npz")
    prediction = Posterior(*load(GOLDEN / "old_scaled.safetensors"), residual=None).forecast([2.0, 2.5], sequence=1)
    np.testing.assert_allclose(prediction.mean.numpy(), answers["scaled_mean"], rtol=1e-9)


class Odd(Kernel):
    """A kernel that the library does not have."""


def test_what_cannot_be_saved_or_read(tmp_path):
    path = tmp_path / "a"
    posterior = make_posterior(settings={"residual": Bias() + White()})
    with pytest.raises(TypeError, match="posterior must be a Posterior, PosteriorMixture or Ensemble, but got int"):
        save_posterior(path, 3)
    save_posterior(path, posterior)
    header, tensors = read_file(path, "model")
    for kind in ("__import__", "Odd"):
        changed = header | {"prediction": {"residual": {"kind": kind, "parameters": {}}}}
        write_file(path, "model", changed, tensors)
        with pytest.raises(FileFormatError, match=f"has the kernel '{kind}', which is not registered"):
            load_posterior(path)
    write_file(path, "mixture", {"members": [{}]}, tensors)
    with pytest.raises(FileFormatError, match="does not describe a posterior"):
        load_posterior(path)
    write_file(path, "checkpoint", {}, tensors)
    with pytest.raises(FileFormatError, match="holds a checkpoint, but a model is expected"):
        load_posterior(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match="not a complete pyro_vgpds file"):
        load_posterior(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_posterior(tmp_path / "nowhere")


# ensembles


def make_ensemble(names=("column mean", "linear dynamical system"), tasks=("impute",)):
    """A model with settings of its own, a model with lags, and baselines."""
    data = make_data(missing=0.2)
    settings = {"noise_variance": NOISE, "residual": Bias() + White()}
    models = [make_posterior(settings=settings), make_posterior(lags=(-1, 2), seed=2)]
    variance = torch.tensor(NOISE).double()
    members = [*models, *(make_baseline(name, data, variance) for name in names)]
    weights = torch.rand(len(members), 5).double() + 0.1
    calibration = Calibration(torch.rand(5).double() + 0.5, torch.linspace(0.3, 3.0, 13).double())
    combination = Combination(weights / weights.sum(0), calibration)
    return Ensemble(members, dict.fromkeys(tasks, combination), ["a", "b", *names])


def assert_same_ensemble(a, b):
    seen = make_data(missing=0.2).y[:3]
    calls = [
        lambda e: e.forecast(T_NEW, 0),
        lambda e: e.forecast(T_NEW, None),
        lambda e: e.impute(),
        lambda e: e.impute(fill=False),
        lambda e: e.reconstruct(T_NEW, seen),
    ]
    for call in calls:
        torch.manual_seed(0)
        one = call(a)
        torch.manual_seed(0)
        other = call(b)
        for level in (0.5, 0.95):
            for x, y in zip(one.interval(level), other.interval(level), strict=True):
                assert torch.equal(x, y)
        assert torch.equal(one.mean, other.mean)
        torch.manual_seed(1)
        draws = one.sample(2)
        torch.manual_seed(1)
        assert torch.equal(other.sample(2), draws)


def test_ensembles_round_trip_and_share_their_data(tmp_path):
    ensemble, path = make_ensemble(tasks=("impute", "forecast")), tmp_path / "ensemble.safetensors"
    own = ensemble.combinations["impute"]  # lost frames have another combination
    lost = replace(own, weights=own.weights.roll(1, 0), disagreement=4.0)
    ensemble.combinations["impute"] = replace(own, lost=lost)
    save_posterior(path, ensemble, metadata={"unit": "cm"})
    again = load_posterior(path)
    assert isinstance(again, Ensemble)
    assert again.names == ensemble.names
    assert list(again.combinations) == ["impute", "forecast"]
    assert again.report is None
    assert again.members[2].data is again.members[0].data
    assert sum(name.endswith("data.y") for name in read_file(path, "ensemble")[1]) == 2  # with lags, and without
    assert_same_ensemble(ensemble, again)
    assert load_metadata(path) == {"unit": "cm"}
    with pytest.raises(FileFormatError, match=r"holds an ensemble of several predictors\. Use load_posterior"):
        load(path)
    assert load_posterior(path, dtype=torch.float32).forecast(T_NEW, 0).mean.dtype == torch.float32


@pytest.mark.long
@pytest.mark.parametrize("task", ["impute", "reconstruct", "forecast"])
def test_ensembles_of_auto_round_trip_with_their_report(tmp_path, task):
    small = Configuration("small", latent_dim=2, num_inducing=6, num_steps=5)
    ensemble = auto(make_data(missing=0.2), task, candidates=[small], baselines=["column mean"], progress=False)
    save_posterior(tmp_path / "a", ensemble)
    again = load_posterior(tmp_path / "a")
    assert isinstance(again.report, Report)
    assert str(again.report) == str(ensemble.report)
    assert_same_ensemble(ensemble, again)


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_round_trips(tmp_path, name):
    t = torch.arange(40.0)
    data, other = (Sequences(t, torch.sin(t.unsqueeze(-1) + torch.arange(5) + shift)) for shift in (0.0, 1.0))
    combination = Combination(torch.ones(1, 5).double(), Calibration.none(5))
    setting = 21.0 if name == "last long cycle" else None  # these data have none
    member = make_baseline(name, data, torch.tensor(NOISE).double(), setting=setting)
    ensemble = Ensemble([member], {"reconstruct": combination})
    for one in (ensemble, ensemble.condition(other)):  # also for other data than those that it was trained on
        save_posterior(tmp_path / "a", one)
        assert_same_ensemble(one, load_posterior(tmp_path / "a"))


def test_settings_of_baselines_round_trip(tmp_path):
    torch.manual_seed(0)
    y = torch.randn(30, 5).double().cumsum(0).masked_fill(torch.rand(30, 5) < 0.2, torch.nan)
    data = Sequences(torch.arange(30.0).double(), y)
    combination, found = Combination(torch.ones(1, 5).double(), Calibration.none(5)), []
    for setting in (1e-4, 1.0):
        one = Ensemble([make_baseline("ridge regression", data, setting=setting)], {"impute": combination})
        save_posterior(tmp_path / "a", one)
        found.append(load_posterior(tmp_path / "a").impute().mean)
        assert torch.equal(found[-1], one.impute().mean)
    assert not torch.equal(*found)


def test_baselines_of_users_cannot_be_saved(tmp_path):
    ensemble = make_ensemble(())
    data = ensemble.data
    ensemble.members[1] = BaselinePosterior(lambda given: (given.y, None), data)
    with pytest.raises(
        TypeError, match=r"with an imputer of your own, .* cannot be saved: only the baselines that auto"
    ):
        save_posterior(tmp_path / "a", ensemble)
    ensemble.members[1] = PosteriorMixture([make_posterior()])
    with pytest.raises(TypeError, match="member 'b' of the ensemble must be a Posterior or a baseline, but got"):
        save_posterior(tmp_path / "a", ensemble)
    assert not list(tmp_path.iterdir())


def changed(header, where, value):
    """A copy of nested dictionaries and lists with another value at one place."""
    first, *rest = where
    copied = dict(header) if isinstance(header, dict) else list(header)
    copied[first] = changed(header[first], rest, value) if rest else value
    return copied


def test_autoregression_of_data_without_a_cycle(tmp_path):
    t = np.arange(40.0)
    data = Sequences(t, np.stack([t, 3.0 * t + np.sqrt(t)], 1))
    found = auto(data, "forecast", horizon=3, candidates=[], baselines=["autoregression"])
    assert found.members[0].imputer.setting == 0.0
    save_posterior(tmp_path / "a", found)
    again = load_posterior(tmp_path / "a")
    assert torch.equal(again.forecast([40.0, 41.0]).mean, found.forecast([40.0, 41.0]).mean)


CRAFTED = {
    "no members": (("members",), []),
    "unknown kind": (("members", 0, "kind"), "os.system"),
    "unknown data": (("members", 0, "of"), 9),
    "unknown baseline": (("members", 2, "content"), {"d": [["name", "__import__"], ["variance", 1], ["state", {}]]}),
    "no state": (("members", 3, "content", "d", 2, 1), {"d": []}),
    "a negative setting": (("members", 2, "content", "d", 3, 1), -1.0),
    "a setting of zero": (("members", 2, "content", "d", 3, 1), 0.0),
    "a setting of text": (("members", 2, "content", "d", 3, 1), "one"),
    "no variance": (("members", 3, "content", "d", 1, 1), 3.0),
    "a report as a member": (("members", 2, "kind"), "report"),
    "no names": (("names",), [1, 2, 3, 4]),
    "an unknown task": (("combinations", "d", 0, 0), "dance"),
    "other weights": (("combinations", "d", 0, 1, "d", 0, 1), {"t": "tensor1"}),
    "other widths": (("combinations", "d", 0, 1, "d", 1, 1, "d", 1, 1), {"t": "tensor0"}),
    "no report": (("report",), {"kind": "report", "content": {"d": [["task", "impute"]]}, "of": {}}),
    "a strange report": (("report",), [1]),
    "no data": (("sequences",), []),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_ensembles(tmp_path, case):
    path = tmp_path / "a"
    save_posterior(path, make_ensemble())
    header, tensors = read_file(path, "ensemble")
    write_file(path, "ensemble", changed(header, *CRAFTED[case]), tensors)
    with pytest.raises(FileFormatError, match="does not describe a posterior"):
        load_posterior(path)


@pytest.mark.parametrize("factor", [-1.0, math.inf, math.nan])
def test_a_crafted_factor_of_disagreement(tmp_path, factor):
    ensemble = make_ensemble()
    ensemble.combinations["impute"] = replace(ensemble.combinations["impute"], disagreement=factor)
    save_posterior(tmp_path / "a", ensemble)
    with pytest.raises(FileFormatError, match="factor of the disagreement must be finite and not negative, but it is"):
        load_posterior(tmp_path / "a")


def test_crafted_tensors_of_ensembles(tmp_path):
    path = tmp_path / "a"
    save_posterior(path, make_ensemble())
    header, tensors = read_file(path, "ensemble")
    assert len(tensors) > 20
    for name, value in tensors.items():
        if name == "member.3.tensor9" or name.endswith((".variance", ".lengthscale")):
            continue  # the history of EM has any length, and kernels have one parameter or one for each dimension
        write_file(path, "ensemble", header, {**tensors, name: torch.cat([value.flatten(), value.flatten()])})
        with pytest.raises(FileFormatError, match="does not describe a posterior"):
            load_posterior(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match="not a complete pyro_vgpds file"):
        load_posterior(path)


def test_reports_as_dictionaries():
    content = {
        "task": "impute",
        "hidden": 3,
        "skipped": ["b"],
        "stopped": ["c"],
        "candidates": [
            {"name": "a", "is_baseline": True, "error": 0.5, "inside": 95.0, "seconds": 1.0, "weight": 1.0,
             "failure": None, "log_score": None},
        ],
    }  # fmt: skip
    content["ensemble"] = content["candidates"][0]
    assert Report.from_dict(content).to_dict() == content
    for name, value in (("task", "x"), ("hidden", "3"), ("skipped", [1]), ("candidates", []), ("ensemble", None)):
        with pytest.raises(ValueError):
            Report.from_dict({**content, name: value})
    with pytest.raises(ValueError, match="error of a candidate of a report is 'low'"):
        Report.from_dict({**content, "ensemble": {**content["ensemble"], "error": "low"}})
