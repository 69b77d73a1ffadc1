"""Rules tried only at their operators: the same graph, in far fewer tries."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnxscript.rewriter import RewriteRule
from torch import Tensor, nn

from causal_attn.export import export
from causal_attn.export.write import rewriting


class Repeated(nn.Module):
    """What rules of onnxscript rewrite: a sum with zero, a pad of nothing, a cast to itself."""

    def forward(self, x: Tensor) -> Tensor:
        """From ``[batch, tokens, 8]``, the same."""
        weights = torch.softmax(
            (x @ x.mT).masked_fill(
                torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -torch.inf
            ),
            -1,
        )
        rows = (weights.float() + 0.0) @ torch.nn.functional.pad(x, (0, 0, 0, 0))
        return rows.transpose(1, 2).transpose(1, 2).reshape(x.shape).relu().clamp(0.0, 6.0)


def written(folder: Path) -> onnx.ModelProto:
    export(
        Repeated().eval(),
        folder,
        example_inputs=(torch.randn(2, 5, 8),),
        dims={"x": ("batch", "tokens", None)},
    )
    (file,) = folder.rglob("*.onnx")
    return onnx.load(file)


def test_no_graph_changes_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule at every node, as onnxscript does it, writes the same."""
    tries = 0
    matched = RewriteRule.match

    def match(rule: RewriteRule, *values: object, **options: object) -> object:
        nonlocal tries
        tries += 1
        return matched(rule, *values, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(RewriteRule, "match", match)
    quick = written(tmp_path / "quick")
    few, tries = tries, 0
    monkeypatch.setattr(rewriting, "_may_end_in", lambda rule, node: True)
    whole = written(tmp_path / "whole")
    assert quick.SerializeToString() == whole.SerializeToString()
    assert few * 8 < tries


def test_rules_are_as_they_were_afterwards() -> None:
    """Nobody else's use of onnxscript is changed."""
    before = RewriteRule.try_rewrite
    with rewriting.rules_at_their_operators():
        assert RewriteRule.try_rewrite is not before
    assert RewriteRule.try_rewrite is before
