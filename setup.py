# SPDX-License-Identifier: Apache-2.0
"""Builds the optional compiled kernels; everything else is in pyproject.toml."""

import sysconfig

from setuptools import Extension, setup

# One wheel for all versions of Python from 3.10 on. Free-threaded builds of Python have no stable ABI.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            f"pyro_vgpds.{name}",
            [f"pyro_vgpds/{name.replace('.', '/')}.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if STABLE else [],
            extra_compile_args=["-O3", "-ffp-contract=fast"],
            py_limited_api=STABLE,
            optional=True,
        )
        for name in ("mapping._midpoint", "temporal._chains", "temporal._tiles")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE else {},
)
