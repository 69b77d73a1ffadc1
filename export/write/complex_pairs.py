"""Complex numbers in a program, written as pairs of real tensors.

Rotary embeddings are often written with complex numbers (``torch.polar``, ``view_as_complex``,
``freqs_cis[:t]``). ONNX has none that kernels compute with, and torch.onnx writes only a few of
the ops on them. Here every complex tensor becomes two real ones, its parts, and every op on it
becomes ops on these, by the rules of complex arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node, map_arg
from torch.utils._pytree import tree_leaves, tree_map

from causal_attn.errors import CaptureError

__all__ = ["has_complex", "write_complex_as_pairs"]

_aten = torch.ops.aten

Part = Node | float | None
"""A real tensor, a number, or ``None`` for zero."""
Pair = tuple[Part, Part]


def write_complex_as_pairs(program: ExportedProgram) -> None:
    """Replace every complex tensor of `program`, stored ones too, by two real ones, in place.

    Raises:
        CaptureError: An op on complex numbers has no rule here, or one is an input or a result.
    """
    if has_complex(program):
        _Pairs(program).rewrite()


def has_complex(program: ExportedProgram) -> bool:
    """Whether there are complex tensors in `program`."""
    return any(map(_is_complex, program.graph.nodes))


def _is_complex(node: Node) -> bool:
    leaves = tree_leaves(node.meta.get("val"))
    return any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in leaves)


class _Pairs:
    def __init__(self, program: ExportedProgram) -> None:
        self.program, self.graph = program, program.graph
        self.pairs: dict[Node, Any] = {}
        self.rules: Mapping[Any, Callable[..., Any]] = {
            _aten.mul.Tensor: self._bilinear(_aten.mul.Tensor),
            _aten.matmul.default: self._bilinear(_aten.matmul.default),
            _aten.mm.default: self._bilinear(_aten.mm.default),
            _aten.bmm.default: self._bilinear(_aten.bmm.default),
            _aten.einsum.default: self._einsum,
            **dict.fromkeys((_aten.add.Tensor, _aten.add.Scalar), self._sum(_aten.add.Tensor)),
            **dict.fromkeys((_aten.sub.Tensor, _aten.sub.Scalar), self._sum(_aten.sub.Tensor)),
            _aten.rsub.Scalar: self._from,
            _aten.rsub.Tensor: self._from,
            _aten.mul.Scalar: self._bilinear(_aten.mul.Tensor),
            _aten.div.Scalar: self._divide,
            _aten.div.Tensor: self._divide,
            _aten.reciprocal.default: lambda z: self._divide(1.0, z),
            _aten.neg.default: lambda z: tuple(map(self._negative, self._pair(z))),
            _aten._conj.default: self._conjugate,
            _aten._conj_physical.default: self._conjugate,
            _aten.conj_physical.default: self._conjugate,
            _aten.exp.default: self._exponential,
            _aten.abs.default: self._magnitude,
            _aten.angle.default: lambda z: self._call(_aten.atan2.default, *self._pair(z)[::-1]),
            _aten.polar.default: self._polar,
            _aten.complex.default: lambda re, im: (
                self._call(_aten.add.Tensor, re, self._zeros(im)),
                self._call(_aten.add.Tensor, im, self._zeros(re)),
            ),
            _aten.real.default: lambda z: self._pair(z)[0],
            _aten.imag.default: lambda z: self._pair(z)[1],
            _aten.view_as_complex.default: lambda x: tuple(
                self._call(_aten.select.int, x, -1, part) for part in (0, 1)
            ),
            _aten.view_as_real.default: lambda z: self._call(
                _aten.stack.default, list(self._pair(z)), -1
            ),
            _aten._to_copy.default: self._converted,
        }

    def rewrite(self) -> None:
        replaced: list[Node] = []
        for node in list(self.graph.nodes):
            # A stored tensor is real by now and has a pair all the same.
            touched = _is_complex(node) or any(
                _is_complex(given) or given in self.pairs for given in node.all_input_nodes
            )
            if node.op == "placeholder" and touched:
                self._store(node)
            elif node.op == "output" and touched:
                raise CaptureError(
                    "`target` must return real tensors, got complex ones. Return "
                    "torch.view_as_real of them."
                )
            elif node.op == "call_function" and touched:
                if node.target is _aten._assert_tensor_metadata.default:
                    # That its input is complex, as it was while tracing.
                    self.graph.erase_node(node)
                    continue
                with self.graph.inserting_before(node):
                    self._replace(node)
                replaced.append(node)
        for node in reversed(replaced):
            self.graph.erase_node(node)
        self.graph.lint()
        self.program.graph_module.recompile()

    def _store(self, node: Node) -> None:
        """A stored tensor as its real view ``[…, 2]``."""
        signature = self.program.graph_signature
        name = str(node.target)
        if name in signature.user_inputs:
            raise CaptureError(
                f"`{name}` must be real, got complex numbers, which ONNX does not compute with. "
                "Take torch.view_as_real of it as the input."
            )
        kept = (
            signature.inputs_to_parameters.get(name)
            or signature.inputs_to_buffers.get(name)
            or signature.inputs_to_lifted_tensor_constants[name]
        )
        # New dicts: other programs that were made of the same trace share the old ones.
        for values in ("_state_dict", "_constants"):
            held = getattr(self.program, values)
            if kept in held:
                real = torch.view_as_real(held[kept].detach().resolve_conj()).contiguous()
                setattr(self.program, values, {**held, kept: real})
        node.meta["val"] = _aten.view_as_real.default(node.meta["val"])
        with self.graph.inserting_before(next(iter(_call_functions(self.graph)))):
            self.pairs[node] = tuple(
                self._call(_aten.select.int, node, -1, part) for part in (0, 1)
            )

    def _replace(self, node: Node) -> None:
        rule = self.rules.get(node.target)
        arguments, named = node.args, node.kwargs
        made: Any
        if rule is not None:
            made = rule(*arguments, **named)
        elif node.target in _PARTWISE:
            made = tuple(
                self._call(node.target, *self._part(arguments, part), **self._part(named, part))
                for part in (0, 1)
            )
        else:
            raise CaptureError(
                f"`target` must do with complex numbers what has a rule here, got {node.target}. "
                "Write it with real tensors: torch.view_as_real gives both parts."
            )
        if _is_complex(node):
            self.pairs[node] = made
            return
        node.replace_all_uses_with(made)
        self.program.graph_signature.replace_all_uses(node.name, made.name)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node, with the fake result that torch keeps of each."""
        node: Node = self.graph.call_function(target, args, kwargs)
        values, named = map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = target(*values, **named)
        return node

    def _part(self, arguments: Any, part: int) -> Any:
        """`arguments` with one part of each complex tensor in them."""

        def chosen(value: Any) -> Any:
            if isinstance(value, Node) and value in self.pairs:
                return self.pairs[value][part]
            if isinstance(value, complex):
                return (value.real, value.imag)[part]
            return value

        return tree_map(chosen, arguments, is_leaf=lambda value: isinstance(value, Node))

    def _pair(self, value: Any) -> Pair:
        if isinstance(value, Node):
            pair: Pair = self.pairs.get(value, (value, None))
            return pair
        number = complex(value)
        # A factor of 0 is one: what it is multiplied by has a shape.
        real = number.real if number.real or not number.imag else None
        return real, number.imag or None

    def _zeros(self, like: Node) -> Node:
        return self._call(_aten.zeros_like.default, like)

    def _whole(self, re: Part, im: Part) -> Pair:
        """Both parts as tensors, where one of them is a tensor."""
        if isinstance(im, Node) and not isinstance(re, Node):
            re = self._zeros(im) if re is None else self._call(_aten.full_like.default, im, re)
        if isinstance(re, Node) and not isinstance(im, Node):
            im = self._zeros(re) if im is None else self._call(_aten.full_like.default, re, im)
        return re, im

    def _product(self, multiply: Callable[[Any, Any], Node], x: Part, y: Part) -> Part:
        if x is None or y is None:
            return None
        if isinstance(x, Node) or isinstance(y, Node):
            return multiply(x, y) if isinstance(x, Node) else multiply(y, x)
        return x * y

    def _plus(self, target: Any, x: Part, y: Part) -> Part:
        if y is None:
            return x
        if x is None:
            return self._negative(y) if target is _aten.sub.Tensor else y
        if not isinstance(x, Node) and not isinstance(y, Node):
            return x - y if target is _aten.sub.Tensor else x + y
        if isinstance(x, Node):
            return self._call(target, x, y)
        assert isinstance(y, Node)
        shifted = y if target is _aten.add.Tensor else self._call(_aten.neg.default, y)
        return self._call(_aten.add.Tensor, shifted, x)

    def _negative(self, x: Part) -> Part:
        return self._call(_aten.neg.default, x) if isinstance(x, Node) else -x if x else None

    def _times(self, multiply: Callable[[Any, Any], Node], a: Pair, b: Pair) -> Pair:
        def product(x: Part, y: Part) -> Part:
            return self._product(multiply, x, y)

        re = self._plus(_aten.sub.Tensor, product(a[0], b[0]), product(a[1], b[1]))
        im = self._plus(_aten.add.Tensor, product(a[0], b[1]), product(a[1], b[0]))
        return self._whole(re, im)

    def _bilinear(self, target: Any) -> Callable[[Any, Any], Pair]:
        def rule(a: Any, b: Any) -> Pair:
            def ordered(x: Any, y: Any) -> Node:
                return self._call(target, x, y)

            return self._times(ordered, self._pair(a), self._pair(b))

        return rule

    def _einsum(self, equation: str, operands: Any) -> Pair:
        if len(operands) == 1:
            re, im = self._pair(operands[0])
            return tuple(self._call(_aten.einsum.default, equation, [x]) for x in (re, im))  # type: ignore[return-value]
        first, second = operands
        return self._times(
            lambda x, y: self._call(_aten.einsum.default, equation, [x, y]),
            self._pair(first),
            self._pair(second),
        )

    def _sum(self, target: Any) -> Callable[..., Pair]:
        def rule(a: Any, b: Any, *, alpha: float = 1) -> Pair:
            x, y = self._pair(a), self._pair(b)
            if alpha != 1:
                y = self._times(lambda p, q: self._call(_aten.mul.Tensor, p, q), y, (alpha, None))
            parts = [self._plus(target, p, q) for p, q in zip(x, y, strict=True)]
            re, im = self._whole(parts[0], parts[1])
            assert isinstance(re, Node)  # one of the terms is a tensor,
            assert isinstance(im, Node)  # and `_whole` made both parts tensors
            # A part that only one of the two has is as large as that one, not as both together.
            wide = self._call(_aten.add.Tensor, re, self._zeros(im))
            return wide, self._call(_aten.add.Tensor, im, self._zeros(re))

        return rule

    def _from(self, b: Any, a: Any, alpha: float = 1) -> Pair:
        """`a` less `b`."""
        return self._sum(_aten.sub.Tensor)(a, b, alpha=alpha)

    def _divide(self, a: Any, b: Any) -> Pair:
        (re, im), (x, y) = self._pair(a), self._pair(b)

        def over(part: Part, by: Any) -> Part:
            if part is None:
                return None
            if not isinstance(part, Node):
                return self._call(_aten.mul.Tensor, self._call(_aten.reciprocal.default, by), part)
            return self._call(_aten.div.Tensor, part, by)

        if y is None:
            return self._whole(over(re, x), over(im, x))
        size = self._plus(_aten.add.Tensor, self._square(x), self._square(y))
        above = self._times(
            lambda p, q: self._call(_aten.mul.Tensor, p, q), (re, im), (x, self._negative(y))
        )
        return self._whole(over(above[0], size), over(above[1], size))

    def _square(self, x: Part) -> Part:
        return self._product(lambda p, q: self._call(_aten.mul.Tensor, p, q), x, x)

    def _conjugate(self, z: Node) -> Pair:
        re, im = self._pair(z)
        return re, self._negative(im)

    def _magnitude(self, z: Node) -> Node:
        re, im = self._pair(z)
        squares = self._plus(_aten.add.Tensor, self._square(re), self._square(im))
        return self._call(_aten.sqrt.default, squares)

    def _polar(self, size: Node, angle: Node) -> Pair:
        turned = (self._call(op, angle) for op in (_aten.cos.default, _aten.sin.default))
        re, im = (self._call(_aten.mul.Tensor, size, part) for part in turned)
        return re, im

    def _exponential(self, z: Node) -> Pair:
        re, im = self._pair(z)
        assert isinstance(im, Node)  # the pair of a tensor is two tensors
        return self._polar(self._call(_aten.exp.default, re), im)

    def _converted(self, x: Node, *, dtype: torch.dtype | None = None, **others: Any) -> Any:
        """A copy, to another width, of real numbers to complex ones, or the other way."""
        real = None if dtype is None else dtype.to_real() if dtype.is_complex else dtype
        parts = [
            self._call(_aten._to_copy.default, part, dtype=real, **others)
            for part in self._pair(x)
            if part is not None
        ]
        if dtype is not None and not dtype.is_complex:
            return parts[0]
        return self._whole(parts[0], parts[1] if len(parts) > 1 else None)


def _call_functions(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op != "placeholder"]


_PARTWISE = {
    _aten.alias.default, _aten.cat.default, _aten.chunk.default, _aten.clone.default,
    _aten.constant_pad_nd.default, _aten.contiguous.default, _aten.cumsum.default,
    _aten.detach.default, _aten.embedding.default, _aten.expand.default, _aten.flatten.using_ints,
    _aten.flip.default, _aten.gather.default, _aten.index.Tensor, _aten.index_select.default,
    _aten.lift_fresh_copy.default, _aten.mean.default, _aten.mean.dim, _aten.permute.default,
    _aten.repeat.default, _aten.repeat_interleave.self_int, _aten.reshape.default,
    _aten.resolve_conj.default, _aten.roll.default, _aten.select.int, _aten.slice.Tensor,
    _aten.split.Tensor, _aten.split_with_sizes.default, _aten.squeeze.default,
    _aten.squeeze.dim, _aten.squeeze.dims, _aten.stack.default, _aten.sum.default,
    _aten.sum.dim_IntList, _aten.t.default, _aten.transpose.int, _aten.unbind.int,
    _aten.unflatten.int, _aten.unsqueeze.default, _aten.view.default, _aten._unsafe_view.default,
    _aten.where.self, operator.getitem,
}  # fmt: skip
"""Ops that do with both parts what they do with the whole."""
