# SPDX-License-Identifier: Apache-2.0
import pytest

from pyro_vgpds.temporal import chains


@pytest.fixture(params=["compiled", "scan"])
def route(request, monkeypatch):
    if request.param == "scan":
        monkeypatch.setattr(chains, "available", lambda: False)
    elif not chains.available():
        pytest.skip("the compiled loops were not built")
    return request.param
