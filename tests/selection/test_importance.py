# SPDX-License-Identifier: Apache-2.0
"""How much held-out errors count if some origins are much harder than others."""

import pytest
import torch

from pyro_vgpds.selection.importance import _LEAST, entry_importance
from pyro_vgpds.selection.weights import simplex_minimum


def weights_of(errors: torch.Tensor, importance: torch.Tensor) -> torch.Tensor:
    """The weights of two or more candidates that minimise the weighted sum of squares."""
    return simplex_minimum(torch.einsum("n,ni,nj->ij", importance, errors, errors).unsqueeze(0))[0]


def make_errors(sizes: list[list[float]], frames: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors of candidates with other sizes at each origin, and the number of the origin."""
    parts = [torch.randn(frames, len(size)).double() * torch.tensor(size) for size in sizes]
    return torch.cat(parts), torch.arange(len(sizes)).repeat_interleave(frames)


def test_a_stormy_origin_does_not_decide_alone():
    """The first candidate is a little better in one storm, the second one much better at all other times."""
    errors, origin = make_errors([[5.0, 6.0], [1.0, 0.1], [1.0, 0.1], [1.0, 0.1]])
    assert weights_of(errors, torch.ones(len(errors)).double())[0] > 0.5
    importance = entry_importance(errors, origin, 1)
    assert weights_of(errors, importance)[1] > 0.9
    torch.testing.assert_close(importance.mean(), torch.ones(()).double())
    assert all(len(importance[origin == k].unique()) == 1 for k in range(4))


@pytest.mark.parametrize("count", [1, 3])
def test_the_factors_lead_to_the_least_mean_logarithm(count):
    """Beside a grid of weights of two candidates."""
    errors, origin = make_errors([[2.0, 3.0], [0.5, 0.3], [1.0, 0.8], [0.2, 0.25]], frames=30)
    size, groups = 30, 4
    if count == 1:
        chosen = torch.arange(groups).unsqueeze(-1)
    else:
        chosen = torch.randint(groups, (64, count), generator=torch.Generator().manual_seed(0))
    least = _LEAST * errors.square().mean(0).min()

    def mean_logarithm(weight: float) -> float:
        squares = (errors @ torch.tensor([weight, 1.0 - weight]).double()).square().view(groups, size).mean(1)
        return float((squares[chosen].mean(1) + least).log().mean())

    grid = torch.linspace(0, 1, 1001).tolist()
    best = min(grid, key=mean_logarithm)
    found = float(weights_of(errors, entry_importance(errors, origin, count))[0])
    assert abs(found - best) < 2e-3


def test_an_origin_without_errors_does_not_decide_alone():
    """One candidate is exact at a constant part, which says little about other times."""
    errors, origin = make_errors([[0.3, 0.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    assert weights_of(errors, entry_importance(errors, origin, 1))[0] > 0.5


def test_factors_are_one_if_nothing_differs():
    errors, origin = make_errors([[1.0, 2.0]])
    assert torch.equal(entry_importance(errors, origin, 1), torch.ones(50).double())
    errors, origin = make_errors([[1.0, 2.0], [5.0, 3.0]])
    assert torch.equal(entry_importance(errors, origin, 1000), torch.ones(100).double())
    errors = torch.zeros(100, 2)
    torch.testing.assert_close(entry_importance(errors, origin, 1), torch.ones(100).double())
