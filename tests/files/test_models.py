# SPDX-License-Identifier: Apache-2.0
import json
import os
import re

import numpy as np
import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import pytest
import torch
from problems import make_data, make_model, make_problem
from safetensors import safe_open
from safetensors.torch import save_file

from pyro_vgpds import (
    VGPDS,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    FileFormatError,
    Sequences,
    fit,
    load,
    load_metadata,
    save,
)
from pyro_vgpds.files import container as files
from pyro_vgpds.kernels import (
    ARDRBF,
    RBF,
    ARDLinear,
    Bias,
    Cosine,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    White,
    from_pyro,
)


def loss_of(model, guide, data):
    with pyro.get_param_store().scope():
        return Collapsed_ELBO().loss(model, guide, data)


def trained(**options):
    data = make_data(missing=0.1)
    model = VGPDS.from_data(data, 2, 5, **options)
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=4)
    return model, guide, data


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temporal": Matern12() * Periodic().fix("period") + Matern32(torch.ones(2)) + White(0.1) + Linear(0.1)},
        {"temporal": Matern52() * Cosine().fix("period") + Cosine(0.5, 2.0) + White(0.1)},
        {"noise_per_output": False, "scale_outputs": False},
        {"temporal": White(1.0).fix(), "noise_per_output": True},
        {"temporal": RBF() * (Bias(0.3) + Matern52()) + White(0.1), "jitter": 1e-5},
        {"mapping": ARDRBF(1.0, torch.ones(2)) + ARDLinear(torch.ones(2)) + Bias(0.1) + White(0.01).fix()},
    ],
)
def test_round_trip(tmp_path, options):
    model, guide, data = trained(**options)
    path = tmp_path / "model.safetensors"
    save(path, model, guide, data)
    again, again_guide, again_data = load(path)
    assert repr(again) == repr(model)
    assert loss_of(again, again_guide, again_data) == loss_of(model, guide, data)
    assert again_data.lengths == data.lengths
    assert {n for n, p in again.named_parameters()} == {n for n, p in model.named_parameters()}
    fit(again, again_guide, again_data, num_steps=2)  # and goes on being trained
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_priors_round_trip(tmp_path):
    data = make_data()
    model, _ = make_model(
        data,
        temporal=Matern32(1.0, dist.LogNormal(torch.zeros(2), 0.2).to_event(1)) + White(0.1),
        noise=dist.HalfNormal(0.3),
    )
    guide = AutoOpperArchambeau(model)
    loss_of(model, guide, data)
    save(tmp_path / "m", model, guide, data)
    again, again_guide, again_data = load(tmp_path / "m")
    for m, g, d in ((model, guide, data), (again, again_guide, again_data)):
        pyro.set_rng_seed(0)
        last = loss_of(m, g, d)
        if m is model:
            first = last
    assert last == first
    assert {n for n, _ in again_guide.named_parameters()} == {n for n, _ in guide.named_parameters()}


def test_another_dtype(tmp_path):
    model, guide, data = trained(jitter=1e-4, mapping=ARDRBF())
    save(tmp_path / "m", model, guide, data)
    small, small_guide, small_data = load(tmp_path / "m", device="cpu", dtype=torch.float32)
    assert all(p.dtype == torch.float32 for p in small.parameters())
    assert all(p.dtype == torch.float64 for p in small_guide.parameters())  # K_t mean_bar needs its digits
    assert small_data.dtype == small_data.y.dtype == torch.float32
    assert loss_of(small, small_guide, small_data) == pytest.approx(loss_of(model, guide, data), rel=1e-3)


def test_parameters_beyond_the_range_of_their_dtype(tmp_path):
    """Training in float32 may move the logarithm of a variance so far that the variance is 0."""
    base = make_data((12, 9))
    data = Sequences(base.times.t.split(base.lengths), base.y.split(base.lengths), dtype=torch.float32)
    model = VGPDS.from_data(data, 2, 4, RBF() + White(0.1))
    guide = AutoOpperArchambeau(model)
    with torch.no_grad():
        for leaf, value in zip(model.temporal.leaves(), (-200.0, 1.0), strict=True):
            leaf.variance_unconstrained.fill_(value)
    assert float(next(model.temporal.leaves()).variance.detach()) == 0.0
    save(tmp_path / "m", model, guide, data)
    again = load(tmp_path / "m")[0]
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_the_header_says_what_it_is(tmp_path):
    model, guide, data = trained()
    save(tmp_path / "m", model, guide, data)
    with safe_open(tmp_path / "m", framework="pt") as file:
        header = json.loads(file.metadata()["pyro_vgpds"])
    assert header["format"] == files.FORMAT
    assert header["kind"] == "model"
    assert header["model"]["temporal"]["kind"] == "Sum"
    smooth, level, _, white, _ = header["model"]["temporal"]["parts"]
    assert smooth["kind"] == "Product"
    assert smooth["parts"] == [
        {"kind": "Matern32", "parameters": {"variance": "fixed", "lengthscale": "learned"}},
        {"kind": "Cosine", "parameters": {"variance": "fixed", "period": "learned"}},
    ]
    assert level == {"kind": "Matern12", "parameters": {"variance": "learned", "lengthscale": "fixed"}}
    assert white == {"kind": "White", "parameters": {"variance": "learned"}}
    assert header["model"]["least_noise"] == model.least_noise > 0.0
    assert header["versions"]["torch"] == torch.__version__
    assert header["data"]["lengths"] == list(data.lengths)


def test_kernels_and_priors_that_cannot_be_saved(tmp_path):
    model, guide, data = make_problem(temporal=from_pyro(gp.kernels.RBF(1)))
    with pytest.raises(TypeError, match=r"save knows the kernels ARDLinear, ARDRBF.*from_pyro\(RBF\).*state_dict"):
        save(tmp_path / "m", model, guide, data)
    model, guide = make_model(data, noise=dist.Chi2(3.0))
    with pytest.raises(TypeError, match=r"save knows the priors Beta, Cauchy, Exponential.*'noise' has Chi2"):
        save(tmp_path / "m", model, guide, data)
    assert not list(tmp_path.iterdir())


def test_save_checks_what_it_is_given(tmp_path):
    model, guide, data = trained()
    with pytest.raises(TypeError, match="model must be VGPDS, but got AutoOpperArchambeau"):
        save(tmp_path / "m", guide, model, data)
    with pytest.raises(ValueError, match="guide must be the guide of this model on this data"):
        save(tmp_path / "m", model, guide, make_data((3,)))


def test_dates_round_trip(tmp_path):
    t = np.array(["2024-01-01", "2024-01-02", "2024-01-04"], dtype="datetime64[ns]")
    data = Sequences(t, np.random.default_rng(0).standard_normal((3, 2)))
    model = VGPDS.from_data(data, 1, 2)
    save(tmp_path / "m", model, AutoOpperArchambeau(model), data)
    assert load(tmp_path / "m")[2].time_origin == np.datetime64("2024-01-01")


@pytest.fixture
def file(tmp_path):
    save(tmp_path / "model", *trained())
    return tmp_path / "model"


def test_files_that_were_cut_short(file):
    content = file.read_bytes()
    for length in [0, 1, 7, 8, 100, len(content) // 2, len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="not a complete pyro_vgpds file"):
            load(file)


def test_files_of_another_kind(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"\x80\x04\x95not a pickle we would ever open")
    with pytest.raises(FileFormatError, match="not a complete pyro_vgpds file"):
        load(path)
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(FileFormatError, match="is a safetensors file, but not one of pyro_vgpds"):
        load(path)
    files.write_file(path, "checkpoint", {}, {"a": torch.zeros(3)})
    with pytest.raises(FileFormatError, match="holds a checkpoint, but a model is expected"):
        load(path)
    files.write_file(path, "model", {"model": {}}, {"a": torch.zeros(3)})
    with pytest.raises(FileFormatError, match="does not describe a model"):
        load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(tmp_path / "nowhere")


def test_files_of_a_later_version(file, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", files.FORMAT + 1)
    save(file, *trained())
    monkeypatch.undo()
    with pytest.raises(FileFormatError, match=r"has format 2, of pyro_vgpds .*; this version reads up to 1"):
        load(file)


def test_names_in_a_file_are_looked_up_and_never_run(file):
    header, tensors = files.read_file(file, "model")
    for kind in ("__import__", "Kernel", "os.system", "Sum.__init__"):
        header["model"]["temporal"] = {"kind": kind, "parameters": {}}
        files.write_file(file, "model", header, tensors)
        with pytest.raises(FileFormatError, match=f"has the kernel '{kind}', which is not registered"):
            load(file)


def test_a_write_that_fails_leaves_the_old_file(file, monkeypatch):
    content = file.read_bytes()
    monkeypatch.setattr(files.os, "replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(file, *trained())
    assert file.read_bytes() == content
    assert [p.name for p in file.parent.iterdir()] == ["model"]


def test_metadata_is_kept_beside_the_model(tmp_path):
    model, guide, data = trained()
    path = tmp_path / "model.safetensors"
    save(path, model, guide, data)
    assert load_metadata(path) == {}
    about = {"scale": torch.arange(3.0), "names": ["a", None], "deep": {"x": [1.5, float("inf")], "empty": {}}}
    save(path, model, guide, data, metadata=about)
    again = load_metadata(path)
    torch.testing.assert_close(again.pop("scale"), about.pop("scale"))
    assert again == about
    assert repr(load(path)[0]) == repr(model)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_metadata(tmp_path / "none")


@pytest.mark.skipif(os.name == "nt", reason="there is no umask")
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_files_have_the_mode_of_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        files.write_file(tmp_path / "a", "thing", {}, {"x": torch.ones(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask
    assert os.listdir(tmp_path) == ["a"]


def test_errors_of_writing_name_the_file(tmp_path):
    target = tmp_path / "gone" / "a"
    with pytest.raises(FileNotFoundError, match=f"{re.escape(repr(str(target)))}$"):
        files.write_file(target, "thing", {}, {"x": torch.ones(2)})
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=f"{re.escape(repr(str(tmp_path / 'folder')))}$"):
        files.write_file(tmp_path / "folder", "thing", {}, {"x": torch.ones(2)})
    assert os.listdir(tmp_path) == ["folder"]
