# SPDX-License-Identifier: Apache-2.0
"""The first guess of the functions: averages of neighbouring frames."""

import math

import pytest
import torch

from pyro_vgpds.likelihoods import Bernoulli, Binomial, NegativeBinomial, Poisson, StudentT, guess


def slow_average(y, lengths, width, means, own, exposure):
    """Frame by frame."""
    reach, result, start = max(1, round(3.0 * width)), torch.empty_like(y), 0
    e = torch.ones_like(y) if exposure is None else exposure
    usual = e.mean(0)
    for length in lengths:
        for n in range(start, start + length):
            for d in range(y.shape[1]):
                total, weight = usual[d] * means[d], usual[d]
                for k in range(max(start, n - reach), min(start + length, n + reach + 1)):
                    w = float(own) if k == n else 0.5 if width == 0.0 else math.exp(-0.5 * ((k - n) / width) ** 2)
                    if not y[k, d].isnan():
                        total, weight = total + w * y[k, d], weight + w * e[k, d]
                result[n, d] = total / weight
        start += length
    return result


@pytest.mark.parametrize("width", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("rows", [5, 256])
def test_averages_against_a_loop(width, exposed, rows, monkeypatch):
    monkeypatch.setattr(guess, "_ROWS", rows)
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(21, 2, generator=generator, dtype=torch.float64)
    y[3, 0] = y[10:13, 1] = torch.nan
    exposure = 0.5 + torch.rand(21, 2, generator=generator, dtype=torch.float64) if exposed else None
    lengths, means = (1, 14, 6), torch.tensor([0.3, 0.7], dtype=torch.float64)
    for own in (False, True):
        found = guess.smoothed(y, lengths, width, means, own, exposure)
        torch.testing.assert_close(found, slow_average(y, lengths, width, means, own, exposure))


@pytest.mark.parametrize(
    ("make", "value", "sign"),
    [(Bernoulli, 0, -1), (Bernoulli, 1, 1), (lambda: Binomial(5.0), 5, 1), (Poisson, 0, -1), (NegativeBinomial, 0, -1)],
)
@pytest.mark.parametrize("frames", [1, 7])
@torch.no_grad()
def test_outputs_at_the_end_of_their_range_have_a_finite_guess(make, value, sign, frames):
    y = torch.full((frames, 3), float(value), dtype=torch.float64)
    y[0, 1] = torch.nan
    likelihood = make()()
    seen = torch.tensor([frames, frames - 1, frames])
    for f in (guess.function_means(likelihood, y), guess.guess(likelihood, y, (frames,))):
        torch.testing.assert_close(f, (sign * torch.log(2.0 * seen + 1.0)).to(f).expand_as(f))


@pytest.mark.parametrize("make", [Bernoulli, Poisson, NegativeBinomial, StudentT])
@torch.no_grad()
def test_without_any_output_the_guess_is_zero(make):
    y = torch.full((4, 2), torch.nan, dtype=torch.float64)
    likelihood = make()()
    assert not guess.guess(likelihood, y, (4,)).any()
    assert not guess.function_means(likelihood, y).any()


def weekly(frames=70, rate=20.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pattern = rate * torch.tensor([1.0, 1.1, 1.0, 1.2, 1.6, 2.0, 0.0], dtype=torch.float64)
    return torch.poisson(pattern.repeat(frames // 7)[:, None] * torch.ones(3).to(pattern), generator=generator)


@torch.no_grad()
def test_days_are_averaged_with_the_same_day_of_other_weeks():
    y = weekly()
    f = guess.guess(Poisson()(), y, (70,))
    sundays = y[6::7]
    assert (f[6::7].exp() < 4.0).all()  # the mean of all days is 23
    assert (f.exp().reshape(10, 7, 3)[:, 5] > 30.0).all()
    # one of the windows of the same weekday, which are other rows of a shorter sequence
    means = guess.column_means(y)
    slow = [slow_average(sundays, (10,), width, means, True, None).log() for width in guess._WIDTHS]
    assert min(float((f[6::7] - one).abs().max()) for one in slow) < 1e-10


@torch.no_grad()
def test_gaps_and_exposures_follow_the_order_of_phases():
    y, exposure = weekly(), torch.ones(70, 3, dtype=torch.float64)
    exposure[5] = 3.0
    y[5] *= 3.0
    y[26:29] = torch.nan
    f = guess.guess(Poisson()().exposed(exposure), y, (70,))
    rate = f.exp().reshape(10, 7, 3)
    torch.testing.assert_close(rate[:, 5], torch.full((10, 3), 40.0).to(rate), rtol=0.25, atol=0.0)
    assert (rate[:, 6] < 4.0).all()


@torch.no_grad()
def test_slow_changes_are_averaged_over_neighbours():
    t = torch.arange(70, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    y = torch.poisson(torch.exp(1.0 + torch.sin(2.0 * math.pi * t / 35.0))[:, None].expand(-1, 3), generator=generator)
    f = guess.guess(Poisson()(), y, (70,))
    means = guess.column_means(y)
    slow = [slow_average(y, (70,), width, means, True, None).log() for width in guess._WIDTHS]
    assert min(float((f - one).abs().max()) for one in slow) < 1e-10
    apart = guess.guess(Poisson()(), weekly(), (35, 35))  # several sequences have no common cycle
    assert (apart[6::7].exp() > 10.0).all()
