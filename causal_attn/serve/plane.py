"""The SDK's data plane over the models that were loaded at the start, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from causal_attn.serve.gate import Gate
from causal_attn.serve.sdk import DataPlane, ModelNotFound, ModelRepository
from causal_attn.serve.tensor_model import TensorModel

__all__ = ["Plane"]


class Plane(DataPlane):
    """Finds models and asks them, for HTTP and gRPC alike.

    Args:
        models: All that there are.
        gate: Knows whether the server is stopping.
    """

    def __init__(self, models: Sequence[TensorModel], gate: Gate) -> None:
        registry = ModelRepository()
        for model in models:
            registry.update(model)
        super().__init__(registry)
        self.models = tuple(models)
        self._gate = gate

    async def get_model(self, name: str) -> TensorModel:
        """The model called `name`.

        Raises:
            ModelNotFound: There is none. Nothing is loaded for a request.
        """
        model = self.model_registry.get_model(name)
        if not isinstance(model, TensorModel):
            raise ModelNotFound(name)
        return model

    async def infer(
        self, model_name: str, request: Any, headers: dict[str, str] | None = None
    ) -> tuple[Any, dict[str, str]]:
        """What `request`, a `TensorCall`, writes of a model's answer, and headers beside it.

        Raises:
            ModelNotFound: There is no such model.
            CausalAttnError: As in `TensorModel.predict`.
        """
        answer, beside = await super().infer(model_name, request, headers)
        return answer, beside

    async def ready(self) -> bool:
        """Whether every model is loaded and warm, and the server takes requests."""
        return not self._gate.closing and all(model.ready for model in self.models)

    def metadata(self) -> dict[str, Any]:
        """What the server says of itself."""
        return {
            "name": "causal-attn",
            "version": version("causal-attn"),
            "extensions": ["binary_tensor_data"],
        }

    async def model_metadata(self, model_name: str) -> dict[str, Any]:
        """Names, datatypes and shapes of a model's tensors, by its contract."""
        described: dict[str, Any] = await super().model_metadata(model_name)
        return described | {"platform": "onnxruntime_onnx"}
