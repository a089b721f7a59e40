# SPDX-License-Identifier: Apache-2.0
"""A short, seeded part of the fuzz suite of problems. `make fuzz` tries many more, larger ones."""

import pyro
import pytest
import torch
from fuzz_problems import failure, random_problem

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Sequences, fit


@pytest.mark.parametrize("seed", range(20))
def test_a_random_problem_trains_predicts_and_survives_a_file(seed):
    assert failure(seed, largest=60) is None


@pytest.mark.parametrize("seed", [208, 553, 598, 3041])
def test_problems_that_once_failed(seed):
    assert failure(seed) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [4, 5, 24, 42, 56, 59])
def test_random_problems_reach_in_float32_what_they_reach_in_float64(seed):
    problem = random_problem(seed, largest=30)
    times = problem.data.times
    parts = [(times.t[rows].float(), problem.data.read()[rows].float()) for rows in times.slices()]
    reached = []
    for dtype in (torch.float64, torch.float32):
        data = Sequences([t for t, _ in parts], [y for _, y in parts], dtype=dtype)
        pyro.set_rng_seed(seed)
        model = VGPDS.from_data(
            data, problem.latent_dim, problem.num_inducing, random_problem(seed, largest=30).temporal
        )
        reached.append(fit(model, AutoOpperArchambeau(model), data, num_steps=30).bound)
    assert reached[1] == pytest.approx(reached[0], rel=1e-3, abs=1e-3 * problem.data.num_observed)


def test_the_problems_are_of_all_sorts():
    problems = [random_problem(seed) for seed in range(200)]
    frames = [problem.data.num_frames for problem in problems]
    outputs = [problem.data.num_outputs for problem in problems]
    assert min(frames) == 2
    assert 250 < max(frames) <= 300
    assert min(outputs) == 1
    assert 50 < max(outputs) <= 60
    assert {problem.data.num_sequences for problem in problems} == set(range(1, 7))
    assert {problem.data.dtype for problem in problems} == {torch.float32, torch.float64}
    assert {problem.method for problem in problems} == {"natural", "lbfgs", "adam"}
    names = " ".join(repr(problem.temporal) for problem in problems)
    for name in (
        "RBF",
        "MarkovRBF",
        "Matern12",
        "Matern32",
        "Matern52",
        "Periodic",
        "Cosine",
        "Linear",
        "White",
        "None",
    ):
        assert name in names


def test_a_failure_names_what_is_wrong(monkeypatch):
    monkeypatch.setattr("fuzz_problems.try_problem", lambda *args: 1 / 0)
    assert "ZeroDivisionError: division by zero" in str(failure(3))
