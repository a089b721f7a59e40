# SPDX-License-Identifier: Apache-2.0
"""Columns of the outputs that several processes have together, beside one process with all of them."""

import numpy as np
import pyro
import torch
from shared import FOLDER, LENGTHS, check, compared_fits, difference, make_data, message, problem, relative

from pyro_vgpds import (
    VGPDS,
    AmortizedOpperArchambeau,
    Collapsed_ELBO,
    Posterior,
    SequenceDataset,
    Sequences,
    distributed,
    fit,
    load,
    save,
)
from pyro_vgpds.inference.untraced import can_skip_trace

CASES = {
    "complete": {"outputs": 40},
    "missing": {"outputs": 40, "missing": 0.05},
    "noises": {"outputs": 40, "noise": torch.linspace(0.3, 0.6, 40)},
    "noises, missing": {"outputs": 8, "missing": 0.2, "noise": torch.linspace(0.3, 0.6, 8)},
    "in one process": {"outputs": 8, "gaps": True},  # only the first columns have missing values
}


@check
def column_gradients(rank):
    """Bound and all gradients, also those of q(X), by the Pyro programs and then without a trace."""
    found = {}
    for name, options in CASES.items():
        model, guide, whole, part, data, _ = problem(columns=True, **options)
        elbo = Collapsed_ELBO()
        with distributed.independent():
            loss = elbo.loss_and_grads(model, guide, whole)
        wanted = [p.grad for p in (*model.parameters(), *guide.frame_parameters)]
        errors = []
        pyro.clear_param_store()
        for traced in (True, False):
            model.zero_grad()
            part.zero_grad()
            assert can_skip_trace(model, part, data) is not traced
            joint = elbo.loss_and_grads(model, part, data)
            errors.append(relative(joint, loss))
            errors.append(difference([p.grad for p in (*model.parameters(), *part.frame_parameters)], wanted))
        errors.append(relative(elbo.loss(model, part, data), loss))
        found[name] = errors
    return found


@check
def column_fits(rank):
    """Fit with natural steps and with Adam, gather and save."""
    found = {}
    for name in ("complete", "noises, missing"):
        for method in ("natural", "adam"):
            given = problem(columns=True, **CASES[name])
            model, _, whole, part, data, _ = given
            errors, bound = compared_fits(given, num_steps=15, learning_rate=0.01, method=method)
            joined, file = distributed.gather(part, data), FOLDER / f"{name} {method}.columns"
            save(file, model, part, data)
            assert (joined is None) == (rank > 0)
            if joined is not None:
                for parts in ((model, *joined), load(file)):
                    errors.append(relative(Posterior(*parts).bound, bound))
                assert torch.equal(joined[1].y.nan_to_num(), whole.y.nan_to_num())
            found[f"{name}, {method}"] = errors
    return found


@check
def column_starts(rank):
    """VGPDS.from_data, of columns that each process has and that the processes have together."""
    found = {}
    for name, options in {"wide": {"outputs": 80}, "long": {"outputs": 7}, "missing": {"missing": 0.2}}.items():
        for static in (0, 2):
            whole = make_data((14, 9, 12, 17, 11), **options)
            pyro.set_rng_seed(3)
            one = VGPDS.from_data(whole, latent_dim=4, num_inducing=6, static_dim=static)
            data = distributed.shard(whole, columns=True)
            own = whole.read()[:, data.own]
            split = list(own.split(whole.lengths))
            data = distributed.share(Sequences(list(whole.times.t.split(whole.lengths)), split), columns=True)
            pyro.set_rng_seed(3 + rank)  # the draws are those of the first process
            many = VGPDS.from_data(data, latent_dim=4, num_inducing=6, static_dim=static)
            wanted = [*one.state_dict().values(), one.start.x]
            found[f"{name}, {static}"] = difference([*many.state_dict().values(), many.start.x], wanted)
    return found


@check
def column_checkpoints(rank):
    """A checkpoint, which any number of processes can continue."""
    bounds = []
    for options in ({}, {"checkpoint": FOLDER / "columns"}, {"resume": FOLDER / "columns"}):
        model, _, _, part, data, _ = problem(columns=True, **CASES["complete"])
        steps = 5 if "checkpoint" in options else 9
        bounds.append(fit(model, part, data, num_steps=steps, warmup=1, **options).bound)
    return bounds


@check
def column_errors(rank):
    """The messages of errors, which all processes have."""
    model, _, whole, part, data, _ = problem(columns=True, outputs=8)
    t = [np.arange(5.0) + (rank if other else 0) for other in (0, 1)]

    found = {
        "few": lambda: distributed.shard(make_data(LENGTHS, 1), columns=True),
        "times": lambda: distributed.share(Sequences(t, [np.ones((5, 2))] * 2), columns=True),
        "twice": lambda: distributed.shard(data, columns=True),
        "lags": lambda: distributed.shard(whole.lagged([-1]), columns=True),
        "lagged": lambda: data.lagged([-1]),
        "joined": lambda: data.joined(whole),
        "dataset": lambda: distributed.share(SequenceDataset(whole), columns=True),
        "batches": lambda: fit(model, part, data, batch_size=2),
        "likelihood": lambda: VGPDS.from_data(data, likelihood="student_t"),
        "encoder": lambda: fit(model, AmortizedOpperArchambeau(model), data, num_steps=1),
        "read": data.read,
        "posterior": lambda: Posterior(model, part, data),
        "callback": lambda: fit(model, part, data, num_steps=3, callback=lambda record: 1 / rank),
    }
    return {name: message(function) for name, function in found.items()}
