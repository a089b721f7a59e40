# SPDX-License-Identifier: Apache-2.0
"""Processes that train together, one of which is killed, again and again: ``python -m benchmarks.kills --count 20``.

Each time, all processes are started from the last checkpoint, a random one of them gets SIGKILL at a random moment, and
the others must end with a clear error. At the end, training continues from the checkpoint to a fixed number of steps,
and its bound must be that of a run that was never killed, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyro
import torch

from pyro_vgpds import VGPDS, AutoOpperArchambeau, distributed, fit
from pyro_vgpds.datasets import make_sequences
from pyro_vgpds.training.checkpoints import read_checkpoint

_WAIT = 120.0  # seconds for a start, on a busy machine


def worker(folder: Path, steps: int, checkpoint: str) -> None:
    """One process: trains from the last checkpoint, if there is one."""
    torch.set_num_threads(1)
    with distributed.join(timeout=60.0) as rank:
        pyro.set_rng_seed(0)
        data = distributed.shard(make_sequences(num_sequences=6, num_outputs=5, length=(20, 25)).sequences())
        model = VGPDS.from_data(data, latent_dim=3, num_inducing=12)
        path = folder / checkpoint
        result = fit(
            model, AutoOpperArchambeau(model), data, num_steps=steps, warmup=0, tolerance=0.0, learning_rate=1e-3,
            checkpoint=path, checkpoint_steps=1, resume=path if path.exists() else None,
        )  # fmt: skip
        if rank == 0:
            print(repr(result.bound))


def start(count: int, folder: Path, steps: int, checkpoint: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.kills", "--worker", str(folder), str(steps), checkpoint]
    found = []
    for rank in range(count):
        place = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        found.append(subprocess.Popen(command, env={**os.environ, **place}, **pipes))  # type: ignore[call-overload]
    return found


def last_step(path: Path) -> int:
    return len(read_checkpoint(path)["history"]) - 1 if path.exists() else 0


def kill_one(count: int, folder: Path, generator: random.Random) -> tuple[int, float, bool]:
    """The steps of the run, the seconds until the other processes ended, and whether their errors were clear."""
    path = folder / "killed"
    before, running = last_step(path), start(count, folder, 10**6, path.name)
    limit = time.monotonic() + _WAIT
    while last_step(path) < before + 3:
        if time.monotonic() > limit or any(process.poll() is not None for process in running):
            for process in running:
                process.kill()
            raise RuntimeError("a process did not start: " + "\n".join(process.communicate()[1] for process in running))
        time.sleep(0.02)
    time.sleep(generator.uniform(0.0, 0.3))
    victim = generator.randrange(count)
    os.kill(running[victim].pid, signal.SIGKILL)
    begin, clear = time.monotonic(), True
    for rank, process in enumerate(running):
        try:
            _, text = process.communicate(timeout=60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            text = process.communicate()[1]
        if rank != victim:
            clear &= "ProcessError" in text and "lost the connection to the others" in text
    return last_step(path) - before, time.monotonic() - begin, clear


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20, help="number of kills")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = [kill_one(args.processes, folder, generator) for _ in range(args.count)]
        steps = last_step(folder / "killed") + 3
        bounds = []
        for checkpoint in ("killed", "whole"):
            running = start(args.processes, folder, steps, checkpoint)
            first, *_ = [process.communicate()[0] for process in running]
            bounds.append(first.strip())
    taken, seconds, clear = zip(*found, strict=True)
    print(
        f"{args.count} kills: {sum(clear)} clear errors, at most {max(seconds):.1f} s after the kill; "
        f"{sum(some > 0 for some in taken)} good resumes; bound after {steps} steps: {bounds[0]}, without "
        f"kills {bounds[1]}"
    )


if __name__ == "__main__":
    main()
