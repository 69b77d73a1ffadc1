"""The execution providers this package knows, by the short names it uses everywhere."""

from __future__ import annotations

from enum import StrEnum

from causal_attn.errors import ProviderError

__all__ = ["Provider"]


class Provider(StrEnum):
    """An ONNX Runtime execution provider.

    The short name is the member's value; `ort_name` is what ONNX Runtime calls it and `device`
    is the device class its model package format uses.
    """

    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"
    OPENVINO = "openvino"
    WEBGPU = "webgpu"

    @property
    def ort_name(self) -> str:
        """ONNX Runtime's name, such as ``CPUExecutionProvider``."""
        return _ORT_NAMES[self]

    @property
    def device(self) -> str:
        """``cpu`` or ``gpu``: the ``device`` of a variant in a model package."""
        return "cpu" if self in (Provider.CPU, Provider.OPENVINO) else "gpu"

    @property
    def memory(self) -> str:
        """``cuda`` or ``cpu``: where tensors lie that are handed over without a copy.

        ONNX Runtime's Python has no tensors in the memory of a WebGPU device: it copies each from
        the host and back.
        """
        return "cuda" if self in (Provider.CUDA, Provider.TENSORRT) else "cpu"

    @property
    def wheel(self) -> str:
        """The distribution that has this provider; all of them install the same module."""
        return _WHEELS[self]

    @property
    def requirement(self) -> str:
        """What to give ``pip install`` for `wheel` with the libraries that it needs."""
        return _REQUIREMENTS.get(self, self.wheel)

    @classmethod
    def parse(cls, name: str | Provider) -> Provider:
        """The provider called `name`, by its short name or by ONNX Runtime's.

        Raises:
            ProviderError: No provider is called so; the message lists those that are known.
        """
        for provider in cls:
            if isinstance(name, str) and name in (provider.value, provider.ort_name):
                return provider
        raise ProviderError(
            f"`provider` must be one of {[str(p) for p in cls]}, got {str(name)!r}."
        )


_ORT_NAMES = {
    Provider.CPU: "CPUExecutionProvider",
    Provider.CUDA: "CUDAExecutionProvider",
    Provider.TENSORRT: "TensorrtExecutionProvider",
    Provider.OPENVINO: "OpenVINOExecutionProvider",
    Provider.WEBGPU: "WebGpuExecutionProvider",
}

_WHEELS = {
    Provider.CPU: "onnxruntime",
    Provider.CUDA: "onnxruntime-gpu",
    Provider.TENSORRT: "onnxruntime-gpu",
    Provider.OPENVINO: "onnxruntime-openvino",
    Provider.WEBGPU: "onnxruntime-webgpu",
}

_REQUIREMENTS = {
    Provider.CPU: "causal-attn[cpu]",
    Provider.CUDA: "causal-attn[cuda]",
    Provider.TENSORRT: "causal-attn[cuda]",
    Provider.WEBGPU: "causal-attn[webgpu]",
}
