# SPDX-License-Identifier: Apache-2.0
"""Moments of the outputs under q(U), against sums over the inducing inputs one frame and output at a time."""

import numpy as np
import pytest
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, Sequences
from pyro_vgpds.kernels import ARDRBF, ARDLinear
from pyro_vgpds.mapping import inducing as module


@pytest.mark.parametrize("mapping", [ARDRBF, ARDLinear])
@pytest.mark.parametrize(("patterns", "block"), [(1, 1 << 21), (2, 1 << 21), (12, 1 << 21), (12, 100), (12, 1)])
def test_moments_of_groups_with_many_and_with_few_outputs(mapping, patterns, block, monkeypatch):
    """:param block: which has products of all outputs, of a few, or of one at a time."""
    monkeypatch.setattr(module, "_BLOCK", block)
    rng = np.random.default_rng(3)
    y = np.sin(np.arange(20.0)[:, None] * rng.uniform(0.1, 0.6, 12)) + 0.1 * rng.normal(size=(20, 12))
    for column in range(12):
        y[column % patterns, column] = np.nan  # columns of the same remainder are one group
    data = Sequences(np.arange(20.0), y)
    model = VGPDS.from_data(data, latent_dim=3, num_inducing=5, mapping=mapping())
    posterior = Posterior(model, AutoOpperArchambeau(model), data)
    inducing, q = posterior.inducing, posterior.q
    assert len(inducing.eigenvalues) == patterns
    ((_, frames),) = inducing.frames(q.mean, q.variance)
    found = torch.empty(20, 12), torch.empty(20, 12)
    for index, _, mean, variance in inducing.moments(frames):
        found[0][:, index], found[1][:, index] = mean, variance
    for part in inducing.columns():
        for k, output in enumerate(part.outputs.tolist()):
            v, scale = part.mean[:, k], inducing.output_scale[output]
            covariance = part.basis @ part.shrink[:, k].diag() @ part.basis.mT  # of V
            for n in range(20):
                spread = frames.a[n] - torch.outer(frames.k[n], frames.k[n])
                own = frames.psi0[n] - frames.a[n].trace() + (frames.a[n] @ covariance).trace()
                assert found[0][n, output] == pytest.approx(
                    float(frames.k[n] @ v + inducing.output_mean[output]), rel=1e-10
                )
                assert found[1][n, output] == pytest.approx(float(v @ spread @ v + scale**2 * own), rel=1e-8)
