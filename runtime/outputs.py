"""What a call returns: a tuple with the outputs' names, in the order of the contract."""

from __future__ import annotations

import keyword
import re
from collections import namedtuple
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

__all__ = ["Outputs", "identifiers", "outputs_type"]


class Outputs(tuple[NDArray[Any], ...]):
    """Arrays by position and by name; each model has its own subclass with the names as fields.

    Like any NamedTuple it unpacks, and has ``_fields`` and ``_asdict()``. It pickles.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _fields: tuple[str, ...]

        def __getattr__(self, name: str) -> NDArray[Any]: ...
        @classmethod
        def _make(cls, iterable: Iterable[NDArray[Any]]) -> Self: ...
        def _asdict(self) -> dict[str, NDArray[Any]]: ...

    def __reduce__(self) -> tuple[Any, ...]:
        # The subclass is made at run time, so that pickle cannot find it by name.
        return _rebuilt, (self._fields, tuple(self))


@cache
def outputs_type(fields: tuple[str, ...]) -> type[Outputs]:
    """The subclass of `Outputs` whose fields are `fields`, Python identifiers."""
    named = namedtuple("Outputs", fields)  # type: ignore[misc]
    made: type[Outputs] = type("Outputs", (Outputs, named), {"__slots__": ()})
    return made


def identifiers(names: Sequence[str]) -> tuple[str, ...]:
    """One distinct Python identifier a name: ``present.0.key`` becomes ``present_0_key``.

    A name with no letter first gets ``output_`` in front, a keyword gets ``_`` behind, and a
    second one that comes out the same gets ``_2``.
    """
    fields: dict[str, None] = {}
    # Where to go on counting for each name, so that many that come out the same take no longer.
    counts: dict[str, int] = {}
    for name in names:
        base = re.sub(r"\W", "_", name)
        if not base[:1].isalpha():
            base = f"output_{base.lstrip('_')}"
        if keyword.iskeyword(base):
            base += "_"
        field, count = base, counts.get(base, 1)
        while field in fields:
            count += 1
            field = f"{base}_{count}"
        counts[base] = count
        fields[field] = None
    return tuple(fields)


def _rebuilt(fields: tuple[str, ...], values: tuple[NDArray[Any], ...]) -> Outputs:
    return outputs_type(fields)._make(values)
