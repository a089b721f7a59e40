# SPDX-License-Identifier: Apache-2.0
"""Python threads: Pyro programs run one at a time, with the results of sequential runs; predictions run in parallel."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pyro
import pytest
import torch
from problems import make_data
from pyro.poutine import runtime

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Posterior, auto, fit
from pyro_vgpds.kernels import RBF, White
from pyro_vgpds.pyro_state import one_at_a_time, own_store, pyro_lock
from pyro_vgpds.selection import Configuration


def make(i: int):
    """A problem of its own size, so that parameters of another one are noticed."""
    pyro.set_rng_seed(i)
    data = make_data((12 + i, 10), missing=0.1)
    return VGPDS.from_data(data, 2, 5 + i % 3), data


def trained(problem):
    """Everything that runs a Pyro program; the numbers that come out of it."""
    model, data = problem
    guide = AutoOpperArchambeau(model)
    result = fit(model, guide, data, 4, progress=False)
    post = Posterior(model, guide, data)
    again = post.condition(data)
    more = post.extended([9.0], data.read()[-1:], sequence=1)
    mean = post.forecast([9.0, 9.5], sequence=0).mean
    return [result.bound, post.bound, again.bound, more.bound, *mean.flatten().tolist()]


def test_fits_in_threads_equal_sequential_ones_and_leave_pyro_whole():
    expected = [trained(make(i)) for i in range(3)]
    problems = [make(i) for i in range(3)]
    with own_store():
        pyro.param("mine", torch.tensor(2.0))
        before = pyro.get_param_store().get_state()
    pyro.get_param_store().set_state(before)
    try:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(trained, problems)) == expected
        assert list(pyro.get_param_store().keys()) == ["mine"]
        assert runtime._PYRO_STACK == []
    finally:
        pyro.clear_param_store()
    assert trained(make(0)) == expected[0]


def test_kernels_and_modules_are_used_while_another_thread_trains():
    # reading and calling modules elsewhere must not put statements into the trace of the training thread
    model, data = make(0)
    expected = fit(model, AutoOpperArchambeau(model), data, 6, progress=False).bound
    model, data = make(0)
    over = threading.Event()

    def use() -> int:
        kernel, count = RBF(1.0, 0.5) + White(0.1), 0
        other, its_data = model_of_thread
        while not over.is_set() or not count:
            kernel(), kernel[0].lengthscale, other.noise, other.inducing, AutoOpperArchambeau(other).posterior(its_data)
            count += 1
        return count

    model_of_thread = make(1)
    with ThreadPoolExecutor(2) as pool:
        uses = [pool.submit(use) for _ in range(2)]
        try:
            assert fit(model, AutoOpperArchambeau(model), data, 6, progress=False).bound == expected
        finally:
            over.set()
        assert all(one.result(60) > 0 for one in uses)
    assert runtime._PYRO_STACK == []


def test_predictions_do_not_wait_for_a_fit():
    model, data = make(0)
    guide = AutoOpperArchambeau(model)
    post = Posterior(model, guide, data)
    t, y = data.times.t[:5], data.read()[:5]
    expected = post.forecast([9.0], sequence=0).mean, post.reconstruct(t, y).mean, post.impute().mean
    found = []

    def predict():
        found.append((post.forecast([9.0], sequence=0).mean, post.reconstruct(t, y).mean, post.impute().mean))

    def meanwhile(record):
        if record.step == 1:
            threads = [threading.Thread(target=predict) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)

    other, its_data = make(1)
    fit(other, AutoOpperArchambeau(other), its_data, 2, progress=False, callback=meanwhile)
    assert len(found) == 3
    for one in found:
        assert all(torch.equal(a, b) for a, b in zip(one, expected, strict=True))


def test_configurations_in_threads_keep_their_seeds():
    data = make_data((14, 12))
    choices = [Configuration(f"{q}", latent_dim=q, num_inducing=5, num_steps=3) for q in (1, 2, 3)]
    expected = [one.fit(data, seed=3).bound for one in choices]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda one: one.fit(data, seed=3).bound, choices)) == expected


def test_a_fit_may_be_started_from_the_callback_of_another():
    inner = []

    def nested(record):
        if record.step == 1:
            model, data = make(2)
            inner.append(fit(model, AutoOpperArchambeau(model), data, 3, progress=False).bound)

    expected = [
        fit(model, AutoOpperArchambeau(model), data, 3, progress=False).bound for model, data in map(make, (1, 2))
    ]
    model, data = make(1)
    assert fit(model, AutoOpperArchambeau(model), data, 3, progress=False, callback=nested).bound == expected[0]
    assert inner == expected[1:]


def test_an_error_gives_the_lock_back():
    @one_at_a_time
    def fail():
        with own_store():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    taken = []

    def take():
        with pyro_lock():
            taken.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(10)
    assert taken == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_while_another_thread_trains_has_a_free_lock_and_a_whole_store():
    holding, over = threading.Event(), threading.Event()
    pyro.param("mine", torch.tensor(2.0))

    def hold():
        with own_store(), pyro.poutine.trace():
            pyro.param("other", torch.tensor(1.0))
            holding.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(60)
    try:
        pid = os.fork()
        if not pid:  # the exit status tells what was found
            keys = list(pyro.get_param_store().keys())
            status = 0 if keys == ["mine"] and not runtime._PYRO_STACK else 2
            with pyro_lock():
                os._exit(status)
        deadline = threading.Event()
        for _ in range(600):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            deadline.wait(0.05)
        else:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        assert ended == pid
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        over.set()
        thread.join(60)
        pyro.clear_param_store()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_restarts_in_processes_from_a_thread():
    def run(processes):
        model, data = make(0)
        return fit(
            model, AutoOpperArchambeau(model), data, 3, num_restarts=1, processes=processes, progress=False
        ).bound

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, 2).result(120) == run(1)


def test_auto_in_threads():
    data = [make_data((20, 16), missing=0.1), make_data((18, 16), missing=0.1)]

    def compare(one):
        small = Configuration("small", latent_dim=1, num_inducing=4, num_steps=3)
        return auto(one, "impute", candidates=[small], baselines=["column mean"], progress=False).impute().mean

    expected = [compare(one) for one in data]
    with ThreadPoolExecutor(2) as pool:
        for found, wanted in zip(pool.map(compare, data), expected, strict=True):
            assert torch.equal(found, wanted)
