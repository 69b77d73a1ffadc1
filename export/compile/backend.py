"""``torch.compile(f, backend="causal_attn")``: captured graphs run on ONNX Runtime, checked.

::

    f = torch.compile(f, backend="causal_attn", options={"provider": "cpu"})
    with torch.inference_mode():
        y = f(x)

Each graph goes through the same export as a package: attention becomes the op, the op a form, and
the result must agree with the captured graph in float64. A graph that cannot be exported, or fails
the check, raises when it is called; with ``options={"fallback": True}`` it runs in torch and
`compile_report` names it. Nothing else ever runs in torch.

Weights stay torch's: they are inputs that share torch's memory, so a weight that changes in place
is seen by the next call. Results are ONNX Runtime's memory, shared with torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import CompileContext, tracing
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from causal_attn.attention.reference import causal_attention
from causal_attn.errors import CausalAttnError, CheckError, UsageError
from causal_attn.export.capture.captured import Captured
from causal_attn.export.compile.check import check_parity
from causal_attn.export.compile.guards import guard_lengths
from causal_attn.export.compile.plan import Plan, plan_graph
from causal_attn.export.compile.record import GraphReport, compile_report, record
from causal_attn.export.forms.table import choose_form
from causal_attn.export.torch_output import ExportLog
from causal_attn.export.write.onnx_model import lower, save_model, tensor_contracts
from causal_attn.machine.provider import Provider
from causal_attn.package.contract import Contract
from causal_attn.package.digest import CONTRACT_KEY, write_metadata
from causal_attn.runtime import Session, load

__all__ = ["compile_backend"]

# One call in the captured graph instead of its parts, so that it becomes the op. Other backends of
# this process see the call too, and trace into it.
torch.compiler.allow_in_graph(causal_attention)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What ``torch.compile(options=...)`` may hold."""

    provider: str = "cpu"
    fallback: bool = False
    check: bool = True
    form: str = "auto"

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> _Options:
        known = {field.name: field.default for field in fields(cls)}
        if unknown := sorted(set(given or ()) - set(known)):
            raise UsageError(f"`options` must be out of {list(known)}, got {unknown}.")
        options = cls(**(given or {}))
        for name, default in known.items():
            value = getattr(options, name)
            if not isinstance(value, type(default)):
                raise UsageError(
                    f"`options[{name!r}]` must be {type(default).__name__}, got {value!r}."
                )
        return options


def compile_backend(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one captured graph; torch.compile calls this.

    Errors are raised by the first call of what is returned, as they are: raised here, torch would
    wrap them, and run the code in torch without a word where its errors are suppressed.

    Args:
        graph: What torch.compile captured.
        inputs: What it is called with: tensors and the integers of dynamic lengths.
        options: ``provider`` (default ``"cpu"``); ``fallback``, whether a graph that cannot be
            exported or fails its check runs in torch (default False); ``check``, whether to check
            (default True; it runs the graph in float64 a few times); ``form``, see
            `causal_attn.export.export`.
        mode: None; torch.compile's modes are those of another backend.

    Returns:
        What runs the graph, or raises:

        UsageError: An option is wrong, a gradient is asked for, or a tensor is elsewhere.
        ProviderError: The provider is unknown, not installed, or does not run every node.
        CaptureError: The graph cannot be exported.
        CheckError: The exported graph does not say what the captured one says.
    """
    provider = str((options or {}).get("provider", "cpu"))
    facts: dict[str, Any] = {"frame": _frame(), "provider": provider}
    fallback = False
    try:
        if mode is not None:
            raise UsageError(f"`mode` must be None for backend 'causal_attn', got {mode!r}.")
        chosen = _Options.parse(options)
        fallback = chosen.fallback
        # Otherwise torch.export joins the tracing that is under way, and what it asks of lengths
        # becomes a demand of the function being compiled.
        with tracing(None):
            compiled = _compile(graph, inputs, chosen, facts)
    except CausalAttnError as error:
        if fallback:
            record(GraphReport(**facts, eager=str(error)))
            run: Callable[..., Any] = graph.forward
            return run
        record(GraphReport(**facts, refused=str(error)))
        return _Refusal(error)
    record(GraphReport(**facts))
    return compiled


class _Refusal:
    """Raises its error, without the trace of an earlier time, whenever it is called."""

    def __init__(self, error: CausalAttnError) -> None:
        self._error = error

    def __call__(self, *_: Any) -> Any:
        raise self._error.with_traceback(None)


class _Compiled:
    """Runs a session on torch's memory."""

    def __init__(self, session: Session, plan: Plan) -> None:
        self._session = session
        self._plan = plan
        # In the order of the graph, which may lack an input that it does not read.
        self._inputs = tuple(tensor.name for tensor in session.contract.inputs)
        # Address and shared value of weights. The value keeps the memory at the address alive, so
        # that an equal address is the same memory.
        self._weights: dict[str, tuple[int, Any]] = {}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        computed = self.run({name: arguments[self._plan.positions[name]] for name in self._inputs})
        return tuple(make(computed, arguments) for make in self._plan.results)

    def run(self, tensors: Mapping[str, Any]) -> list[Tensor]:
        """The computed tensors for `tensors` by input name, integers among them."""
        session, weights = self._session, self._plan.weights
        values = {}
        for name in self._inputs:
            tensor = tensors[name]
            # What is not contiguous goes in as a copy, which must be of its values now.
            if name not in weights or not tensor.is_contiguous():
                values[name] = session.share(_capsule(tensor))
                continue
            address = tensor.data_ptr()
            held = self._weights.get(name)
            if held is None or held[0] != address:
                held = self._weights[name] = (address, session.share(_capsule(tensor)))
            values[name] = held[1]
        if session.provider.memory == "cuda":
            # ONNX Runtime runs on a stream of its own.
            torch.cuda.current_stream().synchronize()
        return [from_dlpack(value) for value in session.run_shared(values)]


def _capsule(tensor: Any) -> Any:
    """DLPack of `tensor`; copied only where it is not contiguous, which ONNX Runtime needs."""
    if not isinstance(tensor, Tensor):
        return to_dlpack(torch.tensor(tensor))
    return to_dlpack(tensor.detach().contiguous())


def _compile(
    graph: fx.GraphModule, inputs: Sequence[Any], options: _Options, facts: dict[str, Any]
) -> _Compiled:
    """Export, load and check `graph`; `facts` gets what the report says of it on the way."""
    provider = Provider.parse(options.provider)
    _refuse_gradients(graph, inputs)
    _refuse_devices(graph, inputs, provider)
    plan = plan_graph(graph, inputs)
    facts |= {"inputs": plan.describe(), "weights": len(plan.weights)}
    facts["recompiled"] = _why_again(facts)
    floating = (t.dtype for t in plan.target.examples.values() if t.is_floating_point())
    # A captured graph is no attention of a known spec: as for modules, auto is decomposed.
    name = "decomposed" if options.form == "auto" else options.form
    dtype = next(floating, torch.float32)
    form, opset = choose_form(name, None, dtype, provider, None)
    captured = Captured.of(plan.target, dtype, ExportLog())
    facts["attention"] = captured.calls
    if captured.calls["attend"]:
        facts["form"] = form.name
    lowered = lower(captured, form, opset)
    model = lowered.model
    guards = guard_lengths(plan.lengths, captured)
    with tempfile.TemporaryDirectory(prefix="causal_attn-") as folder:
        file = Path(folder) / "model.onnx"
        save_model(model, file)
        contract = Contract(
            inputs=tensor_contracts(model.graph.inputs),
            outputs=tensor_contracts(model.graph.outputs),
            form=facts.get("form", "captured"),
            opset=opset,
            onnxruntime=lowered.onnxruntime,
        )
        write_metadata(file, {CONTRACT_KEY: contract.to_json()})
        # There is no certificate yet: the check comes next.
        compiled = _Compiled(load(file, provider, accept="unverified"), plan)
    if not options.check:
        facts["checked"] = ("nothing: options={'check': False}",)
        return compiled
    parity = check_parity(plan, contract, guards, compiled.run, str(provider))
    facts["checked"] = (
        f"parity: {parity.detail}",
        "causality: not asked of a part of a program; export the module for that",
    )
    if parity.passed is not True:
        raise CheckError(
            f"The exported graph must agree with the captured one on {provider}, got "
            f"{parity.detail}."
        )
    return compiled


def _refuse_gradients(graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
    if not torch.is_grad_enabled():
        return
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(value, Tensor) and value.requires_grad:
            raise UsageError(
                f"`f` must be called for inference, got `{node.name}`, which requires a gradient: "
                "ONNX Runtime computes none. Call it inside torch.inference_mode() or "
                "torch.no_grad()."
            )


def _refuse_devices(graph: fx.GraphModule, inputs: Sequence[Any], provider: Provider) -> None:
    wanted = provider.memory
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(value, Tensor) and value.device.type != wanted:
            raise UsageError(
                f"`options['provider']` must run where the tensors are, got {str(provider)!r} for "
                f"`{node.name}` on {value.device}. Name another provider, or move the tensors."
            )


def _frame() -> str:
    """The number of what is compiled: the function's, and how often it was compiled before."""
    return str(CompileContext.current_compile_id() or "?")


def _why_again(facts: Mapping[str, Any]) -> str:
    """What differs from the last graph of the same frame; empty if there is none."""
    frame, _, count = facts["frame"].partition("/")
    if count.partition("_")[0] in ("", "0"):
        return ""
    earlier = [g for g in compile_report().graphs if g.frame.partition("/")[0] == frame]
    if not earlier:
        return "it was compiled before"
    before, now = earlier[-1].inputs, facts["inputs"]
    changes = [
        f"{name} {before.get(name, 'absent')} -> {now.get(name, 'absent')}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
    return ", ".join(changes) or "a value that the code branches on differs"
