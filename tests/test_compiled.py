# SPDX-License-Identifier: Apache-2.0
"""The C code under sanitizers, with each instruction set and without AVX, in libraries that are built here."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (
    "mapping/_midpoint", "mapping/_bound", "mapping/_factors", "mapping/_inducing", "mapping/_terms",
    "mapping/_weighted", "temporal/_chains", "temporal/_natural", "temporal/_tiles", "training/_adam",
    "kernels/_programs", "likelihoods/_tangents",
)  # fmt: skip
#: without code for special instruction sets
PLAIN = ("kernels/_programs", "mapping/_bound", "mapping/_factors", "temporal/_natural", "training/_adam")
#: with code for AVX-512
LARGEST = (
    "mapping/_midpoint", "mapping/_inducing", "mapping/_terms", "mapping/_weighted", "likelihoods/_tangents",
    "temporal/_chains", "temporal/_tiles",
)  # fmt: skip
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc on Linux"),
    pytest.mark.skipif(not (ROOT / "pyro_vgpds" / f"{SOURCES[0]}.c").is_file(), reason="the sources are not here"),
]

#: random sizes of everything that has a compiled loop, each compared with the same numbers of torch
DRIVER = """
import random, sys
import torch
from pyro_vgpds.compiled import run_loops
from pyro_vgpds.mapping import native_psi2, native_psi1
from pyro_vgpds.mapping.group_terms import torch_parts, torch_terms, whiten
from pyro_vgpds.mapping.native_bound import BoundInputs, bound_is_compiled, compiled_bound
from pyro_vgpds.mapping.native_inducing import Covariance, GroupStatistics, rbf_covariance, rbf_gradients
from pyro_vgpds.mapping.native_inducing import spectrum_terms, whitened
from pyro_vgpds.mapping.native_terms import group_parts, is_compiled
from pyro_vgpds.mapping.panels import matrices_of, panels_of
from pyro_vgpds.likelihoods import NegativeBinomial, StudentT, families, native_tangents
from pyro_vgpds.likelihoods.factors import Sites
from pyro_vgpds.mapping.latent_gp import mean_terms, scaled_sites
from pyro_vgpds.mapping.rbf_site_bound import factor_gradients, scaled_factors
from pyro_vgpds.mapping.native_weighted import Rows, add_product, pack, unpack, weighted_gradients, weighted_sums
from pyro_vgpds.data.times import Times
from pyro_vgpds import TemporalGP, OpperArchambeau, Sequences
from pyro_vgpds.mapping.rbf_bound import _evaluate
from pyro_vgpds.communication import SINGLE_PROCESS
from pyro_vgpds.kernels import Matern12, Matern32, Matern52, Periodic
from pyro_vgpds.training.adam import Adam
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
assert native_psi2.available() and native_psi1.available()
dice = random.Random(0)
for _ in range(int(sys.argv[1])):
    N, M, Q, C = dice.randrange(1, 120), dice.randrange(1, 60), dice.randrange(1, 10), dice.choice([None, 1, 3])
    mask = None if C is None else (torch.rand(C, N) > 0.4).double()
    a, r, mu, z = torch.randn(N), torch.rand(N, Q) * 0.3 + 0.05, torch.randn(N, Q), torch.randn(M, Q)
    leaves = [x.clone().requires_grad_() for x in (a, r, mu, z)]
    middle = (leaves[3][:, None] + leaves[3]) / 2
    E = (leaves[0][:, None, None] - (leaves[1][:, None, None] * (leaves[2][:, None, None] - middle) ** 2).sum(-1)).exp()
    V = E.sum(0)[None] if mask is None else torch.einsum("cn,nij->cij", mask, E)
    g = torch.randn(V.shape)
    assert torch.allclose(native_psi2.forward(a, r, mu, z, mask), V.detach(), rtol=1e-10)
    wanted = torch.autograd.grad(V, leaves, g)
    for one, other in zip(native_psi2.backward(g, a, r, mu, z, mask), wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()) + 1e-300)
    if mask is not None:
        upper, given = torch.triu_indices(M, M), Rows(a, r, mu, z)
        sums, kept = weighted_sums(given, mask)
        assert torch.allclose(sums, V.detach()[:, upper[0], upper[1]], rtol=1e-10)
        whole = matrices_of(unpack(sums, torch.ones(sums.shape[1]), torch.zeros(C, M)), M)
        assert torch.allclose(whole, V.detach(), rtol=1e-10)
        assert torch.allclose(add_product(torch.ones(C, M), mask, E.detach()[:, 0]), 1 + mask @ E.detach()[:, 0])
        packed = (g + g.mT)[:, upper[0], upper[1]] * torch.where(upper[0] < upper[1], 1.0, 0.5)
        assert torch.allclose(pack(panels_of(g), torch.ones(sums.shape[1]), sums, M).sums, packed)
        for one, other in zip(weighted_gradients(given, mask, packed, True, kept), wanted, strict=False):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()) + 1e-300)
    if mask is None:
        with native_psi2.single_sums(True):
            assert torch.allclose(native_psi2.forward(a, r, mu, z), V.detach(), rtol=1e-4)
            for one, other in zip(native_psi2.backward(g, a, r, mu, z), wanted, strict=True):
                assert torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()) + 1e-30)
    # r as variances, and weights of 1
    leaves = [x.clone().requires_grad_() for x in (mu, r, z, torch.ones(Q))]
    spread, wide = 1 + leaves[3] * leaves[1], 1 + 2 * leaves[3] * leaves[1]
    psi1 = (-(spread.log() + leaves[3] / spread * (leaves[0] - leaves[2][:, None]) ** 2).sum(-1) / 2).exp()
    terms = -wide.log().sum(1) / 2, leaves[3] / wide, psi1
    found = native_psi1.forward(mu, r, z, torch.ones(Q), 1.0)
    for one, other in zip(found, terms, strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
    g = [torch.randn(x.shape) for x in terms]
    wanted = torch.autograd.grad(terms, leaves, g)
    more = (*g[:2], torch.zeros(N, Q))
    for one, other in zip(native_psi1.backward(mu, r, z, torch.ones(Q), found.psi1, g[2], more), wanted, strict=False):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()) + 1e-300)
    R = dice.randrange(1, 90)
    above = dice.randrange(-9, 90)
    y, grad = torch.randn(N, R).tril(above), torch.randn(M, R)
    used = (torch.arange(N) + 1 + above).clamp(0, R) if dice.randrange(2) else None
    own = mu, r, z, torch.ones(Q), y, 1.0
    first, = run_loops(N, 64, [native_psi1.forward_loop(*own, used)[0]])
    assert torch.allclose(first, found.psi1 @ y, rtol=1e-8, atol=1e-10 * float(first.abs().max()) + 1e-300)
    products, = run_loops(N, 64, [native_psi1.backward_loop(*own, (None, grad, *more), used)])
    for one, other in zip(products, native_psi1.backward(*own[:4], found.psi1, grad @ y.mT, more), strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()) + 1e-300)
for _ in range(int(sys.argv[1])):
    C, M, W = dice.randrange(1, 4), dice.randrange(1, 60), dice.randrange(1, 20)
    half, wide = torch.randn(M, M), torch.randn(C, M, M)
    K, psi2 = half @ half.mT / M + 0.1 * torch.eye(M), wide @ wide.mT / M
    L = torch.linalg.cholesky(K)
    v, covariance = torch.randn(C, M, W), Covariance.of(L)
    groups = GroupStatistics(torch.rand(C) * M, v, psi2, torch.rand(C, 1) + 0.5, torch.ones(C, 1))
    assert is_compiled(v, psi2)
    packed = groups._replace(psi2=panels_of(psi2)), covariance
    found, wanted = group_parts(*packed, True), torch_parts(groups, covariance, True)
    gradients = found.gradients._replace(psi2=matrices_of(found.gradients.psi2, M))
    for one, other in zip([*found[:3], *gradients], [*wanted[:3], *wanted.gradients], strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()) + 1e-300)
    assert torch.equal(group_parts(*packed, False).value, found.value)
makes = [Matern12, Matern32, Matern52, lambda v, l: Matern32(v, l) + Matern52(0.5, 0.3),
         lambda v, l: Periodic(v, 1.0, l), lambda v, l: Periodic(v, 1.0, l) * Matern32(1.0, 1.0) + Matern12(0.3, l)]
for i in range(int(sys.argv[1])):
    n, Q = dice.randrange(1, 40), dice.randrange(1, 12)
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
    prior, sites = TemporalGP(kernel(), Times(t, (n,)), Q, structure="markov"), (mean_bar.detach(), lam.detach())
    path = prior.covariance.markov_path(*sites)
    assert (path is None) == (i % len(makes) > 3)
    if path is not None:
        wanted = OpperArchambeau.from_natural(prior, *sites).mean
        assert torch.allclose(path.mean, wanted, rtol=1e-8, atol=1e-8 * float(wanted.abs().max()))
        path.add_gradients(torch.ones(n, Q), torch.ones(n, Q))
        assert all(p.grad.isfinite().all() for p in kernel.parameters())
        assert all(x.isfinite().all() for x in path.natural_step(0.5, 1e-6))
for _ in range(int(sys.argv[1])):
    C, M, W = dice.randrange(1, 4), dice.randrange(1, 60), dice.randrange(1, 20)
    wide, v = torch.randn(C, M, M), torch.randn(C, M, W)
    psi2 = wide @ wide.mT / M
    z, w = torch.randn(M, 3), torch.rand(3) + 0.5
    (K, _, factor), _ = rbf_covariance(z, w, 1.5, 0.1)
    assert torch.allclose(factor @ factor.mT, K, rtol=1e-10)
    rbf_gradients(z, w, 0.1, K, torch.randn(M, M))
    A = whitened(factor, psi2)
    assert torch.allclose(A, whiten(factor, psi2), rtol=1e-8, atol=1e-8)
    groups = GroupStatistics(torch.rand(C) * M, v, psi2, torch.rand(C, W) + 0.5, torch.ones(C, W))
    given = *torch.linalg.eigh(A), factor, groups
    for one, other in zip(spectrum_terms(*given, True), torch_terms(*given, True), strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8 * float(other.abs().max()) + 1e-300)
for _ in range(int(sys.argv[1])):
    N, M, Q, D = dice.randrange(1, 120), dice.randrange(1, 30), dice.randrange(1, 8), dice.randrange(2, 30)
    shared = dice.random() < 0.5
    leaves = torch.randn(N, Q), torch.rand(N, Q), torch.randn(M, Q), torch.rand(Q) + 0.5, torch.tensor(1.3)
    leaves = [x.requires_grad_() for x in (*leaves, torch.rand(1 if shared else D) + 0.1)]
    y = torch.randn(N, D)
    y[1:][torch.rand(N - 1, D) < dice.choice([0.0, 0.02, 0.2])] = torch.nan
    data = Sequences(torch.arange(N) * 1.0, y)
    groups = data.groups(data.output_means, columns=not shared)
    assert bound_is_compiled(leaves[5], groups)
    inputs = BoundInputs(*leaves)
    if groups.mask is not None and not shared and groups.widths[-1] > 10 * M:
        continue
    value, found = compiled_bound(inputs, groups, 0.1)
    with torch.no_grad():
        wanted_value, wanted = _evaluate(inputs, groups, 0.1, SINGLE_PROCESS, True)
    assert torch.allclose(value, wanted_value, rtol=1e-9)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-7, atol=1e-7 * float(other.abs().max()) + 1e-300)
for _ in range(int(sys.argv[1])):
    N, D, most = dice.randrange(1, 60), dice.randrange(1, 150), dice.choice([3.0, 90.0])
    leaves = [x.requires_grad_() for x in (torch.rand(N, D), torch.randn(N, D), torch.randn(D), torch.rand(D) + 0.5)]
    sites, g = Sites(*leaves[:2], torch.zeros(())), torch.randn(2, D, N)
    total = mean_terms(sites, leaves[2]) + sum((a.mT * b).sum() for a, b in zip(g, scaled_sites(sites, *leaves[2:])))
    given = [x.detach() for x in leaves]
    wanted = [x.mT.detach() for x in scaled_sites(sites, *leaves[2:])]
    for one, other in zip(scaled_factors(*given)[:2], wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
    for one, other in zip(factor_gradients(*given, *g), torch.autograd.grad(total, leaves), strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-9)
    y, state = (torch.rand(N, D) * most).floor(), torch.rand(2, N, D) + torch.tensor([0.0, 2.0])[:, None, None]
    y[torch.rand(N, D) < 0.2] = torch.nan
    for likelihood in (NegativeBinomial(torch.rand(D) + 0.5).double(), StudentT(torch.rand(D) + 0.3, 3.0).double()):
        found = []
        for check in (native_tangents.is_compiled, lambda y, state: False):
            families.is_compiled = check
            parts = likelihood().sites(y, state)
            total = sum((k + 1.0) * part.sum() for k, part in enumerate(parts))
            found.append([*parts, *torch.autograd.grad(total, list(likelihood.parameters()))])
            assert check(y, state) == (len(found) == 1)
        families.is_compiled = native_tangents.is_compiled
        for one, other in zip(*found, strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-9)
for _ in range(int(sys.argv[1])):
    sizes = [dice.randrange(1, 9) for _ in range(dice.randrange(1, 6))]
    start, gradients = ([torch.randn(size) for size in sizes] for _ in range(2))
    found = []
    for compiled in (True, False):
        own = [x.clone().requires_grad_() for x in start]
        adam = Adam(own, [0.1] * len(own), (0.9, 0.95))
        assert adam._bundle.is_compiled
        adam._bundle.is_compiled = compiled
        for _ in range(3):
            for p, g in zip(own, gradients, strict=True):
                p.grad = g
            adam.step()
        found.append(own)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
print("done")
"""


#: name ↦ options of the compiler, and the instructions that the processor must have
BUILDS = {
    "generic": (["-DPYRO_VGPDS_GENERIC"], []),
    "avx2": (["-D__builtin_cpu_supports(name)=(name[3] != '5')"], ["avx2", "fma"]),
    "avx512": ([], ["avx512f"]),
}


def flags() -> set[str]:
    """The instruction sets of this processor."""
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def compiler(source: Path, target: Path, options: list[str]) -> subprocess.Popen:
    """Compile a library that checks every operation. Optimised code would take a minute or more to compile."""
    command = [
        "gcc", "-w", "-Wno-psabi", "-shared", "-fPIC", "-O0", "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all", "-DPy_LIMITED_API=0x030A0000", *options, f"-I{sysconfig.get_path('include')}",
        source.name, "-o", str(target), "-lm",
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=source.parent, stderr=subprocess.PIPE, text=True)


def build(folder: Path) -> dict[str, Path]:
    """Copies of the package with libraries for each instruction set of this processor."""
    started, found = [], {}
    for name, (options, needed) in BUILDS.items():
        if not set(needed) <= flags():
            continue
        found[name] = folder / name
        package = found[name] / "pyro_vgpds"
        shutil.copytree(ROOT / "pyro_vgpds", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for source in SOURCES if name != "avx512" else LARGEST:
            started.append(compiler(package / f"{source}.c", package / f"{source}.abi3.so", options))
    errors = "".join(process.communicate(timeout=900)[1] for process in started)
    if re.search("cannot find .*(asan|ubsan)|Python.h", errors):
        pytest.skip("no sanitizers or no headers of Python here")
    assert not any(process.returncode for process in started), errors
    if "avx512" in found:
        for source in set(SOURCES) - set(LARGEST):
            path = f"pyro_vgpds/{source}.abi3.so"
            shutil.copy(found["avx2"] / path, found["avx512"] / path)
    return found


def run(driver: str, argument: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a driver with the address sanitizer, which must be loaded first."""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = found.stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("gcc has no address sanitizer here")
    environment = {
        **os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYRO_VGPDS_NATIVE": "1",
        "LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", driver, argument], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip


#: the sums into memory that is too short by one number
WRONG = """
import ctypes, sys
function = ctypes.CDLL(sys.argv[1]).midpoint_forward
numbers = lambda count: ctypes.byref(ctypes.create_string_buffer(8 * count))
libc, long = ctypes.CDLL(None), ctypes.c_long
libc.malloc.restype = ctypes.c_void_p
short = ctypes.c_void_p(libc.malloc(8 * (4 * 4 - 1)))
function(long(0), long(4), long(4), long(1), *(numbers(4) for _ in range(4)), long(0), long(4), short)
"""


def test_sanitizers_find_nothing(tmp_path):
    """One test, because the builds take long."""
    for name, folder in build(tmp_path).items():
        for source in SOURCES:
            code = (folder / "pyro_vgpds" / f"{source}.abi3.so").read_bytes()
            assert b"__ubsan_handle" in code
            assert b"__asan_report" in code
            assert (b"_avx2" in code) == (name != "generic" and source not in PLAIN)
            assert (b"_avx512" in code) == (name != "generic" and source in LARGEST)
        done = run(WRONG, str(folder / "pyro_vgpds" / f"{SOURCES[0]}.abi3.so"), folder)
        assert done.returncode != 0
        assert "heap-buffer-overflow" in done.stderr  # they do find what is wrong
        done = run(DRIVER, "12", folder)
        assert done.returncode == 0, f"{name}: {done.stderr[-4000:]}"
        assert done.stdout.strip() == "done"
        assert "runtime error" not in done.stderr


def test_sizes_are_computed_in_64_bits():
    """No size or index in the C code has a type of 32 bits: sizes are long, which is checked when it is compiled."""
    for source in SOURCES:
        path = ROOT / "pyro_vgpds" / f"{source}.c"
        code = path.read_text()
        headers = set(re.findall(r'#include "([\w./]+\.h)"', code))
        code += "".join((path.parent / header).read_text() for header in sorted(headers))
        assert "_Static_assert(sizeof(long) >= 8" in code
        # int only counts lanes, rows of a tile and sides, up to a constant
        loops = re.findall(r"for \(int (\w+) = \d+; \1 (?:<|<=) ([^;]+);", code)
        assert {end for _, end in loops} <= {
            "LANES", "LANES / PARTS", "PARTS", "NAME(degree)", "SUMS", "height",
                "ROWS", "HEIGHT", "CHAINS", "DEGREE", "vectors", "width", "3", "MOST * ROWS", "2", "4", "8", "g->lanes",
        }, source  # fmt: skip
        assert not re.findall(r"\((?:int|unsigned|int32_t)\)", code)
