# SPDX-License-Identifier: Apache-2.0
"""Student-t outputs with many degrees of freedom are Gaussian: the start, training and predictions are the same."""

import numpy as np
import pyro
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences, fit
from pyro_vgpds.kernels import ARDRBF
from pyro_vgpds.likelihoods import StudentT
from pyro_vgpds.likelihoods.factors import without_outliers


def data():
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 6.0, 50)
    y = np.sin(t[:, None] * [1.0, 1.5, 2.0, 1.0] + np.arange(4)) * [1.0, 5.0, 0.2, 1.0]
    y += 0.1 * y.std(0) * rng.standard_normal(y.shape)
    y[rng.random(y.shape) < 0.1] = np.nan
    return Sequences(t, y)


def trained(likelihood):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    sequences = data()
    model = VGPDS.from_data(sequences, 3, 12, mapping=ARDRBF(variance=1.0, weight=0.2), likelihood=likelihood)
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, sequences, num_steps=25, progress=False)
    return result, Posterior(model, guide, sequences, residual=None).impute(fill=False)


def test_many_degrees_of_freedom_give_the_numbers_of_gaussian_outputs():
    (gauss, expected), (student, found) = trained(None), trained(StudentT(df=1e8).fix("df"))
    bounds = [np.array([record.bound for record in result.history]) for result in (gauss, student)]
    np.testing.assert_allclose(bounds[1], bounds[0], rtol=0.0, atol=0.05)  # the smallest noise is added to one of them
    scale = expected.stddev.mean(0)
    torch.testing.assert_close(found.mean / scale, expected.mean / scale, rtol=0.0, atol=2e-3)
    torch.testing.assert_close(found.variance, expected.variance, rtol=5e-3, atol=0.0)
    for end, other in zip(found.interval(0.8), expected.interval(0.8), strict=True):
        torch.testing.assert_close(end / scale, other / scale, rtol=0.0, atol=0.1)


def slow_without_outliers(y):
    result = y.clone()
    for d in range(y.shape[1]):
        seen = y[:, d][y[:, d].isfinite()]
        low, high = (float(torch.quantile(seen, level)) for level in (0.25, 0.75))
        low, high, width = low - 3.0 * (high - low), high + 3.0 * (high - low), high - low
        for n in range(len(y)):
            near = y[max(0, n - 2) : n + 3, d]
            usual = float(near[near.isfinite()].median()) if bool(near.isfinite().any()) else 0.0
            if width > 0.0 and y[n, d] > high and not usual > high:
                result[n, d] = high
            if width > 0.0 and y[n, d] < low and not usual < low:
                result[n, d] = low
    return result


def test_outliers_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    y[10, 0], y[59, 1], y[20:22, 1] = 50.0, -30.0, 40.0
    y[30:33, 2] = 20.0  # three frames: what the output does
    y[:, 3] = 0.0
    y[5:25, 3] = 1.0  # constant most of the time
    y[7, 4] = y[40, 2] = torch.nan
    found = without_outliers(y)
    torch.testing.assert_close(found, slow_without_outliers(y), equal_nan=True)
    assert float(found[10, 0]) < 10.0
    assert float(found[30, 2]) == 20.0
    assert torch.equal(found[:, 3], y[:, 3])


@pytest.mark.parametrize("size", [1e2, 1e6])
def test_gross_outliers_do_not_move_the_start(size):
    clean, dirty = data(), data()
    dirty.y[[5, 20, 33], [0, 1, 2]] = size
    scales = []
    for sequences in (clean, dirty):
        pyro.set_rng_seed(0)
        likelihood = StudentT()
        model = VGPDS.from_data(sequences, 2, 10, likelihood=likelihood)
        scales.append((likelihood.scale.detach(), model.output_scale))
    for found, expected in zip(scales[1], scales[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=0.5, atol=0.0)
