# SPDX-License-Identifier: Apache-2.0
"""What is installed: the contents of the source distribution, of the wheel that is built from it, and of an editable
install. `make dist-test` runs the tests on the first two.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILED = (
    "kernels/_programs", "likelihoods/_tangents", "mapping/_bound", "mapping/_factors", "mapping/_midpoint",
    "mapping/_inducing", "mapping/_terms", "mapping/_weighted", "temporal/_chains", "temporal/_natural",
    "temporal/_tiles", "training/_adam",
)  # fmt: skip
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_{}(sys.argv[1]))"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the tree, in which a build leaves its files, in a folder of the package's name."""
    place = tmp_path_factory.mktemp("clone") / "pyro_vgpds"
    unwanted = shutil.ignore_patterns(
        ".*", "build", "dist", "_build", "*.egg-info", "*.so", "__pycache__", "*_output", "*.ipynb"
    )
    return shutil.copytree(ROOT, place, ignore=unwanted)


def run(code, *arguments, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(sources, tmp_path_factory):
    target = tmp_path_factory.mktemp("sdist")
    return target / run(BUILD.format("sdist"), target, cwd=sources)


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel that is built from the source distribution alone, with little optimisation, which is faster."""
    place, target = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("wheel")
    environment, compiler = {}, target.with_name("cc")
    if os.name == "posix":
        own = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        compiler.write_text(f'#!/bin/sh\nexec {own} "$@" -O0\n')  # the last -O counts
        compiler.chmod(0o755)
        environment = {"CC": str(compiler)}
    with tarfile.open(sdist) as file:
        file.extractall(place, filter="data")
    (folder,) = place.iterdir()
    return target / run(BUILD.format("wheel"), target, cwd=folder, **environment)


def test_source_distribution(sdist):
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    wanted |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "pyro_vgpds").rglob("*.py")}
    wanted |= {f"pyro_vgpds/{name}.c" for name in COMPILED} | {
        f"pyro_vgpds/mapping/{name}.h" for name in ("_groups", "_panels", "_psi1", "_vectors")
    }
    wanted |= {"LICENSE", "README.md", "Makefile", "constraints.txt", "pyproject.toml", "setup.py"}
    wanted |= {"pyro_vgpds/py.typed", "docs/usage.md", "tutorials/video.py", "benchmarks/table.py"}
    assert wanted - names == set()
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


def test_wheel(wheel):
    tag = "cp310-abi3-" if not sysconfig.get_config_var("Py_GIL_DISABLED") else f"cp{sysconfig.get_python_version()}"
    assert tag.replace(".", "") in wheel.name
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = file.read(about).decode()
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "pyro_vgpds").rglob("*.py")} - names == set()
    assert "pyro_vgpds/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0].removesuffix(".dist-info") for name in names} == {"pyro_vgpds", about.split(".dist-")[0]}
    for line in ("License-Expression: Apache-2.0", "Requires-Python: >=3.10", "Requires-Dist: torch<3,>=2.2"):
        assert line in text, line
    compiled = {name.removeprefix("pyro_vgpds/").split(".")[0] for name in names if name.endswith((".so", ".pyd"))}
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        pytest.skip("no C compiler: the compiled loops are optional")
    assert compiled == set(COMPILED)


def test_an_editable_install_adds_a_path(sources, tmp_path):
    """So it is found from the folder that has the clone as well: an import hook would come after that folder."""
    name = run(BUILD.format("editable"), tmp_path, cwd=sources, CC="false")  # nothing is compiled: this is faster
    with zipfile.ZipFile(tmp_path / name) as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in names] == [".pth"]
        assert file.read(names[0]).decode().split() == [str(sources)]
        file.extractall(tmp_path)
    code = (
        "import os, site, sys; "  # without the installation that runs this test
        "sys.path[:] = [p for p in sys.path if not os.path.exists(os.path.join(p, 'pyro_vgpds', '__init__.py'))]; "
        f"site.addsitedir({str(tmp_path)!r}); import pyro_vgpds; print(pyro_vgpds.__file__)"
    )
    assert Path(run(code, cwd=sources.parent)) == sources / "pyro_vgpds" / "__init__.py"
