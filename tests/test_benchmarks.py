# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run and print their tables; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.long


def run(*arguments):
    output = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return output.stdout


@pytest.mark.parametrize(("size", "bound"), [("S", -126636.04092072089), ("mocap", -11437747.404213583)])
def test_bound(size, bound):
    result = json.loads(run("benchmarks.bound", "--size", size, "--threads", "1", "--runs", "1"))
    assert set(result) == {"size", "seconds_median", "cpu_median", "peak_rss_mb", "bound"}
    assert result["size"] == size
    assert result["bound"] == pytest.approx(bound, rel=1e-9)


def test_table():
    lines = run("benchmarks.table", "--sizes", "S", "--runs", "1").splitlines()
    assert lines[-3].startswith("| size |")
    assert lines[-1].startswith("| S |")


@pytest.mark.parametrize(("case", "options"), [("missing", []), ("wide", ["--outputs", "20000"])])
def test_data(case, options):
    result = json.loads(run("benchmarks.data", case, *options))
    assert result["case"] == case
    assert result["ratio"] == pytest.approx(result["cpu"] / result["plain_cpu"])


def test_scaling(tmp_path):
    sizes = ["--frames", "60", "80", "--dense-frames", "60", "--base-frames", "60", "--outputs", "5", "6"]
    sizes = [*sizes, "--inducing", "4", "5", "--runs", "1", "--plot", str(tmp_path / "scaling.png")]
    output = run("benchmarks.scaling", *sizes).splitlines()
    assert [line.split("|")[1].strip() for line in output if line.startswith("| ") and "---" not in line] == [
        "N", "60", "80", "D", "5", "6", "M", "4", "5",
    ]  # fmt: skip
    with Image.open(tmp_path / "scaling.png") as picture:
        assert picture.size == (1440, 480)
        panels = np.split(np.asarray(picture.convert("RGB")), 3, axis=1)
    for panel in panels:  # a line in matplotlib's first colour in each
        assert (np.abs(panel - np.array([31, 119, 180])).max(-1) < 10).sum() > 50
