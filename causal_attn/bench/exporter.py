"""The files that the systems run: our package, and what ``torch.onnx.export`` writes untouched.

Runs in a process that ends with the export, so that no process that is measured imports torch
without needing it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.bench.cases import Case, Mode
from causal_attn.errors import UsageError

__all__ = ["export_package", "export_plain", "product_session"]


def export_package(
    case: Case, path: Path, *, form: str, cache: str, provider: str
) -> dict[str, Any]:
    """Export the attention of `case` to a checked package at `path`; `cache` is for decode.

    Returns:
        ``form``, ``opset`` and ``choice`` of its contract.

    Raises:
        CausalAttnError: As `causal_attn.export.export`.
    """
    from causal_attn.export import export

    spec = AttentionSpec(
        num_heads=case.heads,
        num_kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        cache=CacheKind(cache) if case.mode is Mode.DECODE else CacheKind.NONE,
    )
    package = export(
        spec, path, form=form, providers=[provider], dtype=case.dtype, return_weights=False
    )
    contract = package.variants[0].contract
    return {"form": contract.form, "opset": contract.opset, "choice": dict(contract.choice)}


def export_plain(case: Case, path: Path) -> dict[str, Any]:
    """Write the same function with ``torch.onnx.export`` and its defaults.

    Tokens, or cached tokens, and the batch are dynamic, everything else is fixed.

    Returns:
        ``opset`` of the file.
    """
    import torch
    from torch import Tensor, nn

    grouped = case.heads != case.kv_heads
    attention = nn.functional.scaled_dot_product_attention

    class Prefill(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v, is_causal=True, enable_gqa=grouped)

    class Decode(nn.Module):
        def forward(
            self, q: Tensor, k: Tensor, v: Tensor, past_key: Tensor, past_value: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            key, value = torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2)
            return attention(q, key, value, enable_gqa=grouped), key, value

    batch, tokens, past = (torch.export.Dim(n) for n in ("batch", "tokens", "past_tokens"))
    example = Case(**{**case.to_dict(), "batch": 2, "tokens": 5})
    axes: dict[str, dict[int, Any]] = {
        name: {0: batch, 2: past}
        if name.startswith("past")
        else {0: batch, 2: tokens}
        if case.mode is Mode.PREFILL
        else {0: batch}
        for name in example.arrays(0)
    }
    decoding = case.mode is Mode.DECODE
    program = torch.onnx.export(
        (Decode() if decoding else Prefill()).eval(),
        tuple(torch.from_numpy(array) for array in example.arrays(0).values()),
        dynamo=True,
        input_names=list(axes),
        output_names=["output", "present_key", "present_value"] if decoding else ["output"],
        dynamic_shapes=tuple(axes.values()),
        verbose=False,
    )
    if program is None:
        raise UsageError("torch.onnx.export must return a program, got None.")
    program.save(str(path))
    return {"opset": program.model.opset_imports[""]}


def product_session() -> Any:
    """An ``onnxruntime.InferenceSession`` of ``a @ b``, float32 matrices of any size."""
    import onnxruntime
    from onnx import TensorProto, helper

    matrices = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "abc"
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])], "product", matrices[:2], matrices[2:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
