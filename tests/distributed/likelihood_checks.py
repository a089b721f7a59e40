# SPDX-License-Identifier: Apache-2.0
"""Outputs that are not Gaussian, trained by several processes and by one."""

import numpy as np
import pyro
import torch.distributed as dist
from shared import FOLDER, check, difference, relative

from pyro_vgpds import (
    VGPDS,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    Posterior,
    SequenceDataset,
    Sequences,
    distributed,
    fit,
    load,
    save,
)
from pyro_vgpds.likelihoods import Bernoulli, Binomial, NegativeBinomial, Poisson, StudentT

LENGTHS = (14, 9, 12, 17)
KINDS = {
    "student": (StudentT, False),
    "bernoulli": (Bernoulli, False),
    "binomial": (lambda: Binomial(5), False),
    "negative binomial": (NegativeBinomial, True),
    "poisson": (Poisson, True),
}


def make_outputs(name: str, exposed: bool) -> Sequences:
    """Sequences of outputs that the likelihood can have, some of them missing."""
    rng = np.random.default_rng(4)
    t = [np.arange(n) / 5.0 for n in LENGTHS]
    phase = rng.uniform(0, 6, 4)
    f = [np.sin(2 * a[:, None] + phase) for a in t]
    draw = {
        "student": lambda f: f + 0.1 * rng.standard_t(3, f.shape),
        "bernoulli": lambda f: rng.binomial(1, 1 / (1 + np.exp(-2 * f))),
        "binomial": lambda f: rng.binomial(5, 1 / (1 + np.exp(-f))),
    }.get(name, lambda f: rng.poisson(np.exp(1 + f)))
    y = [draw(part).astype(float) for part in f]
    for part in y:
        part[rng.random(part.shape) < 0.1] = np.nan
    exposure = [rng.uniform(0.5, 2.0, part.shape) for part in y] if exposed else None
    return Sequences(t, y, exposure=exposure)


def make(data, name, seed):
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    kind = KINDS[name][0]
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=6, static_dim=0, likelihood=kind(), jitter=1e-2)
    return model, AutoOpperArchambeau(model)


def state(model):
    """The values of a model that all processes have."""
    return [value.clone() for name, value in model.state_dict().items() if not name.startswith("sites.")]


def compare(name, rank, **options):
    """The largest differences between one process and all of them: start, bound, parameters, q(X) and factors."""
    whole = make_outputs(name, KINDS[name][1])
    data = distributed.shard(whole)
    rows = slice(data.offset, data.offset + data.num_frames)
    model, guide = make(whole, name, 3)
    first = [*state(model), guide.lam.detach()[rows]]
    with distributed.independent():
        one = fit(model, guide, whole, num_steps=5, learning_rate=0.01, tolerance=0.0, **options)
    many, part = make(data, name, 3 + rank)
    found = [difference([*state(many), part.lam.detach()], first)]
    result = fit(many, part, data, num_steps=5, learning_rate=0.01, tolerance=0.0, **options)
    found.append(relative(result.bound, one.bound))
    found.append(difference(state(many), state(model)))
    found.append(difference([many.sites.state], [model.sites.state[:, rows]]))
    return found, (many, part, data), one


@check
def likelihoods(rank):
    """from_data, fit, gather and save; two of the likelihoods if there are more than two processes."""
    found = {}
    for name in KINDS if dist.get_world_size() == 2 else ("negative binomial", "poisson"):
        found[name], (model, guide, data), one = compare(name, rank)
        joined, file = distributed.gather(guide, data), FOLDER / f"{name}.model"
        save(file, model, guide, data)
        if joined is not None:
            for parts in ((joined[0].model, *joined), load(file)):
                found[name].append(relative(Posterior(*parts).bound, one.bound))
    return found


@check
def likelihood_batches(rank):
    """Steps with all sequences in the batch, which is the same batch in one process."""
    names = "student", "negative binomial"  # without and with exposure
    return {name: compare(name, rank, batch_size=len(LENGTHS))[0] for name in names}


@check
def drawn_batches(rank):
    """A step on a batch of outputs whose expectations are drawn: all frames have the draws that they have in one."""
    whole = make_outputs("poisson", True)
    model, guide = make(whole, "poisson", 3)
    parts = []
    for data in (whole, distributed.shard(whole)):
        rows = slice(data.offset, data.offset + data.num_frames)
        many = SequenceDataset(data)
        with distributed.independent():
            lam = guide.lam.detach()[rows]
            explicit = AutoExplicit(model, many, start=(lam * model.start.x[rows], lam))
            natural = MinibatchNaturalGradient(explicit, 0.4)
            with natural:
                for _ in range(3):
                    model.zero_grad()
                    pyro.clear_param_store()
                    loss = Collapsed_ELBO().loss_and_grads(model, explicit, many.batch(range(len(many))))
                    natural.step(0.7)
        gradients = [p.grad.clone() for p in model.parameters()]
        parts.append((loss, gradients, [explicit.eta, explicit.lam, explicit.factors.movedim(1, 0)], rows))
    (one, wanted, sites, _), (loss, found, own, rows) = parts
    return [relative(loss, one), difference(found, wanted), difference(own, [x[rows] for x in sites])]


@check
def likelihood_checkpoints(rank):
    """A checkpoint of several processes has the factors of the outputs of each."""
    data = distributed.shard(make_outputs("bernoulli", False))
    model, guide = make(data, "bernoulli", 3)
    never = fit(model, guide, data, num_steps=8, warmup=1)
    model, guide = make(data, "bernoulli", 3)
    fit(model, guide, data, num_steps=5, warmup=1, checkpoint=FOLDER / "factors")
    model, guide = make(data, "bernoulli", 3)
    resumed = fit(model, guide, data, num_steps=8, warmup=1, resume=FOLDER / "factors")
    return [resumed.bound, never.bound]
