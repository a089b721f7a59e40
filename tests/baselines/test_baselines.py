# SPDX-License-Identifier: Apache-2.0
"""Baselines against slow, obvious twins, and the figures of the paper that they reproduce."""

import importlib
import math

import numpy as np
import pytest
import torch

from pyro_vgpds import VGPDS, Sequences, baselines, metrics
from pyro_vgpds.baselines.pca import _em
from pyro_vgpds.datasets import load_clip, load_cmu35, load_missa, make_gait, make_pendulum_video, make_sequences
from pyro_vgpds.kernels import ARDRBF, RBF, Bias, Linear, Matern12, Matern32, White

IMPUTERS = [
    baselines.column_mean,
    baselines.column_median,
    baselines.last_value,
    baselines.last_value_with_drift,
    baselines.damped_trend,
    baselines.linear_interpolation,
    baselines.cubic_spline,
    baselines.pca,
    baselines.ppca,
    lambda t, y=None: baselines.linear_dynamical_system(t, y, num_steps=5),
    baselines.ridge_regression,
    baselines.gp_interpolation,
    lambda t, y=None: baselines.repeat_cycle(t, y, 2.0),
    lambda t, y=None: baselines.repeat_cycle(t, y, 2.0, drift=True),
]


def make_problem(seed=0, lengths=(20, 12), outputs=5, missing=0.3):
    rng = np.random.default_rng(seed)
    t = [np.cumsum(rng.uniform(0.2, 0.8, n)) for n in lengths]
    phase = rng.uniform(0, 6, outputs)
    y = [np.sin(1.3 * a[:, None] + phase) + 0.05 * rng.standard_normal((len(a), outputs)) + phase for a in t]
    gaps = [part.copy() for part in y]
    for part in gaps:
        part[rng.random(part.shape) < missing] = np.nan
    gaps[0][-4:] = np.nan
    gaps[1][:, 2] = np.nan  # a column that one sequence never shows
    return t, gaps, y


@pytest.mark.long
@pytest.mark.parametrize("impute", IMPUTERS)
def test_forms(impute):
    t, y, _ = make_problem()
    several = impute(t, y)
    assert [tuple(part.shape) for part in several] == [(20, 5), (12, 5)]
    for part, given in zip(several, y, strict=True):
        assert part.dtype == torch.float64
        assert bool(torch.isfinite(part).all())
        seen = ~np.isnan(given)
        np.testing.assert_array_equal(part.numpy()[seen], given[seen])
    for again, part in zip(impute(Sequences(t, y)), several, strict=True):
        torch.testing.assert_close(again, part, rtol=0, atol=0)
    one = impute(t[0], torch.tensor(y[0]))
    assert one.shape == (20, 5)
    as_list = impute([t[0]], [y[0]])
    assert isinstance(as_list, list)
    torch.testing.assert_close(as_list[0], one, rtol=0, atol=0)
    complete = impute(t[0], np.nan_to_num(y[0]))
    np.testing.assert_array_equal(complete.numpy(), np.nan_to_num(y[0]))


@pytest.mark.long
@pytest.mark.parametrize("impute", IMPUTERS)
def test_default_dtype_does_not_matter(impute):
    t, y, _ = make_problem()
    expected = impute(t, y)
    torch.set_default_dtype(torch.float32)  # as most users have it; each test begins with float64 again
    for part, other in zip(impute(t, y), expected, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impute", IMPUTERS)
def test_single_frames(impute):
    y = [np.array([[1.0, np.nan]]), np.array([[3.0, 5.0]])]
    filled = impute([[0.0], [0.0]], y)
    np.testing.assert_allclose(filled[0].numpy(), [[1.0, 5.0]])


@pytest.mark.parametrize("impute", IMPUTERS)
def test_refuses(impute):
    with pytest.raises(ValueError, match="column 1 of y was never observed"):
        impute([0.0, 1.0], [[1.0, np.nan], [2.0, np.nan]])
    with pytest.raises(ValueError, match="y is required: these data have times only"):
        impute([0.0, 1.0])
    with pytest.raises(ValueError, match="y has 3 rows, but t has 2 times"):
        impute([0.0, 1.0], np.zeros((3, 1)))
    with pytest.raises(ValueError, match="either Sequences alone, or t and y"):
        impute(Sequences([0.0, 1.0], np.zeros((2, 1))), np.zeros((2, 1)))


def test_simple_twins():
    t, y, _ = make_problem(seed=1)
    mean, median = np.nanmean(np.concatenate(y), 0), np.nanmedian(np.concatenate(y), 0)
    simple = (
        baselines.column_mean, baselines.column_median, baselines.last_value, baselines.linear_interpolation,
    )  # fmt: skip
    filled = {f: f(t, y) for f in simple}
    for s, (times, part) in enumerate(zip(t, y, strict=True)):
        for d, column in enumerate(part.T):
            seen = ~np.isnan(column)
            lines, last = np.full_like(column, mean[d]), np.full_like(column, mean[d])
            if seen.any():
                lines = np.interp(times, times[seen], column[seen])
                for n in range(len(column)):
                    past = np.flatnonzero(seen[: n + 1])
                    last[n] = column[past[-1] if len(past) else np.flatnonzero(seen)[0]]
            np.testing.assert_allclose(filled[baselines.linear_interpolation][s][:, d], lines, rtol=1e-12)
            np.testing.assert_allclose(filled[baselines.last_value][s][:, d], last, rtol=1e-12)
            np.testing.assert_allclose(
                filled[baselines.column_mean][s][:, d], np.where(seen, column, mean[d]), rtol=1e-12
            )
            np.testing.assert_allclose(
                filled[baselines.column_median][s][:, d], np.where(seen, column, median[d]), rtol=1e-12
            )


def test_spline_twin():
    interpolate = pytest.importorskip("scipy.interpolate")
    t, y, _ = make_problem()
    y[0][:, 0] = y[0][:, 1] = y[1][:, 3] = np.nan  # columns with one, two and three observations
    y[0][3, 0] = y[0][2, 1] = y[0][9, 1] = y[1][2, 3] = y[1][5, 3] = y[1][9, 3] = 1.5
    for times, part, filled in zip(t, y, baselines.cubic_spline(t, y), strict=True):
        for d in range(5):
            seen = ~np.isnan(part[:, d])
            if seen.sum() == 0:
                expected = np.nanmean(np.concatenate(y)[:, d])
            elif seen.sum() == 1:
                expected = part[seen, d]
            else:
                spline = interpolate.CubicSpline(times[seen], part[seen, d], bc_type="natural")
                expected = spline(times.clip(times[seen][0], times[seen][-1]))
            np.testing.assert_allclose(filled[:, d].numpy() - expected, 0.0, atol=1e-12)


def test_repeat_cycle_twin():
    t, y, _ = make_problem(seed=2)
    period = 1.7
    filled = baselines.repeat_cycle(t, y, period)
    for part, times, given in zip(filled, t, y, strict=True):
        for d, column in enumerate(given.T):
            seen = ~np.isnan(column)
            if not seen.any():
                continue
            for n in np.flatnonzero(~seen):
                at = times[n]
                first = times[seen][0]
                while at > times[seen][times[seen] <= times[n]].max(initial=-np.inf) and times[n] >= first:
                    at -= period
                while times[n] < first and at < first:
                    at += period
                assert float(part[n, d]) == pytest.approx(np.interp(at, times[seen], column[seen]), rel=1e-10)


def test_repeat_cycle_continues_a_wave():
    t = np.arange(60.0)
    y = np.sin(2 * np.pi * t / 12)[:, None] * np.ones((1, 3)) + np.array([0.0, 1.0, 2.0])
    hidden = y.copy()
    hidden[40:] = np.nan
    hidden[:5, 0] = np.nan
    np.testing.assert_allclose(baselines.repeat_cycle(t, hidden, 12.0).numpy(), y, atol=1e-12)
    assert baselines.estimate_period(t, hidden) == pytest.approx(12.0, abs=0.05)
    np.testing.assert_allclose(baselines.repeat_cycle(t, hidden).numpy(), y, atol=0.05)


def test_the_period_of_monthly_data_is_a_year():
    dates = np.arange("2010-01", "2018-01", dtype="datetime64[M]").astype("datetime64[D]")
    rng = np.random.default_rng(0)
    season = rng.standard_normal((12, 3))
    y = season[np.arange(96) % 12] + 0.01 * np.arange(96)[:, None] + 0.1 * rng.standard_normal((96, 3))
    assert baselines.estimate_period(Sequences(dates, y)) / 86400 == pytest.approx(365.25, abs=0.5)
    assert baselines.estimate_period(np.arange(96.0), y) == 12.0  # a trend does not move it between the frames
    kept = np.r_[0:40, 46:96]  # and a gap does not change the step
    assert baselines.estimate_period(Sequences(dates[kept], y[kept])) / 86400 == pytest.approx(365.25, abs=0.5)


def test_period_of_generated_data():
    video = make_pendulum_video(period=18.5)
    assert baselines.estimate_period(video.t, video.y) == pytest.approx(18.5, abs=0.2)
    gait = make_gait(num_sequences=1, styles=["run"], length=(100, 100))
    assert baselines.estimate_period(gait.t, gait.y) == pytest.approx(1 / 1.4, rel=0.15)


def test_a_period_is_found_on_both_sides_of_a_huge_gap():
    t = np.arange(60.0)
    t[30:] += 12e9  # as after a wrong date: a shift for every step would take all memory
    assert baselines.estimate_period(t, np.sin(2 * np.pi * t / 12)[:, None]) == pytest.approx(12.0, abs=0.05)


def test_period_refuses():
    t = np.arange(20.0)
    with pytest.raises(ValueError, match="the data do not repeat within 60 % of the longest sequence: pass period="):
        baselines.estimate_period(t, t[:, None])
    with pytest.raises(ValueError, match="no sequence has four frames with half of the outputs observed: pass period="):
        baselines.estimate_period(t[:3], np.zeros((3, 1)))
    with pytest.raises(ValueError, match=r"longer: the data have no cycle of several periods of 12\. Pass period="):
        baselines.estimate_period(np.arange(60.0), np.sin(np.pi * np.arange(60.0) / 6)[:, None], longer=True)
    for period in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="period must be positive and finite"):
            baselines.repeat_cycle(t, t[:, None], period)


def test_nearest_neighbour_twin():
    rng = np.random.default_rng(3)
    train, test = rng.standard_normal((30, 6)) * [1, 1, 1, 1, 1, 50], rng.standard_normal((7, 6))
    train[:, 4] = 2.0  # constant: its scale is one
    test[rng.random(test.shape) < 0.4] = np.nan
    test[3] = np.nan
    test[4] = 1.0
    for k in (1, 3):
        for scaled in (False, True):
            scale = np.where(train.std(0) > 0, train.std(0, ddof=1), 1.0) if scaled else np.ones(6)
            filled = baselines.nearest_neighbour(train, torch.tensor(test), k=k, scaled=scaled).numpy()
            for row, given in zip(filled, test, strict=True):
                seen = ~np.isnan(given)
                distance = [np.linalg.norm((frame - given)[seen] / scale[seen]) for frame in train]
                near = train[np.argsort(distance)[:k]] if seen.any() else train
                np.testing.assert_allclose(row, np.where(seen, given, near.mean(0)), rtol=1e-12)
    parts = baselines.nearest_neighbour([train[:10], train[10:]], [test[:3], test[3:]])
    whole = baselines.nearest_neighbour(Sequences(np.arange(30.0), train), test)
    torch.testing.assert_close(torch.cat(parts), whole)


def test_nearest_neighbour_refuses():
    train, test = np.zeros((4, 3)), np.zeros((2, 3))
    with pytest.raises(ValueError, match="k must be between 1 and the 4 training frames, but got 5"):
        baselines.nearest_neighbour(train, test, k=5)
    with pytest.raises(ValueError, match="train must be finite"):
        baselines.nearest_neighbour(np.full((4, 3), np.nan), test)
    with pytest.raises(ValueError, match="test must be finite or NaN"):
        baselines.nearest_neighbour(train, np.full((4, 3), np.inf))
    with pytest.raises(ValueError, match="test has 2 columns, but train has 3"):
        baselines.nearest_neighbour(train, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"train must be frames \(N, D\), but its shape is \(4,\)"):
        baselines.nearest_neighbour(np.zeros(4), test)
    with pytest.raises(ValueError, match=r"train must have the same number of columns, but got \[3, 2\]"):
        baselines.nearest_neighbour([train, np.zeros((2, 2))], test)


@pytest.mark.parametrize("impute", [baselines.pca, baselines.ppca])
@pytest.mark.parametrize("shape", [(40, 8), (8, 40)])
def test_components_of_low_rank_data(impute, shape):
    rng = np.random.default_rng(0)
    y = rng.standard_normal((shape[0], 2)) @ rng.standard_normal((2, shape[1])) + rng.standard_normal(shape[1])
    hidden = y.copy()
    hidden[rng.random(y.shape) < 0.15] = np.nan
    t = np.arange(float(shape[0]))
    filled = impute(t, hidden, 2, num_iterations=3000, tolerance=1e-8)
    np.testing.assert_allclose(filled.numpy(), y, atol=2e-3)
    noisy = hidden + 0.05 * rng.standard_normal(y.shape)
    truth = np.where(np.isnan(hidden), y, np.nan)
    chosen, one = impute(t, noisy), impute(t, noisy, 1)
    assert metrics.mse(truth, chosen) < 0.15 * metrics.mse(truth, one)


def test_em_of_complete_data_is_the_closed_form():
    """Tipping and Bishop (1999): with eigenvalues λ of the covariance, the fit keeps (λ − σ²)/λ of each component."""
    rng = np.random.default_rng(1)
    y = torch.tensor(rng.standard_normal((60, 3)) @ rng.standard_normal((3, 7)) + 0.3 * rng.standard_normal((60, 7)))
    mean = y.mean(0)
    values, vectors = torch.linalg.eigh((y - mean).mT @ (y - mean) / 60)
    noise = values[:5].mean()
    lead = vectors[:, 5:]
    expected = mean + (y - mean) @ lead @ torch.diag((values[5:] - noise) / values[5:]) @ lead.mT
    fitted = _em(y, torch.ones_like(y, dtype=torch.bool), 2, 5000, 1e-12)
    torch.testing.assert_close(fitted, expected, rtol=0, atol=1e-5)


def test_components_refuse():
    with pytest.raises(ValueError, match="num_components must be between 1 and 2, the smaller side of y, but got 3"):
        baselines.ppca(np.arange(4.0), np.zeros((4, 2)), 3)


def test_gp_twin():
    """Every output's likelihood over the same grid by dense algebra, and the textbook prediction at the best of it."""
    t, y, _ = make_problem(seed=4, outputs=3)
    mean, variance = baselines.gp_interpolation(t, y, RBF, return_variance=True)
    from pyro_vgpds.baselines import gp
    from pyro_vgpds.baselines.gaps import Gaps

    scales, ratios = gp._lengthscales(Gaps(t, y)), gp._RATIOS
    for d in range(3):
        seen = [~np.isnan(part[:, d]) for part in y]
        values = np.concatenate([part[s, d] for part, s in zip(y, seen, strict=True)])
        one, count = np.ones(len(values)), len(values)
        best = (-np.inf, None)
        for scale in scales.numpy():
            blocks = [np.exp(-0.5 * ((a[s, None] - a[s]) / scale) ** 2) for a, s in zip(t, seen, strict=True)]
            corr = np.zeros((count, count))
            at = 0
            for block in blocks:
                corr[at : at + len(block), at : at + len(block)] = block
                at += len(block)
            for ratio in ratios.numpy():
                k = corr + ratio * np.eye(count)
                information = one @ np.linalg.solve(k, one)
                centre = one @ np.linalg.solve(k, values) / information
                sigma = (values - centre) @ np.linalg.solve(k, values - centre) / (count - 1)
                evidence = -0.5 * ((count - 1) * np.log(sigma) + np.linalg.slogdet(k)[1] + np.log(information))
                best = max(best, (evidence, (scale, ratio, sigma, corr, centre, information)), key=lambda b: b[0])
        scale, ratio, sigma, corr, centre, information = best[1]
        times = np.concatenate([a[s] for a, s in zip(t, seen, strict=True)])
        owner = np.concatenate([np.full(s.sum(), i) for i, s in enumerate(seen)])
        k = corr + ratio * np.eye(count)
        for i, (a, s) in enumerate(zip(t, seen, strict=True)):
            for n in np.flatnonzero(~s):
                cross = np.exp(-0.5 * ((a[n] - times) / scale) ** 2) * (owner == i)
                assert float(mean[i][n, d]) == pytest.approx(
                    centre + cross @ np.linalg.solve(k, values - centre), abs=1e-6
                )
                unsure = (1 - cross @ np.linalg.solve(k, one)) ** 2 / information
                expected = sigma * (1 + ratio - cross @ np.linalg.solve(k, cross) + unsure)
                assert float(variance[i][n, d]) == pytest.approx(expected, rel=1e-5, abs=1e-9)
            assert (variance[i].numpy()[s, d] == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("numbers", [1, 1 << 12, 1 << 21])  # one pattern at a time, some, all
def test_gp_patterns_at_once(monkeypatch, numbers):
    """Outputs with patterns of their own, and others that share one, as if each were computed alone."""
    from pyro_vgpds.baselines import gp

    t, y, _ = make_problem(seed=8, lengths=(15, 9, 1), outputs=20)
    for part in y:
        part[:, 5:9] = part[:, 4:5] ** [2, 3, 4, 5]  # five share a pattern, and below three
        part[:, 10:12] = part[:, 9:10] ** [2, 3]
    y[0][:, 12] = np.nan
    y[1][:, 13] = np.nan
    y[1][3:5, 13] = 1.0, 2.0
    alone = [baselines.gp_interpolation(t, [part[:, [d]] for part in y], return_variance=True) for d in range(20)]
    monkeypatch.setattr(gp, "_NUMBERS", numbers)
    mean, variance = baselines.gp_interpolation(t, y, return_variance=True)
    for i in range(len(t)):
        torch.testing.assert_close(mean[i], torch.cat([m[i] for m, _ in alone], -1), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(variance[i], torch.cat([v[i] for _, v in alone], -1), rtol=1e-9, atol=1e-12)


def test_gp_kernel_of_each_output():
    """A random walk and a smooth output get the kernel that is more likely for each."""
    from pyro_vgpds.baselines import gp
    from pyro_vgpds.baselines.gaps import Gaps

    rng = np.random.default_rng(6)
    t = np.arange(80.0)
    y = np.stack([rng.standard_normal(80).cumsum(), np.sin(0.15 * t) + 0.3 * np.cos(0.4 * t)], 1)
    y[70:] = np.nan
    found = baselines.gp_interpolation(t, y)
    each = [baselines.gp_interpolation(t, y, kernel) for kernel in (Matern12, Matern32)]
    evidence = torch.stack([gp._best_processes(kernel, Gaps(t, y))[2] for kernel in (Matern12, Matern32)])
    assert evidence.argmax(0).tolist() == [0, 1]
    torch.testing.assert_close(found, torch.stack([each[0][:, 0], each[1][:, 1]], 1), rtol=0, atol=0)


def test_gp_forecasts_a_random_walk_from_its_last_value():
    rng = np.random.default_rng(7)
    y = np.concatenate([rng.standard_normal((150, 20)).cumsum(0), np.full((20, 20), np.nan)])
    last = y[149]
    found = baselines.gp_interpolation(np.arange(170.0), y)[150:].numpy()
    far = np.abs(last - np.nanmean(y, 0))
    assert np.median(np.abs(found[-1] - last) / far) < 0.3


def test_gp_is_calibrated_and_takes_constants():
    rng = np.random.default_rng(5)
    t = np.linspace(0, 10, 80)
    y = np.sin(t[:, None] * rng.uniform(0.5, 2, 30)) + 0.2 * rng.standard_normal((80, 30))
    hidden = np.where(rng.random(y.shape) < 0.3, np.nan, y)
    truth = np.where(np.isnan(hidden), y, np.nan)
    mean, variance = baselines.gp_interpolation(t, hidden, return_variance=True)
    sd = variance.sqrt()
    assert metrics.coverage(truth, mean - 1.96 * sd, mean + 1.96 * sd) == pytest.approx(0.95, abs=0.03)
    assert metrics.mse(truth, mean) < metrics.mse(truth, baselines.linear_interpolation(t, hidden))
    flat = hidden[:, :2].copy()
    flat[~np.isnan(flat)] = 3.0
    mean, variance = baselines.gp_interpolation(t, flat, return_variance=True)
    np.testing.assert_allclose(mean.numpy(), 3.0)
    hidden = variance[np.isnan(flat)]
    assert bool(((hidden > 0) & (hidden < 1e-6)).all())  # nothing varies


@pytest.mark.parametrize("kernel", [Linear, Matern32(), "rbf"])
def test_gp_refuses(kernel):
    with pytest.raises(TypeError, match="kernel must be one of the classes RBF, Matern12, Matern32, Matern52"):
        baselines.gp_interpolation(np.arange(3.0), np.zeros((3, 1)), kernel)


#                   SC     RA
TABLE_1 = {
    ("legs", False): ("14.01", "4.11"),
    ("body", False): ("30.89", "3.20"),
    ("legs", True): ("13.50", "4.44"),
    ("body", True): ("20.86", "2.62"),
}


@pytest.mark.data
@pytest.mark.parametrize(("block", "scaled"), TABLE_1)
def test_nearest_neighbour_rows_of_table_1(block, scaled, data_home):
    data = load_cmu35(data_home=data_home)
    filled = baselines.nearest_neighbour(data.y, data.hide(data.test_y, block), scaled=scaled)
    score = data.score(data.test_y, filled, block)
    assert (f"{score['SC']:.2f}", f"{score['RA']:.2f}") == TABLE_1[block, scaled]


@pytest.mark.long
@pytest.mark.data
def test_missa(data_home):
    video = load_missa(data_home=data_home)
    truth, (_, partial) = video.truth(), video.partial()
    errors = []
    for k in range(1, 6):
        filled = baselines.nearest_neighbour(video.training(), partial, k=k)
        errors.append((metrics.mae(truth, filled), metrics.mse(truth, filled)))
    assert int(np.argmin([mae for mae, _ in errors])) + 1 == 2
    assert errors[1] == (pytest.approx(1.685, abs=5e-4), pytest.approx(16.14, abs=5e-3))
    y = video.y[0].copy()
    y[video.test] = partial
    for impute, mae, mse in (
        (baselines.column_mean, 5.33, 188.5),
        (baselines.linear_interpolation, 1.494, 10.16),
        (baselines.gp_interpolation, 1.300, 7.629),
    ):
        filled = impute(video.t[0], y)[video.test]
        assert metrics.mae(truth, filled) == pytest.approx(mae, rel=1e-3)
        assert metrics.mse(truth, filled) == pytest.approx(mse, rel=1e-3)


@pytest.mark.long
@pytest.mark.data
@pytest.mark.parametrize(("name", "period"), [("mouse", 15), ("pendulum", 26)])
def test_periodic_clips(name, period, data_home):
    video = load_clip(name, data_home=data_home)
    y = video.y[0].copy()
    y[60:] = np.nan
    assert baselines.estimate_period(video.t[0], y) == pytest.approx(period, abs=0.5)
    truth, mean, cycle = (
        v[60:] for v in (video.y[0], baselines.column_mean(video.t, [y])[0], baselines.repeat_cycle(video.t, [y])[0])
    )
    assert metrics.mae(truth, cycle) < metrics.mae(truth, mean)


@pytest.mark.long
def test_arrays_in_any_memory_order():
    rng = np.random.default_rng(0)
    y = np.where(rng.random((12, 9)) < 0.2, np.nan, rng.standard_normal((12, 9)))
    t = np.arange(12.0)
    for impute in (baselines.ppca, baselines.pca, baselines.linear_interpolation, baselines.gp_interpolation):
        torch.testing.assert_close(impute(t, np.asfortranarray(y)), impute(t, y))


@pytest.mark.long
def test_the_map_model_reconstructs_and_names_what_it_needs():
    data = make_sequences(num_sequences=4, num_outputs=12, length=(25, 35), seed=1).sequences()
    t, y = ([v[s] for s in data.times.slices()] for v in (data.times.t, data.y))
    train = Sequences(t[:-1], y[:-1])
    model = VGPDS.from_data(train, 3, 25, temporal=Matern32().fix("variance") + White(1e-2) + Bias(0.1))
    first = model.noise.detach().clone()
    rival = baselines.MapGPLVM.fit(model, train, 150)
    assert (model.noise != first).all()
    partly = y[-1].clone()
    partly[len(partly) // 2 :, :6] = torch.nan
    hidden = torch.isnan(partly)
    error = (rival.reconstruct(t[-1], partly) - y[-1])[hidden].square().mean().sqrt()
    assert error < 0.5 * y[-1][hidden].std()
    by_hand = VGPDS(RBF(1.0, 1.0), ARDRBF(1.0, 1.0), torch.zeros(2, 1), 0.1, torch.zeros(12))
    with pytest.raises(ValueError, match="needs a model made by VGPDS"):
        baselines.MapGPLVM.fit(by_hand, train)


def test_the_search_for_lengthscales_finds_what_the_whole_grid_has(monkeypatch):
    rng = np.random.default_rng(2)
    t = np.sort(rng.uniform(0.0, 10.0, 60))
    y = np.stack([np.sin(speed * t) for speed in (0.3, 1.0, 3.0, 8.0)], 1) + 0.1 * rng.standard_normal((60, 4))
    y[rng.uniform(size=y.shape) < 0.2] = np.nan
    found = baselines.gp_interpolation(t, y, return_variance=True)
    monkeypatch.setattr(importlib.import_module("pyro_vgpds.baselines.gp"), "_COARSE", 1)  # all of them
    for ours, whole in zip(found, baselines.gp_interpolation(t, y, return_variance=True), strict=True):
        torch.testing.assert_close(ours, whole)
