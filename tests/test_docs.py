# SPDX-License-Identifier: Apache-2.0
"""Examples in README, docs and docstrings run; prose is plain; every public name is documented; the pages build."""

import ast
import copy
import doctest
import importlib
import inspect
import io
import os
import pkgutil
import re
import subprocess
import sys
import tokenize
import zlib
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
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
from pyro_vgpds.selection.proposals import propose_models

ROOT = Path(__file__).parents[1]
#: modules whose ``__all__`` is for users
PUBLIC = (
    "pyro_vgpds",
    "pyro_vgpds.baselines",
    "pyro_vgpds.cli",
    "pyro_vgpds.data",
    "pyro_vgpds.datasets",
    "pyro_vgpds.distributed",
    "pyro_vgpds.evaluation",
    "pyro_vgpds.experiments",
    "pyro_vgpds.files",
    "pyro_vgpds.inference",
    "pyro_vgpds.kernels",
    "pyro_vgpds.likelihoods",
    "pyro_vgpds.mapping",
    "pyro_vgpds.metrics",
    "pyro_vgpds.model",
    "pyro_vgpds.plotting",
    "pyro_vgpds.prediction",
    "pyro_vgpds.selection",
    "pyro_vgpds.temporal",
    "pyro_vgpds.training",
)
#: options that are passed on; the docstring names the function that takes them
PASSED_ON = {"args", "kwargs", "options"}


@pytest.fixture
def as_a_reader(tmp_path, monkeypatch):
    """The environment of a reader who runs an example: torch's default dtype and an empty folder."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    yield
    torch.set_default_dtype(torch.float64)
    plt.close("all")


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/extending.md", "docs/large.md", "docs/likelihoods.md", "docs/mathematics.md", "docs/usage.md"],
)
def test_code_blocks(page, capsys, as_a_reader, monkeypatch):
    if page != "README.md":  # whose predictions are checked below
        monkeypatch.setattr(
            "pyro_vgpds.selection.api.propose_models",
            lambda *args: [replace(model, num_steps=5) for model in propose_models(*args)],
        )
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
        ahead = np.exp(np.sin(2 * np.linspace(10.1, 11, 10)[:, None] + outputs))
        assert np.abs(namespace["ahead"].mean.numpy() - ahead).mean() < 0.1
        gap = np.exp(np.sin(2 * t[30:40, None] + outputs[:5]))
        assert np.abs(namespace["filled"].mean.numpy()[30:40, :5] - gap).mean() < 0.1
        assert np.abs(namespace["whole"].mean.numpy() - np.exp(np.sin(2 * t[:20, None] + outputs + 1))).mean() < 0.2


def test_front_page_is_short_and_links_exist():
    text = (ROOT / "README.md").read_text()
    first = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == []
    assert (ROOT / "docs" / "vgpds.png").stat().st_size < 300_000


def test_the_route_through_the_code_exists_and_is_short():
    text, package = (ROOT / "CONTRIBUTING.md").read_text(), ROOT / "pyro_vgpds"
    names = re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*\.py)`", text)
    assert [name for name in names if not ((package / name).is_file() or (ROOT / name).is_file())] == []
    route = re.findall(r"^\d+\. `(\S+\.py)`: ", text, re.MULTILINE)
    assert 10 <= len(route) <= 12
    assert sum((package / name).read_text().count("\n") for name in route) < 4000
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    helpers = {path.name for path in package.glob("*.py") if not path.name.startswith("__")} - {"version.py"}
    described = set(re.findall(r"`(\w+)/`", text)) | set(names)
    assert folders | helpers <= described  # the table of folders


# prose


#: phrases that are archaic, clipped or hard to translate: use the words of the field instead
PHRASES = (
    r":raises \w+: where\b",  # if
    r"\b(?:is|are|be|was|were) said\b",  # is required, is given
    r"\b(?:is|are|not) at hand\b",  # is available
    r"\ball but\b",  # all except, almost
    r"\bbut for\b",  # except
    r"\bgo(?:es)? on (?:from|with)\b",  # continues
    r"\bleft out\b",  # default, omitted
    r"\blikewise\b",  # as well, also
    r"\bof now\b",  # current
    r"\bof one's own\b",  # custom, your own
    r"\bfor ever\b",  # without end
    r"\bof (?:its|their) own accord\b",  # automatically
    r"\bso many\b",  # the given number of
    r"\bthere (?:is|are) none\b",  # is missing
    r"\bto begin with\b",  # initially
)
FOLDERS = (".", "benchmarks", "docs", "docs/api", "examples", "pyro_vgpds/**", "tests/**", "tutorials")


def prose(path: Path) -> str:
    """The text of a page, or the comments and strings of a module, in one line."""
    text = path.read_text()
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        text = " ".join(comments) + "\n\n" + "\n\n".join(node.value for node in nodes if isinstance(node.value, str))
    return re.sub(r"\s+", " ", text)


def test_prose_has_no_archaic_phrases(tmp_path):
    (tmp_path / "sample.py").write_text(
        '"""Left\n    out."""\nx = 1  # of\n# now\nraise ValueError(f"{x} is " "said")\n'
    )
    sample = prose(tmp_path / "sample.py")
    assert len(re.findall("|".join(PHRASES), sample, re.IGNORECASE)) == 3
    files = {path for folder in FOLDERS for kind in ("md", "py", "rst") for path in ROOT.glob(f"{folder}/*.{kind}")}
    files -= {Path(__file__)}
    assert len(files) > 100
    found = [
        f"{path.relative_to(ROOT)}: ...{match.string[max(0, match.start() - 40) : match.end() + 40]}..."
        for path in sorted(files)
        for match in re.finditer("|".join(PHRASES), prose(path), re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


# examples in docstrings


def modules() -> list[ModuleType]:
    names = [m.name for m in pkgutil.walk_packages(pyro_vgpds.__path__, "pyro_vgpds.")]
    return [importlib.import_module(n) for n in ["pyro_vgpds", *names] if not n.rpartition(".")[2].startswith("_")]


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """Sorted by line, so that methods come after their class."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for test in finder.find(module, module.__name__, globs={}) if test.examples]
    return sorted(found, key=lambda test: test.lineno or 0)


WITH_EXAMPLES = [module.__name__ for module in modules() if examples(module)]


def run(test: doctest.DocTest, start: dict[str, Any]) -> dict[str, Any]:
    """Run an example that continues from the variables ``start``; return its variables."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    test.globs = dict(start)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)
    return test.globs


@pytest.fixture(scope="module")
def package_example():
    torch.set_default_dtype(torch.float32)
    (first,) = examples(pyro_vgpds)
    return run(first, {})


@pytest.fixture
def trained(package_example):
    """The variables of the package's example, from which the other examples continue. What they train is put back."""
    modules = [package_example[name] for name in ("model", "guide")]
    states = [copy.deepcopy(module.state_dict()) for module in modules]
    yield package_example
    for module, state in zip(modules, states, strict=True):
        module.load_state_dict(state)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name, trained, as_a_reader):
    """Examples of methods continue from that of their class, all others from that of the package."""
    left: dict[str, dict[str, Any]] = {}
    for test in examples(importlib.import_module(name)):
        left[test.name] = run(test, left.get(test.name.rpartition(".")[0], trained))
        plt.close("all")


@pytest.mark.data
def test_examples_with_real_data_run(data_home, trained, as_a_reader):
    """Examples of loaders, which are skipped elsewhere because they need files."""
    for name in WITH_EXAMPLES:
        for test in examples(importlib.import_module(name)) if name.startswith("pyro_vgpds.datasets.") else ():
            if any(example.options.pop(doctest.SKIP, False) for example in test.examples):
                for example in test.examples:
                    example.options.pop(doctest.SKIP, None)
                run(test, trained)


# public names


def public_objects() -> dict[str, Any]:
    """Public classes and functions by the names under which users import them."""
    found = {}
    for name in PUBLIC:
        module = importlib.import_module(name)
        for attribute in module.__all__:
            value = getattr(module, attribute)
            if inspect.isclass(value) or inspect.isroutine(value):
                found.setdefault(id(value), (f"{name}.{attribute}", value))
    return dict(found.values())


def documented_parts(name: str, value: Any) -> dict[str, Any]:
    """The object itself and, for a class, its public methods and properties."""
    parts = {name: value}
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and (
                inspect.isroutine(member) or isinstance(member, (property, classmethod, staticmethod))
            ):
                parts[f"{name}.{attribute}"] = member.__func__ if hasattr(member, "__func__") else member
    return parts


#: methods of the interfaces of torch and Pyro, which document them
OF_OTHERS = {"forward", "rsample", "log_prob", "mean", "variance", "get_posterior", "extra_repr", "leaves"}


def parameters_elsewhere(text: str, member: Any) -> str:
    """Docstrings of other functions to which the text refers for parameters, such as "as in :func:`other`"."""
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
        other_text = target.__doc__ or ""
        texts += [other_text, parameters_elsewhere(other_text, target)]
    return "\n".join(texts)


def is_documented_by_base(kind: type, attribute: str) -> bool:
    """Whether a method overrides one that has a docstring, or that the docstring of its class describes."""
    bases = [base for base in kind.__mro__[1:] if attribute in vars(base)]
    return any(vars(base)[attribute].__doc__ or f"``{attribute}(" in (base.__doc__ or "") for base in bases)


def undocumented(name: str, value: Any) -> list[str]:
    """What is missing in the docstrings of a name."""
    faults = []
    parts = documented_parts(name, value)
    for part, member in parts.items():
        text = member.__doc__
        if not text:
            attribute = part.rpartition(".")[2]
            if part == name or not (attribute in OF_OTHERS or is_documented_by_base(value, attribute)):
                faults.append(f"{part} has no docstring")
        elif not isinstance(member, (property, cached_property)):
            faults += [f"{part} does not say what {p} is" for p in parameters(member) if not says(text, member, p)]
    if not any(">>> " in (member.__doc__ or "") for member in parts.values()):
        faults.append(f"{name} has no example")
    return faults


def parameters(member: Any) -> set[str]:
    """Parameters that need documentation. Fields of a dataclass have their own comments, which the pages show."""
    own = member.__init__ if inspect.isclass(member) else member
    if is_dataclass(member) or issubclass(type(own), type(object.__init__)) or "pyro_vgpds" not in own.__module__:
        return set()
    return set(inspect.signature(own).parameters) - {"self", "cls"} - PASSED_ON


def says(text: str, member: Any, parameter: str) -> bool:
    """Whether the parameter is in the docstring, in that of a base class, or in one to which the docstring refers."""
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
    with pytest.raises(ValueError, match="num_sequences must be a whole number of at least 1, but got 0"):
        make_sequences(num_sequences=0)
    with pytest.raises(ValueError, match=r"missing must be in \[0, 1\)"):
        make_sequences(missing=1.0)
