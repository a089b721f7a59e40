# SPDX-License-Identifier: Apache-2.0
"""Files of earlier versions give the answers that they gave then."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import GOLDEN

from pyro_vgpds import Posterior, load, load_metadata
from pyro_vgpds.cli import main

ANSWERS = np.load(GOLDEN / "old_answers.npz")


@pytest.mark.parametrize("name", ["plain", "scaled"])
def test_predictions(name):
    posterior = Posterior(*load(GOLDEN / f"old_{name}.safetensors"))
    prediction = posterior.forecast([2.0, 2.5], sequence=1)
    np.testing.assert_allclose(prediction.mean.numpy(), ANSWERS[f"{name}_mean"], rtol=1e-9)
    np.testing.assert_allclose(prediction.variance.numpy(), ANSWERS[f"{name}_variance"], rtol=1e-9)
    # the bound of a scaled model was that of the divided outputs
    scale = posterior.inducing.output_scale
    jacobian = float((posterior.data.output_counts * scale.log()).sum())
    assert posterior.bound + jacobian == pytest.approx(float(ANSWERS[f"{name}_bound"]), rel=1e-9)


def test_scales_become_part_of_the_model():
    path = GOLDEN / "old_scaled.safetensors"
    model, _, data = load(path)
    scale = torch.from_numpy(ANSWERS["scale"])
    torch.testing.assert_close(model.output_scale, scale)
    torch.testing.assert_close(data.output_variances.sqrt(), scale)
    torch.testing.assert_close(model.output_mean, data.output_means)
    assert torch.equal(load_metadata(path)["scale"], scale)
    assert torch.equal(load(GOLDEN / "old_plain.safetensors")[0].output_scale, torch.ones(3))


def test_answers_of_the_command_line(tmp_path):
    out = tmp_path / "ahead.csv"
    assert main(["forecast", str(GOLDEN / "old_cli.safetensors"), "--until", "8", "-o", str(out), "-q"]) == 0
    assert out.read_bytes() == (GOLDEN / "old_cli_forecast.csv").read_bytes()
