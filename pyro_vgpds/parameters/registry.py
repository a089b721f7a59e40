# SPDX-License-Identifier: Apache-2.0
"""Names of classes in files. A name that is read from a file is looked up here, and never imported or run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

__all__ = ["Registry", "check_arguments"]

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """The classes of one kind that files can hold, by their names.

    :param function: the name of the function that registers, for errors.
    :param reserved: names of classes that files hold in another way.
    """

    def __init__(self, base: type[T], function: str, reserved: Mapping[str, type[T]] | None = None) -> None:
        self.base, self.function, self.reserved = base, function, reserved or {}
        self._classes: dict[str, type[T]] = {}
        self._names: dict[type[T], str] = {}

    def register(self, kind: type[T], name: str | None) -> None:
        """Give a class a name. A class that is defined again, in a notebook or by a reload, replaces the old one.

        :param name: the name in files. Default: that of the class.
        :raises TypeError: if ``kind`` is not such a class, or ``name`` is not a string.
        :raises ValueError: if another class has the name already.
        """
        base = self.base.__name__
        if not (isinstance(kind, type) and issubclass(kind, self.base)):
            what = base.lower()
            raise TypeError(
                f"{what} must be a class that derives from {base} in {self.function}, but got {kind!r:.80}."
            )
        name = kind.__name__ if name is None else name
        other = self._classes.get(name, self.reserved.get(name, kind))
        if (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
            raise ValueError(
                f"the name {name!r} belongs to {other.__module__}.{other.__qualname__} already. Choose another one: "
                f"{self.function}(name='mylab.{name}')."
            )
        self._classes[name] = kind
        self._names[kind] = name

    def decorate(self, kind: type[C] | None, name: str | None) -> type[C] | Callable[[type[C]], type[C]]:
        """Register a class and return it, or without one return a decorator that does, as :meth:`register`."""
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name must be a string that is not empty, but got {name!r}.")

        def registered(kind: type[C]) -> type[C]:
            self.register(kind, name)  # type: ignore[arg-type]
            return kind

        return registered if kind is None else registered(kind)

    def name_of(self, kind: type[T]) -> str | None:
        """The name of a class in files; None if it is not registered."""
        return self._names.get(kind)

    def find(self, name: str) -> type[T] | None:
        """The class of a name, or None."""
        return self._classes.get(name)

    def names(self) -> list[str]:
        """All names."""
        return sorted(self._classes)


def check_arguments(kind: type, wanted: Collection[str]) -> None:
    """Raise a TypeError if objects of a class could not be made again from these parameters and options."""
    arguments = inspect.signature(kind).parameters.values()
    takes_all = any(a.kind is inspect.Parameter.VAR_KEYWORD for a in arguments)
    known = {a.name for a in arguments if a.kind in (a.POSITIONAL_OR_KEYWORD, a.KEYWORD_ONLY)}
    needed = {a.name for a in arguments if a.default is a.empty and a.name in known}
    if unknown := [name for name in wanted if name not in known and not takes_all]:
        raise TypeError(
            f"{kind.__name__} cannot be saved: its constructor must take its parameters and options by name, "
            f"but it does not take {', '.join(unknown)}."
        )
    if extra := sorted(needed - set(wanted)):
        raise TypeError(
            f"{kind.__name__} cannot be saved: its constructor needs {', '.join(extra)}, which is neither a "
            "parameter nor one of option_names."
        )
