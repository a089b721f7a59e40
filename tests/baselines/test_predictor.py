# SPDX-License-Identifier: Apache-2.0
"""Baselines as posteriors: predictions are those of the imputer on the data with the new frames sorted in by hand."""

import pytest
import torch
from problems import make_data

from pyro_vgpds import Sequences
from pyro_vgpds.baselines import BaselinePosterior, gp_interpolation, linear_interpolation
from pyro_vgpds.data.parts import take_frames


def line(data):
    filled = linear_interpolation(data)
    return (torch.cat(filled) if isinstance(filled, list) else filled), None


def gp(data):
    mean, variance = gp_interpolation(data, return_variance=True)
    return torch.cat(mean), torch.cat(variance)


def merged(data, t_new, y_new):
    """Times and outputs of one sequence with new frames, sorted; and the rows of the new ones in their order."""
    t = torch.cat([data.times.t, t_new])
    y = torch.cat([data.y, y_new])
    order = t.argsort(stable=True)
    return t[order], y[order], [int((order == len(data.times.t) + i).nonzero()) for i in range(len(t_new))]


def split(data):
    return list(data.times.t.split(data.lengths)), list(data.y.split(data.lengths))


def test_imputation_is_that_of_the_imputer():
    data = make_data((12, 9), missing=0.2)
    for imputer in (line, gp):
        found = BaselinePosterior(imputer, data).impute()
        mean, variance = imputer(data)
        torch.testing.assert_close(found.mean, mean)
        seen = data.y.isfinite()
        if variance is None:
            variance = torch.where(seen, 0.0, data.output_variances)
        torch.testing.assert_close(found.variance, variance)
        assert torch.equal(found.mean[seen], data.y[seen])
        assert (found.variance[seen] == 0).all()


@pytest.mark.parametrize("imputer", [line, gp])
def test_forecasts_impute_frames_without_outputs(imputer):
    data = make_data((12, 9), missing=0.2)
    t, y = split(data)
    new = torch.tensor([3.5, 0.77, 9.0, 3.2])  # not sorted: inside and after the sequence
    for sequence in (0, 1, -1):
        found = BaselinePosterior(imputer, data).forecast(new, sequence)
        own = Sequences(t[sequence], y[sequence])
        times, outputs, rows = merged(own, new, torch.full((4, 5), torch.nan))
        parts_t, parts_y = list(t), list(y)
        parts_t[sequence], parts_y[sequence] = times, outputs
        mean, variance = imputer(Sequences(parts_t, parts_y))
        start = 0 if sequence == 0 else len(t[0])
        at = [start + row for row in rows]
        torch.testing.assert_close(found.mean, mean[at])
        if variance is not None:
            torch.testing.assert_close(found.variance, variance[at])
        else:
            torch.testing.assert_close(found.variance, data.output_variances.expand(4, 5))
        torch.testing.assert_close(found.t, new)
    alone = BaselinePosterior(imputer, data).forecast(new[:2].sort().values, None)
    mean, _ = imputer(Sequences([*t, new[:2].sort().values], [*y, torch.full((2, 5), torch.nan)]))
    torch.testing.assert_close(alone.mean, mean[-2:])


def test_reconstruction_uses_what_is_observed():
    data = make_data((12, 9))
    t, y = split(data)
    new_t = [torch.tensor([3.1, 3.3, 3.7]), torch.tensor([0.11, 0.52]), torch.tensor([0.3, 0.6, 3.9])]
    new_y = [torch.randn(len(part), 5) for part in new_t]
    for part in new_y:
        part[1:, :3] = torch.nan
    found = BaselinePosterior(line, data).reconstruct(new_t, new_y, [1, None, 1])
    both_t, both_y, rows = merged(
        Sequences(t[1], y[1]), torch.cat([new_t[0], new_t[2]]), torch.cat([new_y[0], new_y[2]])
    )
    mean, _ = line(Sequences([t[0], both_t, new_t[1]], [y[0], both_y, new_y[1]]))
    at = [12 + row for row in rows]
    last = len(mean) - 2
    torch.testing.assert_close(found.mean, mean[[*at[:3], last, last + 1, *at[3:]]])
    seen = torch.cat(new_y).isfinite()
    torch.testing.assert_close(found.mean[seen], torch.cat(new_y)[seen])
    assert (found.variance[seen] == 0).all()
    torch.testing.assert_close(found.variance[~seen], data.output_variances.expand(8, 5)[~seen])


def test_a_frame_that_was_observed_before_is_that_frame():
    data = make_data((12, 9), missing=0.3)
    again = torch.full((3, 5), torch.nan)
    again[0, 0] = 7.0
    found = BaselinePosterior(line, data).reconstruct(data.times.t[4:7], again, 0)
    wanted = data.y.clone()
    wanted[4, 0] = 7.0
    t, _ = split(data)
    mean, _ = line(Sequences(t, list(wanted.split(data.lengths))))
    torch.testing.assert_close(found.mean, mean[4:7])


def test_conditioning_keeps_imputer_and_variance():
    data = make_data((12, 9))
    given = torch.arange(1.0, 6.0)
    found = BaselinePosterior(line, data, given).condition(take_frames(data, [slice(0, 5), slice(0, 4)]))
    assert found.data.lengths == (5, 4)
    torch.testing.assert_close(found.forecast([9.0], 0).mean, data.y[4:5])
    torch.testing.assert_close(found.forecast([9.0], 0).variance, given[None])
    assert found.num_outputs == 5


def test_lags_names_and_dates():
    data = make_data((12,), outputs=2).lagged([-1])
    found = BaselinePosterior(lambda some: (some.y.nan_to_num(0.0), None), data)  # sees no lags
    assert found.num_outputs == 2
    assert found.forecast([9.0]).mean.shape == (1, 2)
    assert found.impute().mean.shape == (12, 2)


def test_bad_input_is_named():
    found = BaselinePosterior(line, make_data((12, 9)))
    with pytest.raises(ValueError, match="sequence is required because there are 2 training sequences"):
        found.forecast([1.0])
    with pytest.raises(ValueError, match="sequence must be 0 to 1, or None for a new sequence, but got 2"):
        found.forecast([1.0], 2)
    with pytest.raises(ValueError, match="y has 3 outputs, but the model has 5"):
        found.reconstruct([1.0], torch.zeros(1, 3))
    with pytest.raises(ValueError, match="sequence has 1 entries, but t has 2 sequences"):
        found.reconstruct([[1.0], [2.0]], [torch.zeros(1, 5)] * 2, [None])
