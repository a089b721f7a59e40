# SPDX-License-Identifier: Apache-2.0
"""The C code under sanitizers and without AVX: the tests of the compiled loops, with libraries that are built here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("mapping/_midpoint", "temporal/_chains", "temporal/_tiles")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc on Linux"),
    pytest.mark.skipif(not (ROOT / "pyro_vgpds" / f"{SOURCES[0]}.c").is_file(), reason="the sources are not here"),
]

#: random sizes of everything that has a compiled loop, each compared with the same numbers of torch
DRIVER = """
import random, sys
import torch
from pyro_vgpds.mapping import native
from pyro_vgpds.data.times import Times
from pyro_vgpds import TemporalGP, OpperArchambeau
from pyro_vgpds.kernels import Matern12, Matern32, Matern52, Periodic
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
assert native.available()
dice = random.Random(0)
for _ in range(int(sys.argv[1])):
    N, M, Q, C = dice.randrange(1, 90), dice.randrange(1, 60), dice.randrange(1, 10), dice.choice([None, 1, 3])
    mask = None if C is None else (torch.rand(C, N) > 0.4).double()
    a, r, mu, z = torch.randn(N), torch.rand(N, Q) * 0.3 + 0.05, torch.randn(N, Q), torch.randn(M, Q)
    leaves = [x.clone().requires_grad_() for x in (a, r, mu, z)]
    middle = (leaves[3][:, None] + leaves[3]) / 2
    E = (leaves[0][:, None, None] - (leaves[1][:, None, None] * (leaves[2][:, None, None] - middle) ** 2).sum(-1)).exp()
    V = E.sum(0)[None] if mask is None else torch.einsum("cn,nij->cij", mask, E)
    g = torch.randn(V.shape)
    assert torch.allclose(native.forward(a, r, mu, z, mask), V.detach(), rtol=1e-10)
    for one, other in zip(native.backward(g, a, r, mu, z, mask), torch.autograd.grad(V, leaves, g), strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()) + 1e-300)
makes = [Matern12, Matern32, Matern52, lambda v, l: Matern32(v, l) + Matern52(0.5, 0.3),
         lambda v, l: Periodic(v, 1.0, l), lambda v, l: Periodic(v, 1.0, l) * Matern32(1.0, 1.0) + Matern12(0.3, l)]
for i in range(int(sys.argv[1])):
    n, Q = dice.randrange(1, 40), dice.randrange(1, 6)
    kernel = makes[i % len(makes)](torch.rand(Q) + 0.5, torch.rand(Q) + 0.3)
    t = torch.rand(n).sort().values * 4 + torch.arange(n) * 0.01
    found = []
    for structure in ("markov", "dense"):
        mean_bar = torch.linspace(-1.0, 1.0, n * Q).reshape(n, Q).requires_grad_()
        lam = torch.linspace(0.3, 2.0, n * Q).reshape(n, Q).requires_grad_()
        prior = TemporalGP(kernel(), Times(t, (n,)), Q, structure=structure)
        q = OpperArchambeau(prior, mean_bar, lam)
        total = q.mean.square().sum() + q.variance.sum() + torch.distributions.kl_divergence(q, prior)
        found.append([total.detach(), *torch.autograd.grad(total, [mean_bar, lam, *kernel.parameters()])])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6 * (1.0 + float(other.abs().max()))), (i, n, Q)
print("done")
"""


def build(folder: Path) -> None:
    """A copy of the package in ``folder``, with libraries for processors without AVX that check what they do."""
    shutil.copytree(ROOT / "pyro_vgpds", folder / "pyro_vgpds", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    started = []
    for source in SOURCES:
        # the chains take minutes to compile with checks of every operation
        checks = "address" if source.endswith("_chains") else "address,undefined"
        command = [
            "gcc", "-w", "-shared", "-fPIC", "-O1", f"-fsanitize={checks}", "-fno-sanitize-recover=all",
            "-DPy_LIMITED_API=0x030A0000", "-DPYRO_VGPDS_GENERIC", f"-I{sysconfig.get_path('include')}",
            f"{source}.c", "-o", f"{source}.abi3.so", "-lm",
        ]  # fmt: skip
        started.append(subprocess.Popen(command, cwd=folder / "pyro_vgpds", stderr=subprocess.PIPE))
    errors = "".join(process.communicate(timeout=500)[1].decode() for process in started)
    if re.search("cannot find .*(asan|ubsan)|Python.h", errors):
        pytest.skip("no sanitizers or no headers of Python here")
    assert not any(process.returncode for process in started), errors


def test_sanitizers_find_nothing_in_a_build_without_avx(tmp_path):
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = found.stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("gcc has no address sanitizer here")
    build(tmp_path)
    for source in SOURCES:
        code = (tmp_path / "pyro_vgpds" / f"{source}.abi3.so").read_bytes()
        assert b"_avx2" not in code
        assert b"_avx512" not in code
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "PYRO_VGPDS_NATIVE": "1",
        "LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0",
    }  # fmt: skip
    command = [sys.executable, "-c", DRIVER, "12"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == "done"
    assert "runtime error" not in done.stderr


def test_sizes_are_computed_in_64_bits():
    """No size or index in the C code has a type of 32 bits: sizes are long, which is checked when it is compiled."""
    for source in SOURCES:
        code = (ROOT / "pyro_vgpds" / f"{source}.c").read_text()
        assert "_Static_assert(sizeof(long) >= 8" in code
        # int only counts lanes, rows of a tile and sides, up to a constant
        loops = re.findall(r"for \(int (\w+) = \d+; \1 (?:<|<=) ([^;]+);", code)
        assert {end for _, end in loops} <= {
            "LANES", "ROWS", "DEGREE", "width", "3", "3 * ROWS", "2", "4", "g->lanes",
        }, source  # fmt: skip
        assert not re.findall(r"\((?:int|unsigned|int32_t)\)", code)
