# SPDX-License-Identifier: Apache-2.0
"""Files of every kind with mutated content: they are read, or refused by an error that names them.

``PYRO_VGPDS_FUZZ`` is the number of mutated files of each kind. Default: a few, with fixed seeds.
"""

import copy
import json
import math
import os
import random
import resource
from pathlib import Path

import pyro
import pytest
import torch
from problems import make_data
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from pyro_vgpds import (
    VGPDS,
    AmortizedOpperArchambeau,
    AutoOpperArchambeau,
    FileFormatError,
    Posterior,
    PosteriorMixture,
    Sequences,
    auto,
    fit,
    load,
    load_metadata,
    load_posterior,
    save,
    save_posterior,
)
from pyro_vgpds.files.container import read_file, write_file
from pyro_vgpds.kernels import RBF, Bias, Periodic, White
from pyro_vgpds.likelihoods import NegativeBinomial
from pyro_vgpds.selection import Configuration
from pyro_vgpds.selection.problem import Problem
from pyro_vgpds.training.settings import ResumeError

COUNT = int(os.environ.get("PYRO_VGPDS_FUZZ", "25"))
MOST_MEMORY = 400_000  # kilobytes more than before: the files have a few thousand numbers
pytestmark = pytest.mark.filterwarnings("ignore")


def resume(path: Path) -> object:
    model, guide, data = small()
    return fit(model, guide, data, 4, progress=False, resume=path)


def resume_lbfgs(path: Path) -> object:
    model, guide, data = small()
    return fit(model, guide, data, 4, "lbfgs", progress=False, resume=path)


def resume_counts(path: Path) -> object:
    model, guide, data = counts()
    return fit(model, guide, data, 4, progress=False, resume=path)


#: kind of file ↦ the functions that read it
READERS = {
    "model": [load, load_posterior, load_metadata],
    "amortized": [load, load_posterior],
    "posterior": [load_posterior, load],
    "mixture": [load_posterior],
    "ensemble": [load_posterior, load_metadata],
    "checkpoint": [resume],
    "lbfgs": [resume_lbfgs],
    "comparison": [Problem.read],
    "counts": [load, load_posterior],
    "counts checkpoint": [resume_counts],
}


def small():
    pyro.set_rng_seed(0)
    data = make_data((8, 6), missing=0.1)
    temporal = (RBF(1.0, 0.5) + White(0.01)) * Bias(1.0)
    model = VGPDS.from_data(data, 2, 4, temporal)
    return model, AutoOpperArchambeau(model), data


def counts():
    pyro.set_rng_seed(0)
    data = make_data((8, 6), missing=0.1)
    lengths = list(data.lengths)
    counts = Sequences(list(data.times.t.split(lengths)), list(data.y.exp().round().split(lengths)))
    model = VGPDS.from_data(counts, 2, 4, RBF(1.0, 0.5) + White(0.01), likelihood=NegativeBinomial())
    return model, AutoOpperArchambeau(model), counts


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, tuple[Path, str, dict, dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("originals")
    paths = {kind: folder / f"{kind}.safetensors" for kind in READERS}
    model, guide, data = small()
    save(paths["model"], model, guide, data, {"unit": "cm", "scale": torch.ones(3), "far": math.inf})
    post = Posterior(model, guide, data, noise_variance=0.1, residual=Periodic(1.0, 1.0, 2.0) + White(0.5))
    save_posterior(paths["posterior"], post)
    save_posterior(paths["mixture"], PosteriorMixture([post, Posterior(model, guide, data)]))
    save(paths["amortized"], model, AmortizedOpperArchambeau(model, num_hidden=3), data)
    fit(model, guide, data, 2, progress=False, checkpoint=paths["checkpoint"])
    other, its_guide, _ = small()
    fit(other, its_guide, data, 2, "lbfgs", progress=False, checkpoint=paths["lbfgs"])
    other, its_guide, its_data = counts()
    fit(other, its_guide, its_data, 2, progress=False, checkpoint=paths["counts checkpoint"])
    save(paths["counts"], other, its_guide, its_data)
    long = make_data((20, 16), missing=0.1)
    small_one = Configuration("small", latent_dim=1, num_inducing=4, num_steps=2)
    save_posterior(paths["ensemble"], auto(long, candidates=[small_one], baselines=["column mean"], progress=False))
    Problem(data, "forecast", 3, 0).write(paths["comparison"])
    found = {}
    for kind, path in paths.items():
        header, tensors = read_file(path, "model", "mixture", "ensemble", "checkpoint", "comparison")
        content = {name: value for name, value in header.items() if name not in ("format", "kind", "versions")}
        found[kind] = path, header["kind"], content, {name: value.clone() for name, value in tensors.items()}
    return found


def check(path: Path, kind: str) -> int:
    """Read a file in every way; the number of refusals."""
    refused = 0
    for read in READERS[kind]:
        before, error = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, None
        try:
            read(path)
        except (FileFormatError, ResumeError) as caught:
            error = caught
        if error is not None:
            assert str(path) in str(error) or "Cannot resume: " in str(error)
            assert len(str(error)) < 5000
            refused += 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY
    return refused


def deep(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


ODD = [
    None, True, 0, -1, 1, 7, 2**31, 2**63, -(2**70), 10**30, 0.5, -2.5, 1e308, 1e-320, math.nan, math.inf, "", "x", "0",
    "float64", "1e400", "__class__", "../../etc/passwd", "\u0000", "é" * 300, [], [[]], [1, "a", None], {}, {"a": 1},
    {"t": "tensor0"}, {"t": "nowhere"}, {"d": [[{"l": []}, 1]]}, {"l": 3}, {"f": "inf"}, {"z": 1, "y": 2},
    {"kind": "Sum"}, {"kind": "Sum", "parts": []}, {"kind": "os.system"},
]  # fmt: skip


def places(value: object, at: tuple = ()) -> list[tuple]:
    """The paths of all parts of a JSON text."""
    found = [at] if at else []
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    for key, inner in items:
        found += places(inner, (*at, key))
    return found


def mutated_header(header: dict, dice: random.Random) -> dict:
    header = copy.deepcopy(header)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        if not (found := places(header)):
            break
        at = dice.choice(found)
        parent = header
        for key in at[:-1]:
            parent = parent[key]
        action = dice.random()
        if action < 0.2:
            del parent[at[-1]]
        elif action < 0.3 and isinstance(parent, list):
            parent.insert(at[-1], copy.deepcopy(parent[at[-1]]))
        elif action < 0.4:
            parent[at[-1]] = copy.deepcopy(_part(header, dice.choice(places(header))))
        elif action < 0.43:
            parent[at[-1]] = deep(dice.choice((5, 50, 100)))
        else:
            parent[at[-1]] = copy.deepcopy(dice.choice(ODD))
    return header


def _part(value, at):
    for key in at:
        value = value[key]
    return value


def can_write(dtype: torch.dtype) -> bool:
    """Old versions of safetensors cannot write complex numbers."""
    try:
        to_bytes({"x": torch.zeros(1, dtype=dtype)})
    except KeyError:
        return False
    return True


KINDS = [kind for kind in (torch.int64, torch.bool, torch.float16, torch.complex64, torch.uint8) if can_write(kind)]


def mutated_tensors(tensors: dict[str, Tensor], dice: random.Random) -> dict[str, Tensor]:
    tensors = dict(tensors)
    for _ in range(dice.choice((1, 1, 2))):
        if not tensors:
            break
        name = dice.choice(sorted(tensors))
        value, action = tensors[name], dice.randrange(9)
        if action == 0:
            del tensors[name]
        elif action == 1:
            tensors[name] = value.reshape(-1)[:-1].clone()
        elif action == 2:
            tensors[name] = value.unsqueeze(0).clone()
        elif action == 3:
            tensors[name] = value.to(dice.choice(KINDS))
        elif action == 4:
            tensors[name] = value.new_zeros((0, *value.shape[1:]) if value.dim() else (0,))
        elif action == 5 and value.is_floating_point():
            tensors[name] = torch.full_like(value, dice.choice((math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300)))
        elif action == 6:
            tensors[name] = torch.cat([value.reshape(-1)] * 3)
        elif action == 7:
            tensors[name] = tensors[dice.choice(sorted(tensors))].clone()
        else:
            tensors[f"{name}.more"] = value.clone()
    return tensors


@pytest.mark.parametrize("kind", READERS)
def test_mutated_content_with_a_right_digest(kind, originals, tmp_path):
    _, stored, header, tensors = originals[kind]
    path, refused = tmp_path / f"{kind}.safetensors", 0
    for seed in range(COUNT):
        dice = random.Random(f"{kind} {seed}")
        new, parts = header, tensors
        if dice.random() < 0.65:
            new = mutated_header(header, dice)
        else:
            parts = mutated_tensors(tensors, dice)
        write_file(path, stored, new, {name: value.clone() for name, value in parts.items()})
        try:
            refused += check(path, kind)
        except BaseException as error:
            error.add_note(f"{kind} {seed}: {new}") if hasattr(error, "add_note") else None
            raise
    assert refused > 0


@pytest.mark.parametrize("kind", READERS)
def test_mutated_bytes(kind, originals, tmp_path):
    original = originals[kind][0].read_bytes()
    path = tmp_path / f"{kind}.safetensors"
    for seed in range(COUNT):
        dice = random.Random(f"bytes {kind} {seed}")
        content = bytearray(original)
        action = dice.randrange(4)
        if action == 0:
            del content[dice.randrange(len(content)) :]
        elif action == 1:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        elif action == 2:
            at = dice.randrange(len(content))
            content[at:at] = dice.randbytes(dice.randrange(1, 40))
        else:
            content[:8] = dice.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1)).to_bytes(8, "little")
        path.write_bytes(content)
        assert check(path, kind) == len(READERS[kind])


@pytest.mark.parametrize("kind", READERS)
def test_deep_json(kind, originals, tmp_path):
    _, stored, header, tensors = originals[kind]
    path = tmp_path / f"{kind}.safetensors"
    for depth in (200, 900):
        for name in ("content", "metadata", "model", "data", "members", "comparison"):
            if name in header or name == "metadata":
                write_file(path, stored, {**header, name: deep(depth)}, tensors)
                check(path, kind)
    # deeper than Python itself can write
    write_file(path, stored, {**header, "note": "MARK"}, tensors)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    outer = json.loads(path.read_bytes()[8 : 8 + length])
    text = outer["__metadata__"]["pyro_vgpds"].replace('"MARK"', "[" * 100_000 + "]" * 100_000)
    outer["__metadata__"]["pyro_vgpds"] = text
    rest, start = path.read_bytes()[8 + length :], json.dumps(outer).encode()
    path.write_bytes(len(start).to_bytes(8, "little") + start + rest)
    assert check(path, kind) == len(READERS[kind])


def test_the_originals_are_read(originals):
    for kind, (path, _, _, tensors) in originals.items():
        assert check(path, kind) == 0
        assert load_file(path).keys() == tensors.keys()
