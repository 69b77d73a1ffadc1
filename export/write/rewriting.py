"""onnxscript's rewrite rules, each tried only at nodes of the operator that its pattern ends in.

A rule set tries every rule at every node, and a failed match first words why: about 60 rules at
2,500 nodes, four times, are more than half of what writing a decoder of 30 layers takes. A rule
whose last operator is another one cannot match, so leaving it out changes no graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

__all__ = ["rules_at_their_operators"]


@contextmanager
def rules_at_their_operators() -> Iterator[None]:
    """Inside the block rules of onnxscript pass over nodes that they cannot end in."""
    tried = RewriteRule.try_rewrite

    def try_rewrite(
        rule: RewriteRule, model: ir.Model, part: Any, node: ir.Node, **options: Any
    ) -> Any:
        return tried(rule, model, part, node, **options) if _may_end_in(rule, node) else None

    RewriteRule.try_rewrite = try_rewrite  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        RewriteRule.try_rewrite = tried  # type: ignore[method-assign]


def _may_end_in(rule: RewriteRule, node: ir.Node) -> bool:
    """Whether the operator of `node` is that of the node which the pattern of `rule` ends in."""
    return bool(rule._target_pattern.output_nodes[0].op.matches(node.op_type))
