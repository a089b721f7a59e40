# SPDX-License-Identifier: Apache-2.0
"""The experiments on counts and notes: protocols, baselines against loops, and runs on small data made here."""

import json
import math

import numpy as np
import pytest

from pyro_vgpds import Sequences, datasets, experiments, metrics
from pyro_vgpds.datasets import CaseCounts, Chorales, Reaches
from pyro_vgpds.experiments import chorales, flu, spike_baselines, spikes
from pyro_vgpds.experiments.answer import Answer, frames, parts, score
from pyro_vgpds.experiments.count_models import ahead_of_square_roots, gaussian_square_roots
from pyro_vgpds.experiments.recipe import Recipe
from pyro_vgpds.experiments.record import Folder, compare
from pyro_vgpds.experiments.spikes import decode, r_squared

SMALL = Recipe("rbf", 2, num_inducing=8, num_steps=15, scale=True, lengthscale=0.1)


def small_reaches(trials=20, bins=12, neurons=12):
    """Neurons that are driven by the velocity of a hand, in directions that change from trial to trial."""
    rng = np.random.default_rng(0)
    t = (np.arange(bins) + 0.5) * 0.02
    condition = np.arange(trials) % 4
    angle, tuning = condition * math.pi / 2, rng.standard_normal((2, neurons))
    speed = np.sin(np.linspace(0, math.pi, bins))
    velocity = [np.stack([speed * math.cos(a), speed * math.sin(a)], 1) for a in angle]
    y = [rng.poisson(np.exp(0.5 + v @ tuning)).astype(float) for v in velocity]
    position = [np.cumsum(v, 0) for v in velocity]
    return Reaches(
        [t] * trials, y, "made up", velocity=velocity, position=position, condition=condition, bin_ms=20
    )  # fmt: skip


def small_flu(weeks=70, districts=6):
    rng = np.random.default_rng(1)
    exposure = rng.dirichlet(np.full(districts, 5.0))
    season = 60 * np.exp(2 * np.sin(np.arange(weeks) * 2 * math.pi / 52))
    y = rng.poisson(season[:, None] * exposure).astype(float)
    return CaseCounts([np.arange(float(weeks))], [y], "made up", exposure=exposure)


def small_chorales():
    rng = np.random.default_rng(2)
    y = []
    for length in (30, 25, 20, 15, 18, 22):
        note = 40 + np.cumsum(rng.choice([-1, 0, 0, 0, 1], length))
        y.append((np.arange(88) == note[:, None]).astype(float))
    split = {"train": slice(0, 4), "valid": slice(4, 5), "test": slice(5, 6)}
    return Chorales([np.arange(float(len(one))) for one in y], y, "made up", parts=split)


# protocols


def test_score_uses_the_predictors_own_distribution():
    truth = np.array([[1.0, np.nan], [0.0, 3.0]])
    mean = np.array([[1.0, 9.0], [0.0, 2.0]])
    plain = score(truth, Answer(mean), 1e-3)
    expected = [-1.0, -1e-3, 3 * math.log(2.0) - 2.0 - math.log(6.0)]
    assert plain["log score"] == plain["Poisson score"] == pytest.approx(np.mean(expected))
    assert plain["RMSE"] == pytest.approx(math.sqrt(1 / 3))
    own = score(truth, Answer(mean, lambda y: np.where(np.isnan(y), np.nan, -0.5)), 1e-3)
    assert own["log score"] == -0.5
    assert own["Poisson score"] == plain["Poisson score"]


def test_hidden_neurons_are_hidden():
    data = small_reaches()
    asked = []

    def predictor(training, test):
        asked.append((training, test))
        return Answer(np.full((test.num_frames, test.num_outputs), 1.0))

    result = spikes.predict_hidden(data, 1, predictor)
    ((training, test),) = asked
    assert (training.num_sequences, test.num_sequences) == (16, 4)
    np.testing.assert_array_equal(np.isnan(frames(test)).all(0), data.hidden)
    assert not np.isnan(frames(training)).any()
    rate = np.concatenate([data.y[i] for i in range(20) if i % 5 != 1]).mean(0)
    truth = np.concatenate([data.y[i] for i in (1, 6, 11, 16)])[:, data.hidden]
    assert result["bits per spike"] == pytest.approx(
        metrics.bits_per_spike(truth, np.ones_like(truth), rate[data.hidden])
    )


def test_velocity_is_decoded_from_what_there_is():
    data = small_reaches()

    def predictor(training, test):
        assert not np.isnan(frames(test)).any()
        v = np.concatenate(data.velocity)[: 12 * 20].reshape(20, 12, 2)
        train, new = data.fold(0)
        turn = np.array([[1.0, 2.0], [0.0, 1.0]])
        return Answer(frames(test), latent=v[new].reshape(-1, 2) @ turn, training_latent=v[train].reshape(-1, 2) @ turn)

    result = spikes.decode_velocity(data, 0, predictor)
    assert result["latents"] > 0.999
    assert set(result) == {"latents"}


def test_decoding_equals_ridge_with_the_best_penalty():
    rng = np.random.default_rng(3)
    x, new = rng.standard_normal((60, 5)), rng.standard_normal((20, 5))
    x[:, 4] = new[:, 4] = 7.0  # constant
    y = x[:, :2] @ rng.standard_normal((2, 2)) + rng.standard_normal((60, 2))
    lengths = [10] * 6

    def ridge(x, y, new, penalty):
        centre = x.mean(0)
        weights = np.linalg.solve((x - centre).T @ (x - centre) + penalty * np.eye(5), (x - centre).T @ (y - y.mean(0)))
        return (new - centre) @ weights + y.mean(0)

    scale = np.where(x.std(0) > 0, x.std(0), 1.0)
    u, v = (x - x.mean(0)) / scale, (new - x.mean(0)) / scale
    fold = np.repeat(np.arange(6) % 5, 10)
    errors = {}
    for power in range(-2, 6):
        guesses = [(ridge(u[fold != k], y[fold != k], u[fold == k], 10.0**power) - y[fold == k]) ** 2 for k in range(5)]
        errors[10.0**power] = sum(guess.sum() for guess in guesses)
    expected = ridge(u, y, v, min(errors, key=errors.get))
    np.testing.assert_allclose(decode(x, y, new, lengths), expected, atol=1e-9)
    assert r_squared(y, y) == 1.0
    assert r_squared(y, np.broadcast_to(y.mean(0), y.shape)) == pytest.approx(0.0)


def test_forecasts_do_not_see_the_weeks_ahead():
    data = small_flu()
    asked = []

    def predictor(training, test):
        asked.append((training, test))
        return Answer(np.ones((test.num_frames, test.num_outputs)))

    flu.forecast_cases(data, 50, predictor)
    flu.predict_hidden(data, 3, predictor)
    (training, test), (given, same) = asked
    assert (training.num_frames, test.num_frames) == (50, 58)
    assert np.isnan(frames(test)[50:]).all()
    np.testing.assert_array_equal(frames(test)[:50], data.y[0][:50])
    assert given is same
    assert 0.1 < np.isnan(frames(given)).mean() < 0.3


def test_a_model_of_chorales_gives_one_number_for_each_sequence():
    data = small_chorales()
    train, test = data.part("train"), data.part("test")
    assert chorales.score(train, test, lambda a, b: np.array([-44.0]))["nats per frame"] == 2.0
    with pytest.raises(ValueError, match=r"a model must return \(1,\) numbers, but returned \(2,\)"):
        chorales.score(train, test, lambda a, b: np.zeros(2))


# baselines


def test_smoothing():
    rng = np.random.default_rng(4)
    y = rng.poisson(2.0, (9, 3)).astype(float)
    y[2:5, 0] = y[:, 2] = np.nan
    (found,) = spike_baselines.smoothed([y], 1.5)
    for n in range(9):
        for d in range(2):
            pairs = [(math.exp(-0.5 * ((n - m) / 1.5) ** 2), y[m, d]) for m in range(9) if not math.isnan(y[m, d])]
            assert found[n, d] == pytest.approx(sum(w * v for w, v in pairs) / sum(w for w, _ in pairs))
    assert np.isnan(found[:, 2]).all()


def test_trial_weights():
    data = small_reaches(trials=10)
    training, test = data.training(0), data.partial(0)
    found = spike_baselines.trial_weights(0.3, 0.5, 2.0, 1.0)(training, test)
    train, new = parts(training), parts(test)
    own, rates = spike_baselines.smoothed(train, 2.0), spike_baselines.smoothed(train, 1.0)
    rate = np.concatenate(train).mean(0)

    def mixed(y, skip=None):
        logs = []
        for j, part in enumerate(own):
            total = 0.0
            for n, d in np.ndindex(y.shape):
                if not data.hidden[d]:
                    m = (part[n, d] + 0.5 * rate[d] + 1e-3) / 1.5
                    total += y[n, d] * math.log(m) - m
            logs.append(-math.inf if j == skip else 0.3 * total)
        weight = np.exp(np.array(logs) - max(logs))
        return sum(w * r for w, r in zip(weight / weight.sum(), rates, strict=True))

    np.testing.assert_allclose(found.mean, np.concatenate([mixed(y) for y in new]), rtol=1e-9)
    np.testing.assert_allclose(found.training_mean[:12], mixed(train[0], skip=0), rtol=1e-9)


def test_settings_are_chosen_on_training_trials():
    data = small_reaches()
    calls = []

    def make(value):
        def predict(training, test):
            calls.append((value, training.num_sequences, test.num_sequences))
            truth = np.exp(0.5) * np.ones((test.num_frames, test.num_outputs))
            return Answer(truth * (1.0 if value == 2.0 else 5.0))

        return predict

    answer = spike_baselines.grid(make, value=(1.0, 2.0, 3.0))(data.training(0), data.partial(0))
    assert calls == [(1.0, 12, 4), (2.0, 12, 4), (3.0, 12, 4), (2.0, 16, 4)]
    np.testing.assert_allclose(answer.mean, np.exp(0.5))


def test_spike_baselines_beat_the_mean_rate():
    data = small_reaches(trials=40)
    quick = {label: make for label, make in spikes.PREDICTORS.items() if make not in spikes._SLOW}
    bits = {label: spikes.predict_hidden(data, 0, make(data, 0))["bits per spike"] for label, make in quick.items()}
    assert bits.pop("mean rate") == pytest.approx(0.0, abs=1e-12)
    bits.pop("GPFA")  # of square roots, without a read-out
    assert min(bits.pop("time-bin mean") + 0.1, *bits.values()) > 0.02, bits
    for label in ("GPFA, Poisson read-out", "whole-trial weights"):
        assert spikes.decode_velocity(data, 0, quick[label](data, 0))["rates"] > 0.7


def test_gaussian_square_roots():
    data = small_reaches()
    training, test = data.training(0), data.partial(0)
    answer = gaussian_square_roots(SMALL)(training, test)
    assert answer.mean.shape == (48, 12)
    assert answer.latent.shape == (48, 2)
    assert answer.training_mean.shape == (192, 12)
    assert (answer.mean > 0).all()
    read = gaussian_square_roots(SMALL, penalty=1.0)(training, test)
    np.testing.assert_array_equal(read.latent, answer.latent)
    cases = small_flu()
    given = Sequences(cases.t[0], cases.y[0])
    recipe = Recipe("matern32", 2, num_inducing=8, num_steps=15, scale=True)
    filled = gaussian_square_roots(recipe)(given, given)
    assert metrics.mse(cases.y[0], filled.mean) < np.var(cases.y[0])
    ahead = ahead_of_square_roots(recipe)(Sequences(cases.t[0][:50], cases.y[0][:50]), given)
    assert ahead.mean.shape == (70, 6)


def test_district_by_week():
    data = small_flu()
    product = np.outer(np.arange(1.0, 71.0), np.arange(1.0, 7.0))
    given = np.where(np.random.default_rng(5).random(product.shape) < 0.2, np.nan, product)
    given[60:] = np.nan
    test = Sequences(data.t[0], given)
    mean = flu.district_by_week(test, test).mean
    np.testing.assert_allclose(mean[:60], product[:60], rtol=1e-6)
    # a week without counts: the mean of the weeks 51 to 53 before, which are weeks 7 to 9 for week 60
    np.testing.assert_allclose(mean[60], product[7:10].mean(0), rtol=1e-6)
    same = flu.same_week(Sequences(data.t[0][:60], product[:60]), test).mean
    np.testing.assert_allclose(same[60], product[7:10].mean(0))


def test_dispersion_of_earlier_forecasts():
    rng, mean = np.random.default_rng(4), np.full((152, 40), 3.0)
    y, t = rng.negative_binomial(0.8, 0.8 / (0.8 + mean)).astype(float), np.arange(152.0)
    y[110, 3] = np.nan
    ahead = np.where(np.arange(152)[:, None] >= 144, np.nan, y)
    known = lambda training, test: Answer(mean[: test.num_frames])  # noqa: E731
    answer = flu.with_dispersion(known)(Sequences(t[:144], y[:144]), Sequences(t, ahead))
    own, limits = answer.log_prob(y), [flu._negative_binomial(y[104:144], mean[104:144], r) for r in (0.7, 0.9)]
    assert np.isnan(own[110, 3])
    used = min(flu._DISPERSIONS, key=lambda r: abs(np.nansum(flu._negative_binomial(y, mean, r) - own)))
    assert 0.7 < used < 0.9  # the truth is 0.8
    assert np.nansum(flu._negative_binomial(y[104:144], mean[104:144], used)) > max(np.nansum(x) for x in limits)
    r, m, k = used, 3.0, y[120, 5]
    ways = math.lgamma(k + r) - math.lgamma(r) - math.lgamma(k + 1)
    wanted = ways + r * math.log(r / (r + m)) + k * math.log(m / (r + m))
    assert own[120, 5] == pytest.approx(wanted, abs=1e-10)
    short = flu.with_dispersion(known)(Sequences(t[:100], y[:100]), Sequences(t[:108], ahead[:108]))
    assert short.log_prob is None  # no earlier forecast: a Poisson distribution of the mean


def test_notes():
    data = small_chorales()
    train, test = data.part("train"), data.part("test")
    y, new = frames(train), frames(test)
    total = 0.0
    for row in new:
        for d in range(88):
            p = (y[:, d].sum() + 0.5) / (len(y) + 1)
            total += math.log(p if row[d] else 1 - p)
    assert chorales.independent_notes(train, test)[0] == pytest.approx(total)
    assert chorales.previous_frame(train, test)[0] > total + 10
    assert chorales.previous_frame(train, Sequences(data.t[:2], data.y[:2])).shape == (2,)


# runs


@pytest.mark.parametrize("name", ["spikes", "chorales", "flu"])
def test_runs(name, tmp_path, monkeypatch, capsys):
    makers = {"load_mc_maze": small_reaches, "load_jsb": small_chorales, "load_flu": small_flu}
    for load, make in makers.items():
        monkeypatch.setattr(datasets, load, make)
    experiments.run(name, tmp_path, seeds=2, quick=True, progress=False)
    text = capsys.readouterr().out
    assert (tmp_path / f"{name}.md").read_text() == text
    results = json.loads((tmp_path / f"{name}.json").read_text())
    labels = {
        "spikes": ("held-out neurons", {"mean rate", "GPFA", "whole-trial weights", "condition mean (oracle)"}),
        "chorales": ("test", {"independent notes", "previous frame"}),
        "flu": ("eight weeks ahead", {"last week", "negative-binomial factors, AR(1)"}),
    }
    part, expected = labels[name]
    assert expected <= set(results[part])
    assert all(label in text for label in expected)
    experiments.run(name, tmp_path, seeds=2, quick=True, progress=False)  # everything is reused
    assert json.loads((tmp_path / f"{name}.json").read_text()) == results


def test_tables_have_gaps(tmp_path):
    """A method without a column has an empty cell; finished cases are not computed again."""
    calls = []

    def full(case):
        calls.append(case)
        return {"a": float(case), "b": 1.0}

    folder = Folder(tmp_path, progress=False)
    text, rows = compare(folder, "title, R²", {"full": full, "half": lambda case: {"b": 2.0}}, [1, 3], {})
    assert text.splitlines()[2:] == ["| full | 2 ± 1.4 | 1 |", "| half |  | 2 |"]
    assert rows["half"] == {"b": {"mean": 2.0, "sd": 0.0}}
    compare(folder, "title, R²", {"full": full}, [1, 3], {})
    assert calls == [1, 3]
    assert all(path.name.isascii() for path in (tmp_path / "runs").iterdir())


# real data


@pytest.mark.data
def test_figures_of_the_baselines_on_neurons(data_home):
    data = datasets.load_mc_maze(data_home=data_home)
    fixed = {
        "time-bin mean": (spike_baselines.time_mean, 0.096, 0.001),
        "whole-trial weights": (spike_baselines.trial_weights(0.08, 1.0), 0.251, 0.002),
        "ridge": (spike_baselines.ridge(300.0, 4.0), 0.184, 0.002),
        "factor analysis": (spike_baselines.factor_analysis(10), 0.188, 0.003),
    }
    for label, (predictor, expected, tolerance) in fixed.items():
        bits = [spikes.predict_hidden(data, fold, predictor)["bits per spike"] for fold in range(5)]
        assert np.mean(bits) == pytest.approx(expected, abs=tolerance), label
    decoded = spikes.decode_velocity(data, 0, spike_baselines.trial_weights(0.08, 1.0))
    assert decoded["rates"] > 0.9


@pytest.mark.data
def test_figures_of_the_baselines_on_flu_and_notes(data_home):
    cases = datasets.load_flu(data_home=data_home)
    for label, predictor, expected in (
        ("district mean", flu.district_mean, (-1.113, 2.18)),
        ("district x week", flu.district_by_week, (-0.418, 1.446)),
        ("linear in time", flu.in_time, (-0.484, 1.345)),
    ):
        runs = [flu.predict_hidden(cases, seed, predictor) for seed in range(5)]
        found = [np.mean([run[name] for run in runs]) for name in ("Poisson score", "RMSE")]
        assert found == pytest.approx(expected, abs=2e-3), label
    notes = datasets.load_jsb(data_home=data_home)
    for model, expected in ((chorales.independent_notes, 11.06), (chorales.previous_frame, 9.00)):
        found = chorales.score(notes.part("train"), notes.part("test"), model)["nats per frame"]
        assert found == pytest.approx(expected, abs=0.005)
