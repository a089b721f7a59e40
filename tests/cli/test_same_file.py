# SPDX-License-Identifier: Apache-2.0
"""The same command twice at once into one file, and folders and disks that take nothing: a whole file or an error."""

import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pyro_vgpds import load_posterior
from pyro_vgpds.cli import main
from pyro_vgpds.files import write_table

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

QUICK = ["--latent-dim", "1", "--num-inducing", "4", "--steps", "3"]
BEST = ["--candidates", "none", "--baselines", "column mean,last value"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    t = np.arange(24.0)
    write_table(folder / "data.csv", t, np.stack([np.sin(t), np.cos(t), 0.1 * t], 1))
    assert main(["fit", str(folder / "data.csv"), "-o", str(folder / "model"), *QUICK, "-q"]) == 0
    return SimpleNamespace(data=str(folder / "data.csv"), model=str(folder / "model"))


def commands(files, folder: Path) -> dict[str, tuple[list[str], Path]]:
    """Each command with the file that it writes into the folder."""
    found = {
        "fit": (["fit", files.data, *QUICK], "new.safetensors"),
        "calibrate": (["fit", files.data, *QUICK, "--calibrate", "impute"], "new.safetensors"),
        "best": (["fit", files.data, *BEST], "new.safetensors"),
        "evaluate": (["evaluate", files.data, *BEST], "page.html"),
        "forecast": (["forecast", files.model, "--until", "30"], "ahead.csv"),
        "arrays": (["forecast", files.model, "--until", "30"], "ahead.npz"),
        "reconstruct": (["reconstruct", files.model, files.data, "--hide", "0"], "full.csv"),
        "generate": (["generate", files.model, "--until", "30"], "some.csv"),
        "plot": (["plot", files.model], "plot.png"),
    }
    return {name: ([*command, "-o", str(folder / file)], folder / file) for name, (command, file) in found.items()}


NAMES = list(commands(SimpleNamespace(data="", model=""), Path()))


class Command:
    """A command in a forked process, with a limit to the size of the files that it writes."""

    def __init__(self, arguments: list[str], most: int | None = None) -> None:
        self.output, inner = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(inner)
            return
        code = 99
        try:
            os.dup2(inner, 1)
            os.dup2(inner, 2)
            sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            code = main(arguments)
            sys.stdout.flush()
        finally:
            os._exit(code)

    def wait(self) -> tuple[int, str]:
        """The exit code and everything that was printed."""
        with open(self.output, encoding="utf-8") as file:
            text = file.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), text


def content(path: Path) -> object:
    """What a file says, without the time that training took."""
    if path.suffix == ".safetensors":
        found = load_posterior(path)
        return found.forecast([26.0, 27.0]).mean.tolist()
    if path.suffix in (".html", ".png"):
        return len(path.read_bytes()) // 10_000  # they have times and fonts
    return path.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_twice_at_once(name, files, tmp_path):
    for folder in ("alone", "both"):
        (tmp_path / folder).mkdir()
    arguments, path = commands(files, tmp_path / "alone")[name]
    assert Command(arguments).wait()[0] == 0
    wanted = content(path)
    arguments, path = commands(files, tmp_path / "both")[name]
    for code, text in [one.wait() for one in [Command(arguments), Command(arguments)]]:
        if code:  # the other one had ended before this one began
            assert f"{path} already exists" in text
    assert content(path) == wanted
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.long
def test_two_fits_with_the_same_checkpoint_and_folder(files, tmp_path):
    """With everything that they write in the same places."""
    models = [tmp_path / f"{seed}.safetensors" for seed in range(2)]
    more = [[*QUICK, "--checkpoint", str(tmp_path / "state")], [*BEST, "--folder", str(tmp_path / "work")]]
    for options in more:
        command = ["fit", files.data, *options, "--force", "-q"]
        started = [Command([*command, "-o", str(path)]) for path in models]
        assert [one.wait() for one in started] == [(0, ""), (0, "")]
        first, second = (load_posterior(path).forecast([26.0]).mean for path in models)
        assert torch.equal(first, second)
    assert main(["fit", files.data, *more[0], "--resume", "-o", str(models[0]), "--force", "-q"]) == 0
    left = [name for folder, _, names in os.walk(tmp_path) for name in names if name.endswith(".begun")]
    assert left == []
    assert not any(name.startswith(".") for _, _, names in os.walk(tmp_path) for name in names)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk(name, files, tmp_path):
    arguments, path = commands(files, tmp_path)[name]
    code, text = Command(arguments, most=20).wait()
    assert (code, text.splitlines()[-1]) == (1, f"pyro-vgpds {arguments[0]}: error: {path}: File too large.")
    assert os.listdir(tmp_path) == []
    assert Command(arguments).wait()[0] == 0
    before = path.read_bytes()
    assert Command([*arguments, "--force"], most=20).wait()[0] == 1
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_full_disk_for_checkpoints(files, tmp_path):
    state = tmp_path / "state"
    arguments = ["fit", files.data, *QUICK, "-o", str(tmp_path / "m"), "--checkpoint", str(state)]
    code, text = Command(arguments, most=20).wait()
    assert (code, text.splitlines()[-1]) == (1, f"pyro-vgpds fit: error: {state}: File too large.")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["file", "missing", "read-only"])
def test_folders_that_cannot_be_written(place, name, files, tmp_path, capsys):
    (tmp_path / "file").write_text("no folder")
    folder = Path("/proc") if place == "read-only" else tmp_path / place  # which root cannot write either
    if not folder.exists() and place == "read-only":
        pytest.skip("no folder that even root cannot write")
    arguments, path = commands(files, folder)[name]
    assert main([*arguments, "-q"]) == 1
    text = capsys.readouterr().err
    assert text.startswith(f"pyro-vgpds {arguments[0]}: error: -o/--output: ")
    assert str(path if place != "missing" else folder) in text
    assert os.listdir(tmp_path) == ["file"]
