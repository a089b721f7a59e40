# SPDX-License-Identifier: Apache-2.0
"""The progress of a comparison: a bar, or messages to a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from tqdm import tqdm

from pyro_vgpds.formatting import joined
from pyro_vgpds.training.progress import HiddenBar, counting_bar

__all__ = ["Event", "ProgressLike", "Watch", "watch_candidates"]


@dataclass(frozen=True)
class Event:
    """What happened to a candidate."""

    kind: str  #: "start", "done", "failed", "skipped", or "final" for the training of the chosen ones on all data
    name: str
    finished: int  #: number of candidates that are done, failed or skipped
    total: int  #: number of all candidates
    error: float | None = None  #: held-out error in standard deviations, if it is done
    seconds: float | None = None  #: CPU time, if it is done


#: show a bar or not, a function that is called with each :class:`Event`, or None for a bar on a terminal only
ProgressLike: TypeAlias = bool | Callable[[Event], object] | None


class Watch:
    """Counts candidates and shows them."""

    def __init__(self, total: int, bar: tqdm | HiddenBar, call: Callable[[Event], object] | None) -> None:
        self._total, self._bar, self._call, self._finished = total, bar, call, 0

    def start(self, name: str) -> None:
        self._bar.set_postfix_str(name)
        self._send("start", name)

    def done(self, name: str, error: float, seconds: float) -> None:
        self._finish("done", name, error, seconds)

    def fail(self, name: str) -> None:
        self._finish("failed", name)

    def skip(self, name: str) -> None:
        self._finish("skipped", name)

    def final(self, names: Sequence[str]) -> None:
        self._send("final", joined(names))

    def _finish(self, kind: str, name: str, error: float | None = None, seconds: float | None = None) -> None:
        self._finished += 1
        self._bar.update()
        self._send(kind, name, error, seconds)

    def _send(self, kind: str, name: str, error: float | None = None, seconds: float | None = None) -> None:
        if self._call is not None:
            self._call(Event(kind, name, self._finished, self._total, error, seconds))


@contextmanager
def watch_candidates(total: int, progress: ProgressLike) -> Iterator[Watch]:
    """
    :param total: number of candidates.
    :param progress: as in :func:`~pyro_vgpds.auto`.
    """
    call = progress if callable(progress) else None
    with counting_bar(total, "candidates", None if progress is None else progress is True) as bar:
        yield Watch(total, bar, call)
