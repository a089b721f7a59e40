# SPDX-License-Identifier: Apache-2.0
"""One of several processes of the tests: runs the checks that are named, and writes what it found as JSON."""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import column_checks  # noqa: F401
import likelihood_checks  # noqa: F401
import numpy as np
import pyro
import pyro.distributions as dist
import sum_checks  # noqa: F401
import torch
from problems import make_data, make_model
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from shared import (
    CASES,
    CHECKS,
    FEW,
    FOLDER,
    LENGTHS,
    check,
    compared_fits,
    difference,
    message,
    problem,
    relative,
    sites_of,
    values_of,
)

from pyro_vgpds import (
    VGPDS,
    AmortizedOpperArchambeau,
    AutoExplicit,
    AutoOpperArchambeau,
    Collapsed_ELBO,
    MinibatchNaturalGradient,
    NaturalGradient,
    NumericalError,
    Posterior,
    SequenceDataset,
    Sequences,
    auto,
    distributed,
    fit,
    save,
)  # fmt: skip
from pyro_vgpds.data import FrameDataset
from pyro_vgpds.inference import streaming
from pyro_vgpds.inference.untraced import can_skip_trace


@check
def gradients(rank):
    """Bound and gradients, those of one process beside those of all."""
    found = {}
    for name, options in CASES.items():
        model, guide, whole, part, data, rows = problem(**options)
        elbo, parameters = Collapsed_ELBO(), list(model.parameters())
        with distributed.independent():
            loss = elbo.loss_and_grads(model, guide, whole)
        wanted = [p.grad for p in parameters]
        sites = [p.grad[rows] for p in guide.frame_parameters]
        model.zero_grad()
        pyro.clear_param_store()
        joint = elbo.loss_and_grads(model, part, data)
        errors = (
            difference([p.grad for p in parameters], wanted),
            difference([p.grad for p in part.frame_parameters], sites),
        )
        alone = elbo.loss(model, part, data)
        found[name] = [relative(joint, loss), relative(alone, loss), *errors]
    return found


@check
def accumulated(rank):
    """Gradients of two evaluations add up, as in one process."""
    model, _, _, part, data, _ = problem()
    elbo, parameters = Collapsed_ELBO(), list(model.parameters())
    elbo.loss_and_grads(model, part, data)
    once = [2.0 * p.grad for p in parameters]
    elbo.loss_and_grads(model, part, data)
    return difference([p.grad for p in parameters], once)


@check
def natural(rank):
    """20 steps of SVI with natural gradients."""
    found = {}
    for name, options in FEW.items():
        model, guide, whole, part, data, rows = problem(**options)
        start = values_of(model)
        reached = []
        for own, on in ((guide, whole), (part, data)):
            pyro.clear_param_store()
            model.load_state_dict(start)
            svi = SVI(model, own, Adam({"lr": 0.01}), Collapsed_ELBO())
            with distributed.independent(), NaturalGradient(own, on) as steps:
                for _ in range(20):
                    loss = svi.step(on)
                    steps.step(0.3)
            state = [v.clone() for v in model.state_dict().values()]
            reached.append(([torch.tensor(loss), *state], [own.mean_bar.detach(), own.lam.detach()]))
        (one, one_sites), (many, many_sites) = reached
        found[name] = [difference(many, one), difference(many_sites, [x[rows] for x in one_sites])]
    return found


@check
def trained(rank):
    """fit, save and gather."""
    found = {}
    for name, options in FEW.items():
        given = problem(**options)
        model, _, whole, part, data, _ = given
        found[name], bound = compared_fits(given, num_steps=15, learning_rate=0.01)
        joined = distributed.gather(part, data)
        file = FOLDER / f"{name}.model"
        save(file, model, part, data)
        assert (joined is None) == (rank > 0)
        assert file.exists()
        if joined is not None:
            found[name].append(relative(Posterior(model, *joined).bound, bound))
            assert joined[1].lengths == whole.lengths
            assert torch.equal(joined[1].y.nan_to_num(), whole.y.nan_to_num())
    return found


@check
def starts(rank):
    """VGPDS.from_data: parameters and latent points."""
    found = {}
    for name, options in {"complete": {}, "missing": {"missing": 0.2}, "wide": {"outputs": 40}}.items():
        for static in (0, 2):
            whole = make_data((14, 9, 12, 17, 11), **options)
            pyro.set_rng_seed(3)
            one = VGPDS.from_data(whole, latent_dim=4, num_inducing=6, static_dim=static)
            data = distributed.shard(whole)
            pyro.set_rng_seed(3 + rank)  # the draws are those of the first process
            many = VGPDS.from_data(data, latent_dim=4, num_inducing=6, static_dim=static)
            rows = slice(data.offset, data.offset + data.num_frames)
            wanted = [*one.state_dict().values(), one.start.x[rows]]
            found[f"{name}, {static}"] = difference([*many.state_dict().values(), many.start.x], wanted)
    return found


@check
def priors(rank):
    """Hyperparameters with priors: the same draws everywhere, and their divergence counts once."""
    model, guide, whole, part, data, _ = problem(noise=dist.LogNormal(torch.tensor(-2.0), torch.tensor(0.5)))
    losses = []
    for own, on in ((guide, whole), (part, data)):
        pyro.clear_param_store()
        Collapsed_ELBO().loss(model, own, on)  # makes the parameters
        pyro.set_rng_seed(5 + (rank if on is data else 0))
        with distributed.independent():
            losses.append(Collapsed_ELBO(num_particles=3).loss_and_grads(model, own, on))
    return relative(losses[1], losses[0])


@check
def amortised(rank):
    """A guide with a network, all of whose parameters are common."""
    pyro.clear_param_store()
    whole = make_data((14, 9, 12, 17, 11))
    data = distributed.shard(whole)
    pyro.set_rng_seed(0)
    model = VGPDS.from_data(whole, latent_dim=2, num_inducing=6, static_dim=0, jitter=1e-2)
    guide = AmortizedOpperArchambeau(model)
    distributed.same(model, guide, data)
    with distributed.independent():
        loss = Collapsed_ELBO().loss_and_grads(model, guide, whole)
    wanted = [p.grad for p in guide.parameters() if p.grad is not None]
    guide.zero_grad()
    pyro.clear_param_store()
    joint = Collapsed_ELBO().loss_and_grads(model, guide, data)
    return [relative(joint, loss), difference([p.grad for p in guide.parameters() if p.grad is not None], wanted)]


@check
def undone(rank):
    """A numerical error in one process undoes the step in all."""
    model, _, _, part, data, _ = problem()
    make, calls = part.make_posterior, []

    def failing(prior):
        calls.append(1)
        if rank == 1 and len(calls) in (5, 9):
            raise NumericalError("this test fails here.")
        return make(prior)

    part.make_posterior = failing
    result = fit(model, part, data, num_steps=8, method="adam")
    return [result.num_undone, result.bound, [float(p.detach().sum()) for p in model.parameters()]]


@check
def restarts(rank):
    """Runs from other inducing inputs, which are drawn in the first process."""
    pyro.clear_param_store()
    pyro.set_rng_seed(rank)
    data = distributed.shard(make_data((14, 9, 12, 17, 11)))
    model = VGPDS.from_data(data, latent_dim=2, num_inducing=6)
    result = fit(model, AutoOpperArchambeau(model), data, num_steps=4, num_restarts=1)
    return [result.bound, float(model.inducing.detach().sum())]


def continued(name, steps, **options):
    """A run that continues from a checkpoint, of any number of processes, is the run that was never stopped."""
    model, _, _, part, data, _ = problem()
    start = values_of(model)
    sites = part.mean_bar.detach().clone(), part.lam.detach().clone()
    pyro.set_rng_seed(7 + data.communicator.rank)
    whole = fit(model, part, data, num_steps=12, warmup=1, **options)
    wanted = [v.clone() for v in model.state_dict().values()]
    bounds = []
    for path in (FOLDER / f"{name} {data.communicator.size}", *(FOLDER / f"{name} {count}" for count in (1, 2, 3))):
        if path.name == f"{name} {data.communicator.size}" and not bounds:
            model.load_state_dict(start)
            part.set(*sites)
            pyro.set_rng_seed(7 + data.communicator.rank)
            fit(model, part, data, num_steps=steps, warmup=1, checkpoint=path, checkpoint_steps=3, **options)
        if not path.exists():
            continue
        model.load_state_dict(start)
        part.set(*sites)
        bounds.append([path.name, fit(model, part, data, num_steps=12, warmup=1, resume=path, **options).bound])
        if len(bounds) == 1:
            exact = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), wanted, strict=True))
    return [whole.bound, exact, bounds]


@check
def checkpoints(rank):
    return continued("of", 7)


@check
def batch_checkpoints(rank):
    """With all sequences in a batch the order of the sequences does not count."""
    return continued("all of", 7, batch_size=len(LENGTHS), schedule="constant", learning_rate=0.01)


@check
def batches(rank):
    """Batches of the sequences of each process, which together are one batch: five steps, and a pass over all."""
    found = {}
    for name, options in FEW.items():
        model, guide, whole, part, data, rows = problem(**options)
        start = values_of(model)
        first = distributed.shard(whole)
        own = len(first.lengths)
        before = sum(data.communicator.all_gather(own)[:rank])
        mine = [[0], [own - 1], list(range(own)), [0], [own - 1]]  # of each process
        every = [
            sorted(i for some in data.communicator.all_gather([before + i for i in step]) for i in some)
            for step in mine
        ]
        reached = []
        for sites, on, steps in ((guide, whole, every), (part, data, mine)):
            pyro.clear_param_store()
            model.load_state_dict(start)
            with distributed.independent():
                explicit = AutoExplicit.from_collapsed(sites, on)
                svi = SVI(model, explicit, Adam({"lr": 0.01}), Collapsed_ELBO())
                losses = []
                with MinibatchNaturalGradient(explicit, inducing_rate=0.4) as natural:
                    for step in steps:
                        batch = explicit.data.batch(step)
                        losses.append(svi.step(batch))
                        natural.step(0.6)
                losses += [Collapsed_ELBO().loss(model, explicit, batch), explicit.collect(batch_size=2)]
            numbers = [v.clone() for v in model.state_dict().values()]
            a = explicit.dual.a[explicit.dual.of_output]
            reached.append(([torch.tensor(losses), *numbers, explicit.dual.v, a], [explicit.eta, explicit.lam]))
        (one, one_sites), (many, many_sites) = reached
        found[name] = [difference(many, one), difference(many_sites, [x[rows] for x in one_sites])]
    return found


@check
def direct_batches(rank):
    """Bound and gradients of a batch without a trace, compared with those by a trace."""
    found = {}
    for name, options in FEW.items():
        model, _, _, part, data, _ = problem(**options)
        explicit = AutoExplicit.from_collapsed(part, data)
        batch, parameters, reached = explicit.data.batch([0]), list(model.parameters()), []
        with MinibatchNaturalGradient(explicit, inducing_rate=0.4) as natural:
            for step in range(4):
                with poutine.block() if step % 2 == 0 else nullcontext():  # a handler, with which there is a trace
                    assert can_skip_trace(model, explicit, batch) == (step % 2 == 1)
                    model.zero_grad()
                    more = Collapsed_ELBO().loss(model, explicit, batch)
                    loss = Collapsed_ELBO().loss_and_grads(model, explicit, batch)
                gradients = [*(p.grad.clone() for p in parameters), *natural.derivatives()]
                reached.append([torch.tensor([loss, more]), *gradients])
                if step == 1:
                    natural.step(0.6)
        found[name] = [difference(reached[1], reached[0]), difference(reached[3], reached[2])]
    return found


@check
def batch_fits(rank):
    """With all sequences in a batch, fit is that of one process; a run that continues is one that never stopped."""
    given = problem()
    model, _, _, part, data, _ = given
    start, sites = values_of(model), [value.clone() for value in sites_of(part)]
    equal, _ = compared_fits(given, batch_size=len(LENGTHS), epochs=6, learning_rate=0.01)

    def again(num_steps, on=data, **more):
        pyro.set_rng_seed(7 + rank)
        model.load_state_dict(start)
        part.set(*sites)
        return fit(model, part, on, batch_size=3, num_steps=num_steps, schedule="constant", warmup=0, **more)

    path, items = FOLDER / f"batches of {data.communicator.size}", [(t.numpy(), y.numpy()) for t, y in pairs(data)]
    never = again(6).bound
    again(3, checkpoint=path, checkpoint_steps=2)
    resumed = again(6, resume=path).bound
    dataset = distributed.share(SequenceDataset(items))
    return [equal, [never, resumed, again(6, on=dataset).bound]]


@check
def single_sequences(rank):
    """With one sequence in each process a batch has sequences; long ones are summed in batches of frames."""
    with patch.object(streaming, "_FRAMES", 3):
        return compared_fits(problem(lengths=(7, 4)), batch_size=2, epochs=4, learning_rate=0.01)[0]


def pairs(data):
    return zip(data.times.t.split(data.lengths), data.read().split(data.lengths), strict=True)


@check
def dates(rank):
    """Times count from the earliest date of all processes."""
    days = np.datetime64("2024-01-01") + np.arange(3) + rank
    data = distributed.share(Sequences(days, np.arange(6.0).reshape(3, 2)))
    return [str(data.time_origin), float(data.times.t[0])]


def timed(function):
    """The error of a function, and the seconds that it took."""
    begin = time.monotonic()
    return [message(function), time.monotonic() - begin]


@check
def errors(rank):
    """What a user of the processes can do wrong."""
    data = make_data(LENGTHS)
    few = make_data((5,))
    other = make_data(LENGTHS, outputs=5 + rank)
    model, _, _, part, shared, _ = problem()
    seeds = make_model(data, noise=0.07 + 0.01 * rank)[0]
    hand = AutoOpperArchambeau(seeds, mean_bar=part.mean_bar.detach(), lam=part.lam.detach())

    def failing(record):
        if rank == 1:
            raise KeyError("this test fails here")

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.guide = make_model(data)

        def forward(self, data):
            return Collapsed_ELBO().differentiable_loss(self.model, self.guide, data)

    def wrapped():
        torch.nn.parallel.DistributedDataParallel(Wrapped())(data)

    def warned():
        one, guide = make_model(data)
        pyro.clear_param_store()
        Collapsed_ELBO().loss_and_grads(one, guide, data)

    def counts():
        y = [np.ones((n, 2)) for n in LENGTHS]
        y[-1][0] = -1.0  # of the last process
        VGPDS.from_data(distributed.shard(Sequences([np.arange(n) for n in LENGTHS], y)), likelihood="poisson")

    def functions():
        y = [np.arange(2.0 * n).reshape(n, 2) for n in LENGTHS]
        own = distributed.shard(Sequences([np.arange(n) for n in LENGTHS], y))
        pyro.clear_param_store()
        counted = VGPDS.from_data(own, latent_dim=1, num_inducing=3, likelihood="poisson")
        path = AutoOpperArchambeau(counted)

        def guide(data):
            path(data)
            pyro.sample("f", dist.Normal(torch.zeros(own.num_frames, 2), 1.0).to_event(2))

        guide.frame_parameters = path.frame_parameters
        Collapsed_ELBO().loss(counted, guide, own)

    def drawn():
        pyro.clear_param_store()
        Trace_ELBO().loss(model, part, shared)

    def other_guide():
        Collapsed_ELBO().loss(model, lambda data: None, shared)

    def more(data):
        model(data)
        pyro.sample("more", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))

    def other_site():
        pyro.clear_param_store()
        guide = AutoOpperArchambeau(more, mean_bar=part.mean_bar.detach(), lam=part.lam.detach())
        Collapsed_ELBO().loss(more, guide, shared)

    found = {
        "columns": lambda: distributed.share(other),
        "lengths": lambda: distributed.shard(make_data((3 + rank, 4, 5))),
        "no data": lambda: distributed.share(None if rank == 1 else data),
        "few": lambda: distributed.shard(few),
        "twice": lambda: distributed.shard(shared),
        "type": lambda: distributed.share([1.0]),
        "settings": lambda: fit(model, part, shared, num_steps=5 + rank),
        "batch settings": lambda: fit(model, part, shared, batch_size=3 + rank),
        "batch checkpoint": lambda: fit(model, part, shared, batch_size=3, resume=FOLDER / "of 1"),
        "resumed batches": lambda: fit(model, part, shared, resume=FOLDER / "all of 1"),
        "ragged": lambda: fit(model, part, shared, num_steps=9, resume=FOLDER / "ragged"),
        "explicit": lambda: distributed.gather(AutoExplicit(model, shared, start=tuple(sites_of(part))), shared),
        "part": lambda: AutoExplicit(model, shared, start=tuple(sites_of(part))).part([0]),
        "frames": lambda: FrameDataset(shared),
        "frames of a dataset": lambda: FrameDataset(distributed.share(SequenceDataset(few))),
        "datasets": lambda: distributed.share(SequenceDataset(few) if rank else few),
        "other datasets": lambda: distributed.share(SequenceDataset(other)),
        "dataset twice": lambda: distributed.share(distributed.share(SequenceDataset(data))),
        "parameters": lambda: fit(seeds, hand, shared, num_steps=5),
        "lbfgs": lambda: fit(model, part, shared, method="lbfgs"),
        "restarts": lambda: fit(model, part, shared, num_restarts=2, processes=2),
        "adam": lambda: fit(model, part, shared, method="adam", checkpoint=FOLDER / "adam"),
        "callback": lambda: fit(model, part, shared, num_steps=5, callback=failing),
        "resume": lambda: fit(model, part, shared, resume=FOLDER / f"none {rank}"),
        "wrapped": wrapped,
        "warned": warned,
        "counts": counts,
        "functions": functions,
        "drawn": drawn,
        "guide": other_guide,
        "site": other_site,
        "differentiable": lambda: Collapsed_ELBO().differentiable_loss(model, part, shared),
        "refine": lambda: AmortizedOpperArchambeau(model).refine(shared),
        "auto": lambda: auto(shared),
        "posterior": lambda: Posterior(model, part, shared),
        "joined": lambda: shared.joined(data),
    }
    result = {}
    for name, function in found.items():
        if name == "restarts":
            model.start = object()
        result[name] = timed(function)
    model.start = None
    result["after"] = timed(lambda: fit(model, part, shared, num_steps=2))
    return result


def threads():
    """The threads of torch's processes, which must end with the block: at the end of Python they may end it badly."""
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    return sorted(name for name in names if "gloo" in name or "tcpstore" in name)


def main():
    with distributed.join(timeout=60) as rank:
        for name in sys.argv[2:]:
            found = CHECKS[name](rank)
            file = FOLDER / f"{name} {rank}.json"
            file.with_suffix(".new").write_text(json.dumps(found))
            file.with_suffix(".new").rename(file)
        before = threads()
    (FOLDER / f"threads {rank}.json").write_text(json.dumps([before, threads()]))


if __name__ == "__main__":
    main()
