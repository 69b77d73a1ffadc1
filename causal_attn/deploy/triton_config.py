"""``config.pbtxt`` of a model, by its contract and its certificate.

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md.
What decides here, as Triton reads it:

- ``max_batch_size`` above 0 says that the first dim of every input and every output is the batch;
  dims are then written without it. 0 says nothing of a batch: dims are written whole.
- Above 1 it lets Triton join requests, even where the file asks for no scheduler, since Triton
  completes what is not there. So it is 0 unless sequences are independent.
- The backend loads ``1/model.onnx`` by its path, and external data from beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

from causal_attn.deploy.source import Source
from causal_attn.errors import PackageError, UsageError
from causal_attn.json_text import shown
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.dims import DimExpression

__all__ = ["DATATYPES", "WARM_UP", "Batching", "config_text", "joins_along_batch", "schema"]

schema: Any = model_config_pb2
"""Protobuf makes its messages while it is imported, where no type checker sees them."""

DATATYPES = {
    "bool": "TYPE_BOOL",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
}
"""numpy's names to Triton's."""

WARM_UP = "worked-example"
"""What the warm-up is called in the file."""

_BATCH = "batch"
_INDEPENDENT = ("batch proof", "batch is independent")
"""What `causal_attn.verify` calls the checks that sequences do not reach each other."""

_ACCELERATORS: Mapping[Provider, tuple[str, str]] = {
    Provider.TENSORRT: ("gpu_execution_accelerator", "tensorrt"),
    Provider.OPENVINO: ("cpu_execution_accelerator", "openvino"),
}
"""Providers that Triton's backend has to be asked for; CPU and CUDA follow from the instances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """How requests are joined and how many may wait.

    Attributes:
        max_batch: Most sequences of a joined call.
        delay_seconds: That a request may wait for others.
        max_waiting: Requests that wait; one more is refused.
        seconds: That one may wait before it is refused.
        instances: Sessions on each device.

    Raises:
        UsageError: One is out of its range.
    """

    max_batch: int = 16
    delay_seconds: float = 0.002
    max_waiting: int = 256
    seconds: float = 60.0
    instances: int = 1

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_waiting", "instances"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 1 << 20:
                raise UsageError(f"`{name}` must be an integer from 1 to 1048576, got {value!r}.")
        if not 0 <= self.delay_seconds <= 1:
            raise UsageError(f"`delay_seconds` must be from 0 to 1, got {self.delay_seconds!r}.")
        if not 0 < self.seconds <= 86_400:
            raise UsageError(f"`seconds` must be above 0 and at most 86400, got {self.seconds!r}.")


def joins_along_batch(contract: Contract, certificate: Certificate | None) -> bool:
    """Whether requests may be joined along the first dim of every tensor.

    The certificate says that sequences do not reach each other, and the contract that each input
    and output begins with the batch, that no other dim depends on it, and that one is enough.
    """
    checks = certificate.checks if certificate is not None else ()
    found = [check.passed for check in checks if check.name in _INDEPENDENT]
    tensors = (*contract.inputs, *contract.outputs)
    return (
        bool(found)
        and all(found)
        and all(tensor.dims[:1] == (_BATCH,) and len(tensor.dims) > 1 for tensor in tensors)
        and not any(
            isinstance(dim, str) and _BATCH in DimExpression.parse(dim).names
            for tensor in tensors
            for dim in tensor.dims[1:]
        )
        and contract.bounds.get(_BATCH, (1, None))[0] == 1
    )


def config_text(source: Source, batching: Batching, feeds: Mapping[str, NDArray[Any]]) -> str:
    """The text of ``config.pbtxt``; reading it back gives the message it was written from.

    Args:
        source: The package.
        batching: How requests are joined, where they may be.
        feeds: Of the warm-up; their bytes are in files of the inputs' names.

    Raises:
        PackageError: The model has something that Triton cannot be told of: a dim of size 0, or a
            session option that its backend does not have.
    """
    contract = source.variant.contract
    _require_options(source)
    joined = joins_along_batch(contract, source.variant.certificate)
    high = contract.bounds.get(_BATCH, (1, None))[1]
    largest = batching.max_batch if high is None else min(batching.max_batch, high)
    config = schema.ModelConfig(
        name=source.name,
        backend="onnxruntime",
        default_model_filename="model.onnx",
        max_batch_size=largest if joined else 0,
        input=[_described(schema.ModelInput, tensor, joined) for tensor in contract.inputs],
        output=[_described(schema.ModelOutput, tensor, joined) for tensor in contract.outputs],
        instance_group=[_instances(source.provider, batching.instances)],
        model_warmup=[_warm_up(feeds, joined)],
    )
    config.version_policy.latest.num_versions = 1
    if source.provider in _ACCELERATORS:
        field, name = _ACCELERATORS[source.provider]
        getattr(config.optimization.execution_accelerators, field).add(name=name)
    if joined and largest > 1:
        config.dynamic_batching.max_queue_delay_microseconds = round(batching.delay_seconds * 1e6)
        config.dynamic_batching.default_queue_policy.CopyFrom(
            schema.ModelQueuePolicy(
                timeout_action=schema.ModelQueuePolicy.REJECT,
                default_timeout_microseconds=round(batching.seconds * 1e6),
                max_queue_size=batching.max_waiting,
            )
        )
    for key, value in source.variant.session_options.items():
        config.parameters[key].string_value = value
    text: str = text_format.MessageToString(config)
    assert text_format.Parse(text, schema.ModelConfig()) == config
    return text


def _described(kind: Any, tensor: TensorContract, joined: bool) -> Any:
    dims = tensor.dims[1:] if joined else tensor.dims
    if 0 in dims:
        raise PackageError(
            f"The contract must have no dim of size 0 for Triton, got {list(tensor.dims)} for "
            f"{shown(tensor.name)}. Serve the package with `causal-attn serve`."
        )
    described = kind(
        name=tensor.name,
        data_type=schema.DataType.Value(DATATYPES[tensor.dtype]),
        dims=[dim if isinstance(dim, int) else -1 for dim in dims] or [1],
    )
    if not dims:
        # Triton has no scalars: clients send one number, and the graph gets it without an axis.
        described.reshape.SetInParent()
    return described


def _instances(provider: Provider, count: int) -> Any:
    kind = "KIND_GPU" if provider.device == "gpu" else "KIND_CPU"
    return schema.ModelInstanceGroup(count=count, kind=schema.ModelInstanceGroup.Kind.Value(kind))


def _warm_up(feeds: Mapping[str, NDArray[Any]], joined: bool) -> Any:
    warm_up = schema.ModelWarmup(name=WARM_UP, count=1)
    # 0 and 1 are one sequence to Triton; only models that have a batch may name a size of it.
    warm_up.batch_size = 1
    for name, array in feeds.items():
        shape = array.shape[1:] if joined else array.shape
        warm_up.inputs[name].CopyFrom(
            schema.ModelWarmup.Input(
                data_type=schema.DataType.Value(DATATYPES[str(array.dtype)]),
                dims=shape or (1,),
                input_data_file=f"{WARM_UP}/{name}",
            )
        )
    return warm_up


def _require_options(source: Source) -> None:
    """Triton's backend takes one of the session options that packages may have."""
    known = {"session.use_device_allocator_for_initializers"}
    if unknown := sorted(set(source.variant.session_options) - known):
        raise PackageError(
            f"The package must need no session options but {sorted(known)} for Triton, got "
            f"{unknown}: its backend has no place for them. Serve it with `causal-attn serve`."
        )
