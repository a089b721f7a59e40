# SPDX-License-Identifier: Apache-2.0
"""Steps with all sequences that follow training in batches."""

import itertools
import signal

import pyro
import pytest
import torch
from batch_problems import state_of

from pyro_vgpds import VGPDS, AutoExplicit, AutoOpperArchambeau, Collapsed_ELBO, SequenceDataset, fit
from pyro_vgpds.datasets import make_sequences


def problem():
    pyro.set_rng_seed(3)
    data = make_sequences(num_sequences=6, num_outputs=4, length=(8, 12)).sequences()
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=6)
    return model, AutoOpperArchambeau(model), data


def test_the_default_is_two_runs():
    model, guide, data = problem()
    batches = fit(model, guide, data, batch_size=2, epochs=20, tolerance=0.0)
    full = fit(model, guide, data, num_steps=12, warmup=0, tolerance=0.0)
    wanted, seen = state_of(model, guide), []
    model, guide, data = problem()
    result = fit(model, guide, data, batch_size=2, tolerance=0.0, callback=seen.append)
    assert all(torch.equal(a, b) for a, b in zip(state_of(model, guide), wanted, strict=True))
    assert result.bound == full.bound > batches.bound
    assert result.bound == pytest.approx(-Collapsed_ELBO().loss(model, guide, data), rel=1e-10)
    assert [r.bound for r in result.history] == [r.bound for r in (*batches.history, *full.history[1:])]
    assert [r.step for r in seen] == list(range(20 * 3 + 12 + 1))
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))
    assert seen == result.history
    assert (result.num_undone, result.stopped) == (batches.num_undone + full.num_undone, "steps")


def test_they_are_counted_apart_from_batches():
    for options, steps in (({"epochs": 2}, 6), ({"num_steps": 5}, 5), ({"epochs": 2, "full_steps": 3}, 9)):
        model, guide, data = problem()
        assert fit(model, guide, data, batch_size=2, tolerance=0.0, **options).num_steps == steps, options


def test_what_is_not_in_memory_has_none(monkeypatch):
    model, guide, data = problem()
    monkeypatch.setattr("pyro_vgpds.training.batch_fit._EPOCHS", 2)
    assert fit(model, guide, SequenceDataset(data), batch_size=2, tolerance=0.0).num_steps == 6
    assert fit(model, AutoExplicit.from_collapsed(guide, data), data, batch_size=2, tolerance=0.0).num_steps == 6
    assert fit(model, guide, data, batch_size=2, tolerance=0.0).num_steps == 18
    monkeypatch.setattr("pyro_vgpds.training.batch_fit._MEMORY", data.num_frames * data.num_outputs - 1)
    assert fit(model, guide, data, batch_size=2, tolerance=0.0).num_steps == 6


def test_resume_repeats_them(tmp_path):
    options = {"batch_size": 2, "epochs": 2, "full_steps": 4}
    model, guide, data = problem()
    whole = fit(model, guide, data, checkpoint=tmp_path / "state", **options)
    wanted = state_of(model, guide)
    model, guide, data = problem()
    pyro.set_rng_seed(99)
    again = fit(model, guide, data, resume=tmp_path / "state", **options)
    assert all(torch.equal(a, b) for a, b in zip(state_of(model, guide), wanted, strict=True))
    assert [r.bound for r in again.history] == [r.bound for r in whole.history]


def test_none_follow_an_interruption():
    def interrupt(record):
        if record.step == 2:
            signal.raise_signal(signal.SIGINT)

    model, guide, data = problem()
    result = fit(model, guide, data, batch_size=2, epochs=2, full_steps=4, callback=interrupt)
    assert (result.stopped, result.num_steps) == ("interrupted", 2)


def test_bad_arguments():
    model, guide, data = problem()
    with pytest.raises(ValueError, match="full_steps needs batch_size, but got full_steps=2 without it"):
        fit(model, guide, data, full_steps=2)
    with pytest.raises(ValueError, match="full_steps must be a whole number of at least 0"):
        fit(model, guide, data, batch_size=2, full_steps=-1)
    message = r"full_steps needs all sequences in memory, as Sequences\(t, y\), and an AutoOpperArchambeau, but got "
    with pytest.raises(ValueError, match=message + "SequenceDataset and AutoOpperArchambeau"):
        fit(model, guide, SequenceDataset(data), batch_size=2, full_steps=2)
    with pytest.raises(ValueError, match=message + "Sequences and AutoExplicit"):
        fit(model, AutoExplicit.from_collapsed(guide, data), data, batch_size=2, full_steps=2)
