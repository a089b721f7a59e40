# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run and print what they promise; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.long


def run(*arguments):
    output = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return output.stdout


@pytest.mark.parametrize("size", ["S", "mocap"])
def test_bound(size):
    result = json.loads(run("benchmarks.bound", "--size", size, "--threads", "1", "--runs", "1"))
    assert set(result) == {"size", "seconds_median", "cpu_median", "peak_rss_mb", "bound"}
    assert result["size"] == size
    if size == "S":
        assert result["bound"] == pytest.approx(-126636.04092072089, rel=1e-9)


def test_table():
    lines = run("benchmarks.table", "--sizes", "S", "--runs", "1").splitlines()
    assert lines[-3].startswith("| size |")
    assert lines[-1].startswith("| S |")


@pytest.mark.parametrize(("case", "options"), [("missing", []), ("wide", ["--outputs", "20000"])])
def test_data(case, options):
    result = json.loads(run("benchmarks.data", case, *options))
    assert result["case"] == case
    assert result["ratio"] > 0


def test_scaling(tmp_path):
    sizes = ["--frames", "60", "80", "--dense-frames", "60", "--base-frames", "60", "--outputs", "5", "6"]
    sizes = [*sizes, "--inducing", "4", "5", "--runs", "1", "--plot", str(tmp_path / "scaling.png")]
    output = run("benchmarks.scaling", *sizes).splitlines()
    assert [line.split("|")[1].strip() for line in output if line.startswith("| ") and "---" not in line] == [
        "N", "60", "80", "D", "5", "6", "M", "4", "5",
    ]  # fmt: skip
    assert (tmp_path / "scaling.png").stat().st_size > 1000
