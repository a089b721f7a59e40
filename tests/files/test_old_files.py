# SPDX-License-Identifier: Apache-2.0
"""Files of earlier versions give the answers that they gave then."""

import numpy as np
import pytest
import torch
from problems import GOLDEN

from pyro_vgpds import Posterior, load, load_metadata
from pyro_vgpds.cli import main
from pyro_vgpds.files.container import pack, read_file, write_file

ANSWERS = np.load(GOLDEN / "old_answers.npz")


@pytest.mark.parametrize("name", ["plain", "scaled"])
def test_predictions(name):
    posterior = Posterior(*load(GOLDEN / f"old_{name}.safetensors"), residual=None)  # as posteriors were
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


def test_a_scale_among_a_users_own_metadata_is_no_scale_of_outputs(tmp_path):
    """Only files of our own commands hold divided outputs: they also have a record of training, or lags."""
    header, tensors = read_file(GOLDEN / "old_scaled.safetensors", "model")
    more = {}
    header["metadata"] = pack({"scale": torch.tensor([2.0, 3.0, 4.0])}, more)
    kept = {name: value for name, value in tensors.items() if not name.startswith("metadata.")}
    content = {key: value for key, value in header.items() if key not in ("format", "kind", "versions")}
    write_file(tmp_path / "own", "model", content, kept | {f"metadata.{name}": value for name, value in more.items()})
    model, _, data = load(tmp_path / "own")
    assert torch.equal(model.output_scale, torch.ones(3))
    torch.testing.assert_close(data.read(), tensors["data.y"], equal_nan=True)
