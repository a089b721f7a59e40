# SPDX-License-Identifier: Apache-2.0
"""The example scripts run, and continue from their checkpoints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.long


def run(script, *arguments, cwd, warnings="error"):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", warnings, FOLDER / script, *arguments], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_minibatches(tmp_path):
    arguments = ("--recordings", "10", "--sample", "4", "--batch-size", "4", "--epochs", "2")
    first = run("minibatches.py", *arguments, cwd=tmp_path)
    before, after = (float(number) for number in re.findall(r"(-?[0-9.]+) after", first))
    assert after > before
    assert "forecast of the first recording" in first
    again = run("minibatches.py", *arguments, cwd=tmp_path)  # the checkpoint is that of the last step
    assert again == first


def test_lightning(tmp_path):
    pytest.importorskip("lightning", reason="needs lightning, which is not a dependency")
    text = run(
        "lightning_batches.py", "--epochs", "3", cwd=tmp_path, warnings="ignore"
    )  # Lightning has its own warnings
    before, after = re.search(r"bound of all sequences: (\S+) before, (\S+) after", text).groups()
    assert float(after) > float(before) + 10_000.0
    assert "forecast of sequence 0" in text
