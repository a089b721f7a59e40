# SPDX-License-Identifier: Apache-2.0
"""Names of likelihoods: as users give them, alone or in dictionaries of columns, and in files.

A name that is read from a file is looked up, and never imported or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.columns import ByColumn
from pyro_vgpds.likelihoods.families import Bernoulli, Binomial, Gaussian, NegativeBinomial, StudentT
from pyro_vgpds.likelihoods.poisson import Poisson
from pyro_vgpds.parameters.registry import Registry

__all__ = ["LIKELIHOODS", "NAMED", "TEXTS", "parse_likelihood", "register_likelihood"]

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
L = TypeVar("L", bound=Likelihood)
#: all that files can hold
LIKELIHOODS = Registry(Likelihood, "register_likelihood")


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


@overload
def register_likelihood(likelihood: type[L]) -> type[L]: ...


@overload
def register_likelihood(likelihood: None = None, *, name: str) -> Callable[[type[L]], type[L]]: ...


def register_likelihood(
    likelihood: type[L] | None = None, *, name: str | None = None
) -> type[L] | Callable[[type[L]], type[L]]:
    """Give a likelihood class the name under which files keep it, so that models with it can be saved and loaded.

    A file holds this name, the parameters and the options (``option_names``) of the likelihood. To load it, import the
    module that registers the class first: files never name modules and nothing in them is run. The constructor must
    take each parameter and option by its name. Use it as a decorator, with or without a name.

    :param likelihood: a class that derives from :class:`Likelihood`.
    :param name: the name in files. Default: that of the class. Choose one that other people's likelihoods do not have,
        and keep it when you rename the class.
    :returns: the class.
    :raises TypeError: if ``likelihood`` is not such a class, or ``name`` is not a string.
    :raises ValueError: if another class has the name already.

    >>> import pyro.distributions as dist
    >>> from pyro_vgpds.likelihoods import TangentLikelihood, register_likelihood
    >>> @register_likelihood(name="mylab.Laplace")
    ... class Laplace(TangentLikelihood):
    ...     def __init__(self, scale=1.0):
    ...         super().__init__()
    ...         self.add_parameter("scale", scale)
    >>> Laplace(2.0)
    Laplace(scale=2)
    """
    return LIKELIHOODS.decorate(likelihood, name)
