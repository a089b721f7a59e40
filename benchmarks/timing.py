# SPDX-License-Identifier: Apache-2.0
"""How things are timed: medians of wall and CPU seconds, and the process's peak memory."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
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


def peak_rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
