# SPDX-License-Identifier: Apache-2.0
"""The number of threads: which sizes use several, and that torch's setting is always restored."""

import threading

import pytest
import torch
from problems import make_data, make_problem

from pyro_vgpds import VGPDS, AutoOpperArchambeau, Collapsed_ELBO, Posterior, auto, fit
from pyro_vgpds.compiled import LOOP_WORK, chunks, loop_threads, run, start
from pyro_vgpds.selection import trials
from pyro_vgpds.threads import WORK_PER_THREAD, bound_work, thread_limited, threads_for


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch):
    monkeypatch.delenv("PYRO_VGPDS_THREADS", raising=False)
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4
    torch.set_num_threads(1)


@pytest.mark.parametrize(("work", "threads"), [(0, 1), (1.9, 1), (2, 2), (3.5, 3), (4, 4), (1e9, 4), (float("inf"), 4)])
def test_as_many_as_pay_off_and_never_more_than_the_setting(work, threads):
    with threads_for(work * WORK_PER_THREAD) as given:
        assert given == torch.get_num_threads() == threads
    torch.set_num_threads(2)
    with threads_for(work * WORK_PER_THREAD) as given:
        assert given == min(threads, 2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(4)


def test_blocks_are_nested_and_restored_after_an_error():
    with threads_for(2 * WORK_PER_THREAD):
        with threads_for(0) as inner:
            assert inner == 1
        assert torch.get_num_threads() == 2
        with threads_for(4 * WORK_PER_THREAD) as inner:
            assert inner == 2  # not more than the outer block
        with pytest.raises(ZeroDivisionError), threads_for(0):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2


def test_blocks_may_overlap_in_python_threads():
    # the second begins while the first is open and ends after it: the setting is that of before the first
    first_open, second_open, first_closed = (threading.Event() for _ in range(3))
    seen = {}

    def second():
        first_open.wait(10)
        with threads_for(0):
            second_open.set()
            first_closed.wait(10)
        seen["second"] = torch.get_num_threads()

    other = threading.Thread(target=second)
    other.start()
    with threads_for(0):
        first_open.set()
        second_open.wait(10)
    assert torch.get_num_threads() == 4
    first_closed.set()
    other.join(10)
    assert seen == {"second": 4}
    fresh = threading.Thread(target=lambda: seen.update(fresh=torch.get_num_threads()))
    fresh.start()
    fresh.join(10)
    assert seen["fresh"] == 4  # what torch gives to new threads is restored as well


@pytest.mark.parametrize(("given", "threads"), [("0", 4), ("1", 1), ("2", 2), ("9", 4), ("", 1)])
def test_the_environment_replaces_the_rule(given, threads, monkeypatch):
    monkeypatch.setenv("PYRO_VGPDS_THREADS", given)
    with threads_for(0) as found:
        assert found == torch.get_num_threads() == threads


def test_the_environment_is_checked(monkeypatch):
    monkeypatch.setenv("PYRO_VGPDS_THREADS", "two")
    with pytest.raises(ValueError, match="PYRO_VGPDS_THREADS must be a whole number, but is 'two'"), threads_for(0):
        pass


def test_work_grows_with_every_size():
    least = bound_work(100, 20, 5, 30)
    assert all(
        bound_work(*size) > least for size in [(200, 20, 5, 30), (100, 40, 5, 30), (100, 20, 9, 30), (100, 20, 5, 40)]
    )
    assert bound_work(100, 20, 5, 30, [60, 40]) == least + 5 * (60**3 + 40**3)
    assert least < WORK_PER_THREAD < bound_work(10_000, 60, 5, 100)


def test_methods_are_limited():
    class Thing:
        work = 2 * WORK_PER_THREAD

        @thread_limited
        def threads(self, more, *, times=1):
            """What it does."""
            return (torch.get_num_threads() + more) * times

    assert Thing().threads(1, times=2) == 6
    assert Thing.threads.__doc__ == "What it does."


def test_entry_points_use_one_thread_for_small_problems(monkeypatch):
    data = make_data((30, 24), missing=0.1)
    model = VGPDS.from_data(data, 2, 8)
    guide = AutoOpperArchambeau(model)
    seen, cholesky = [], torch.linalg.cholesky_ex

    def watched(*args, **options):
        seen.append(torch.get_num_threads())
        return cholesky(*args, **options)

    def count(work):
        """The numbers of threads in its matrix factorisations."""
        seen.clear()
        work()
        return set(seen)

    result = fit(model, guide, data, num_steps=1, progress=False)  # its very first bound tells the size
    monkeypatch.setattr(torch.linalg, "cholesky_ex", watched)
    steps = []
    fit(model, guide, data, num_steps=2, callback=lambda record: steps.append(torch.get_num_threads()))
    assert steps == [1, 1, 1]
    assert count(lambda: Posterior(model, guide, data)) == {1}
    post = Posterior(model, guide, data)
    assert count(lambda: post.reconstruct(data.times.t[:5], data.y[:5]).mean) == {1}
    assert count(lambda: post.hidden_variance(num_sequences=1)) == {1}
    assert count(lambda: post.condition(data)) == {1}
    assert count(lambda: post.impute().sample()) <= {1}
    assert count(lambda: post.forecast([3.1], sequence=0).covariance) <= {1}
    assert result.num_steps == 1


def test_baselines_of_auto_use_one_thread(monkeypatch):
    seen, make = [], trials.make_baseline

    def watched(*args, **options):
        seen.append(torch.get_num_threads())
        return make(*args, **options)

    monkeypatch.setattr(trials, "make_baseline", watched)
    auto(
        make_data((30, 24), missing=0.1),
        "impute",
        candidates=[],
        baselines=["column mean"],
        progress=False,
        refit=False,
    )
    assert len(seen) > 1  # one for each held-out part
    assert set(seen) == {1}


def test_large_problems_use_several(monkeypatch):
    monkeypatch.setattr("pyro_vgpds.threads.WORK_PER_THREAD", 1.0)
    data = make_data((30, 24))
    model = VGPDS.from_data(data, 2, 8)
    steps = []
    guide = AutoOpperArchambeau(model)
    fit(model, guide, data, num_steps=1, callback=lambda record: steps.append(torch.get_num_threads()))
    assert steps == [4, 4]


@pytest.mark.parametrize(("work", "shared", "parts"), [(0.0, True, 1), (1.9, True, 1), (2.0, False, 2), (2.0, True, 10),
                                                       (1e9, True, 20), (float("inf"), False, 4)])  # fmt: skip
def test_compiled_loops_are_divided_from_smaller_sizes_on(work, shared, parts):
    ranges = chunks(1000, 10, work * LOOP_WORK, shared=shared)
    assert len(ranges) == parts
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges)][:-1]
    assert ranges[-1][1] == 1000
    assert all(start % 10 == 0 < stop - start for start, stop in ranges)
    assert len(chunks(25, 10, work * LOOP_WORK, shared=shared)) <= 3


def test_limits_of_compiled_loops(monkeypatch):
    def count() -> int:
        return len(chunks(100, 1, float("inf")))

    assert count() == 4
    with threads_for(0):
        assert count() == 4  # torch's setting before the block
        with threads_for(0):
            assert count() == 4
        with loop_threads(3), threads_for(0):
            assert count() == 3
    monkeypatch.setenv("PYRO_VGPDS_THREADS", "2")
    with threads_for(0):
        assert count() == 2
    monkeypatch.setenv("PYRO_VGPDS_THREADS", "0")
    with threads_for(0):
        assert count() == 4


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_work_is_shared_and_results_keep_their_order(threads):
    names = set()

    def call(one, other):
        names.add(threading.current_thread().name)
        return one * other

    with loop_threads(threads):
        finish = start(call, range(50), range(50), float("inf"))
        before = set(names)
        assert finish() == [i * i for i in range(50)]
        assert run(call, [], [], float("inf")) == []
    assert threads > 1 or (not before and names == {threading.current_thread().name})


def test_an_error_in_another_thread_is_raised():
    waiting = threading.Event()

    def call(one, other):
        if threading.current_thread() is threading.main_thread():
            waiting.wait(10)
            return 0
        waiting.set()
        raise MemoryError("of a helper")

    with loop_threads(2), pytest.raises(MemoryError, match="of a helper"):
        run(call, [1, 2], [1, 2], float("inf"))


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_two_threads_give_the_same_bound_and_gradients(missing, monkeypatch):
    monkeypatch.setattr("pyro_vgpds.compiled.LOOP_WORK", 1.0)
    model, guide, data = make_problem((200, 150), missing=missing)
    found = []
    for threads in (1, 2):
        with loop_threads(threads):
            loss = Collapsed_ELBO().differentiable_loss(model, guide, data)
            found.append([loss, *torch.autograd.grad(loss, [*model.parameters(), *guide.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
