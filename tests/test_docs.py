# SPDX-License-Identifier: Apache-2.0
"""The code in the README, the docs and the docstrings runs; every public name is documented; the pages can be built."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import zlib
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pytest
import torch

import pyro_vgpds
from pyro_vgpds.datasets import make_sequences

ROOT = Path(__file__).parents[1]
#: modules whose ``__all__`` is for users
PUBLIC = (
    "pyro_vgpds",
    "pyro_vgpds.baselines",
    "pyro_vgpds.cli",
    "pyro_vgpds.datasets",
    "pyro_vgpds.experiments",
    "pyro_vgpds.files",
    "pyro_vgpds.kernels",
    "pyro_vgpds.metrics",
    "pyro_vgpds.model",
    "pyro_vgpds.plotting",
    "pyro_vgpds.prediction",
    "pyro_vgpds.training",
)
#: options that are handed on as they are; the docstring names the function that takes them
PASSED_ON = {"args", "kwargs", "options"}


@pytest.fixture
def as_a_reader(tmp_path, monkeypatch):
    """The state in which examples are tried: torch's own dtype, an empty folder, nothing left behind."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    yield
    torch.set_default_dtype(torch.float64)
    plt.close("all")


@pytest.mark.long
@pytest.mark.parametrize("page", ["README.md", "docs/extending.md", "docs/mathematics.md", "docs/usage.md"])
def test_code_blocks(page, capsys, as_a_reader):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict = {}
    for i, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {i}", "exec"), namespace)
    assert np.isfinite(float(namespace["loss"]))
    if page in ("README.md", "docs/usage.md"):
        assert "bound" in capsys.readouterr().out
        assert namespace["draws"]["y"].shape == (3, 100, 20)
    if page == "README.md":
        t, outputs = namespace["t"], np.arange(20)
        ahead = np.sin(2 * np.linspace(10, 13, 31)[:, None] + outputs) ** 3
        assert np.abs(namespace["ahead"].mean.numpy() - ahead).mean() < 0.1
        gap = np.sin(2 * t[30:40, None] + outputs[:5]) ** 3
        assert np.abs(namespace["filled"].mean.numpy()[30:40, :5] - gap).mean() < 0.1
        assert np.abs(namespace["whole"].mean.numpy() - np.sin(2 * t[:20, None] + outputs + 1) ** 3).mean() < 0.2


def test_front_page_is_short_and_leads_somewhere():
    text = (ROOT / "README.md").read_text()
    first = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == []
    assert (ROOT / "docs" / "vgpds.png").stat().st_size < 300_000


# examples in docstrings


def modules() -> list[ModuleType]:
    names = [m.name for m in pkgutil.walk_packages(pyro_vgpds.__path__, "pyro_vgpds.")]
    return [importlib.import_module(n) for n in ["pyro_vgpds", *names] if not n.rpartition(".")[2].startswith("_")]


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """In the order in which they stand, so that methods come after their class."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for test in finder.find(module, module.__name__, globs={}) if test.examples]
    return sorted(found, key=lambda test: test.lineno or 0)


WITH_EXAMPLES = [module.__name__ for module in modules() if examples(module)]


def run(test: doctest.DocTest, start: dict[str, Any]) -> dict[str, Any]:
    """Run an example that goes on from ``start``; what it leaves behind."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    test.globs = dict(start)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)
    return test.globs


@pytest.fixture(scope="module")
def trained():
    """What the example of the package leaves behind: the others go on from there."""
    torch.set_default_dtype(torch.float32)
    (first,) = examples(pyro_vgpds)
    return run(first, {})


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name, trained, as_a_reader):
    """An example of a method goes on from that of its class, and all from that of the package."""
    left: dict[str, dict[str, Any]] = {}
    for test in examples(importlib.import_module(name)):
        left[test.name] = run(test, left.get(test.name.rpartition(".")[0], trained))
        plt.close("all")


@pytest.mark.data
def test_examples_with_real_data_run(data_home, trained, as_a_reader):
    """Those of loaders, which are skipped where their files may not be at hand."""
    for name in WITH_EXAMPLES:
        for test in examples(importlib.import_module(name)) if name.startswith("pyro_vgpds.datasets.") else ():
            if any(example.options.pop(doctest.SKIP, False) for example in test.examples):
                for example in test.examples:
                    example.options.pop(doctest.SKIP, None)
                run(test, trained)


# public names


def public_objects() -> dict[str, Any]:
    """Classes and functions by the names under which users import them."""
    found = {}
    for name in PUBLIC:
        module = importlib.import_module(name)
        for attribute in module.__all__:
            value = getattr(module, attribute)
            if inspect.isclass(value) or inspect.isroutine(value):
                found.setdefault(id(value), (f"{name}.{attribute}", value))
    return dict(found.values())


def documented_parts(name: str, value: Any) -> dict[str, Any]:
    """The object itself and, of a class, the public methods and properties that it defines."""
    parts = {name: value}
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and (
                inspect.isroutine(member) or isinstance(member, (property, classmethod, staticmethod))
            ):
                parts[f"{name}.{attribute}"] = member.__func__ if hasattr(member, "__func__") else member
    return parts


#: methods whose meaning is that of torch or Pyro, which ask for them
OF_OTHERS = {"forward", "rsample", "log_prob", "mean", "variance", "get_posterior", "extra_repr", "leaves"}


def parameters_elsewhere(text: str, member: Any) -> str:
    """Docstrings of what the text says the parameters are those of: "as in :func:`other`" and the like."""
    found = re.findall(r"\b(?:[Aa]s|[Aa]s in|[Aa]s for|those of)\s+:\w+:`(?:[^`<]*<)?~?([\w.]+)>?`", text)
    scope = vars(importlib.import_module(member.__module__))
    owner = scope.get(member.__qualname__.partition(".")[0])
    texts = []
    for reference in found:
        place, other = (scope, reference) if not reference.startswith("pyro_vgpds.") else ({}, reference)
        first, *rest = other.split(".")
        target = place.get(first) or getattr(owner, first, None) or importlib.import_module(first)
        for attribute in rest:
            target = getattr(target, attribute)
        said = target.__doc__ or ""
        texts += [said, parameters_elsewhere(said, target)]
    return "\n".join(texts)


def undocumented(name: str, value: Any) -> list[str]:
    """What the docstrings of a name do not say."""
    faults = []
    parts = documented_parts(name, value)
    for part, member in parts.items():
        text = member.__doc__
        if not text:
            if part == name or part.rpartition(".")[2] not in OF_OTHERS:
                faults.append(f"{part} has no docstring")
        elif not isinstance(member, property):
            faults += [f"{part} does not say what {p} is" for p in parameters(member) if not says(text, member, p)]
    if not any(">>> " in (member.__doc__ or "") for member in parts.values()):
        faults.append(f"{name} has no example")
    return faults


def parameters(member: Any) -> set[str]:
    """Those that must be documented. Fields of a dataclass have comments of their own, which the pages show."""
    own = member.__init__ if inspect.isclass(member) else member
    if is_dataclass(member) or issubclass(type(own), type(object.__init__)) or "pyro_vgpds" not in own.__module__:
        return set()
    return set(inspect.signature(own).parameters) - {"self", "cls"} - PASSED_ON


def says(text: str, member: Any, parameter: str) -> bool:
    """Whether the parameter is in the docstring, that of a base class, or that of what it is said to be as in."""
    bases = [base.__doc__ or "" for base in member.__mro__[1:]] if inspect.isclass(member) else []
    return any(f":param {parameter}:" in t for t in [text, *bases, parameters_elsewhere(text, member)])


def test_every_public_name_is_documented():
    faults = [fault for name, value in public_objects().items() for fault in undocumented(name, value)]
    assert not faults, "\n".join(faults)


# the pages


NEEDED = ("furo", "myst_parser", "sphinx", "sphinx-mathjax-offline")


@pytest.mark.long
@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"the pages need {', '.join(NEEDED)}: pip install '.[dev]'")
def test_pages_are_built_without_warnings_and_have_every_public_name(tmp_path):
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-b", "html", "docs", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    inventory = zlib.decompress((tmp_path / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    shown = {line.split()[0] for line in inventory.splitlines() if line.split()[1].startswith("py:")}
    wanted = set(public_objects())
    for name, value in public_objects().items():
        if is_dataclass(value):
            wanted |= {f"{name}.{field.name}" for field in fields(value) if field.name in value.__annotations__}
    assert not wanted - shown
    assert (tmp_path / "_static" / "tex-svg.js").stat().st_size > 1e6
    assert "cdn" not in (tmp_path / "api" / "kernels.html").read_text()


def test_generated_sequences():
    dataset = make_sequences(num_sequences=3, num_outputs=4, length=(5, 9), missing=0.3, seed=1)
    data = dataset.sequences()
    assert data.num_sequences == 3
    assert all(5 <= n <= 9 for n in data.lengths)
    assert 0 < data.num_missing < data.num_frames * 4
    again = make_sequences(num_sequences=3, num_outputs=4, length=(5, 9), missing=0.3, seed=1)
    np.testing.assert_array_equal(np.concatenate(dataset.y), np.concatenate(again.y))
    clean = np.concatenate(make_sequences(noise=0.0).y)
    np.testing.assert_allclose(clean.std(0), 1.0)
    with pytest.raises(ValueError, match="sizes must be positive, but got num_sequences=0"):
        make_sequences(num_sequences=0)
    with pytest.raises(ValueError, match=r"missing must be in \[0, 1\)"):
        make_sequences(missing=1.0)
