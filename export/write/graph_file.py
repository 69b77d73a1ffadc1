"""One graph of a target, written to a file with its contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from causal_attn.export.capture.captured import Captured
from causal_attn.export.choose.choice import Choice
from causal_attn.export.write.cache import cache_of
from causal_attn.export.write.onnx_model import lower, save_model, tensor_contracts
from causal_attn.export.write.switch import switch
from causal_attn.machine.release import release
from causal_attn.package.contract import Contract
from causal_attn.package.digest import CONTRACT_KEY, write_metadata

__all__ = ["contract_choice", "write_graph"]


def write_graph(
    captured: Captured, choice: Choice, opset: int, folder: Path
) -> tuple[Path, Contract]:
    """Write `captured` with attention in the forms of `choice`, into a new `folder`.

    Returns:
        The model's file and its contract, which is inside the file too.

    Raises:
        CaptureError: torch.onnx cannot write the program; see `lower`.
    """
    lowered = [lower(captured, form, opset) for form in choice.forms]
    models = [graph.model for graph in lowered]
    names = [form.name for form in choice.forms]
    model = models[0] if len(models) == 1 else switch(models, names, choice.last)
    folder.mkdir()
    file = folder / "model.onnx"
    save_model(model, file)
    target = captured.target
    inputs, outputs = tensor_contracts(model.graph.inputs), tensor_contracts(model.graph.outputs)
    contract = Contract(
        inputs=inputs,
        outputs=outputs,
        form=choice.name if captured.calls["attend"] else "captured",
        opset=opset,
        spec=target.spec,
        cache=target.cache or cache_of(target.spec, inputs, outputs),
        bounds={dim: (limits.low, limits.high) for dim, limits in target.limits.items()},
        arguments=target.constants,
        choice=contract_choice(captured, choice),
        onnxruntime=max((graph.onnxruntime for graph in lowered), key=release),
    )
    write_metadata(file, {CONTRACT_KEY: contract.to_json()})
    return file, contract


def contract_choice(captured: Captured, choice: Choice) -> dict[str, Any]:
    """The contract's ``choice``: why `choice` was made, and of a module what was captured."""
    found = {} if captured.target.spec is not None else {"captured": dict(captured.calls)}
    return choice.to_dict() | found
