"""Which outputs of two branches are one and the same expression of what lies around them."""

from __future__ import annotations

from onnx import AttributeProto

from causal_attn.verify.influence.graph import Graph, Node

__all__ = ["equal_outputs"]

_DRAWN = ("Bernoulli", "Multinomial", "Random")
"""Operators whose results differ from one run of a node to the next."""


def equal_outputs(one: Graph, other: Graph) -> list[bool]:
    """For each output, whether both branches compute it in the same way.

    Two expressions are the same where they read the same names from around the branches and the
    same stored values through the same operators. Names inside of a branch do not count.
    """
    numbers: dict[tuple[object, ...], int] = {}
    pairs = zip(_numbered(one, numbers), _numbered(other, numbers), strict=True)
    return [a is not None and a == b for a, b in pairs]


def _numbered(graph: Graph, numbers: dict[tuple[object, ...], int]) -> list[int | None]:
    """A number for every output: one for each expression, ``None`` where they cannot be told."""
    known: dict[str, int | None] = {}

    def number(*key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    for name, stored in graph.stored.items():
        values = stored.values
        if values is None:
            known[name] = None
        else:
            content = (values.shape, values.tobytes())
            known[name] = number("stored", stored.shape, str(stored.dtype), *content)
    for node in graph.nodes:
        inputs = [known[name] if name in known else number("around", name) for name in node.inputs]
        plain = None not in inputs and not _has_body(node) and not node.op.startswith(_DRAWN)
        attributes = b"".join(sorted(_content(item) for item in node.proto.attribute))
        for at, name in enumerate(node.outputs):
            same = (node.domain, node.op, node.overload, attributes, at, *inputs)
            known[name] = number(*same) if plain else None
    return [known[name] if name in known else number("around", name) for name in graph.outputs]


def _content(attribute: AttributeProto) -> bytes:
    if not attribute.HasField("t"):
        return bytes(attribute.SerializeToString())
    nameless = AttributeProto()
    nameless.CopyFrom(attribute)
    nameless.t.name = ""
    return bytes(nameless.SerializeToString())


def _has_body(node: Node) -> bool:
    return any(isinstance(value, Graph) for value in node.attributes.values())
