# SPDX-License-Identifier: Apache-2.0
"""The fast tests with the oldest and the newest Python, torch, numpy and pandas, without AVX, and without C.

``python tests/matrix.py`` makes an environment for each row of the matrix, with uv if it is installed and else with
venv and pip, and runs the tests of ``make test-fast`` in it. A row whose Python or torch is not available is skipped
with the reason, and one that takes longer than ``--minutes`` has failed. ``--only oldest`` runs one row, ``--python
3.10=PATH`` names an interpreter that is not on the PATH.

torch comes from PyTorch's index of builds for CPUs and from pip's own ``--find-links`` only: the builds on PyPI for
Linux bring gigabytes of CUDA with them. ``--allow-cuda`` takes those if no other build is found. ``--keep FOLDER``
keeps the environments, and a later call uses them again; the library is built anew each time.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPU = "https://download.pytorch.org/whl/cpu"
TOOLS = ["pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "setuptools>=77", "graphviz", "jupytext", "nbclient"]
VERSIONS = ("torch", "numpy", "pandas", "pyro-ppl", "scipy", "matplotlib", "safetensors")


class UnavailableError(Exception):
    """A row cannot be tested here."""


@dataclass
class Row:
    """One environment."""

    name: str
    python: str | None = None  #: default: the one that runs this script
    torch: str = "torch"
    oldest: tuple[str, ...] = ()  #: packages at the lower ends of their ranges; "all" for all of them
    environment: dict[str, str] = field(default_factory=dict)


ROWS = [
    Row("oldest", "3.10", "torch==2.2.*", ("all",)),
    Row("newest", "3.13"),
    Row("old packages", oldest=("all",)),
    Row("old numpy", oldest=("numpy", "pandas", "scipy")),
    Row("new packages"),
    Row("no AVX", environment={"PYRO_VGPDS_GENERIC": "1"}),
    Row("no C", environment={"PYRO_VGPDS_NATIVE": "0"}),
]


def requirements() -> dict[str, str]:
    """Package ↦ the lower end of its range, of the library and of its extras for data and video."""
    text = (ROOT / "pyproject.toml").read_text()
    lists = [
        re.search(rf"^{name} = \[(.*?)\]", text, re.MULTILINE | re.DOTALL) for name in ("dependencies", "data", "video")
    ]
    found = dict(re.findall(r'"([\w-]+)>=([\d.]+)', "".join(match[1] for match in lists if match)))
    found.pop("torch")
    return found


def packages(row: Row) -> list[str]:
    """What pip installs besides torch."""
    old = [f"{name}=={low}.*" for name, low in requirements().items() if {"all", name} & set(row.oldest)]
    return old + [f"{name}>={low}" for name, low in requirements().items() if not {"all", name} & set(row.oldest)]


def find_python(version: str | None, given: dict[str, str]) -> str:
    """An interpreter of a version, such as 3.10."""
    if version is None:
        return sys.executable
    for candidate in filter(None, (given.get(version), shutil.which(f"python{version}"))):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    raise UnavailableError(f"no Python {version}: put python{version} on the PATH or pass --python {version}=PATH")


def run(command: list[str], log: Path, folder: Path = ROOT, minutes: float = 20.0, **environment: str) -> bool:
    """Whether a command succeeds; its output goes to the log. One that takes too long is ended, and has failed."""
    with log.open("a") as file:
        print("$", *command, file=file, flush=True)
        own = {**os.environ, **environment}
        process = subprocess.Popen(command, cwd=folder, env=own, stdout=file, stderr=file, start_new_session=True)
        try:
            return process.wait(60.0 * minutes) == 0
        except subprocess.TimeoutExpired:
            print(f"error: not done after {minutes:g} minutes", file=file, flush=True)
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
                process.wait()


def last_line(log: Path) -> str:
    """What a command said about its failure."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|no matching|no solution", line, re.IGNORECASE)]
    return (errors or lines or ["no message"])[-1][:200]


def make_environment(row: Row, settings: argparse.Namespace, folder: Path, log: Path) -> Path:
    """The interpreter of an environment with the packages of a row and the library in it."""
    python, uv = find_python(row.python, settings.python), shutil.which("uv")
    inner = folder / sysconfig.get_path("scripts", vars={"base": ""}).strip("/") / "python"
    install = [uv, "pip", "install", "-q", "--python", str(inner)] if uv else [str(inner), "-m", "pip", "install", "-q"]
    done, library = folder / "installed", folder / "library"
    if not done.exists():
        make = [uv, "venv", "-q", "--clear", "--python", python] if uv else [python, "-m", "venv", "--clear"]
        if not run([*make, str(folder)], log):
            raise UnavailableError(f"no environment: {last_line(log)}")
        install_packages(row, inner, install, settings, log)
        done.touch()
    shutil.rmtree(library, ignore_errors=True)
    build = [*install, "--no-deps", "--no-build-isolation", "--target", str(library), "."]
    if not run(build, log, **row.environment):
        raise UnavailableError(f"the library cannot be built: {last_line(log)}")
    return inner


def install_packages(row: Row, inner: Path, install: list[str], settings: argparse.Namespace, log: Path) -> None:
    """Install torch first and alone, then everything else, at versions that agree with it."""
    links = os.environ.get("PIP_FIND_LINKS", "").split()
    own = [part for link in links for part in ("--find-links", link)]
    # no other index: its builds may bring CUDA
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "UV_NO_CONFIG": "1"}
    one = [*install, "--no-deps", "--only-binary", ":all:", *own, "--index-url", settings.torch_index, row.torch]
    quick = [] if install[0] != str(inner) else ["--retries", "0", "--timeout", "15"]
    found = run([*one, *quick], log, **alone)
    if not found and settings.allow_cuda:
        found = run([*install, "--only-binary", ":all:", row.torch], log, minutes=60.0)
    if not found:
        kind = "" if settings.allow_cuda else " for CPUs (--allow-cuda takes any)"
        version = row.python or "of this script"
        raise UnavailableError(f"no build of {row.torch} for Python {version}{kind}: {last_line(log)}")
    code = "from importlib.metadata import version; print(version('torch').partition('+')[0])"
    torch = subprocess.run([str(inner), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    more = ["--only-binary", ":all:", *own, *packages(row), *TOOLS, f"torch=={torch}"]
    if not run([*install, *more], log):
        raise UnavailableError(f"packages cannot be installed: {last_line(log)}")


def try_row(row: Row, settings: argparse.Namespace) -> tuple[str, str]:
    """``passed``, ``failed`` or ``skipped``, and what was tested or why not."""
    name = row.name.replace(" ", "-")
    log = settings.logs / f"{name}.log"
    log.write_text("")
    with tempfile.TemporaryDirectory(prefix="pyro-vgpds-matrix-") as temporary:
        environment = (settings.keep or Path(temporary)).absolute() / name
        try:
            inner = make_environment(row, settings, environment, log)
        except UnavailableError as error:
            return "skipped", str(error)
        copy = Path(temporary, "tree")  # the tests, with the library that was built in place of the sources
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "*.so", "build", "*.egg-info", "__pycache__")
        )
        shutil.rmtree(copy / "pyro_vgpds")
        shutil.copytree(environment / "library" / "pyro_vgpds", copy / "pyro_vgpds")
        code = "import sys, importlib.metadata as m; print(sys.version.split()[0], "
        code += "*(f'{n} {m.version(n)}' for n in NAMES))"
        code = code.replace("NAMES", repr(VERSIONS))
        versions = subprocess.run([str(inner), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        workers = ["-n", str(settings.workers)]
        command = [str(inner), "-m", "pytest", "-q", *workers, "-m", "not long", *settings.tests]
        if row.oldest:  # old packages warn of newer ones that they use
            command += ["-W", "ignore::DeprecationWarning", "-W", "ignore::PendingDeprecationWarning"]
        passed = run(command, log, copy, settings.minutes, **row.environment, PYTHONPATH=str(copy))
    result = log.read_text().strip().splitlines()[-1].strip("= ")
    return ("passed" if passed else "failed"), f"Python {versions}: {result}"


def main() -> int:
    """Run the rows; 1 if the tests of one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=[row.name for row in ROWS], help="a row to run; default: all"
    )
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH", help="where an interpreter is")
    parser.add_argument("--torch-index", default=CPU, metavar="URL", help="index of builds of torch for CPUs")
    parser.add_argument("--allow-cuda", action="store_true", help="if there is no build for CPUs, take one with CUDA")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where environments are kept for later calls")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir(), "pyro-vgpds-matrix"), metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=60.0, help="limit for the tests of a row. Default: 60")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests. Default: 2")
    parser.add_argument("tests", nargs="*", default=["tests"], help="files of tests. Default: all")
    settings = parser.parse_args()
    settings.python = dict(one.partition("=")[::2] for one in settings.python)
    settings.logs.mkdir(parents=True, exist_ok=True)
    failed = False
    for row in ROWS:
        if settings.only and row.name not in settings.only:
            continue
        begin = time.monotonic()
        state, about = try_row(row, settings)
        failed |= state == "failed"
        print(f"{row.name:13} {state:8} {about} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"logs: {settings.logs}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
