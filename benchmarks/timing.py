# SPDX-License-Identifier: Apache-2.0
"""How things are timed: medians of wall and CPU seconds, and the process's peak memory."""

from __future__ import annotations

import resource
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def timed(step: Callable[[], Any], runs: int, warmup: int = 2) -> dict[str, float]:
    """Median wall and CPU seconds of ``step``. With one thread, CPU seconds are robust to other load."""
    for _ in range(warmup):
        step()
    wall, cpu = [], []
    for _ in range(runs):
        start, cpu_start = time.perf_counter(), time.process_time()
        step()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    return {
        "seconds_median": statistics.median(wall),
        "cpu_median": statistics.median(cpu),
        "peak_rss_mb": peak_rss_mb(),
    }


def alternately(steps: Mapping[str, Callable[[], Any]], runs: int, warmup: int = 2) -> dict[str, list[float]]:
    """CPU seconds of the runs of each step. Steps take turns, so that other load on the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for run in range(warmup + runs):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if run >= warmup:
                times[name].append(time.process_time() - start)
    return times


def peak_rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


class AnonymousMemory:
    """How much the process's own memory grows within the block (Linux). Pages of mapped files are not its own."""

    grown_mb: float

    def __enter__(self) -> AnonymousMemory:
        self._first = self._peak = self._read()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.grown_mb = round(max(self._peak, self._read()) - self._first, 1)

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._peak = max(self._peak, self._read())

    @staticmethod
    def _read() -> float:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
        return float("nan")
