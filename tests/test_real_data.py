# SPDX-License-Identifier: Apache-2.0
"""Training on real data with default settings."""

import pytest

from benchmarks import real
from pyro_vgpds import fit

pytestmark = [pytest.mark.data, pytest.mark.long]

#              N     D      sequences, share missing, steps, a bound that they pass
EXPECTED = {
    "cmu35": (2613, 59, 31, 0.0, 12, 285_000),
    "yeast": (24, 4381, 1, 0.0, 100, -44_000),
    "robot": (394, 30, 1, 0.53, 12, -19_500),
    "missa": (150, 25344, 1, 0.0, 12, -15_500_000),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_training(name, data_home):
    frames, outputs, sequences, missing, steps, bound = EXPECTED[name]
    model, guide, data = real.start(name)
    assert (data.num_frames, data.num_outputs, data.num_sequences) == (frames, outputs, sequences)
    assert data.num_missing / (frames * outputs) == pytest.approx(missing, abs=0.005)
    result = fit(model, guide, data, num_steps=steps)
    assert result.bound > bound
    assert result.num_undone == 0
