# SPDX-License-Identifier: Apache-2.0
"""Different likelihoods for groups of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import ClassVar

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_vgpds.checks import check_count, check_texts, is_whole
from pyro_vgpds.formatting import counted
from pyro_vgpds.likelihoods.base import Likelihood
from pyro_vgpds.likelihoods.column_distribution import ColumnDistribution, joined_outputs
from pyro_vgpds.likelihoods.factors import Moments, Part, Sites, Values
from pyro_vgpds.likelihoods.value import LikelihoodValue

__all__ = ["ByColumn"]


class ByColumn(Likelihood):
    """A different likelihood for groups of outputs.

    Each output has as many functions as the likelihood with the most; those that its own does not need are ignored.

    :param groups: pairs of a likelihood and its columns, or a dictionary of them. A column is an index or a name; names
        are those of the data that :meth:`VGPDS.from_data <pyro_vgpds.VGPDS.from_data>` is given.
    :raises TypeError: if something is not a likelihood or a list of columns.
    :raises ValueError: if an output has no likelihood or two, or a likelihood is given twice.

    >>> from pyro_vgpds.likelihoods import ByColumn, Gaussian, Poisson
    >>> ByColumn([(Gaussian(), [0, 1]), (Poisson(), [2])])
    ByColumn(Gaussian(scale=0.1): [0, 1], Poisson(): [2])
    """

    option_names: ClassVar[tuple[str, ...]] = ("groups",)
    place: Tensor

    def __init__(
        self, groups: Mapping[Likelihood, Sequence[int | str]] | Iterable[tuple[Likelihood, Sequence[int | str]]]
    ) -> None:
        super().__init__()
        if (
            isinstance(groups, (str, bytes, type))
            or not isinstance(groups, Iterable)
            or getattr(groups, "ndim", 1) == 0
        ):
            raise TypeError(f"groups must be pairs of a likelihood and its columns, but got {groups!r:.80}.")
        pairs = list(groups.items() if isinstance(groups, Mapping) else groups)
        if not pairs:
            raise ValueError("groups must have at least one likelihood with its columns, but it is empty.")
        for pair in pairs:
            _check_pair(pair)
        likelihoods = [likelihood for likelihood, _ in pairs]
        if len({id(likelihood) for likelihood in likelihoods}) < len(likelihoods):
            raise ValueError(
                "ByColumn got the same likelihood twice; give it all of its columns at once, or make another."
            )
        self.likelihoods = PyroModule[torch.nn.ModuleList](likelihoods)  # type: ignore[arg-type]
        self.columns = [list(columns) for _, columns in pairs]
        self.num_functions = max(likelihood.num_functions for likelihood in likelihoods)
        self.is_discrete = all(likelihood.is_discrete for likelihood in likelihoods)
        self.learns_scale = any(likelihood.learns_scale for likelihood in likelihoods)
        self.is_drawn = any(likelihood.is_drawn for likelihood in likelihoods)
        self.register_buffer("place", torch.zeros(0, dtype=torch.long))  # the likelihood of each output
        every = [column for columns in self.columns for column in columns]
        if not any(isinstance(column, str) for column in every):
            self._resolve(max(every) + 1, None)

    def _resolve(self, num_outputs: int, names: Sequence[str] | None) -> None:
        place = [-1] * num_outputs
        for i, columns in enumerate(self.columns):
            for column in columns:
                index = _index(column, num_outputs, names)
                if place[index] >= 0:
                    raise ValueError(f"ByColumn has {_called(index, names)} more than once.")
                place[index] = i
        if -1 in place:
            missing = [_called(index, names) for index, i in enumerate(place) if i < 0]
            more = f" and {len(missing) - 3} more outputs" if len(missing) > 3 else ""
            raise ValueError(f"ByColumn has no likelihood for {', '.join(missing[:3])}{more}.")
        self.place = torch.tensor(place, device=self.place.device)

    def meet(self, num_outputs: int, columns: Sequence[str] | None = None) -> None:
        check_count("num_outputs", num_outputs)
        check_texts("columns", columns, optional=True)
        if columns is not None and len(columns) != num_outputs:
            raise ValueError(f"columns must be num_outputs = {num_outputs} names, but got {len(columns)}.")
        if any(isinstance(column, str) for group in self.columns for column in group):
            if columns is None and not len(self.place):
                raise ValueError("ByColumn has names of columns, but the outputs have none. Give indices.")
            if columns is not None:
                self._resolve(num_outputs, columns)
        if len(self.place) != num_outputs:
            raise ValueError(
                f"ByColumn has {counted(len(self.place), 'column')}, but there are {counted(num_outputs, 'output')}."
            )
        for i, likelihood in enumerate(self._members()):
            try:
                likelihood.meet(int((self.place == i).sum()))
            except ValueError as error:
                raise ValueError(f"of the outputs {self.columns[i]!r:.60}: {error}") from error

    @property
    def groups(self) -> dict[Likelihood, list[int | str]]:
        """The likelihoods and their columns, as they were given."""
        return dict(zip(self._members(), self.columns, strict=True))

    def _members(self) -> list[Likelihood]:
        return list(self.likelihoods)

    def forward(self) -> LikelihoodValue:
        values: dict[str, Tensor] = {}
        for i, likelihood in enumerate(self._members()):
            values |= {f"{i}.{name}": value for name, value in vars(likelihood().parameters).items()}
        return LikelihoodValue(self, SimpleNamespace(**values))

    def parts(self, p: Values, num_outputs: int) -> Sequence[Part]:
        if len(self.place) != num_outputs:
            raise ValueError(
                f"ByColumn has {counted(len(self.place), 'column')}, but got {counted(num_outputs, 'output')}."
            )
        found = []
        for i, likelihood in enumerate(self._members()):
            start = f"{i}."
            own = {name[len(start) :]: value for name, value in vars(p).items() if name.startswith(start)}
            found.append(Part(likelihood, SimpleNamespace(**own), (self.place == i).nonzero().flatten()))
        return found

    def fix(self, *names: str) -> ByColumn:
        """Fix parameters of all likelihoods that have them, and return this one.

        :param names: the parameters. Default: all.
        :raises ValueError: if no likelihood has such a parameter, or it has a prior.
        """
        for name in names:
            if not isinstance(name, str) or not any(name in one.parameter_names for one in self._members()):
                raise ValueError(f"no likelihood of {self} has a parameter {name!r}.")
        for likelihood in self._members():
            own = [name for name in names if name in likelihood.parameter_names]
            if own or not names:
                likelihood.fix(*own)
        return self

    # each of the following is that of the likelihood of each output

    def _join(self, take: Callable[[Likelihood, Values, Tensor], Tensor], p: Values) -> Tensor:
        """Results (..., d) of the outputs of each likelihood, in the order of all outputs, (..., D)."""
        parts = self.parts(p, len(self.place))
        found = [take(part.likelihood, part.parameters, _outputs(part)) for part in parts]
        return joined_outputs(found, self.place.argsort(stable=True).argsort())

    def _own(self, f: Tensor, outputs: Tensor, likelihood: Likelihood) -> Tensor:
        """The function values (..., d) or (..., d, P) of a likelihood, from those of all outputs."""
        if self.num_functions == 1:
            return f[..., outputs]
        f = f[..., outputs, :]
        return f[..., 0] if likelihood.num_functions == 1 else f[..., : likelihood.num_functions]

    def distribution(self, f: Tensor, p: Values) -> ColumnDistribution:
        parts = self.parts(p, len(self.place))
        each = [
            part.likelihood.distribution(self._own(f, _outputs(part), part.likelihood), part.parameters)
            for part in parts
        ]
        return ColumnDistribution(each, [_outputs(part) for part in parts])

    def moments(self, f: Tensor, p: Values) -> tuple[Tensor, Tensor]:
        both = self._join(lambda likelihood, q, i: torch.stack(likelihood.moments(self._own(f, i, likelihood), q)), p)
        return both[0], both[1]

    def cdf(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        return self._join(lambda likelihood, q, i: likelihood.cdf(y[..., i], self._own(f, i, likelihood), q), p)

    def link(self, mean: Tensor, p: Values) -> Tensor:
        def of(likelihood: Likelihood, q: Values, i: Tensor) -> Tensor:
            f = LikelihoodValue(likelihood, q).link(mean[..., i])
            missing = self.num_functions - likelihood.num_functions
            return torch.nn.functional.pad(f.unflatten(-1, (len(i), -1)), (0, missing)).mT

        f = self._join(of, p).mT  # (..., D, P)
        return f[..., 0] if self.num_functions == 1 else f

    def prepare(self, y: Tensor) -> None:
        for i, likelihood in enumerate(self._members()):
            likelihood.prepare(y[:, self.place == i])

    def is_valid(self, y: Tensor, p: Values) -> Tensor:
        return self._join(lambda likelihood, q, i: likelihood.is_valid(y[..., i], q), p)

    def _of(self, output: int) -> tuple[Likelihood, int]:
        """The likelihood of an output, and the output's index among its own."""
        which = self.place[output]
        return self._members()[int(which)], int((self.place[:output] == which).sum())

    def support_of(self, output: int) -> str:
        likelihood, own = self._of(output)
        return likelihood.support_of(own)

    def kind_of(self, output: int) -> str:
        likelihood, own = self._of(output)
        return likelihood.kind_of(own)

    def has_exposure(self, output: int) -> bool:
        likelihood, own = self._of(output)
        return likelihood.has_exposure(own)

    def name_of(self, output: int) -> str:
        likelihood, own = self._of(output)
        return likelihood.name_of(own)

    def _by_function(
        self, take: Callable[[Likelihood, Values, Tensor, Tensor], Tensor], p: Values, num_frames: int
    ) -> Tensor:
        """Results (K, N, f) of the functions of each likelihood, in the order of all functions, (K, N, F)."""
        result: Tensor | None = None
        for part in self.parts(p, len(self.place)):
            functions = part.functions(len(self.place), self.num_functions)
            found = take(part.likelihood, part.parameters, _outputs(part), functions)
            if result is None:
                result = found.new_zeros(len(found), num_frames, len(self.place) * self.num_functions)
            result = result.index_copy(-1, functions, found)
        assert result is not None
        return result

    def initial(self, y: Tensor, f: Tensor, p: Values) -> Tensor:
        return self._by_function(lambda like, q, i, j: like.initial(y[:, i], f[:, j], q), p, len(y))

    def sites(self, y: Tensor, state: Tensor, p: Values) -> Sites:
        return Sites(
            *self._by_function(lambda like, q, i, j: torch.stack(like.sites(y[:, i], state[..., j], q)), p, len(y))
        )

    def updated(self, y: Tensor, state: Tensor, moments: Moments, p: Values, rate: float) -> Tensor:
        def of(likelihood: Likelihood, q: Values, i: Tensor, j: Tensor) -> Tensor:
            own = Moments(*(None if part is None else part[:, j] for part in moments))  # type: ignore[arg-type]
            return likelihood.updated(y[:, i], state[..., j], own, q, rate)

        return self._by_function(of, p, len(y))

    def _described(self) -> Sequence[str]:
        pairs = zip(self._members(), self.columns, strict=True)
        return [f"{likelihood}: {columns!r:.60}" for likelihood, columns in pairs]


def _outputs(part: Part) -> Tensor:
    assert part.outputs is not None
    return part.outputs


def _check_pair(pair: object) -> None:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"groups must be pairs of a likelihood and its columns, but got {pair!r:.80}.")
    likelihood, columns = pair
    if not isinstance(likelihood, Likelihood) or isinstance(likelihood, ByColumn):
        raise TypeError(f"groups must have likelihoods such as Poisson(), but got {likelihood!r:.80}.")
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise TypeError(f"the columns of {likelihood} must be a list of indices or names, but got {columns!r:.80}.")
    if not (found := list(columns)):
        raise ValueError(f"the columns of {likelihood} are an empty list. Remove it, or name its outputs.")
    for column in found:
        if not isinstance(column, str) and not is_whole(column):
            raise TypeError(f"the columns of {likelihood} must be indices or names, but got {column!r:.80}.")


def _index(column: int | str, num_outputs: int, names: Sequence[str] | None) -> int:
    if isinstance(column, str):
        if names is None or column not in names:
            known = (
                "they have no names"
                if names is None
                else f"there are {', '.join(map(repr, names[:5]))}" + (", …" if len(names) > 5 else "")
            )
            raise ValueError(f"ByColumn has the column {column!r}, but the outputs do not: {known}.")
        return list(names).index(column)
    if not 0 <= column < num_outputs:
        raise ValueError(f"ByColumn has the column {column}, but columns are numbered from 0 to {num_outputs - 1}.")
    return int(column)


def _called(index: int, names: Sequence[str] | None) -> str:
    return f"output {index}" + (f" ({names[index]!r})" if names is not None else "")
