"""The systems that are compared: how each takes arrays, runs, and hands out its result.

Each runs in a process of its own (`causal_attn.bench.worker`), and imports what it needs only
there: the processes of `PackageSystem` and `PlainOnnxSystem` never see torch, whose threads and
allocator would be measured with them. A new system is one class here and one row in `SYSTEMS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from causal_attn.bench.cases import Case, Mode
from causal_attn.errors import UsageError
from causal_attn.machine.provider import Provider

if TYPE_CHECKING:
    from causal_attn.runtime import Binding

__all__ = ["BASELINE", "FORM_SYSTEMS", "OURS", "PLAIN", "SYSTEMS", "System", "require_system"]

Arrays = Mapping[str, NDArray[Any]]

OURS = "causal_attn"
BASELINE = "torch"
"""Every ratio is to this one."""
PLAIN = "torch.onnx"


class System(ABC):
    """One way to run attention on one provider.

    The order of calls: `prepare` once a case, then `load` and any number of `call`, repeated;
    after `release` comes `prepare` again.
    """

    keeps_memory = True
    """Whether memory that one call used is kept for the next, as ONNX Runtime's arena does."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    @abstractmethod
    def prepare(self, case: Case, model: Path | None) -> None:
        """Get ready for `case`; `model` is what the exporter wrote, for systems that run files."""

    @abstractmethod
    def load(self, arrays: Arrays) -> None:
        """Put inputs where the system reads them; not measured."""

    @abstractmethod
    def call(self) -> Any:
        """Run once, as its user would; on a device it may return before the result is there."""

    @abstractmethod
    def output(self) -> NDArray[Any]:
        """Run once and return the output ``[batch, heads, q_tokens, head_dim]`` on the host."""

    def wait(self) -> None:  # noqa: B027 - nothing to wait for is the common case
        """Return when everything called is done."""

    def release(self) -> None:  # noqa: B027 - holding nothing is the common case
        """Let go of all memory that can be had again with `prepare`."""


class TorchSystem(System):
    """``scaled_dot_product_attention``; a decode step writes into a cache of fixed capacity.

    The cache in place is the fastest that eager torch has: it copies no past.
    """

    keeps_memory = False
    compiled = False

    def prepare(self, case: Case, model: Path | None) -> None:
        import torch

        self._torch = torch
        self._case = case
        self._device = self.provider.memory
        grouped = case.heads != case.kv_heads
        attention = torch.nn.functional.scaled_dot_product_attention
        past = case.past_tokens

        def prefill(q: Any, k: Any, v: Any) -> Any:
            return attention(q, k, v, is_causal=True, enable_gqa=grouped)

        def decode(q: Any, k: Any, v: Any, key_cache: Any, value_cache: Any) -> Any:
            key_cache[:, :, past : past + 1] = k
            value_cache[:, :, past : past + 1] = v
            # The one new token sees everything that is there: no mask.
            return attention(
                q,
                key_cache[:, :, : past + 1],
                value_cache[:, :, : past + 1],
                enable_gqa=grouped,
            )

        function = prefill if case.mode is Mode.PREFILL else decode
        self._function: Callable[..., Any] = function
        if self.compiled:
            # Forget earlier shapes: past a limit of recompilations torch runs eagerly, silently,
            # and a graph for one fixed shape is the fastest that it makes.
            torch.compiler.reset()
            self._function = torch.compile(function, dynamic=False, fullgraph=True)

    def load(self, arrays: Arrays) -> None:
        torch = self._torch
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self._case.mode is Mode.DECODE:
            for name in ("past_key", "past_value"):
                room = torch.nn.functional.pad(tensors[name], (0, 0, 0, 1))
                tensors[name] = room
        self._tensors = [tensor.to(self._device) for tensor in tensors.values()]

    def call(self) -> Any:
        with self._torch.no_grad():
            return self._function(*self._tensors)

    def output(self) -> NDArray[Any]:
        result: NDArray[Any] = self.call().cpu().numpy()
        return result

    def wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def release(self) -> None:
        self._tensors = []


class CompiledTorchSystem(TorchSystem):
    """``torch.compile`` of the same function, compiled anew for each shape."""

    compiled = True


class PackageSystem(System):
    """A package of ours through `causal_attn.runtime`.

    On the CPU a plain call with numpy arrays, as a service makes it. Bound to memory where that
    is what a service does: on a device, and for a cache of fixed capacity, which is written in
    place: the contract says which tensors those are.
    """

    def prepare(self, case: Case, model: Path | None) -> None:
        from causal_attn.runtime import load

        self._session = load(_require_model(model), self.provider, **_options(self.provider, case))
        self._case = case
        layout = self._session.contract.cache
        self._in_place = {} if layout is None else layout.shared
        self._axes = {} if layout is None else {e.input: e.axis for e in layout.entries}
        self._lengths = None if layout is None else layout.lengths

    def load(self, arrays: Arrays) -> None:
        inputs = self._session.contract.inputs
        feeds = dict(arrays)
        for tensor in inputs:
            if tensor.name == self._lengths:
                feeds[tensor.name] = np.full(
                    self._case.batch, self._case.past_tokens, tensor.dtype
                )
        for past in self._in_place.values():
            room = [(0, 0)] * feeds[past].ndim
            room[self._axes[past] or 0] = (0, self._case.q_tokens)
            feeds[past] = np.pad(feeds[past], room)
        if unknown := sorted({tensor.name for tensor in inputs} ^ set(feeds)):
            raise UsageError(
                f"`package` must have the inputs {list(arrays)} for {self._case.mode}, got "
                f"{[tensor.name for tensor in inputs]}: {unknown} fit nothing."
            )
        self._positional = tuple(feeds[tensor.name] for tensor in inputs)
        self._binding: Binding | None = None
        if self._in_place or self.provider.memory == "cuda":
            self._binding = self._session.bind(feeds, share=self._in_place)

    def call(self) -> Any:
        if self._binding is not None:
            return self._binding.run()
        return self._session(*self._positional)

    def output(self) -> NDArray[Any]:
        if self._binding is not None:
            self._binding.run()
            return self._binding.read(self._session.contract.outputs[0].name)
        return self._session(*self._positional)[0]

    def release(self) -> None:
        self._positional, self._binding = (), None
        self._session.close()


class PlainOnnxSystem(System):
    """What ``torch.onnx.export`` writes by default, in a bare ``InferenceSession``."""

    def prepare(self, case: Case, model: Path | None) -> None:
        import onnxruntime

        if self.provider.memory == "cuda":
            onnxruntime.preload_dlls()
        options = _options(self.provider, case).get("provider_options", {})
        self._session: Any = onnxruntime.InferenceSession(
            str(_require_model(model)),
            providers=[self.provider.ort_name, "CPUExecutionProvider"]
            if self.provider is not Provider.CPU
            else [self.provider.ort_name],
            provider_options=[options, {}] if self.provider is not Provider.CPU else None,
        )
        self._value = onnxruntime.OrtValue

    def load(self, arrays: Arrays) -> None:
        self._arrays = dict(arrays)
        self._binding: Any = None
        if self.provider.memory == "cuda":
            self._binding = self._session.io_binding()
            for name, array in arrays.items():
                self._binding.bind_ortvalue_input(
                    name, self._value.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)
                )
            for node in self._session.get_outputs():
                self._binding.bind_output(node.name, "cuda")

    def call(self) -> Any:
        if self._binding is not None:
            return self._session.run_with_iobinding(self._binding)
        return self._session.run(None, self._arrays)

    def output(self) -> NDArray[Any]:
        result = self.call()
        if self._binding is not None:
            result = self._binding.copy_outputs_to_cpu()
        first: NDArray[Any] = result[0]
        return first

    def release(self) -> None:
        self._arrays, self._binding, self._session = {}, None, None


SYSTEMS: Mapping[str, type[System]] = {
    OURS: PackageSystem,
    BASELINE: TorchSystem,
    "torch.compile": CompiledTorchSystem,
    PLAIN: PlainOnnxSystem,
}
"""By the name that tables, plots and ``--system`` use."""

FORM_SYSTEMS: Mapping[str, type[System]] = dict.fromkeys(
    ("decomposed", "attention", "gqa", "blocked"), PackageSystem
)
"""A package of ours in one form alone: what ``form="auto"`` chose among."""


def require_system(name: str) -> type[System]:
    """The system called `name`.

    Raises:
        UsageError: There is none; the message lists those there are.
    """
    known = {**SYSTEMS, **FORM_SYSTEMS}
    if name not in known:
        raise UsageError(f"`systems` must be out of {list(known)}, got {name!r}.")
    return known[name]


def _require_model(model: Path | None) -> Path:
    if model is None:
        raise UsageError("`model` must be a file or package for a system that runs one, got None.")
    return model


def _options(provider: Provider, case: Case) -> dict[str, Any]:
    # ONNX Runtime rounds float32 to TF32 on CUDA unless told not to; torch does not.
    if provider is Provider.CUDA and case.dtype == "float32":
        return {"provider_options": {"use_tf32": "0"}}
    return {}
