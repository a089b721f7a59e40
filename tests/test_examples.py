# SPDX-License-Identifier: Apache-2.0
"""The example scripts run, and continue from their checkpoints."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pyro
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.long


def test_minibatches(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        torch.set_default_dtype(torch.float32)  # as in a new process
        pyro.clear_param_store()
        runpy.run_path(str(FOLDER / script), run_name="__main__")
        return capsys.readouterr().out

    arguments = ("--recordings", "10", "--sample", "4", "--batch-size", "4", "--epochs", "2")
    first = run("minibatches.py", *arguments)
    before, after = (float(number) for number in re.findall(r"(-?[0-9.]+) after", first))
    assert after > before
    assert "forecast of the first recording" in first
    again = run("minibatches.py", *arguments)  # the checkpoint is that of the last step
    assert again == first


def test_lightning(tmp_path):
    """In a process of its own: Lightning has warnings that are not ours."""
    pytest.importorskip("lightning", reason="needs lightning, which is not a dependency")
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(FOLDER / "lightning_batches.py"), "--epochs", "3"]
    done = subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    before, after = re.search(r"bound of all sequences: (\S+) before, (\S+) after", done.stdout).groups()
    assert float(after) > float(before) + 10_000.0
    assert "forecast of sequence 0" in done.stdout
