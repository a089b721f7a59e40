# SPDX-License-Identifier: Apache-2.0
"""Kernels written as text are those written as Python, and nothing else is understood."""

import pytest

from pyro_vgpds.kernels import (
    RBF,
    Bias,
    Cosine,
    Linear,
    MarkovRBF,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    Sum,
    White,
    parse_kernel,
)


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("rbf", RBF()),
        ("matern32+white+bias", Matern32() + White(1e-2) + Bias(0.1)),
        (" RBF * Periodic + White ", RBF() * Periodic() + White(1e-2)),
        ("matern12*(matern52+linear)", Matern12() * (Matern52() + Linear())),
        ("((rbf))", RBF()),
        ("matern32 * COSINE(period=2)", Matern32() * Cosine(period=2.0)),
        ("MarkovRBF+white", MarkovRBF() + White(1e-2)),
        (
            "periodic(period=24 fixed)*rbf(lengthscale=1e2)",
            Periodic(period=24.0).fix("period") * RBF(lengthscale=100.0),
        ),
        ("white(variance=.5)+rbf(variance=2., lengthscale=3)", White(0.5) + RBF(2.0, 3.0)),
    ],
)
def test_text_is_the_kernel(text, kernel):
    read = parse_kernel(text)
    assert repr(read) == repr(kernel)
    assert type(read) is type(kernel)
    assert [leaf.unset for leaf in read.leaves()] == [leaf.unset for leaf in kernel.leaves()]


def test_products_bind_closer_than_sums():
    kernel = parse_kernel("white + rbf * periodic + bias")
    assert isinstance(kernel, Sum)
    assert [type(part) for part in kernel] == [White, Product, Bias]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the name of a kernel, but got the end at character 1"),
        ("rbf+", "expected the name of a kernel, but got the end at character 5"),
        ("rbf white", r"expected \+ or \*, but got white at character 5"),
        ("rbf + sine", "unknown kernel 'sine' at character 7.*the names are rbf, markovrbf, matern12"),
        ("rbf^2", r"'\^' is not allowed at character 4"),
        ("(rbf", r"expected \), but got the end"),
        ("rbf)", r"expected \+ or \*, but got \)"),
        ("rbf(", "expected the name of a parameter"),
        ("rbf(period=2)", "RBF has no parameter 'period', only variance, lengthscale"),
        ("rbf(lengthscale 2)", "expected =, but got 2"),
        ("rbf(lengthscale=)", r"expected a positive number, but got \)"),
        ("rbf(lengthscale=-1)", "expected a positive number, but got -"),
        ("rbf(lengthscale=0)", "lengthscale must be a positive number, but got 0"),
        ("rbf(lengthscale=1e999)", "lengthscale must be a positive number, but got inf"),
        ("rbf(lengthscale=2 held)", "unknown unit 'held'"),
        ("2*rbf", "expected the name of a kernel, but got 2"),
        ("__import__('os').system('ls')", "is not allowed at character 12"),
        ("(" * 21 + "rbf" + ")" * 21, "more than 20 nested brackets at character 21"),
    ],
)
def test_what_is_no_kernel(text, message):
    with pytest.raises(ValueError, match=message):
        parse_kernel(text)


def test_text_must_be_text():
    with pytest.raises(TypeError, match="must be a string such as 'matern32"):
        parse_kernel(RBF())


def test_kernels_with_too_many_parts():
    assert len(parse_kernel("+".join(["white"] * 50))) == 50
    for sign in "+*":
        with pytest.raises(ValueError, match=r"the kernel 'rbf.{197}…': more than 50 kernels at character 201"):
            parse_kernel(sign.join(["rbf"] * 401))
