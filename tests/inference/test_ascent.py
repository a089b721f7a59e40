# SPDX-License-Identifier: Apache-2.0
"""The damped ascent and L-BFGS on functions whose optimum is known."""

import itertools
import math

import pytest
import torch

from pyro_vgpds.inference.ascent import Ascent, Damping, lbfgs, lbfgs_continued, lbfgs_steps
from pyro_vgpds.linalg import NumericalError

DAMPING = Damping(drop=1e-9, small=lambda bound: 1e-12, patience=3, least=1e-4)


def bound_at(x):
    if x > 2.0:
        raise NumericalError("no value here")
    return -((x - 1.9) ** 2)


def climb(start, gain, damping=DAMPING):
    """Gradient ascent with a rate so large that full steps overshoot or leave the domain."""

    def advance(state):
        x = state.point + state.length * gain * 2 * (1.9 - state.point)
        return x, bound_at(x)

    states = [Ascent(start, bound_at(start))]
    while damping.stopped(states[-1]) is None and states[-1].step < 200:
        states.append(damping.step(states[-1], advance))
    return states


def test_failed_steps_are_undone_and_halved_and_the_length_grows_back():
    states = climb(0.0, gain=1.0)
    assert DAMPING.stopped(states[-1]) == "converged"
    assert states[-1].point == pytest.approx(1.9, abs=1e-5)
    assert states[-1].num_undone > 0
    for before, after in itertools.pairwise(states):
        assert after.step == before.step + 1
        if after.num_undone > before.num_undone:
            assert (after.point, after.bound, after.length) == (before.point, before.bound, 0.5 * before.length)
        else:
            assert after.bound >= before.bound - 1e-9
            assert after.length == min(1.0, 1.2 * before.length)


def test_an_ascent_that_cannot_rise_is_stuck():
    states = climb(0.0, gain=-1.0)
    assert DAMPING.stopped(states[-1]) == "stuck"
    assert states[-1].point == 0.0
    assert states[-1].num_undone == states[-1].step == 11  # 2**-10 < 1e-3, then a tenth at a time


def test_a_start_with_a_huge_gradient_is_left_and_the_length_comes_back():
    damping = Damping(drop=1e-9, small=lambda bound: 1e-12, patience=3, least=1e-4, early=1e-12)
    states = climb(0.0, gain=1e9)
    assert DAMPING.stopped(states[-1]) == "stuck"
    assert states[-1].point == 0.0
    states = climb(0.0, gain=1e9, damping=damping)
    assert states[-1].point == pytest.approx(1.9, abs=1e-3)
    assert 1e-12 < min(state.length for state in states) < 1e-8
    for before, after in itertools.pairwise(states):
        if before.length < 1e-3:
            factor = 0.1 if after.num_undone > before.num_undone else 3.0
            assert after.length == pytest.approx(factor * before.length)


def test_a_failed_evaluation_is_undone_even_if_the_bound_may_fall():
    states = climb(0.0, gain=1.5, damping=Damping(math.inf, lambda bound: 0.0, math.inf, 1e-4))
    assert states[1].num_undone == 1
    assert states[1].point == 0.0


def test_an_ascent_that_goes_up_and_down_without_rising_ends():
    # rises to zero, then between 0 and -1: no step is a small change
    bounds = [-20.0, -10.0, -5.0, 0.0, *[-1.0, 0.0] * 20]
    damping = Damping(drop=math.inf, small=lambda bound: 0.01, patience=3, least=1e-4, idle=8)
    state = Ascent(0, bounds[0], mark=bounds[0])
    while damping.stopped(state) is None:
        state = damping.step(state, lambda state: (state.point + 1, bounds[state.point + 1]))
    assert damping.stopped(state) == "converged"
    assert (state.step, state.idle, state.mark) == (3 + 8, 8, 0.0)


def test_a_slow_steady_rise_is_not_idle():
    damping = Damping(drop=math.inf, small=lambda bound: 0.01, patience=3, least=1e-4, idle=8)
    state = Ascent(0.0, 0.0, mark=0.0)
    for i in range(40):  # falls by 0.1 in every other step, and rises by 0.03 on average
        state = damping.step(state, lambda state, i=i: (0.0, state.bound + (-0.1 if i % 2 else 0.16)))
        assert damping.stopped(state) is None


def test_an_ascent_that_fell_far_and_rises_again_is_not_idle():
    damping = Damping(drop=math.inf, small=lambda bound: 0.01, patience=3, least=1e-4, idle=8, fall=2.0)
    state = Ascent(0, 0.0, mark=0.0)
    state = damping.step(state, lambda state: (1, -50.0))
    while damping.stopped(state) is None:
        state = damping.step(state, lambda state: (state.point + 1, min(state.bound + 1.0, 5.0)))
    assert (state.bound, state.quiet) == (5.0, 3)


@pytest.mark.parametrize("failure", ["raises", "nan"])
def test_lbfgs_turns_back_from_points_without_a_value(failure):
    x = torch.tensor([0.0], requires_grad=True)
    seen = []

    def evaluate():
        if float(x.detach()) > 2.0:
            seen.append(float(x.detach()))
            if failure == "raises":
                raise NumericalError("no value here")
            x.grad = torch.full_like(x, math.nan)
            return math.nan
        loss = ((x - 1.9) ** 2 + 0.1 * (x - 1.9) ** 4).sum() * 10
        loss.backward()
        return -float(loss.detach())

    lbfgs_steps(lbfgs([x], rate=5.0), evaluate, lambda: 1e4, 40)
    assert x.item() == pytest.approx(1.9, abs=1e-3)
    assert seen


def test_lbfgs_of_parameters_of_two_dtypes_continues_as_if_it_had_not_stopped():
    def run(chunks):
        torch.manual_seed(0)
        x = [torch.randn(3, dtype=torch.float32), torch.randn(4, dtype=torch.float64)]
        x = [part.requires_grad_() for part in x]
        optimiser = lbfgs(x)

        def evaluate():
            loss = (x[0].double().square().sum() - 2.0).square() + (x[1] * torch.arange(4).double()).square().sum()
            (loss + x[0].sum()).backward()
            return -float((loss + x[0].sum()).detach())

        for count in chunks:
            state = optimiser.state_dict()
            optimiser = lbfgs(x)
            lbfgs_continued(optimiser, state)
            lbfgs_steps(optimiser, evaluate, lambda: 1e9, count)
        return optimiser.state[x[0]], x

    state, x = run([5, 5])
    assert state["d"].dtype == state["old_dirs"][0].dtype == torch.float64
    assert all(bool(torch.isfinite(part).all()) for part in x)
