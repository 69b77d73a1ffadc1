"""A session's inputs and outputs bound to memory once, for calls that repeat at fixed shapes.

A plain call takes arrays from the host and returns new ones. A binding keeps both where the
provider runs: a call moves nothing between host and device and allocates nothing. Where an output
shares the buffer of an input, as the present that of the past in a cache of fixed capacity, a
kernel that knows this writes the new tokens in place and copies no past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from causal_attn.errors import InputError, UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.package.dims import DimExpression
from causal_attn.runtime.feed_check import FeedCheck, require_mapping
from causal_attn.runtime.limits import SizeLimits
from causal_attn.runtime.ort import InferenceSession, OrtValue, new_buffer, run_bound

__all__ = ["Binding"]


class Binding:
    """Made by `causal_attn.runtime.Session.bind`; all shapes are those of the arrays given there.

    A binding owns its memory: arrays go in by copy, with `update`, and come out by copy, with
    `read`. It is for one thread at a time, and raises `ClosedError` once its session is closed.

    Attributes:
        watched: Entered around each run, for a session with ``on_call``; else ``None``.
    """

    watched: Callable[[], AbstractContextManager[None]] | None = None

    def __init__(
        self,
        opened: Callable[[], InferenceSession],
        contract: Contract,
        provider: Provider,
        feeds: Mapping[str, NDArray[Any]],
        share: Mapping[str, str],
        limits: SizeLimits | None = None,
    ) -> None:
        self._opened = opened
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue] = {}
        self._dtypes = {tensor.name: np.dtype(tensor.dtype) for tensor in contract.inputs}
        self._binding = opened().io_binding()
        self._check = FeedCheck(contract, limits)
        arrays = self._check.check(feeds)
        self._shapes = {name: array.shape for name, array in arrays.items()}
        for name, array in arrays.items():
            value = new_buffer(array.shape, array.dtype, provider)
            _fill(value, array)
            self._inputs[name] = value
            self._binding.bind_ortvalue_input(name, value)
        shapes = _output_shapes(contract, arrays)
        _check_share(share, contract, arrays, shapes)
        for tensor in contract.outputs:
            if tensor.name in share:
                value = self._inputs[share[tensor.name]]
            else:
                value = new_buffer(shapes[tensor.name], np.dtype(tensor.dtype), provider)
            self._outputs[tensor.name] = value
            self._binding.bind_ortvalue_output(tensor.name, value)

    def run(self) -> None:
        """Run the model on what is bound; returns when the outputs are there.

        Raises:
            InputError: ONNX Runtime refuses what is bound.
            ClosedError: The session was closed.
            StoppedError: A `Cancellation` ended the run; what is bound for outputs means nothing.
            EngineError: ONNX Runtime failed.
        """
        if self.watched is None:
            run_bound(self._opened(), self._binding)
            return
        with self.watched():
            run_bound(self._opened(), self._binding)

    def update(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Copy new values into inputs.

        Args:
            feeds: By name, any of the inputs, with the dtype and shape that were bound.

        Raises:
            InputError: A name is no input, an array has another dtype or shape, or the new tokens
                do not fit into the cache. Nothing was copied then.
        """
        for name, array in require_mapping("feeds", feeds).items():
            if name not in self._inputs:
                raise InputError(
                    f"`feeds` must name inputs of {list(self._inputs)}, got {name!r}."
                )
            shape, dtype = self._shapes[name], self._dtypes[name]
            plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
            if not plain or (array.shape, array.dtype) != (shape, dtype):
                got = f"{array.dtype}{list(array.shape)}" if plain else type(array).__name__
                raise InputError(
                    f"`{name}` must be as it was bound, {dtype}{list(shape)}, got {got}. Bind "
                    "again for other shapes."
                )
        self._check.check_room(feeds, self._shapes)
        for name, array in feeds.items():
            _fill(self._inputs[name], array)

    def read(self, name: str) -> NDArray[Any]:
        """A copy of the input or output `name` as it is now.

        Raises:
            InputError: There is none.
        """
        known = isinstance(name, str)
        value = (self._outputs.get(name) or self._inputs.get(name)) if known else None
        if value is None:
            raise InputError(
                f"`name` must be one of {[*self._outputs, *self._inputs]}, got {name!r}."
            )
        # numpy() of a value on the CPU may be a view of memory that the next run overwrites.
        return np.array(value.numpy())

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "A Binding must stay in its process, got pickled or copied. Send what `read` returns."
        )


def _fill(value: OrtValue, array: NDArray[Any]) -> None:
    # ONNX Runtime 1.32 reads strided arrays right here, and reads them by pointer elsewhere.
    if array.size:
        value.update_inplace(np.require(array, requirements=["C", "A"]))


def _output_shapes(
    contract: Contract, arrays: Mapping[str, NDArray[Any]]
) -> dict[str, tuple[int, ...]]:
    sizes = {
        dim: size
        for tensor in contract.inputs
        for dim, size in zip(tensor.dims, arrays[tensor.name].shape, strict=True)
        if isinstance(dim, str)
    }
    return {
        tensor.name: tuple(_size(tensor, dim, sizes) for dim in tensor.dims)
        for tensor in contract.outputs
    }


def _size(tensor: TensorContract, dim: str | int, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    size = DimExpression.parse(dim).size(sizes)
    if size is None:
        raise InputError(
            f"`{tensor.name}` must have dims that follow from those of the inputs to be bound, "
            f"got {dim!r}. Call the session instead."
        )
    return size


def _check_share(
    share: Mapping[str, str],
    contract: Contract,
    arrays: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    dtypes = {tensor.name: np.dtype(tensor.dtype) for tensor in contract.outputs}
    for output, source in require_mapping("share", share).items():
        if output not in shapes or not isinstance(source, str) or source not in arrays:
            raise InputError(
                f"`share` must map outputs of {list(shapes)} to inputs of {list(arrays)}, got "
                f"{output!r}: {source!r}."
            )
        if (shapes[output], dtypes[output]) != (arrays[source].shape, arrays[source].dtype):
            raise InputError(
                f"`share` must pair tensors of one shape and dtype, got {output!r} "
                f"{list(shapes[output])} and {source!r} {list(arrays[source].shape)}. A cache "
                "that grows cannot be written in place."
            )
    if contract.cache is not None:
        allowed = contract.cache.shared
        if crossed := {o: source for o, source in share.items() if allowed.get(o) != source}:
            raise InputError(
                f"`share` must be out of {allowed}, which the contract says is written in place, "
                f"got {crossed}: anything else overwrites what is still read."
            )
    if len(set(share.values())) != len(share):
        raise InputError(f"`share` must use an input once, got {dict(share)}.")
