"""Which inputs and outputs of a graph are its cache: the field ``cache`` of a contract.

Nobody who runs, checks or times a graph knows a tensor by its name; they read it here. What a call
of ``tokens`` new ones does to an entry, by its kind:

=========== ============================== ========================================================
kind        input                          output
=========== ============================== ========================================================
growing     ``[…, past_tokens, …]``        the input, and the new tokens behind it
fixed       ``[…, capacity, …]``           the same dims; the new tokens are written behind those
                                           that each sequence holds, and other slots mean nothing
replaced    any dims                       the same dims; all of it is new after each call, as the
                                           last columns that a convolution keeps
read        any dims                       none: it is passed to every call as it is, as keys and
                                           values of an encoder
=========== ============================== ========================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from causal_attn.json_text import shown
from causal_attn.package.json_fields import as_name, refusal

if TYPE_CHECKING:
    from causal_attn.package.contract import TensorContract

__all__ = ["CacheEntry", "CacheLayout", "EntryKind"]


class EntryKind(StrEnum):
    """What a call does to an entry; drawn in `causal_attn.package.cache_layout`."""

    GROWING = "growing"
    FIXED = "fixed"
    REPLACED = "replaced"
    READ = "read"


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheEntry:
    """One tensor that calls hand on.

    Attributes:
        input: Name of the input that holds it.
        output: Name of the output that continues it; ``None`` for one that is only read.
        kind: See `EntryKind`.
        axis: Of tokens, from 0; ``None`` where there is none, as in a state that is replaced.
    """

    input: str
    output: str | None
    kind: EntryKind
    axis: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheLayout:
    """The cache of a graph.

    Attributes:
        entries: At least one; each input and each output is in one of them.
        lengths: Name of the input ``[batch]`` int32 or int64 with the tokens that each sequence
            holds in the fixed entries before the call; ``None`` if the graph has none, and then
            nobody can check that new tokens fit.
        capacity: Name of the dim of slots, common to all fixed entries; ``None`` if there are no
            fixed entries.
        in_place: Whether fixed and replaced outputs may be bound to the memory of their inputs:
            the graph reads nothing of an entry after it has overwritten it.
        finite: Whether slots of fixed entries that hold no token must hold finite numbers: the
            graph reads them and weighs them with zero, and 0 * NaN is NaN. Otherwise they may
            hold anything. ``contract.json`` leaves the field out where it is false.
    """

    entries: tuple[CacheEntry, ...]
    lengths: str | None = None
    capacity: str | None = None
    in_place: bool = False
    finite: bool = False

    def of(self, *kinds: EntryKind) -> tuple[CacheEntry, ...]:
        """The entries of some kinds."""
        return tuple(entry for entry in self.entries if entry.kind in kinds)

    @property
    def pairs(self) -> dict[str, str]:
        """Input to the output that continues it."""
        return {entry.input: entry.output for entry in self.entries if entry.output is not None}

    @property
    def shared(self) -> dict[str, str]:
        """Output to the input whose memory it may be bound to; empty unless `in_place`."""
        written = self.of(EntryKind.FIXED, EntryKind.REPLACED) if self.in_place else ()
        return {entry.output: entry.input for entry in written if entry.output is not None}

    def fault(
        self,
        inputs: Sequence[TensorContract],
        outputs: Sequence[TensorContract],
        tokens: str,
    ) -> str | None:
        """The first thing that a graph with these tensors contradicts, as a message.

        Args:
            inputs: Of the graph.
            outputs: Of the graph.
            tokens: Name of the dim of new tokens.
        """
        faults = self._faults(
            {tensor.name: tensor for tensor in inputs},
            {tensor.name: tensor for tensor in outputs},
            tokens,
        )
        return next(faults, None)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        entries = [asdict(entry) | {"kind": str(entry.kind)} for entry in self.entries]
        values = asdict(self) | {"entries": entries}
        if not self.finite:
            del values["finite"]
        return values

    @classmethod
    def from_dict(cls, values: Any) -> CacheLayout:
        """Read what `to_dict` wrote; whether it fits a graph is for `fault` to say.

        Raises:
            PackageError: A field is missing, unknown, or of another type.
        """
        if not isinstance(values, dict) or set(values) - {"finite"} != {
            "entries", "lengths", "capacity", "in_place"
        }:  # fmt: skip
            wanted = "be null or have entries, lengths, capacity and in_place"
            raise refusal("cache", wanted, values)
        if not isinstance(values["entries"], list):
            raise refusal("cache.entries", "be a list", values["entries"])
        for name in ("lengths", "capacity"):
            if values[name] is not None:
                as_name(f"cache.{name}", values[name])
        for name in ("in_place", "finite"):
            if not isinstance(values.get(name, False), bool):
                raise refusal(f"cache.{name}", "be true or false", values[name])
        return cls(
            entries=tuple(
                _entry(f"cache.entries[{index}]", value)
                for index, value in enumerate(values["entries"])
            ),
            lengths=values["lengths"],
            capacity=values["capacity"],
            in_place=values["in_place"],
            finite=values.get("finite", False),
        )

    def _faults(
        self,
        inputs: Mapping[str, TensorContract],
        outputs: Mapping[str, TensorContract],
        tokens: str,
    ) -> Iterator[str]:
        if not self.entries:
            yield "`cache.entries` must have at least one entry, got none."
        for name, given in (
            ("input", [entry.input for entry in self.entries]),
            ("output", [entry.output for entry in self.entries if entry.output is not None]),
        ):
            if len(set(given)) != len(given):
                yield f"`cache.entries` must have distinct {name}s, got {shown(given)}."
        for index, entry in enumerate(self.entries):
            where = f"cache.entries[{index}]"
            if entry.input not in inputs:
                yield f"`{where}.input` must be an input, got {shown(entry.input)}."
            elif entry.kind is EntryKind.READ:
                if entry.output is not None:
                    yield f"`{where}.output` must be null for kind 'read', got {entry.output!r}."
                yield from self._axis_faults(where, entry, inputs[entry.input])
            elif entry.output is None or entry.output not in outputs:
                yield f"`{where}.output` must be an output, got {shown(entry.output)}."
            else:
                past, present = inputs[entry.input], outputs[entry.output]
                yield from self._axis_faults(where, entry, past)
                yield from self._pair_faults(where, entry, past, present)
        yield from self._layout_faults(inputs, tokens)

    def _axis_faults(self, where: str, entry: CacheEntry, past: TensorContract) -> Iterator[str]:
        if entry.kind is EntryKind.REPLACED and entry.axis is not None:
            yield f"`{where}.axis` must be null for kind 'replaced', got {entry.axis}."
        elif entry.axis is None:
            if entry.kind in (EntryKind.GROWING, EntryKind.FIXED):
                yield f"`{where}.axis` must be the axis of tokens of {past.name!r}, got null."
        elif not 0 <= entry.axis < len(past.dims):
            yield (
                f"`{where}.axis` must be an axis of {past.name!r}, 0 to {len(past.dims) - 1}, got "
                f"{entry.axis}."
            )
        elif entry.kind is EntryKind.FIXED and past.dims[entry.axis] != self.capacity:
            yield (
                f"`cache.capacity` must be the dim of {past.name!r} at axis {entry.axis}, "
                f"{past.dims[entry.axis]!r}, got {self.capacity!r}."
            )

    def _pair_faults(
        self, where: str, entry: CacheEntry, past: TensorContract, present: TensorContract
    ) -> Iterator[str]:
        if past.dtype != present.dtype or len(past.dims) != len(present.dims):
            yield (
                f"`{where}` must pair tensors of one dtype and rank, got {past.dtype}"
                f"{list(past.dims)} and {present.dtype}{list(present.dims)}."
            )
        elif entry.kind is not EntryKind.GROWING and past.dims != present.dims:
            yield (
                f"`{where}` must pair tensors of the same dims for kind {str(entry.kind)!r}, got "
                f"{list(past.dims)} and {list(present.dims)}."
            )

    def _layout_faults(self, inputs: Mapping[str, TensorContract], tokens: str) -> Iterator[str]:
        fixed = self.of(EntryKind.FIXED)
        if self.capacity is not None and not fixed:
            yield f"`cache.capacity` must be null without fixed entries, got {self.capacity!r}."
        if self.in_place and not self.of(EntryKind.FIXED, EntryKind.REPLACED):
            yield "`cache.in_place` must be false without fixed or replaced entries, got true."
        if self.finite and not fixed:
            yield "`cache.finite` must be false without fixed entries, got true."
        if self.lengths is None:
            return
        lengths = inputs.get(self.lengths)
        if lengths is None or lengths.dtype not in ("int32", "int64") or len(lengths.dims) != 1:
            yield (
                "`cache.lengths` must be an input [batch] of int32 or int64, got "
                f"{shown(self.lengths)}."
            )
        elif not fixed:
            yield f"`cache.lengths` must be null without fixed entries, got {self.lengths!r}."
        elif not all(
            lengths.dims[0]
            in (*inputs[e.input].dims[: e.axis], *inputs[e.input].dims[e.axis + 1 :])
            for e in fixed
            if e.input in inputs and e.axis is not None
        ):
            yield (
                f"`cache.lengths` must have one length a sequence of every fixed entry, got the "
                f"dim {lengths.dims[0]!r}."
            )
        elif not any(tokens in tensor.dims for tensor in inputs.values()):
            yield f"`cache.lengths` must come with an input that has the dim {tokens!r}, got none."


def _entry(where: str, value: Any) -> CacheEntry:
    if not isinstance(value, dict) or set(value) != {"input", "output", "kind", "axis"}:
        raise refusal(where, "have input, output, kind and axis", value)
    as_name(f"{where}.input", value["input"])
    if value["output"] is not None:
        as_name(f"{where}.output", value["output"])
    kinds = [str(kind) for kind in EntryKind]
    if value["kind"] not in kinds:
        raise refusal(f"{where}.kind", f"be one of {kinds}", value["kind"])
    axis = value["axis"]
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool) or axis < 0):
        raise refusal(f"{where}.axis", "be null or an integer >= 0", axis)
    return CacheEntry(
        input=value["input"], output=value["output"], kind=EntryKind(value["kind"]), axis=axis
    )
