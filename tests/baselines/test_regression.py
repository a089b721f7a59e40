# SPDX-License-Identifier: Apache-2.0
"""Ridge and kernel ridge regression against slow, obvious twins."""

import numpy as np
import pytest
import torch

from pyro_vgpds import Sequences
from pyro_vgpds.baselines import kernel_ridge, linear_interpolation, nearest_neighbour, ridge_regression
from pyro_vgpds.baselines.kernel_ridge import _PENALTIES, _gram, _leave_one_out
from pyro_vgpds.data.filling import windows


def make_waves(n=60, outputs=6, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(float(n))
    state = np.stack([np.sin(t / 3), np.cos(t / 5), np.sin(t / 2)], 1)
    return t, state @ rng.standard_normal((3, outputs)) + 0.02 * rng.standard_normal((n, outputs)) + 4


def test_windows():
    parts = [torch.arange(6.0).reshape(3, 2), torch.arange(4.0).reshape(2, 2) + 10]
    nan = np.nan
    expected = [[0, 1, nan, nan, 4, 5], [2, 3, 0, 1, nan, nan], [4, 5, 2, 3, nan, nan]]
    expected += [[10, 11, nan, nan, nan, nan], [12, 13, 10, 11, nan, nan]]
    np.testing.assert_array_equal(windows(parts, (-1, 2)).numpy(), expected)


def test_ridge_twin():
    """One sweep after another, with conditionals from the covariance itself, frame by frame."""
    rng = np.random.default_rng(1)
    t, y = make_waves(25, 3)
    y[rng.random(y.shape) < 0.25] = np.nan
    y[8:10] = np.nan
    mean, variance = ridge_regression(t, y, lags=(-1, 1), penalty=0.01, return_variance=True)
    centre, scale = np.nanmean(y, 0), np.nanstd(y, 0)
    z = (y - centre) / scale
    start = linear_interpolation(t, z).numpy()

    def stack(part):
        edge = np.full((1, 3), np.nan)
        return np.concatenate([part, np.r_[edge, part[:-1]], np.r_[part[1:], edge]], 1)

    x, given = np.nan_to_num(stack(start)), stack(z)
    square = x.T @ x
    for _ in range(5):
        s = (square / 25 + 0.01 * np.eye(9)) / 1.01 + 1e-9 * np.eye(9)
        square, spread = np.zeros((9, 9)), np.zeros((25, 9))
        for n in range(25):
            o, m = ~np.isnan(given[n]), np.isnan(given[n])
            gain = s[np.ix_(m, o)] @ np.linalg.inv(s[np.ix_(o, o)])
            x[n, m] = gain @ given[n, o]
            rest = np.zeros((9, 9))
            rest[np.ix_(m, m)] = s[np.ix_(m, m)] - gain @ s[np.ix_(o, m)]
            spread[n] = rest.diagonal()
            square += np.outer(x[n], x[n]) + rest
    seen = ~np.isnan(y)
    np.testing.assert_allclose(mean.numpy(), np.where(seen, y, x[:, :3] * scale + centre), rtol=1e-7)
    np.testing.assert_allclose(variance.numpy(), np.where(seen, 0, spread[:, :3] * scale**2), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("best", [1e-4, 1e-3, 1e-2, 1e-1, 1.0])
def test_the_search_finds_the_best_penalty(best, monkeypatch):
    used = []

    def regress(y, seen, t, rows, lags, penalty):
        used.append(penalty)
        off = abs(np.log10(penalty / best))
        return y.nan_to_num(0.0) + off, torch.zeros_like(y)

    monkeypatch.setattr("pyro_vgpds.baselines.regression.regress_windows", regress)
    t, y = make_waves()
    y[5:8, :2] = np.nan
    ridge_regression(t, y)
    assert used[-1] == best  # of the final fit
    assert len(used[:-1]) == len(set(used[:-1])) <= 4


def test_ridge_chooses_a_penalty_and_is_better_than_a_line():
    t, clean = make_waves(120)
    rng = np.random.default_rng(0)
    y = clean.copy()
    for start in range(10, 100, 20):
        y[start : start + 6, rng.permutation(6)[:3]] = np.nan
    hidden = np.isnan(y)

    def error(filled):
        return np.sqrt(np.mean((filled.numpy() - clean)[hidden] ** 2))

    chosen = error(ridge_regression(t, y))
    assert chosen < 0.2 * error(linear_interpolation(t, y))
    assert chosen < 1.5 * min(error(ridge_regression(t, y, penalty=p)) for p in (1e-4, 1e-2, 1.0))
    _, variance = ridge_regression(t, y, return_variance=True)
    assert 0.2 < chosen**2 / float(variance[torch.from_numpy(hidden)].mean()) < 5.0


def test_ridge_shrinks_its_default_window():
    rng = np.random.default_rng(0)
    y = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 410))
    y[2, 7] = np.nan
    torch.testing.assert_close(ridge_regression(range(6), y), ridge_regression(range(6), y, lags=()), rtol=0, atol=0)


def test_ridge_refuses():
    t, y = make_waves(10)
    with pytest.raises(ValueError, match="lags must be distinct whole numbers other than 0"):
        ridge_regression(t, y, lags=(0, 1))
    with pytest.raises(ValueError, match="lags must be distinct"):
        ridge_regression(t, y, lags=(1, 1))
    with pytest.raises(ValueError, match="penalty must be positive, but got 0"):
        ridge_regression(t, y, penalty=0.0)
    with pytest.raises(ValueError, match="windows of 2001 entries, more than 2000: use fewer lags, or ppca"):
        ridge_regression(range(2), np.zeros((2, 2001)))


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_leave_one_out_twin(kernel):
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.standard_normal((12, 3))), torch.tensor(rng.standard_normal((12, 2)))
    gram = _gram(x, x, torch.tensor(1.5), kernel)
    error, penalty = _leave_one_out(gram, y)
    errors = []
    for p in _PENALTIES:
        total = 0.0
        for i in range(12):
            o = [j for j in range(12) if j != i]
            total += (gram[i, o] @ torch.linalg.solve(gram[o][:, o] + p * torch.eye(11), y[o]) - y[i]).square().mean()
        errors.append(float(total) / 12)
    assert error == pytest.approx(min(errors), rel=1e-6)
    assert penalty == float(_PENALTIES[errors.index(min(errors))])


def test_kernel_ridge_learns_what_neighbours_miss():
    x = np.linspace(0, 6, 80)
    train = np.stack([x, np.sin(x), 2 * x + 1], 1)
    test = np.stack([x + 0.03, np.sin(x + 0.03), 2 * (x + 0.03) + 1], 1)[:70]
    gaps = test.copy()
    gaps[:, 1:] = np.nan
    gaps[5] = np.nan
    filled = kernel_ridge(train, gaps)
    np.testing.assert_allclose(filled[5].numpy(), train.mean(0))
    rest = np.arange(70) != 5
    np.testing.assert_allclose(filled.numpy()[rest], test[rest], atol=1e-2)
    near = nearest_neighbour(train, gaps)
    assert np.abs(filled.numpy() - test)[rest].max() < 0.5 * np.abs(near.numpy() - test)[rest].max()
    linear = kernel_ridge(train, gaps, kernel="linear").numpy()
    assert np.abs(linear[rest, 1] - test[rest, 1]).max() > 0.3
    gaps[rest, 1] = test[rest, 1]
    np.testing.assert_allclose(kernel_ridge(train, gaps, kernel="linear").numpy()[rest], test[rest], atol=1e-3)


def test_kernel_ridge_lags_stay_within_sequences():
    t, y = make_waves(90, 3)
    y = y[:, :1] * [1, 0, 0] + np.gradient(y[:, 0])[:, None] * [0, 1, 0] + y[:, 2:] * [0, 0, 1]
    train, test = [y[:40], y[40:70]], [y[70:].copy(), y[60:75].copy()]
    for part in test:
        part[:, 1] = np.nan  # the change of column 0: neighbours are needed
    alone, lagged = kernel_ridge(train, test), kernel_ridge(train, test, lags=(-1, 1))
    assert [tuple(part.shape) for part in lagged] == [(20, 3), (15, 3)]

    def error(filled):
        return float((filled[0][1:-1, 1] - torch.tensor(y[71:89, 1])).square().mean())

    assert error(lagged) < 0.5 * error(alone)
    joined = Sequences([t[:40], t[:30]], train)
    for part, other in zip(kernel_ridge(joined, test, lags=(-1, 1)), lagged, strict=True):
        torch.testing.assert_close(part, other)


def test_kernel_ridge_refuses():
    y = np.zeros((3, 2))
    with pytest.raises(ValueError, match="kernel must be one of 'rbf', 'linear'"):
        kernel_ridge(y, y, kernel="cubic")
    with pytest.raises(ValueError, match="train must be finite"):
        kernel_ridge(y * np.nan, y)
    with pytest.raises(ValueError, match="test has 3 columns, but train has 2"):
        kernel_ridge(y, np.zeros((3, 3)))
    with pytest.raises(ValueError, match="test must be finite or NaN"):
        kernel_ridge(y, y + np.inf)
    with pytest.raises(ValueError, match="lags must be distinct"):
        kernel_ridge(y, y, lags=(0,))
