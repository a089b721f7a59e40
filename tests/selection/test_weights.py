# SPDX-License-Identifier: Apache-2.0
"""Weights of ensemble members against a general optimiser and a grid."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from pyro_vgpds.evaluation import HeldOut
from pyro_vgpds.selection.weights import combine, simplex_minimum, stack


def make_members(errors, output, truth=None):
    """Held-out predictions with these errors (n, k)."""
    truth = torch.zeros(len(errors)) if truth is None else truth
    ahead = torch.zeros_like(output)
    return [HeldOut(truth, truth + e, torch.ones_like(e), output, ahead) for e in errors.T]


def correlated(n, size, seed=0):
    """Errors (n, k) of members with sizes (k,), which have a part in common."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(n, 1, generator=generator)
    return torch.tensor(size) * (0.6 * common + 0.8 * torch.randn(n, len(size), generator=generator))


def solve(errors):
    """The weights on the simplex with the smallest sum of squares, by SLSQP."""
    gram = (errors.T @ errors / len(errors)).numpy()
    k = len(gram)
    found = minimize(
        lambda w: w @ gram @ w, np.full(k, 1 / k), jac=lambda w: 2 * gram @ w, method="SLSQP", bounds=[(0, 1)] * k,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-12, "maxiter": 500},
    )  # fmt: skip
    return found.x, found.fun


def mean_square(errors, weights):
    return float((errors @ weights).square().mean())


@pytest.mark.parametrize("size", [[1.0, 1.0], [1.0, 1.2, 1.5], [0.5, 0.6, 0.55, 3.0, 0.9], [2.0]])
def test_weights_minimise_the_error(size):
    errors = correlated(3000, size)
    weights = stack(make_members(errors, torch.zeros(3000, dtype=torch.long)), 1, torch.ones(1))
    assert weights.shape == (len(size), 1)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(0), torch.ones(1).double())
    _, least = solve(errors.double())
    assert mean_square(errors, weights[:, 0]) <= 1.01 * least


@pytest.mark.parametrize("seed", range(8))
def test_one_matrix_has_the_weights_that_it_has_among_others(seed):
    generator, members = torch.Generator().manual_seed(seed), 2 + seed
    errors = torch.randn(12, members, generator=generator, dtype=torch.float64)
    errors += 3.0 * torch.randn(12, 1, generator=generator, dtype=torch.float64)
    twice = torch.cat([errors[:, 1:], errors[:, 1:2]], 1)  # the last two are the same, and share their weight somehow
    grams = torch.stack([errors.mT @ errors, torch.zeros(members, members, dtype=torch.float64), twice.mT @ twice])
    for i, (gram, weights) in enumerate(zip(grams, simplex_minimum(grams), strict=True)):
        alone = simplex_minimum(gram.unsqueeze(0))[0]
        torch.testing.assert_close(alone @ gram @ alone, weights @ gram @ weights)
        assert float(alone.sum()) == pytest.approx(1.0)
        assert float(alone.min()) >= 0.0
        if i < 2:
            torch.testing.assert_close(alone, weights)


def test_two_members_against_a_grid():
    errors = correlated(2000, [1.0, 1.3], seed=3)
    weights = stack(make_members(errors, torch.zeros(2000, dtype=torch.long)), 1, torch.ones(1))[:, 0]
    grid = torch.linspace(0, 1, 1001)
    values = torch.stack([mean_square(errors, torch.stack([w, 1 - w])) * torch.ones(()) for w in grid])
    assert weights[0].item() == pytest.approx(grid[values.argmin()].item(), abs=0.02)


@pytest.mark.parametrize(("n", "gap_length"), [(40, 1.0), (40, 8.0), (4000, 1.0)])
def test_few_gaps_move_weights_towards_equal_ones(n, gap_length):
    errors = correlated(n, [1.0, 1.2], seed=5).double()
    members = make_members(errors, torch.zeros(n, dtype=torch.long))
    found = stack(members, 1, torch.ones(1), gap_length=gap_length)[:, 0]
    gram = errors.T @ errors / n
    gram = gram + 20.0 * gap_length / n * gram.diagonal().min() * torch.eye(2)
    first = (gram[1, 1] - gram[0, 1]) / (gram[0, 0] + gram[1, 1] - 2.0 * gram[0, 1])  # where the derivative is 0
    assert found[0].item() == pytest.approx(first.item(), abs=1e-5)
    if gap_length > 1.0:
        assert abs(found[0] - 0.5) < abs(stack(members, 1, torch.ones(1))[0, 0] - 0.5)


def test_useless_members_have_no_weight():
    errors = correlated(2000, [0.3, 0.3, 10.0], seed=1)
    weights = stack(make_members(errors, torch.arange(2000) % 4), 4, torch.ones(4))
    assert (weights[2] == 0).all()
    assert (weights[:2] > 0.2).all()
    # a copy of the first with more noise cannot help either
    worse = torch.stack([errors[:, 0], errors[:, 0] * 1.5], 1)
    assert stack(make_members(worse, torch.zeros(2000, dtype=torch.long)), 1, torch.ones(1))[1].item() == 0.0


def test_errors_of_very_different_sizes():
    errors = correlated(2000, [100.0, 1.0, 0.01, 0.011], seed=2)
    weights = stack(make_members(errors, torch.zeros(2000, dtype=torch.long)), 1, torch.ones(1))[:, 0]
    assert (weights[:2] == 0).all()
    _, least = solve(errors[:, 2:].double())
    assert mean_square(errors, weights) <= 1.01 * least


def test_at_least_one_member_is_kept():
    same = torch.ones(100, 80)  # more members than the smallest weight allows
    weights = stack(make_members(same, torch.zeros(100, dtype=torch.long)), 1, torch.ones(1))
    torch.testing.assert_close(weights.sum(0), torch.ones(1).double())


def test_a_perfect_member_takes_everything():
    errors = correlated(500, [0.0, 1.0])
    weights = stack(make_members(errors, torch.arange(500) % 2), 2, torch.ones(2))
    torch.testing.assert_close(weights, torch.tensor([[1.0, 1.0], [0.0, 0.0]]).double())


def test_each_output_has_its_own_weights_if_there_are_enough_entries():
    n = 20_000
    output = torch.arange(n) % 2
    size = torch.tensor([[0.5, 2.0], [2.0, 0.5]])[output]  # each member is good at one output
    errors = size * torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    many = stack(make_members(errors, output), 2, torch.ones(2))
    assert many[0, 0] > 0.85
    assert many[1, 1] > 0.85
    few = stack(make_members(errors[:40], output[:40]), 2, torch.ones(2))
    own = [float((weights[:, 0] - weights[:, 1]).abs().max()) for weights in (few, many)]
    assert own[0] < own[1] - 0.1  # few entries: closer to the weights of all outputs


def test_an_output_without_entries_has_the_weights_of_all():
    errors = correlated(400, [1.0, 1.4])
    weights = stack(make_members(errors, torch.zeros(400, dtype=torch.long)), 2, torch.ones(2))
    torch.testing.assert_close(weights[:, 1], weights[:, 0], rtol=0, atol=1e-6)


def test_units_make_no_difference():
    errors = correlated(600, [1.0, 1.2], seed=5)
    output = torch.arange(600) % 3
    scale = torch.tensor([1e-3, 1.0, 1e4])
    plain = stack(make_members(errors, output), 3, torch.ones(3))
    scaled = stack(make_members(errors * scale[output][:, None], output), 3, scale)
    torch.testing.assert_close(plain, scaled, rtol=1e-6, atol=1e-8)


def test_the_combination_is_that_of_a_mixture():
    generator = torch.Generator().manual_seed(0)
    output, ahead, truth = torch.tensor([0, 1, 1, 0]), torch.arange(4), torch.randn(4, generator=generator)
    means, variances = torch.randn(3, 4, generator=generator), 0.1 + torch.rand(3, 4, generator=generator)
    weights = torch.tensor([[0.2, 0.0], [0.5, 1.0], [0.3, 0.0]])
    found = combine([HeldOut(truth, m, v, output, ahead) for m, v in zip(means, variances, strict=True)], weights)
    for i in range(4):
        w = weights[:, output[i]]
        mean = sum(w[j] * means[j, i] for j in range(3))
        second = sum(w[j] * (variances[j, i] + means[j, i] ** 2) for j in range(3))
        assert found.mean[i].item() == pytest.approx(mean.item())
        assert found.variance[i].item() == pytest.approx((second - mean**2).item())
    assert found.truth is truth
    assert torch.equal(found.ahead, ahead)


def test_importance_counts_entries_more_than_once():
    errors = torch.randn(300, 2) * torch.tensor([1.0, 1.2])
    output, importance = torch.arange(300) % 3, torch.randint(1, 4, (300,))
    twice = torch.arange(300).repeat_interleave(importance)
    found = stack(make_members(errors, output), 3, torch.ones(3), importance=importance)
    repeated = stack(make_members(errors[twice], output[twice]), 3, torch.ones(3))
    torch.testing.assert_close(found, repeated)
