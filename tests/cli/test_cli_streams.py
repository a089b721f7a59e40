# SPDX-License-Identifier: Apache-2.0
"""Processes without standard streams, and Ctrl-C while modules load."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from problems import make_data

from pyro_vgpds import VGPDS, AutoOpperArchambeau, auto, fit, interrupts
from pyro_vgpds.cli import main
from pyro_vgpds.files import write_table
from pyro_vgpds.formatting import on_terminal
from pyro_vgpds.selection import Configuration
from pyro_vgpds.training.progress import is_shown

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shells and signals of Unix")


@pytest.fixture
def table(tmp_path):
    t = np.arange(24.0)
    write_table(tmp_path / "data.csv", t, np.stack([np.sin(t), np.cos(t), 0.1 * t], 1))
    return tmp_path / "data.csv"


def test_no_stderr(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", None)
    assert not on_terminal()
    assert not is_shown(None)
    assert not is_shown(True)
    data = make_data((10, 8))
    for options in ({}, {"progress": True}, {"progress": True, "num_restarts": 1, "processes": 2}):
        model = VGPDS.from_data(data, 1, 4)
        assert fit(model, AutoOpperArchambeau(model), data, 2, **options).num_steps == 2
    small = Configuration("small", latent_dim=1, num_inducing=4, num_steps=2)
    auto(make_data((16, 14)), "forecast", candidates=[small], baselines=[], progress=True, refit=False)


def test_a_closed_stderr(monkeypatch, tmp_path):
    with open(tmp_path / "log", "w", encoding="utf-8") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    assert not on_terminal()


def test_commands_without_streams(monkeypatch, table, tmp_path):
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    model = tmp_path / "model.safetensors"
    assert main(["fit", str(table), "-o", str(model), "--latent-dim", "1", "--num-inducing", "4", "--steps", "2"]) == 0
    assert main(["forecast", str(model), "--until", "26"]) == 0
    assert main(["forecast", str(model), "--until", "26", "-o", str(tmp_path / "ahead.csv")]) == 0
    assert main(["forecast", str(tmp_path / "nothing"), "--until", "26"]) == 1
    assert main(["forecast"]) == 2
    assert (tmp_path / "ahead.csv").read_text().startswith("time,")
    assert sys.stderr is None


@pytest.mark.long
def test_a_process_without_stderr(table, tmp_path):
    model = tmp_path / "model.safetensors"
    line = f"'{sys.executable}' -m pyro_vgpds fit '{table}' -o '{model}' --latent-dim 1 --num-inducing 4 --steps 2 2>&-"
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    assert model.is_file()


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.4, 0.9])
def test_ctrl_c_while_modules_load(seconds):
    # SIGINT is ignored in the background of some shells, and this is inherited
    command = [sys.executable, "-X", "importtime", "-m", "pyro_vgpds", "--help"]
    usual = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **usual) as process:
        for line in process.stderr:  # the first module after ours has been read
            if b"pyro_vgpds.interrupts" in line:
                break
        time.sleep(seconds / 4)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        process.wait(60)
    assert b"Traceback" not in rest
    assert process.returncode in (0, 130)  # 0 only if the machine was faster


def test_programs_that_import_the_library_keep_their_ctrl_c():
    before = signal.getsignal(signal.SIGINT)  # the background of some shells ignores it
    assert before is not interrupts._leave
    interrupts.restore_interrupts()  # changes nothing
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_before_a_command_begins(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("pyro_vgpds.cli.run.make_parser", interrupted)
    assert main(["--help"]) == 130


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["python", "-m", "pyro_vgpds", "fit"], True),
        (["python", "-X", "dev", "-m", "pyro_vgpds"], True),
        (["python", "-m", "pytest", "pyro_vgpds"], False),
        (["python", "script.py", "-m"], False),
        ([], False),
    ],
)
def test_which_processes_are_commands(arguments, command, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", arguments)
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert interrupts._is_command() is command
    monkeypatch.setattr(sys, "argv", [os.path.join("bin", "pyro-vgpds")])
    assert interrupts._is_command()
