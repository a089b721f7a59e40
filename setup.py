# SPDX-License-Identifier: Apache-2.0
"""Builds the optional compiled kernels; everything else is in pyproject.toml."""

import os
import sysconfig

from setuptools import Extension, setup

# One wheel for all versions of Python from 3.10 on. Free-threaded builds of Python have no stable ABI.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
MACROS = [("Py_LIMITED_API", "0x030A0000")] if STABLE else []
if os.environ.get("PYRO_VGPDS_GENERIC", "0") != "0":  # without AVX, as on a processor that does not have it
    MACROS.append(("PYRO_VGPDS_GENERIC", "1"))

setup(
    ext_modules=[
        Extension(
            f"pyro_vgpds.{name}",
            [f"pyro_vgpds/{name.replace('.', '/')}.c"],
            define_macros=MACROS,
            extra_compile_args=["-O3", "-ffp-contract=fast"],
            py_limited_api=STABLE,
            optional=True,
        )
        for name in (
            "kernels._programs",
            "likelihoods._tangents",
            "mapping._bound",
            "mapping._factors",
            "mapping._midpoint",
            "mapping._inducing",
            "mapping._terms",
            "mapping._weighted",
            "temporal._chains",
            "temporal._natural",
            "temporal._tiles",
            "training._adam",
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE else {},
)
