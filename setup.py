# SPDX-License-Identifier: Apache-2.0
"""Builds the optional compiled kernels; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"pyro_vgpds.{name}",
            [f"pyro_vgpds/{name.replace('.', '/')}.c"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=["-O3", "-ffp-contract=fast"],
            py_limited_api=True,
            optional=True,
        )
        for name in ("mapping._midpoint", "temporal._chains", "temporal._tiles")
    ],
)
