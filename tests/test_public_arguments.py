# SPDX-License-Identifier: Apache-2.0
"""Every argument of every public function at values of all kinds: it works, or an error names the argument.

``make fuzz`` tries all of them (``PYRO_VGPDS_ARGUMENTS=all``), ``make test`` a part.
"""

import datetime
import math
import os
import re
import signal
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from public_calls import CALLS, UNAVAILABLE, Things, arguments, drawn, public

pytestmark = pytest.mark.filterwarnings("ignore")


class Odd:
    """An object of a kind that nothing knows."""

    def __repr__(self) -> str:
        return "Odd()"


#: values of kinds that are right nowhere
NOWHERE = [Odd(), 1j, b"frog", set(), datetime.datetime(2020, 1, 1), torch.tensor(1j), torch.float16]
#: values of all kinds, most of them wrong for an argument, some at the edge of what is right
EDGES = [
    *NOWHERE, None, True, False, "", "frog", math.nan, math.inf, -math.inf, -1, 0, 1, 2.5, -1e-3, 1e300, 10**30, [], (),
    {}, [[]], ["a", None], ["a", "a"], [[1.0], [1.0, 2.0]], [math.nan], [-1.0], [10**30], [0, 0], [0.5], {"a": None},
    {0: 1.0}, Odd, abs, slice(None), range(2), np.ones((2, 2, 2)), np.zeros((0, 3)), np.zeros(0), np.array("a"),
    np.array(["a", "b"]), np.array(math.nan), np.full((2, 5), math.inf), np.ones(2, dtype=complex),
    np.array([None, 1.0]), np.array([True, False]), np.array(["2020-01-01"], "datetime64[s]"),
    np.ma.masked_array([1.0, 2.0], [True, False]), torch.ones(2, 2, 2), torch.zeros(0, 3), torch.tensor(math.nan),
    torch.ones(3, dtype=torch.int64), torch.ones(2, 5, dtype=torch.float16), torch.ones(2).to_sparse(),
    torch.ones(2, 5, device="meta"), torch.nn.Linear(1, 1), pandas.DataFrame({"a": [1.0, None], "b": ["x", "y"]}),
    pandas.Series([1, None]), Path("no") / "such" / "file",
]  # fmt: skip

#: CPU seconds for one call; most take milliseconds
SECONDS = 60.0
#: arguments that are functions of the user: one that can be called may raise any error
FUNCTIONS = {"callback", "guide", "imputer", "model", "model_factory", "network", "progress"}
#: names of files, which errors may tell in place of the argument
FILES = {"checkpoint", "data_home", "folder", "name", "path", "paths", "resume"}
#: how else errors call an argument: a kernel by its text, a parameter by the name of its kernel or likelihood
ALSO = {
    "text": "the kernel", "temporal": "the kernel", "value": r"(RBF|Gaussian)\.\w+", "default": r"(RBF|Gaussian)\.\w+",
    "names": "(no|has a) parameter", "name": "no parameter",
}  # fmt: skip
#: half precision is converted to the dtype of the model
ALLOWED = {("AmortizedOpperArchambeau", "network")}

PAIRS = [(name, argument) for name, function in public().items() for argument in sorted(arguments(function))]


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    return Things(tmp_path_factory.mktemp("things"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    plt.close("all")


def test_every_public_name_has_a_call_with_all_its_arguments(things):
    functions = public()
    assert set(functions) == set(CALLS)
    for name, function in functions.items():
        assert set(CALLS[name](things)[1]) == arguments(function), name


@pytest.mark.parametrize("name", sorted(set(CALLS) - UNAVAILABLE))
def test_right_values_work(name, things):
    function, values = CALLS[name](things)
    drawn(function(**values))


def is_tried(argument, value):
    """Whether a value is tried for an argument: nothing is downloaded, and no function is called that must fail."""
    downloads = argument == "download" and isinstance(value, int) and value
    return not downloads and not (argument in FUNCTIONS and callable(value))


def expire(*_):
    raise TimeoutError(f"not done after {SECONDS} s of CPU time")


def error_of(name, argument, value, things):
    """The error of a call; None if it works."""
    function, values = CALLS[name](things)
    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        drawn(function(**{**values, argument: value}))
    except Exception as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
        plt.close("all")
    return None


def tells(error, argument, value):
    """Whether an error tells which argument is wrong: by its name, or by the name of the file that it is."""
    if not isinstance(error, (TypeError, ValueError, OSError)) or isinstance(error, TimeoutError):
        return False
    text = str(error)
    files = [str(one) for one in (value if isinstance(value, list) else [value])]
    if argument in FILES and (any(file in text for file in files) or getattr(error, "filename", None)):
        return True
    if isinstance(error, OSError) and "data folder" in text:  # the file of a data set is not there
        return True
    return bool(re.search(rf"\b{argument}\b|{ALSO.get(argument, '$^')}", text))


def check(name, argument, value, things):
    error = error_of(name, argument, value, things)
    shown = f"{name}({argument}={value!r:.60}): {error!r}"
    assert error is None or tells(error, argument, value), shown
    if any(value is one for one in NOWHERE):
        assert error is not None or (name, argument) in ALLOWED, shown


@pytest.mark.long
@pytest.mark.parametrize(("name", "argument"), PAIRS if os.environ.get("PYRO_VGPDS_ARGUMENTS") == "all" else [])
def test_all_edges(name, argument, things):
    for value in EDGES:
        if is_tried(argument, value):
            check(name, argument, value, things)


@settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(pair=st.sampled_from(PAIRS), value=st.sampled_from(EDGES))
def test_some_edges(pair, value, things):
    assume(is_tried(pair[1], value))
    check(*pair, value, things)


@settings(max_examples=600, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(pair=st.sampled_from(PAIRS), value=st.sampled_from(NOWHERE))
def test_some_values_that_are_right_nowhere(pair, value, things):
    check(*pair, value, things)
