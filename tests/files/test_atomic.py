# SPDX-License-Identifier: Apache-2.0
"""Files that appear complete or not at all: kills, full disks, links, several writers, and what is left behind."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_vgpds.cli import main
from pyro_vgpds.files import write_film, write_table
from pyro_vgpds.files.atomic import atomic_write, temporary_path
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.plotting.pages import Chapter, save_page

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

T, Y = np.arange(3.0), np.arange(6.0).reshape(3, 2)
FRAMES = np.arange(3 * 8 * 8).reshape(3, 8, 8) % 256


def write_container(path: Path, value: float = 1.0, count: int = 4) -> None:
    write_file(path, "checkpoint", {"content": value}, {"a": torch.full((count,), value)})


WRITERS = {
    "model.safetensors": write_container,
    "table.csv": lambda path: write_table(path, T, Y),
    "table.npz": lambda path: write_table(path, T, Y),
    "film.gif": lambda path: write_film(path, FRAMES),
    "frames.gif": lambda path: write_table(path, T, FRAMES.reshape(3, -1).astype(float), frame_shape=(8, 8)),
    "page.html": lambda path: save_page(path, "title", "heading", "lead", [Chapter("one", [])]),
}


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_stays_and_its_target_is_replaced(name, tmp_path):
    for folder in ("there", "here", "plain"):
        (tmp_path / folder).mkdir()
    target, link, plain = tmp_path / "there" / name, tmp_path / "here" / name, tmp_path / "plain" / name
    target.write_text("old")
    link.symlink_to(Path("..", "there", name))
    WRITERS[name](link)
    WRITERS[name](plain)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert len(target.read_bytes()) == len(plain.read_bytes())
    assert left_in(tmp_path / "there") == left_in(tmp_path / "here") == [name]


def test_a_link_to_nothing_yet_makes_its_target(tmp_path):
    link = tmp_path / "link.safetensors"
    link.symlink_to("new.safetensors")
    write_container(link)
    assert link.is_symlink()
    assert read_file(tmp_path / "new.safetensors", "checkpoint")[0]["content"] == 1.0


def test_targets_that_are_no_files_are_refused(tmp_path):
    circle = tmp_path / "circle.csv"
    circle.symlink_to("circle.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "to_pipe.csv").symlink_to("pipe.csv")
    names = {"circle": errno.ELOOP, "pipe": errno.EINVAL, "to_pipe": errno.EINVAL, "folder": errno.EISDIR}
    for name, number in names.items():
        path = tmp_path / f"{name}.csv"
        with pytest.raises(OSError, match=f"{name}.csv") as caught:
            write_table(path, T, Y)
        assert caught.value.errno == number
        assert caught.value.filename == str(path)
    assert left_in(tmp_path) == ["circle.csv", "folder.csv", "pipe.csv", "to_pipe.csv"]


def test_long_names_are_written(tmp_path):
    path = tmp_path / ("m" * 243 + ".safetensors"[:12])
    write_container(path)
    assert left_in(tmp_path) == [path.name]


# what killed processes leave


def renamed(part: Path, old: str, new: str) -> Path:
    assert part.name.count(old) == 1
    return part.with_name(part.name.replace(old, new))


@needs_fork
def test_only_the_files_of_processes_that_have_ended_are_removed(tmp_path):
    own = temporary_path(tmp_path / "model.safetensors")  # another thread of this process may be writing it
    machine, pid, start, _ = own.name.removeprefix(".model.").split("-")
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    dead = renamed(own, f"-{pid}-", f"-{process.pid}-")
    reused = renamed(own, f"-{start}-", f"-{int(start) - 1}-")  # an earlier process had the number of this one
    elsewhere = renamed(own, machine, "0" * 12)
    old = renamed(elsewhere, ".model.", ".old.")
    first = renamed(own, f"-{pid}-", "-1-")  # the number of a process that runs, and of another user perhaps
    first_of_old = renamed(first, f"-{start}-", "-0-")  # a system that does not tell when it started
    others = [tmp_path / name for name in (".hidden", ".model.part.safetensors", ".model.12345678.part", "x.part")]
    folder = renamed(dead, ".model.", ".folder.")
    folder.mkdir()
    for part in (own, dead, reused, elsewhere, old, first, first_of_old, *others):
        part.write_text("half")
    os.utime(old, (time.time() - 8 * 24 * 3600.0,) * 2)
    write_container(tmp_path / "another.safetensors")
    kept = {own, elsewhere, first_of_old, folder, *others, tmp_path / "another.safetensors"}
    assert set(tmp_path.iterdir()) == kept
    own.unlink()


def in_fork(work) -> int:
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return pid


@needs_fork
def test_kills_during_writing_lose_nothing_and_leave_nothing(tmp_path):
    random.seed(0)
    path = tmp_path / "model.safetensors"
    write_container(path, 0.0)

    def forever() -> None:
        value = 0.0
        while True:
            value += 1.0
            write_container(path, value, count=100_000)

    for _ in range(25):
        pid = in_fork(forever)
        time.sleep(0.03 * random.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        header, tensors = read_file(path, "checkpoint")  # whole, and of one writing
        assert bool((tensors["a"] == header["content"]).all())
        write_container(path, 0.0)
        assert left_in(tmp_path) == ["model.safetensors"]


@needs_fork
def test_several_writers_of_the_same_file(tmp_path):
    path = tmp_path / "model.safetensors"
    write_container(path, 0.0, count=50_000)

    def write(value: float) -> None:
        for _ in range(15):
            write_container(path, value, count=50_000)

    pids = [in_fork(lambda value=value: write(value)) for value in (1.0, 2.0)]
    thread = threading.Thread(target=write, args=(3.0,))
    thread.start()
    for _ in range(30):
        header, tensors = read_file(path, "checkpoint")
        assert bool((tensors["a"] == header["content"]).all())
    thread.join()
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    assert left_in(tmp_path) == ["model.safetensors"]


# folders and disks that cannot be written


@needs_fork
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_an_error_and_the_old_file_stays(name, tmp_path):
    path = tmp_path / name
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))  # bytes
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            WRITERS[name](path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert left_in(tmp_path) == [name]
    WRITERS[name](path)
    assert path.read_bytes() != b"old"


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_cannot_be_written(name):
    if not os.path.isdir("/proc/self"):
        pytest.skip("no folder that even root cannot write")
    with pytest.raises(OSError, match=name) as caught:
        WRITERS[name](Path("/proc", name))
    assert caught.value.filename == f"/proc/{name}"


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"), atomic_write(tmp_path / "nowhere" / "a.csv") as part:
        part.write_text("a")


def test_too_many_threads_are_refused(capsys, tmp_path):
    assert main(["fit", str(tmp_path / "data.csv"), "--threads", "100000"]) == 2
    message = capsys.readouterr().err
    assert "--threads: must be a whole number from 1 to " in message
    assert "but got '100000'" in message
    for wrong in ("0", "-1", "two", "²", "1.5"):
        assert main(["fit", "data.csv", "--threads", wrong]) == 2
