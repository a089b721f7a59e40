# SPDX-License-Identifier: Apache-2.0
"""The automatic choice with likelihoods of all kinds: objects, groups of columns, exposures, processes and pages."""

import json

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from pyro_vgpds import Ensemble, Sequences, auto, load_posterior, save_posterior
from pyro_vgpds.evaluation import hold_out
from pyro_vgpds.evaluation.splits import HeldOut
from pyro_vgpds.files.likelihoods import pack_likelihood, unpack_likelihood
from pyro_vgpds.likelihoods import (
    Bernoulli,
    Binomial,
    ByColumn,
    NegativeBinomial,
    Poisson,
    SiteLikelihood,
    StudentT,
    register_likelihood,
)
from pyro_vgpds.prediction import GaussianPrediction
from pyro_vgpds.prediction.mixture_prediction import MixturePrediction, spread_probability
from pyro_vgpds.selection import Configuration
from pyro_vgpds.selection.comparison import ENSEMBLE
from pyro_vgpds.selection.configuration import read_settings
from pyro_vgpds.selection.distributions import predict_distribution, with_gaussian
from pyro_vgpds.selection.page import write_page
from pyro_vgpds.selection.pooling import choose_spread, pool, pool_weights
from pyro_vgpds.selection.problem import Problem

SIZE = {"latent_dim": 2, "num_inducing": 8, "num_steps": 8}


class Waiting(SiteLikelihood):
    """Waiting times, not registered."""

    support = "a positive number"

    def distribution(self, f, p):
        return dist.Exponential((-f).exp())

    def link(self, mean, p):
        return mean.log()

    def is_valid(self, y, p):
        return y > 0


@register_likelihood(name="tests.Listed")
class Listed(Waiting):
    """The same, registered."""


def model(likelihood, name="small", **options):
    return Configuration(name, likelihood=likelihood, **{**SIZE, **options})


def make_counts(frames=40, seed=0, **options):
    rng = np.random.default_rng(seed)
    t = np.arange(float(frames))
    rate = np.exp(1.0 + np.sin(t[:, None] / 3.0 + np.arange(3)))
    return Sequences(t, rng.poisson(rate * options.get("exposure", 1.0)).astype(float), **options)


def make_yes(frames=40):
    rng = np.random.default_rng(0)
    t = np.arange(float(frames))
    return Sequences(t, (rng.random((frames, 3)) < 0.5 + 0.45 * np.sin(t[:, None] / 5.0 + np.arange(3))).astype(float))


def make_mixed(frames=40):
    rng = np.random.default_rng(0)
    t = np.arange(float(frames))
    wave = np.sin(t / 4.0)
    y = np.stack(
        [
            wave + 0.05 * rng.standard_t(3, frames),
            rng.poisson(np.exp(1.0 + wave)),
            rng.random(frames) < 0.5 + 0.4 * wave,
        ],
        1,
    )
    return Sequences(t, y, columns=["angle", "count", "contact"])


MIXED = {"student-t": ["angle"], "poisson": ["count"], "bernoulli": ["contact"]}


def names_of(found):
    return {candidate.name for candidate in found.report.candidates}


# what files and processes need


@pytest.mark.parametrize(
    "likelihood",
    [
        NegativeBinomial(),
        NegativeBinomial(dispersion=dist.Gamma(2.0, 0.1)),
        Binomial([3, 4]),
        StudentT(df=4.0).fix("df"),
        StudentT(scale=[0.1, 0.3]),
        ByColumn([(StudentT(df=3.0), ["a"]), (Poisson(), ["b"])]),
    ],
    ids=repr,
)
def test_likelihoods_survive_json(likelihood):
    again = unpack_likelihood(json.loads(json.dumps(pack_likelihood(likelihood))))
    assert repr(again) == repr(likelihood)
    assert pack_likelihood(again) == pack_likelihood(likelihood)
    state = likelihood.state_dict()
    for name, value in again.state_dict().items():
        assert torch.equal(value, state[name].to(value)), name
    parts = [[part.unset for part in one.modules() if hasattr(part, "unset")] for one in (again, likelihood)]
    assert parts[0] == parts[1]


def test_configurations_survive_json():
    for likelihood in (None, "poisson", {"poisson": [0, 1], Bernoulli(): [2]}, StudentT(df=3.0)):
        first = model(likelihood, lags=(-1, 2))
        content = json.loads(json.dumps(first.settings()))
        again = read_settings(content)
        assert again.settings() == first.settings()
        assert again.lags == (-1, 2)
    with pytest.raises(TypeError, match="save knows the likelihoods"):
        model(Waiting()).settings()


def test_training_leaves_the_given_likelihood_alone():
    likelihood = StudentT(df=20.0)
    before = pack_likelihood(likelihood)
    data = Sequences(range(20), np.sin(np.arange(20.0))[:, None] + np.zeros(2))
    own = model(likelihood)
    first, second = (own.fit(data).likelihood.parameters.df for _ in range(2))
    assert torch.equal(first, second)
    assert pack_likelihood(likelihood) == before


def test_a_problem_in_a_file_has_its_likelihood(tmp_path):
    problem = Problem(make_mixed(), "forecast", 3, 0, 4, MIXED)
    problem.write(tmp_path / "p.safetensors")
    again = Problem.read(tmp_path / "p.safetensors")
    assert pack_likelihood(again.likelihood) == pack_likelihood(unpack_likelihood(problem._about()["likelihood"]))
    assert (
        Problem(problem.data, "forecast", 3, 0, 4, "poisson").digest
        != Problem(problem.data, "forecast", 3, 0, 4).digest
    )


# the choice


def test_objects_are_as_good_as_names():
    data = make_counts()
    by_name, by_object = (
        auto(data, "forecast", likelihood=likelihood, candidates=[model(likelihood)], horizon=3)
        for likelihood in ("negative-binomial", NegativeBinomial())
    )
    torch.testing.assert_close(by_name.forecast([40.0]).mean, by_object.forecast([40.0]).mean, rtol=0.0, atol=0.0)
    assert names_of(by_name) == names_of(by_object)


@pytest.mark.parametrize(
    "likelihood", [MIXED, {StudentT(): [0], NegativeBinomial(): [1], Bernoulli(): [2]}], ids=["names", "objects"]
)
def test_groups_of_columns(likelihood, tmp_path):
    data = make_mixed()
    found = auto(data, "forecast", likelihood=likelihood, candidates=[model(likelihood)], horizon=3)
    assert names_of(found) == {"small", "column mean", "neighbouring frames"}
    save_posterior(tmp_path / "a.safetensors", found)
    again = load_posterior(tmp_path / "a.safetensors")
    for one in (found, again):
        ahead = one.forecast([40.0, 41.0])
        assert isinstance(ahead, MixturePrediction)
        lower, upper = ahead.interval(0.9)
        assert torch.equal(lower[:, 1:], lower[:, 1:].round())
        assert not torch.equal(lower[:, 0], lower[:, 0].round())
        assert (upper[:, 2] <= 1.0).all()
        assert ((ahead.mean[:, 2] > 0.0) & (ahead.mean[:, 2] < 1.0)).all()
    torch.testing.assert_close(again.forecast([40.0]).mean, found.forecast([40.0]).mean)


@pytest.mark.parametrize("task", ["impute", "reconstruct", "forecast"])
def test_yes_and_no(task, tmp_path):
    data = make_yes()
    found = auto(data, task, likelihood="bernoulli", candidates=[], horizon=3 if task == "forecast" else None)
    assert names_of(found) == {"column mean", "neighbouring frames"}
    assert not found.is_gaussian
    save_posterior(tmp_path / "a.safetensors", found)
    again = load_posterior(tmp_path / "a.safetensors")
    for ask in (
        lambda one: one.forecast([40.0]),
        lambda one: one.reconstruct([40.0], [[1.0, np.nan, 0.0]], 0, fill=True),
        lambda one: one.impute(fill=False),
    ):
        prediction = ask(found)
        assert ((prediction.mean >= 0.0) & (prediction.mean <= 1.0)).all()
        torch.testing.assert_close(ask(again).mean, prediction.mean)
    # a rate of a column is as good as it says: the mean log-probability of held-out entries
    split = hold_out(data, "forecast", horizon=3)
    rate = split.train.read().mean(0)
    assert found.report.best.log_score == pytest.approx(
        float((rate * rate.log() + (1 - rate) * (1 - rate).log()).mean()), abs=0.35
    )


def test_heavy_tails_have_gaussian_baselines():
    rng = np.random.default_rng(1)
    t = np.arange(40.0)
    y = np.sin(t[:, None] / 4.0 + np.arange(3)) + 0.05 * rng.standard_t(2.0, (40, 3))
    y[rng.random(y.shape) < 0.1] = np.nan
    data = Sequences(t, y)
    names = ["column mean", "linear interpolation", "one GP for each output"]
    found = auto(data, "impute", likelihood=StudentT(), candidates=[model("student-t")], baselines=names)
    assert names_of(found) == {"small", *names}
    assert all(candidate.log_score is not None for candidate in found.report.candidates)
    alone = auto(data, "impute", likelihood=StudentT(), candidates=[], baselines=names[1:])
    assert len(alone.members) == 2
    assert not alone.is_gaussian  # although all members are
    prediction = alone.impute()
    hidden = data.read().isnan()
    weights = alone.combination("impute").weights[:, 0]
    parts = [member.impute() for member in alone.members]
    expected = sum(w * part.cdf(np.zeros((40, 3))) for w, part in zip(weights, parts, strict=True))
    expected = spread_probability(expected, alone.combination("impute").spread)
    torch.testing.assert_close(prediction.cdf(np.zeros((40, 3)))[hidden], expected[hidden])
    new = np.full((1, 3), np.nan)
    new[0, 1] = 0.3
    assert alone.reconstruct([40.0], new, 0, fill=True).mean[0, 1] == pytest.approx(0.3)


def test_a_pool_of_gaussian_members_stays_one_in_a_file(tmp_path):
    data = Sequences(range(30), np.random.default_rng(0).standard_normal((30, 2)))
    found = auto(
        data, "forecast", likelihood="student-t", candidates=[], baselines=["column mean", "last value"], horizon=3
    )
    save_posterior(tmp_path / "a.safetensors", found)
    again = load_posterior(tmp_path / "a.safetensors")
    assert isinstance(again, Ensemble)
    assert not again.is_gaussian
    assert isinstance(again.forecast([30.0]), MixturePrediction)
    assert not again.condition(data).is_gaussian


def test_likelihoods_of_the_user():
    rng = np.random.default_rng(0)
    data = Sequences(np.arange(30.0), rng.exponential(np.exp(np.sin(np.arange(30.0)[:, None] / 4.0 + np.arange(2)))))
    found = auto(data, "forecast", likelihood=Waiting(), candidates=[model(Waiting())], horizon=3)
    assert names_of(found) == {"small"}
    assert (found.forecast([30.0]).interval(0.8)[0] > 0.0).all()


def test_a_registered_likelihood_is_kept_in_a_folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    data = Sequences(np.arange(30.0), rng.exponential(1.0, (30, 2)))
    options = {
        "likelihood": Listed(),
        "candidates": [model(Listed())],
        "horizon": 3,
        "folder": tmp_path,
        "refit": False,
    }
    first = auto(data, "forecast", **options)

    def fail(*args):
        raise AssertionError("trained again")

    monkeypatch.setattr(Configuration, "fit", fail)
    second = auto(data, "forecast", **options)
    torch.testing.assert_close(first.forecast([30.0]).mean, second.forecast([30.0]).mean)


@pytest.fixture
def single_precision():
    """The default of torch, which worker processes have: numbers such as 0.1 are rounded to it before training."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("single_precision")
def test_worker_processes_find_the_same(tmp_path):
    data = make_mixed()
    likelihood = {StudentT(df=5.0): ["angle"], "poisson": ["count"], "bernoulli": ["contact"]}
    models = [model(likelihood), model(likelihood, "line", mapping="linear")]
    one, two = (
        auto(data, "impute", likelihood=likelihood, candidates=models, processes=count, folder=folder, refit=False)
        for count, folder in ((1, None), (2, tmp_path))
    )
    assert one.names == two.names
    assert torch.equal(one.impute().mean, two.impute().mean)
    assert [(c.name, c.log_score, c.weight) for c in one.report.candidates] == [
        (c.name, c.log_score, c.weight) for c in two.report.candidates
    ]


# exposures


@pytest.mark.parametrize("task", ["forecast", "impute"])
def test_an_exposure_of_each_entry(task):
    rng = np.random.default_rng(5)
    exposure = rng.uniform(0.2, 5.0, (40, 3))
    data = make_counts(exposure=exposure)
    options = {"likelihood": "poisson", "candidates": [model("poisson")], "horizon": 3 if task == "forecast" else None}
    found = auto(data, task, **options)
    without = auto(Sequences(data.times.t, data.read()), task, **options)
    assert found.report.best.log_score > without.report.best.log_score + 0.1
    ahead = found.forecast([40.0, 41.0])
    torch.testing.assert_close(ahead.with_exposure([1.0, 1.0, 1.0]).mean, ahead.mean)
    more = ahead.with_exposure(np.array([[2.0, 1.0, 1.0], [1.0, 1.0, 3.0]]))
    torch.testing.assert_close(more.mean / ahead.mean, torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 3.0]]).double())
    assert (more.interval()[1][0, 0] > ahead.interval()[1][0, 0]) & (
        more.interval()[1][1, 0] == ahead.interval()[1][1, 0]
    )


def test_held_out_frames_have_their_exposures():
    exposure = np.linspace(0.5, 4.0, 40)[:, None] * np.ones(3)
    data = make_counts(exposure=exposure)
    split = hold_out(data, "forecast", horizon=4)
    np.testing.assert_allclose(split.exposure[0], exposure[36:])
    post = model("poisson").fit(split.train)
    found = predict_distribution(split, post)
    plain = post.forecast(split.t[0], 0)
    np.testing.assert_allclose(found.mean.reshape(4, 3), plain.mean.numpy() * exposure[36:], rtol=1e-9)
    assert hold_out(make_counts(), "forecast", horizon=4).exposure is None


def test_exposures_of_new_frames_to_reconstruct_are_refused():
    with pytest.raises(ValueError, match=r"auto\(data, 'reconstruct'\) needs one exposure for each output, \(D,\)"):
        auto(make_counts(exposure=np.ones((40, 3))), "reconstruct", likelihood="poisson")
    found = auto(make_counts(exposure=[1.0, 2.0, 3.0]), "reconstruct", likelihood="poisson", candidates=[])
    assert found.impute().mean.shape == (40, 3)


# the held-out predictions of a pool


def test_gaussian_densities_are_those_of_the_prediction():
    data = Sequences(range(30), np.random.default_rng(0).standard_normal((30, 2)))
    found = auto(data, "forecast", candidates=[], baselines=["column mean"], horizon=3)
    split = hold_out(data, "forecast", horizon=3)
    member = found.members[0].condition(split.train)
    own, expected = with_gaussian(split.predict(member)), predict_distribution(split, member)
    for name in ("log_density", "cdf", "ends"):
        torch.testing.assert_close(getattr(own, name), getattr(expected, name))


def test_ends_of_a_pool_lie_between_those_of_its_members():
    data = make_counts()
    split = hold_out(data, "forecast", horizon=4)
    members = [model(name).fit(split.train) for name in ("poisson", "negative-binomial")]
    each = [predict_distribution(split, member) for member in members]
    same = pool([each[0], each[0]], torch.tensor([0.3, 0.7]).double())
    assert torch.equal(same.ends, each[0].ends)
    weights = torch.tensor([0.5, 0.5]).double()
    both, exact = pool(each, weights), MixturePrediction([m.forecast(split.t[0], 0) for m in members], weights)
    torch.testing.assert_close(both.ends, torch.stack(exact.interval(), -1).flatten(0, 1), rtol=0.0, atol=1.0)
    assert torch.equal(both.ends, both.ends.round())


def test_the_page_of_a_pool(tmp_path):
    data = make_mixed()
    report = auto(data, "forecast", likelihood=MIXED, candidates=[model(MIXED)], horizon=3).report
    comparison = report.comparison
    assert comparison.is_pool
    assert comparison.coverage(ENSEMBLE, 0.95) == pytest.approx(report.ensemble.inside)
    for candidate in report.candidates:
        if candidate.name not in report.stopped:
            assert comparison.coverage(candidate.name, 0.95) == pytest.approx(candidate.inside)
    lower, upper = comparison.interval()
    count = comparison.output == 1
    assert torch.equal(lower[count], lower[count].round())
    assert (lower <= upper).all()
    text = write_page(tmp_path / "page.html", report, data).read_text()
    assert "Log scores are mean log-probabilities" in text
    assert "neighbouring frames" in text


# errors, before any work


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"likelihood": Waiting(), "processes": 2}, ValueError, r"processes must be 1 for the likelihood Waiting\(\)"),
        ({"likelihood": Waiting(), "folder": "kept"}, TypeError, "register_likelihood"),
        ({"likelihood": Waiting(), "baselines": ["column mean"]}, ValueError, r"baselines must be \[\] for a like"),
        ({"likelihood": {Waiting(): [0], "poisson": [1, 2]}, "processes": 2}, ValueError, "processes must be 1 for"),
        ({"likelihood": {"poisson": ["x"]}}, ValueError, "ByColumn has names of columns, but the outputs have none"),
        ({"likelihood": {"poisson": [0, 1, 2], "bernoulli": [2]}}, ValueError, "more than once"),
        ({"likelihood": {4: [0, 1, 2]}}, TypeError, "likelihood must be one of pyro_vgpds.likelihoods"),
        ({"likelihood": Binomial(2)}, ValueError, r"data has \d+ in output .* a whole number from 0 to 2"),
        ({"likelihood": NegativeBinomial([1.0, 2.0])}, ValueError, "dispersion has 2 values, but there are 3"),
    ],
)  # fmt: skip
def test_errors(options, error, message, monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise AssertionError("work was done")

    monkeypatch.setattr("pyro_vgpds.selection.api.race", fail)
    monkeypatch.chdir(tmp_path)
    data = make_counts()
    data = Sequences(data.times.t, data.read() + 1.0)
    with pytest.raises(error, match=message):
        auto(data, "forecast", **options)
    assert not list(tmp_path.iterdir())


# weights and widths of continuous outputs


def gaussians(mean, deviation, truth):
    n = len(truth)
    found = HeldOut(truth, mean, deviation.square().expand(n), torch.zeros(n).long(), torch.zeros(n).long())
    return with_gaussian(found)


def test_weights_of_continuous_outputs_heed_the_errors_of_the_mean():
    """The best of all pairs of weights by brute force; a member with good densities and bad means has less weight."""
    rng = np.random.default_rng(0)
    truth = torch.from_numpy(rng.standard_t(2.0, 400))
    members = [
        gaussians(truth + torch.from_numpy(rng.normal(0.0, spread, 400)), torch.tensor(width).double(), truth)
        for spread, width in ((0.5, 1.0), (0.6, 0.6))
    ]
    density = torch.stack([member.log_density for member in members])
    errors = torch.stack([member.mean - truth for member in members])

    def objective(w):
        pair = torch.tensor([w, 1.0 - w]).double()
        own = torch.logsumexp(density + pair.log().unsqueeze(-1), 0).mean()
        return float(own - 0.5 * (pair @ errors).square().mean().log())

    grid = np.linspace(0.001, 0.999, 999)
    best = grid[int(np.argmax([objective(w) for w in grid]))]
    weights = pool_weights(members, torch.ones(1), is_continuous=True)
    assert float(weights[0]) == pytest.approx(best, abs=2e-3)
    assert abs(float(weights[0]) - float(pool_weights(members, torch.ones(1))[0])) > 0.02


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.5])
def test_the_spread_of_a_pool_is_that_of_its_errors(factor):
    rng = np.random.default_rng(1)
    truth = torch.from_numpy(factor * rng.standard_normal(20_000))
    own = gaussians(torch.zeros(20_000).double(), torch.tensor(1.0).double(), truth)
    assert choose_spread(own) == pytest.approx(factor, rel=0.02)


def test_few_entries_and_outliers_leave_the_spread():
    truth = torch.tensor([0.1, -0.1, 1e6]).double()
    own = gaussians(torch.zeros(3).double(), torch.tensor(1.0).double(), truth)
    assert choose_spread(own) == pytest.approx(1.0, abs=0.15)


def test_a_pool_with_a_spread_is_a_distribution(tmp_path):
    """Against Gaussians, for which it is exact, and by integration of the density for others."""
    t, data = torch.zeros(1).double(), Sequences([0.0], [[0.0]])

    def gaussian(mean, variance):
        return GaussianPrediction(t, data, torch.tensor([[mean]]).double(), torch.tensor([[variance]]).double())

    one = torch.ones(1).double()
    wide, exact = MixturePrediction([gaussian(1.0, 4.0)], one, 0.7), gaussian(1.0, 0.49 * 4.0)
    y = np.array([[2.3]])
    for ask in (
        lambda p: p.cdf(y),
        lambda p: p.log_probs(y),
        lambda p: p.log_prob(y),
        lambda p: p.mean,
        lambda p: p.variance,
    ):
        torch.testing.assert_close(ask(wide), ask(exact))
    torch.testing.assert_close(wide.interval(0.9), exact.interval(0.9))
    assert float(wide.sample(4000).std()) == pytest.approx(1.4, rel=0.05)
    mixed = MixturePrediction([gaussian(0.0, 1.0), gaussian(2.0, 0.25)], torch.tensor([0.4, 0.6]).double(), 0.8)
    grid = np.linspace(-8.0, 8.0, 4001)
    density = np.array([float(mixed.log_probs([[x]])) for x in grid])
    assert np.exp(density).sum() * (grid[1] - grid[0]) == pytest.approx(1.0, abs=1e-6)
    lower, upper = mixed.interval(0.8)
    assert float(mixed.cdf(lower)) == pytest.approx(0.1, abs=1e-6)
    assert float(mixed.cdf(upper)) == pytest.approx(0.9, abs=1e-6)
    with pytest.raises(ValueError, match="probability"):
        mixed.interval(1.5)


def test_the_spread_is_part_of_the_prediction_and_the_file(tmp_path):
    rng = np.random.default_rng(0)
    t = np.arange(60.0)
    y = np.sin(t[:, None] / 4.0 + np.arange(3)) + 0.05 * rng.standard_t(2.0, (60, 3))
    y[rng.random(y.shape) < 0.1] = np.nan
    names = ["linear interpolation", "cubic spline", "one GP for each output"]
    found = auto(Sequences(t, y), "impute", likelihood="student-t", candidates=[], baselines=names)
    spread = found.combination("impute").spread
    assert spread != 1.0
    assert found.impute().spread == spread
    save_posterior(tmp_path / "a.safetensors", found)
    again = load_posterior(tmp_path / "a.safetensors")
    torch.testing.assert_close(again.impute().interval(0.8), found.impute().interval(0.8))
