# SPDX-License-Identifier: Apache-2.0
"""Several processes that train one model: the same numbers as one process, and errors that all of them hear of.

The processes are started twice, two of them and then three. Each runs many checks of ``worker.py``, whose results the
tests here read: starting Python takes longer than a check.
"""

import json
import os
import re
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from types import FunctionType

import pytest
import torch
from problems import make_data, make_model

from benchmarks import kills
from pyro_vgpds import FileFormatError, Posterior, distributed, fit, load
from pyro_vgpds.communication import SINGLE_PROCESS, Communicator
from pyro_vgpds.communication.sums import CAPACITY
from pyro_vgpds.data.shards import Shard
from pyro_vgpds.distributed.api import release_group
from pyro_vgpds.training.checkpoints import read_checkpoint, write_checkpoint

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
LENGTHS = (7, 4, 1, 9, 6)
SAME = 1e-10
WHOLE = {"batch_size": len(LENGTHS), "schedule": "constant", "learning_rate": 0.01}  # all sequences in a batch


def run(count: int, folder: Path, *checks: str) -> None:
    """Start the processes, and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), *checks]
    started = [
        subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    texts = [process.communicate(timeout=600)[1] for process in started]
    assert all(process.returncode == 0 for process in started), "\n".join(texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def one(folder):
    """A checkpoint of one process: the same run as that of the worker's check."""
    torch.set_default_dtype(torch.float64)
    data = make_data(LENGTHS)
    model, guide = make_model(data, noise=0.3, jitter=1e-2)
    fit(model, guide, data, num_steps=7, warmup=1, checkpoint=folder / "of 1")
    model, guide = make_model(data, noise=0.3, jitter=1e-2)
    fit(model, guide, data, num_steps=7, warmup=1, checkpoint=folder / "all of 1", **WHOLE)
    content = read_checkpoint(folder / "of 1")
    content["best"][content["frame_tensors"][0]] = torch.zeros(4, 2)
    write_checkpoint(folder / "ragged", content)


@pytest.fixture(scope="module")
def two(folder, one):
    every = "gradients accumulated natural trained starts priors amortised undone restarts checkpoints errors "
    every += "dates batches direct_batches batch_fits single_sequences likelihoods likelihood_batches drawn_batches "
    every += "likelihood_checkpoints batch_checkpoints column_gradients column_fits column_starts column_checkpoints "
    every += "column_errors sums"
    run(2, folder, *every.split())
    return lambda check: [json.loads((folder / f"{check} {rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def three(folder, two):
    kept = two("checkpoints"), two("batch_checkpoints")  # their files are written again
    other = folder / "three"
    other.mkdir()
    for file in folder.iterdir():
        if file.name.startswith(("of ", "all of ")):
            (other / file.name).write_bytes(file.read_bytes())
    every = "gradients natural trained starts checkpoints batches likelihoods batch_checkpoints column_gradients "
    every += "column_fits sums"
    run(3, other, *every.split())
    return lambda check: [json.loads((other / f"{check} {rank}.json").read_text()) for rank in range(3)], kept


def largest(found) -> float:
    """The largest number in nested lists and dictionaries."""
    if isinstance(found, dict):
        found = list(found.values())
    return max(map(largest, found)) if isinstance(found, list) else found


@pytest.mark.parametrize(
    "check",
    [
        "gradients",
        "accumulated",
        "natural",
        "trained",
        "starts",
        "priors",
        "amortised",
        "batches",
        "direct_batches",
        "single_sequences",
        "likelihoods",
        "likelihood_batches",
        "drawn_batches",
        "column_gradients",
        "column_fits",
        "column_starts",
    ],
)
def test_two_processes_are_one(two, check):
    assert largest(two(check)) < SAME


@pytest.mark.parametrize(
    "check", ["gradients", "natural", "trained", "starts", "batches", "likelihoods", "column_gradients", "column_fits"]
)
def test_three_processes_are_one(three, check):
    assert largest(three[0](check)) < SAME


@pytest.mark.parametrize("count", [2, 3])
def test_sums(count, two, three):
    """Sums in shared memory, by messages to every process and by all_reduce are the same, and so are their errors."""
    every = (two if count == 2 else three[0])("sums")
    for rank, found in enumerate(every):
        for errors, texts, flags, numbers in found.values():
            assert max(errors) < 1e-12
            others = ["ProcessError: another process failed. process 1 of", "NumericalError: process 0 of"]
            own = ["KeyError: 'no sum'", "NumericalError: not finite"]
            for i in range(2):
                assert texts[i].startswith(own[i] if rank == 1 - i else others[i])
            assert texts[2] == "NumericalError: nowhere finite"
            assert texts[3].startswith("ProcessError: another process failed" if rank == 0 else "KeyError: 'in most'")
            assert flags == [False, True]
            assert numbers >= 2 * (5004 + 2 * CAPACITY)
        assert found["machine"][0] == found["few"][0] == [0.0] * 5  # in the order of the processes
        assert found["machine"][1:] == found["few"][1:]
        assert found["few"][1:3] == found["many"][1:3]


def test_processes_in_different_operations(folder):
    """An error in place of wrong numbers or a process that waits."""
    run(2, folder, "different_operations")
    for rank in range(2):
        text = json.loads((folder / f"different_operations {rank}.json").read_text())
        assert text.startswith(f"ProcessError: process {rank} of 2 lost the connection to the others")
        assert text.endswith("(the processes are in different operations: sums of [3, 4] numbers)")


def test_fit_in_batches(folder, two):
    first, second = two("batch_fits")
    assert first[1] == second[1]
    never, resumed, read = first[1]
    assert largest([first[0], second[0]]) < SAME
    assert resumed == never  # the same bits
    assert read == pytest.approx(never, rel=1e-10)  # from a dataset of each process
    data = make_data(LENGTHS)
    options = {"batch_size": 3, "schedule": "constant", "warmup": 0}
    one = fit(*make_model(data, noise=0.3, jitter=1e-2), data, num_steps=6, resume=folder / "batches of 2", **options)
    assert len(one.history) == 7
    assert one.bound == pytest.approx(never, rel=0.05)  # the batches are others


def test_a_checkpoint_has_the_factors_of_outputs(two):
    first, second = two("likelihood_checkpoints")
    assert first == second
    assert first[0] == first[1]  # the same bits


def test_a_checkpoint_of_columns(folder, two):
    first, second = two("column_checkpoints")
    never, stopped, resumed = first
    assert first == second
    assert never == resumed != stopped  # the same bits
    data = make_data(LENGTHS, 40)
    model, guide = make_model(data, noise=0.3, jitter=1e-2)
    one = fit(model, guide, data, num_steps=9, warmup=1, resume=folder / "columns")
    assert one.bound == pytest.approx(never, rel=1e-9)


COLUMN_ERRORS = {
    "few": "ProcessError: data has 1 output for 2 processes",
    "times": "ProcessError: the times of data must be the same in all processes",
    "twice": "ValueError: data is shared with the other processes already",
    "lags": r"ValueError: data must be Sequences\(t, y\) without lags and exposure to divide columns, but it has lags",
    "lagged": r"ValueError: lagged\(\) needs all columns of the data in one process",
    "joined": "ValueError: columns that were shared with other processes cannot be joined",
    "dataset": r"ValueError: columns=True needs Sequences\(t, y\)",
    "batches": "ValueError: data, read as SequenceDataset.*: batches need sequences with all their columns",
    "likelihood": r"ValueError: a model with StudentT\(.*\) needs all columns in each process",
    "encoder": "ValueError: outputs 0 to 7 were asked for, but this process has",
    "read": "ValueError: outputs 0 to 7 were asked for, but this process has . to .: the columns are divided between 2",
    "posterior": "ValueError: predictions need the sequences of all processes in one",
    "callback": "ZeroDivisionError: division by zero|ProcessError: another process failed. process 0 of 2: ZeroDiv",
}


@pytest.mark.parametrize("name", COLUMN_ERRORS)
def test_errors_of_columns(two, name):
    for found in two("column_errors"):
        assert found.keys() == COLUMN_ERRORS.keys()
        assert re.match(COLUMN_ERRORS[name], found[name])


def test_numerical_error_of_one_undoes_the_step_of_all(two):
    first, second = two("undone")
    assert first == second
    assert first[0] == 2


def test_restarts(two):
    first, second = two("restarts")
    assert first == second


@pytest.mark.parametrize(
    ("check", "name", "options"), [("checkpoints", "of", {}), ("batch_checkpoints", "all of", WHOLE)]
)
def test_checkpoints(folder, two, three, check, name, options):
    for found in (*two(check), *three[0](check)):
        whole, exact, bounds = found
        assert exact  # the same bits, with the same number of processes
        assert bounds[0][1] == whole
        assert all(bound == pytest.approx(whole, rel=1e-9) for _, bound in bounds)
    assert {path for path, _ in three[0](check)[0][2]} == {f"{name} 1", f"{name} 2", f"{name} 3"}
    data = make_data(LENGTHS)
    for path, whole in ((folder / f"{name} 2", two(check)[0][0]), (folder / "three" / f"{name} 3", None)):
        model, guide = make_model(data, noise=0.3, jitter=1e-2)
        bound = fit(model, guide, data, num_steps=12, warmup=1, resume=path, **options).bound
        assert whole is None or bound == pytest.approx(whole, rel=1e-9)


def test_parts_of_checkpoints(folder, two, tmp_path):
    for file in folder.glob("of 2*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path, data = tmp_path / "of 2", make_data(LENGTHS)
    names = read_checkpoint(path)["parts"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["of 2", *names]  # those of step 6 were deleted
    model, guide = make_model(data, noise=0.3, jitter=1e-2)
    other = make_data((7, 4))
    with pytest.raises(ValueError, match="the checkpoint has 27 frames, but the data have 11"):
        fit(*make_model(other), other, num_steps=12, warmup=1, resume=path)
    write_checkpoint(tmp_path / names[1], {"state": [], "best": [torch.zeros(3, 2)], "own": None})
    with pytest.raises(FileFormatError, match="is not the part of a checkpoint with 15 frames"):
        fit(model, guide, data, num_steps=12, warmup=1, resume=path)
    (tmp_path / names[1]).unlink()
    with pytest.raises(FileFormatError, match=r"needs its part .*part1\.7, which does not exist"):
        fit(model, guide, data, num_steps=12, warmup=1, resume=path)
    content = read_checkpoint(path)
    for name, value in (("parts", ["../x", "y"]), ("frames", [27]), ("frames", [0, 27]), ("frame_tensors", [99])):
        write_checkpoint(path, {**content, name: value})
        with pytest.raises(FileFormatError, match="is not a checkpoint of fit"):
            fit(model, guide, data, num_steps=12, warmup=1, resume=path)


def test_one_whole_model_is_saved(folder, two):
    for name in ("complete", "noises, missing"):
        post = Posterior(*load(folder / f"{name}.model"))
        assert post.data.lengths == LENGTHS
        assert post.forecast([4.0], sequence=0).mean.shape == (1, 5)


ERRORS = {
    "columns": r"ProcessError: the number of outputs must be the same in all processes, but process 0 has 5; process 1 "
    "has 6",
    "lengths": r"ProcessError: the lengths of the sequences must be the same .* use share\(data\)",
    "no data": "ProcessError: each process needs one or more sequences, but process 1 of 2 has no data",
    "few": "ProcessError: data has 1 sequence for 2 processes",
    "twice": "ValueError: data is shared with the other processes already",
    "type": r"TypeError: data must be Sequences\(t, y\), but got list",
    "settings": "ProcessError: the settings of fit must be the same in all processes",
    "batch settings": "ProcessError: the settings of fit must be the same in all processes",
    "batch checkpoint": "ResumeError: Cannot resume: learning_rate was 0.07 and is now 0.1",
    "resumed batches": "ResumeError: Cannot resume: the checkpoint is of a run in batches. Give its batch_size",
    "ragged": "FileFormatError: .*ragged is not a checkpoint of fit: its tensors have different numbers of frames",
    "explicit": "TypeError: the parts of an AutoExplicit cannot be gathered. Give guide.collapsed",
    "part": r"ValueError: part needs all sequences in one process, but data is shared by 2.*gather\(guide.collapsed",
    "frames": r"ValueError: source must be in one process, but is shared by 2. Give the sequence that",
    "frames of a dataset": r"ValueError: source must be in one process, but is shared by 2. Give the sequence that",
    "datasets": "ProcessError: data must be Sequences in all processes, or a SequenceDataset in all of them",
    "other datasets": "ProcessError: the number of outputs must be the same in all processes, but process 0 has 5",
    "dataset twice": "ValueError: data is shared with the other processes already",
    "parameters": "ProcessError: model.noise_unconstrained must be the same in all processes, but differ.*same seed",
    "lbfgs": "ValueError: method='lbfgs' needs data in one process",
    "restarts": "ValueError: data of several processes need processes=1",
    "adam": "ValueError: several processes can write a checkpoint with method='natural'",
    "callback": r"ProcessError: another process failed. process 1 of 2: KeyError|KeyError",
    "resume": "FileNotFoundError",
    "wrapped": r"RuntimeError: the collapsed bound cannot be trained with DistributedDataParallel.*distributed.shard",
    "warned": "IndependentWarning: torch.distributed has 2 processes, but the data are not shared",
    "counts": r"(ProcessError: another process failed. process 1 of 2: )?ValueError: data has -1 in output 0",
    "functions": "ValueError: several processes cannot train a guide with a site 'f' of its own",
    "drawn": "the data are shared by several processes, which Collapsed_ELBO supports",
    "guide": "TypeError: training by several processes needs an AutoOpperArchambeau",
    "site": "ValueError: several processes cannot train a model with the observed site 'more'",
    "differentiable": "ValueError: differentiable_loss would have the gradients of this process only",
    "refine": "ValueError: refine needs the sequences of one process",
    "auto": "ValueError: auto needs the data in one process",
    "posterior": r"ValueError: predictions need the sequences of all processes in one.*gather\(guide, data\)",
    "joined": "ValueError: sequences that were shared with other processes cannot be joined",
    "after": "no error",  # the processes are still together
}


def test_all_processes_hear_of_errors_at_once(two):
    for found in two("errors"):
        assert found.keys() == ERRORS.keys()
        for name, (text, seconds) in found.items():
            assert re.match(
                ERRORS[name], text.removeprefix("ValueError: Error while computing log_prob at site 'y':\n")
            )
            assert seconds < 15.0, name


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
def test_threads_end_with_the_block(two):
    """Also those that a module in DistributedDataParallel or an error would keep until Python ends."""
    for before, after in two("threads"):
        assert before
        assert after == []


class BrokenError(RuntimeError):
    pass


def fails_with_a_group(group):
    raise BrokenError("of torch")


def test_an_error_does_not_keep_the_group():
    """The local variables of torch's functions in a traceback, also in that of a cause; others stay."""

    class Group:
        pass

    # a function as it would be in torch
    inside = FunctionType(fails_with_a_group.__code__, {"__name__": "torch.distributed.x", "BrokenError": BrokenError})
    group, other = Group(), Group()
    seen, kept = weakref.ref(group), weakref.ref(other)

    def outer(group, other):
        try:
            inside(group)
        except BrokenError as error:
            del group
            raise distributed.ProcessError("lost") from error

    try:
        outer(group, other)
    except distributed.ProcessError as error:
        del group, other
        assert seen() is not None
        release_group(error)
        assert seen() is None
        assert kept() is not None


def test_dates_count_from_the_same_one(two):
    first, second = two("dates")
    assert first[0] == second[0] == "2024-01-01T00:00:00.000000000"
    assert (first[1], second[1]) == (0.0, 86400.0)


def test_killed_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kills", "--count", "1"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    kills.main()
    text = capsys.readouterr().out
    found = re.fullmatch(
        r"1 kills: 1 clear errors, at most [\d.]+ s after the kill; 1 good resumes; bound after \d+ steps: (\S+), "
        r"without kills (\S+)\n",
        text,
    )
    assert found is not None, text
    assert found[1] == found[2]


def test_example(tmp_path):
    """The example with two processes by torchrun, and then from its checkpoint with one."""
    command = [str(ROOT / "examples" / "torchrun.py"), "--output", str(tmp_path / "model"), "--steps"]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for start, steps in (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], 4), ([], 6):
        arguments = [sys.executable, *start, *command, str(steps)]
        done = subprocess.run(arguments, cwd=tmp_path, env=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"{steps} natural steps" in done.stdout
        assert done.stdout.rstrip().endswith("torch.Size([2, 12])")
    assert load(tmp_path / "model")[2].num_sequences == 8


def test_one_process_is_alone():
    data = make_data(LENGTHS)
    with distributed.join() as rank:
        assert rank == 0
        assert distributed.shard(data) is data
        assert distributed.share(data) is data
    assert data.communicator is SINGLE_PROCESS
    assert repr(SINGLE_PROCESS) == "Communicator(rank=0, size=1)"
    with pytest.raises(ValueError, match="timeout must be positive and finite, but got -1"), distributed.join(-1):
        pass


class Pretended(Communicator):
    """A communicator of two processes in which this process does all the work."""

    size = 2

    def all_gather(self, value):
        return [value, value]

    def all_gather_rows(self, x):
        return torch.cat([x, x])

    def all_reduce(self, x):
        return 2 * x


def test_column_groups_are_those_of_all_processes():
    data = make_data(LENGTHS, missing=0.2)
    twice = data.joined(data)
    shard = Shard(data, Pretended())
    for columns in (False, True):
        found, wanted = (each.groups(data.output_means, columns=columns) for each in (shard, twice))
        assert found.rows.sort().values.tolist() == wanted.rows.sort().values.tolist()
        assert float(found.square.sum()) == pytest.approx(float(wanted.square.sum()), rel=1e-12)
        assert found.squares.sort().values.tolist() == pytest.approx(wanted.squares.sort().values.tolist())
    assert shard.num_observed == twice.num_observed
    torch.testing.assert_close(shard.output_variances, twice.output_variances)
    assert torch.equal(shard.mask(), data.mask())
    assert repr(shard).endswith("% missing; process 0 of 2)")
    assert shard.lagged([-1]).num_outputs == 10
