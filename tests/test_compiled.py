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

#: what compares compiled functions with those of torch, except for two tests of long arrays
TESTS = (
    "mapping/test_native_psi1.py", "mapping/test_native_psi2.py", "mapping/test_native_terms.py",
    "mapping/test_native_bound.py", "mapping/test_native_bound_sizes.py", "mapping/test_native_inducing.py",
    "mapping/test_rbf_weighted.py", "mapping/test_rbf_site_bound.py", "mapping/test_panels.py",
    "temporal/test_chains.py", "temporal/test_markov_path.py", "temporal/test_markov_autograd.py",
    "kernels/test_programs.py", "likelihoods/test_native_tangents.py", "training/test_adam.py",
    "training/test_bundle.py",
)  # fmt: skip
CHOSEN = "not long_chains and not switch"

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
        for part in ("pyro_vgpds", "tests"):
            shutil.copytree(ROOT / part, found[name] / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", found[name])
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


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the address sanitizer, which must be loaded first."""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = found.stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("gcc has no address sanitizer here")
    environment = {
        **os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYRO_VGPDS_NATIVE": "1",
        "LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=500,
        check=False,
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
        done = run(folder, "-c", WRONG, str(folder / "pyro_vgpds" / f"{SOURCES[0]}.abi3.so"))
        assert done.returncode != 0
        assert "heap-buffer-overflow" in done.stderr  # they do find what is wrong
        tests = [f"tests/{file}" for file in TESTS]
        done = run(folder, "-m", "pytest", "-q", "-s", "-x", "-p", "no:cacheprovider", "-k", CHOSEN, *tests)
        assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert "skipped" not in done.stdout
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
