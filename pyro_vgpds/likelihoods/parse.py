# SPDX-License-Identifier: Apache-2.0
"""Likelihoods by name, and dictionaries of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.columns import ByColumn
from pyro_vgpds.likelihoods.families import Bernoulli, Binomial, Gaussian, NegativeBinomial, StudentT
from pyro_vgpds.likelihoods.poisson import Poisson

__all__ = ["NAMED", "TEXTS", "parse_likelihood"]

#: likelihoods that need no argument, by their names in lower case
NAMED: dict[str, Callable[[], Likelihood]] = {
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "negative-binomial": NegativeBinomial,
    "poisson": Poisson,
    "student-t": StudentT,
}
#: all texts
TEXTS = (*NAMED, "binomial:TOTAL")


def parse_likelihood(likelihood: object) -> Likelihood:
    """A likelihood from what users give: the likelihood itself, a name, or a dictionary of columns.

    :param likelihood: a likelihood; a name such as ``"poisson"``, ``"NegativeBinomial"`` or ``"student-t"``, or
        ``"binomial:10"`` with the number of trials; or a dictionary from likelihoods or names to lists of columns, for
        :class:`~pyro_vgpds.likelihoods.ByColumn`.
    :raises TypeError: if it is something else.
    :raises ValueError: if there is no such name, or the columns are wrong.

    >>> from pyro_vgpds.likelihoods import parse_likelihood
    >>> parse_likelihood({"Gaussian": [0, 1], "Poisson": [2]})
    ByColumn(Gaussian(scale=0.1): [0, 1], Poisson(): [2])
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, Mapping):
        groups: dict[Any, Any] = dict(likelihood)
        return ByColumn([(parse_likelihood(each), columns) for each, columns in groups.items()])
    if isinstance(likelihood, str):
        return _named(likelihood)
    raise TypeError(
        "likelihood must be one of pyro_vgpds.likelihoods, such as NegativeBinomial(), a name, or a dictionary of "
        f"columns, but got {likelihood!r:.80}."
    )


def _named(text: str) -> Likelihood:
    name, colon, total = text.strip().lower().replace("-", "").replace("_", "").partition(":")
    if name == "binomial":
        if not total.isdecimal() or int(total) < 1:
            raise ValueError(f"binomial needs the number of trials, as in binomial:10, but got {text!r:.80}.")
        return Binomial(int(total))
    make = {known.replace("-", ""): make for known, make in NAMED.items()}.get(name)
    if make is None:
        raise ValueError(f"there is no likelihood {text!r:.80}; there are {', '.join(TEXTS)}.")
    if colon:
        raise ValueError(f"{name} takes no number, but got {text!r:.80}.")
    return make()
