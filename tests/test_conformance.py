# SPDX-License-Identifier: Apache-2.0
"""The bound and its gradients against the authors' code, GPy and published values."""

import json
import subprocess
import sys
from pathlib import Path

import conformance
import numpy as np
import pytest
import torch
from problems import GOLDEN

from benchmarks.problems import gplvm
from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Sequences
from pyro_vgpds.kernels import ARDRBF, White


def load(name):
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def compare(ours, file):
    for name, value in ours.items():
        value, wanted = np.asarray(value), file[name]
        assert value.shape == wanted.shape, name
        if name.startswith("grad_"):
            assert np.abs(value - wanted).max() <= 1e-7 * np.abs(wanted).max(), name
        else:
            np.testing.assert_allclose(value, wanted, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", ["vgpds_a", "vgpds_b"])
def test_against_the_authors_code(name):
    file = load(name)
    ours = conformance.evaluate(file)
    wanted = {k for k in file if k.startswith(("grad_mu_bar", "grad_Z", "grad_log"))}
    assert {k for k in ours if k.startswith("grad")} == wanted
    compare(ours, file)


@pytest.mark.long
def test_as_a_command():
    script = Path(conformance.__file__)
    output = subprocess.run(
        [sys.executable, str(script), str(GOLDEN / "vgpds_a.npz")], check=True, capture_output=True, text=True
    )
    compare(json.loads(output.stdout), load("vgpds_a"))


def test_several_sequences_in_any_order_with_missing_entries():
    """A file with two sequences whose rows are interleaved is the two sequences one after the other."""
    file = load("vgpds_a")
    n = len(file["times"])
    file["seq_id"] = np.array([1] * 12 + [0] * (n - 12))
    file["Y"] = np.where(np.random.default_rng(0).random(file["Y"].shape) < 0.2, np.nan, file["Y"])
    apart = conformance.evaluate(file)
    mixed = dict(file)
    order = np.argsort(np.r_[np.arange(12) * 2.1, np.arange(n - 12)], kind="stable")
    for key in ("times", "Y", "seq_id", "mu_bar", "lam"):
        mixed[key] = file[key][order]
    together = conformance.evaluate(mixed)
    assert together["bound_exact"] == pytest.approx(apart["bound_exact"], rel=1e-12)
    for key in ("mu", "S_diag", "Psi1", "grad_mu_bar", "grad_log_lambda"):
        np.testing.assert_allclose(together[key], np.asarray(apart[key])[order], rtol=1e-7, atol=1e-9)


@pytest.mark.long
def test_every_kernel_the_files_may_name():
    file = load("vgpds_a")
    file.update(
        dyn_kernel="rbfperiodic+rbf+white+bias", dyn_rbfperiodic_variance=0.7, dyn_rbfperiodic_inverse_width=1.3,
        dyn_rbfperiodic_period=1.9, dyn_white_variance=0.05, dyn_bias_variance=0.2,
        mapping_kernel="rbfard2+bias+white", mapping_bias_variance=0.3, mapping_white_variance=0.02,
    )  # fmt: skip
    ours = conformance.evaluate(file)
    step = 1e-5
    names = [
        "dyn_rbfperiodic_inverse_width", "dyn_rbfperiodic_period", "dyn_rbf_inverse_width", "dyn_white_variance",
        "dyn_bias_variance", "mapping_bias_variance", "mapping_white_variance", "beta", "sigma_ard2",
    ]  # fmt: skip
    for name in names:
        up, down = (
            conformance.evaluate({**file, name: np.asarray(file[name]) * np.exp(sign * step)})["bound_exact"]
            for sign in (1, -1)
        )
        assert ours[f"grad_log_{name}"] == pytest.approx((up - down) / (2 * step), rel=1e-5), name


def test_against_gpys_bayesian_gplvm():
    file = load("bgplvm")
    data = Sequences(np.arange(len(file["Y"])), file["Y"])
    model = VGPDS(
        White(1.0).fix(),
        ARDRBF(float(file["variance"]), file["w"]),
        torch.from_numpy(file["Z"]),
        float(file["noise_variance"]),
        torch.zeros(12),
        jitter=float(file["jitter"]),
    )
    mu, s = torch.from_numpy(file["mu"]), torch.from_numpy(file["S"])
    guide = AutoOpperArchambeau(model, mean_bar=mu, lam=1 / s - 1)
    loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
    loss.backward()
    assert -loss.item() == pytest.approx(float(file["log_likelihood"]), rel=1e-10)
    gradient = lambda p: -p.grad  # noqa: E731
    torch.testing.assert_close(
        gradient(guide.mean_bar_unconstrained), torch.from_numpy(file["grad_mu"]), rtol=1e-6, atol=1e-6
    )
    # lam = 1/S − 1, so dF/dlog lam = dF/dS · (−S²) · lam
    expected = torch.from_numpy(file["grad_S"]) * -(s**2) * (1 / s - 1)
    torch.testing.assert_close(gradient(guide.lam_unconstrained), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        gradient(model.inducing_unconstrained), torch.from_numpy(file["grad_Z"]), rtol=1e-6, atol=1e-5
    )
    noise = gradient(model.noise_unconstrained) / float(file["noise_variance"])
    torch.testing.assert_close(noise, torch.tensor(file["grad_noise"][0]), rtol=1e-7, atol=0)
    # w = ℓ⁻², so dF/dlog w = −½ ℓ dF/dℓ
    expected = -0.5 * torch.from_numpy(file["lengthscale"] * file["grad_lengthscale"])
    torch.testing.assert_close(gradient(model.mapping.weight_unconstrained), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("size", "published"),
    [
        ("S", -126636.04092072089),
        ("M", -1276429.2869580442),
        ("L", -8523143.123885125),
        ("XL", -2348074.334382673),
    ],
)
def test_published_bounds(size, published):
    model, guide, data = gplvm(size)
    assert -Collapsed_ELBO().loss(model, guide, data) == pytest.approx(published, rel=1e-9)
