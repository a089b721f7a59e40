# SPDX-License-Identifier: Apache-2.0
"""Training in batches: it learns, resumes bit for bit, undoes bad steps, and leaves a model that predicts."""

import numpy as np
import pyro
import pytest
import torch
from batch_problems import state_of

from pyro_vgpds import (
    VGPDS,
    AmortizedOpperArchambeau,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    FileFormatError,
    NumericalError,
    Posterior,
    SequenceDataset,
    Subsampled,
    fit,
    load,
    save,
)
from pyro_vgpds.data import MappedSequences
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.mapping.dual import Dual
from pyro_vgpds.training.batch_problem import BatchProblem


def problem(num_sequences=7):
    pyro.set_rng_seed(3)
    data = make_sequences(num_sequences=num_sequences, num_outputs=5, length=(15, 20)).sequences()
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=8)
    return model, AutoOpperArchambeau(model), data


def test_learns_and_predicts():
    model, guide, data = problem()
    first = Posterior(model, guide, data).bound
    result = fit(model, guide, data, batch_size=2, epochs=15)
    assert len(result.history) == 1 + 15 * 4 + result.num_undone
    assert result.stopped == "steps"
    assert result.method == "natural"
    post = Posterior(model, guide, data)
    assert post.bound == pytest.approx(result.bound, rel=1e-7)
    full_model, full_guide, _ = problem()
    full = fit(full_model, full_guide, data, num_steps=60)
    assert result.bound > first + 0.9 * (full.bound - first)
    assert torch.isfinite(post.forecast([3.0, 3.1], sequence=1).mean).all()
    partly = data.read()[:10].clone()
    partly[:, 3:] = torch.nan
    assert torch.isfinite(post.reconstruct(data.times.t[:10], partly).mean).all()


def test_files_of_a_model_that_was_trained_in_batches(tmp_path):
    model, guide, data = problem()
    fit(model, guide, data, batch_size=3, epochs=2)
    save(tmp_path / "m.safetensors", model, guide, data)
    assert Posterior(*load(tmp_path / "m.safetensors")).bound == Posterior(model, guide, data).bound


def test_mapped_files_and_memory_give_the_same(tmp_path):
    model, _, data = problem()
    np.save(tmp_path / "y.npy", data.read().numpy())
    np.save(tmp_path / "t.npy", data.times.t.numpy())
    mapped = MappedSequences(tmp_path / "y.npy", data.lengths, tmp_path / "t.npy")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    states = []
    for source in (data, SequenceDataset(mapped), mapped):
        model.load_state_dict(start)
        pyro.set_rng_seed(5)
        explicit = AutoExplicit(model, source)
        fit(model, explicit, source, batch_size=3, epochs=2)
        states.append(state_of(model, explicit))
    for other in states[1:]:
        assert all(torch.equal(a, b) for a, b in zip(states[0], other, strict=True))


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_resumes_bit_for_bit(tmp_path, schedule):
    model, guide, data = problem()
    path = tmp_path / "state"
    pyro.set_rng_seed(1)
    whole = fit(model, guide, data, batch_size=3, epochs=4, schedule=schedule)
    wanted = state_of(model, guide)

    class Stop(Exception):  # noqa: N818
        pass

    def stop(record):
        if record.step == 7:
            raise Stop

    again, its_guide, _ = problem()
    pyro.set_rng_seed(1)
    with pytest.raises(Stop):
        fit(
            again, its_guide, data, batch_size=3, epochs=4, schedule=schedule, checkpoint=path, checkpoint_steps=1,
            callback=stop,
        )  # fmt: skip
    third, last_guide, _ = problem()
    pyro.set_rng_seed(99)
    result = fit(third, last_guide, data, batch_size=3, epochs=4, schedule=schedule, resume=path)
    assert all(torch.equal(a, b) for a, b in zip(state_of(third, last_guide), wanted, strict=True))
    assert [r.bound for r in result.history] == [r.bound for r in whole.history]
    assert result.bound == whole.bound


def test_resume_refuses_other_runs(tmp_path):
    model, guide, data = problem()
    path = tmp_path / "state"
    fit(model, guide, data, batch_size=3, num_steps=2, checkpoint=path)
    before = state_of(model, guide)
    with pytest.raises(ValueError, match="Cannot resume: batch_size, schedule"):
        fit(model, guide, data, batch_size=2, num_steps=2, resume=path)
    with pytest.raises(ValueError, match=r"Cannot resume: learning_rate was 0\.1 and is now 0\.2"):
        fit(model, guide, data, batch_size=3, num_steps=2, learning_rate=0.2, resume=path)
    other = VGPDS.from_data(data, latent_dim=3, num_inducing=8)
    with pytest.raises(ValueError, match="the checkpoint's parameters are not those of this model"):
        fit(other, AutoOpperArchambeau(other), data, batch_size=3, num_steps=2, resume=path)
    with pytest.raises((ValueError, FileFormatError)):
        fit(model, guide, data, num_steps=2, warmup=0, learning_rate=0.1, resume=path)  # a run of the full batch
    full = tmp_path / "full"
    fit(model, guide, data, num_steps=2, warmup=0, learning_rate=0.1, checkpoint=full)
    before = state_of(model, guide)
    with pytest.raises(ValueError, match="Cannot resume"):
        fit(model, guide, data, batch_size=3, num_steps=2, warmup=0, learning_rate=0.1, resume=full)
    assert all(torch.equal(a, b) for a, b in zip(state_of(model, guide), before, strict=True))


def test_a_failed_step_is_undone(monkeypatch):
    """An evaluation that fails sends training back by one step, with half its length; it then continues."""
    model, guide, data = problem()
    fit(model, guide, data, num_steps=20)  # then no other step fails, in whatever order sequences come
    evaluate, calls, seen = BatchProblem.evaluate, [], []

    def failing(self, batch, rate):
        calls.append(len(calls))
        seen.append([p.detach().clone() for p in self.parameters])
        if len(calls) == 5:
            raise NumericalError("on purpose")
        return evaluate(self, batch, rate)

    monkeypatch.setattr(BatchProblem, "evaluate", failing)
    result = fit(model, guide, data, batch_size=3, epochs=3)
    assert result.num_undone == 1
    assert result.stopped == "steps"
    # the fifth evaluation is at the point after the third step; the sixth at that before it
    assert all(torch.equal(a, b) for a, b in zip(seen[5], seen[3], strict=True))
    assert len(calls) == 1 + 9 + 1


def test_a_step_that_spoils_the_bound_is_undone():
    model, guide, data = problem()
    fit(model, guide, data, num_steps=30)
    result = fit(model, guide, data, batch_size=2, epochs=4, learning_rate=3.0, warmup=0)
    assert result.num_undone > 0
    assert np.isfinite(result.bound)


def test_no_finite_start():
    model, guide, data = problem()
    explicit = AutoExplicit.from_collapsed(guide, data)
    explicit.eta[:] = torch.nan
    with pytest.raises(NumericalError, match="no finite value at the initial parameters"):
        fit(model, explicit, data, batch_size=3, epochs=1)


def test_early_stopping_and_callback():
    model, guide, data = problem()
    seen = []
    result = fit(model, guide, data, batch_size=3, epochs=30, tolerance=0.5, callback=seen.append)
    assert result.stopped == "converged"
    assert len(seen) == len(result.history) < 91
    assert not any(p.grad is not None for p in model.parameters())
    assert len(dict(pyro.get_param_store())) == 0


def test_statistics_survive_a_file():
    dual = Dual.empty(3, 2, 1)
    again = Dual.from_tensors(dual.tensors())
    assert again.count == 0
    assert torch.equal(again.a, dual.a)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 2}, "epochs needs batch_size"),
        ({"inducing_rate": 0.5}, "inducing_rate needs batch_size"),
        ({"schedule": "constant"}, "schedule needs batch_size"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"batch_size": 2, "epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"batch_size": 2, "epochs": 1, "num_steps": 1}, "give epochs or num_steps"),
        ({"batch_size": 2, "schedule": "linear"}, "schedule must be one of 'cosine', 'constant'"),
        ({"batch_size": 2, "inducing_rate": 0.0}, r"inducing_rate must be in \(0, 1\]"),
        ({"batch_size": 2, "method": "lbfgs"}, "method must be 'natural' with batch_size"),
        ({"batch_size": 2, "num_restarts": 1}, "batch_size needs num_restarts=0"),
        ({"batch_size": 2, "checkpoint_steps": 1}, "need checkpoint, the file to write"),
    ],
)
def test_bad_arguments(options, message):
    model, guide, data = problem(2)
    with pytest.raises(ValueError, match=message):
        fit(model, guide, data, **options)


def test_bad_guides():
    model, _, data = problem(3)
    with pytest.raises(TypeError, match="guide must be an AutoExplicit or AutoOpperArchambeau with batch_size"):
        fit(model, AmortizedOpperArchambeau(model, data), data, batch_size=2)
    _, other_guide, _ = problem(3)
    with pytest.raises(ValueError, match="guide was made for another model"):
        fit(model, other_guide, data, batch_size=2)
    with pytest.raises(ValueError, match="guide is free"):
        fit(model, AutoExplicit(model, data, free=True), data, batch_size=2)
    explicit = AutoExplicit(Subsampled(model, 2), data)
    with pytest.raises(ValueError, match="guide was made for other sequences"):
        fit(model, explicit, problem(4)[2], batch_size=2)
    result = fit(model, explicit, data, batch_size=2, epochs=1)
    collapsed = explicit.collapsed()
    assert -Collapsed_ELBO().loss(model, collapsed, data) == pytest.approx(result.bound, rel=1e-7)
