# SPDX-License-Identifier: Apache-2.0
"""Names of likelihoods in files. A name that is read from a file is looked up here, and never imported or run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.registry import Registry

__all__ = ["LIKELIHOODS", "register_likelihood"]

L = TypeVar("L", bound=Likelihood)

#: all that files can hold
LIKELIHOODS = Registry(Likelihood, "register_likelihood")


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
