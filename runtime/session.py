"""A loaded model: call it with arrays, get arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from numpy.typing import NDArray

from causal_attn.errors import ClosedError, InputError, UsageError
from causal_attn.json_text import shown
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate
from causal_attn.package.contract import Contract
from causal_attn.runtime.binding import Binding
from causal_attn.runtime.feed_check import FeedCheck, require_mapping
from causal_attn.runtime.limits import SizeLimits, named_sizes
from causal_attn.runtime.ort import InferenceSession, OrtValue, run_engine, run_shared, share
from causal_attn.runtime.outputs import Outputs, identifiers, outputs_type
from causal_attn.runtime.placement import PlacedNode

__all__ = ["Session"]


class Session:
    """A model on one provider; made by `causal_attn.runtime.load`.

    Threads: any number of them may call one session at once. `close` may come at any time: calls
    that are running finish with their results, later ones raise `ClosedError`, and the memory is
    freed when the last running call returns.

    Processes: a session does not survive ``os.fork``; load it in the process that calls it.

    Results are the caller's: they are not overwritten by later calls and stay valid after `close`.

    Attributes:
        contract: Names, dtypes and dims of the inputs and outputs.
        certificate: What was checked; ``None`` only with ``accept="unverified"``.
        provider: The provider that runs it.
        placement: Every node and the provider it is on, see `causal_attn.runtime.placement`.
    """

    def __init__(
        self,
        engine: InferenceSession,
        *,
        contract: Contract,
        certificate: Certificate | None,
        provider: Provider,
        placement: tuple[PlacedNode, ...],
        limits: SizeLimits | None = None,
    ) -> None:
        self.contract = contract
        self.certificate = certificate
        self.provider = provider
        self.placement = placement
        self._engine: InferenceSession | None = engine
        self._limits = limits
        self._feeds = FeedCheck(contract, limits)
        self._output_names = [tensor.name for tensor in contract.outputs]
        self._in_place = {} if contract.cache is None else contract.cache.shared
        self._outputs = outputs_type(identifiers(self._output_names))

    def __call__(self, /, *arrays: NDArray[Any], **named: NDArray[Any]) -> Outputs:
        """Run the model on one array for each input.

        Args:
            arrays: The first inputs, in the order of the contract.
            named: The others by name; ``**{"past.0.key": array}`` for a name that is no
                identifier.

        Returns:
            A NamedTuple of all outputs in the order of the contract. Names are made identifiers:
            ``present.0.key`` is the field ``present_0_key``.

        Raises:
            InputError: An input is missing, unknown, given twice, not a numpy array, or does not
                have the dtype and dims of the contract; or the call is larger than `load` allowed.
            ClosedError: The session was closed.
            StoppedError: A `Cancellation` ended the call.
            EngineError: ONNX Runtime failed.
        """
        engine = self._opened()
        feeds = self._feeds.bind(arrays, named)
        return self._outputs._make(run_engine(engine, self._output_names, feeds))

    def check(self, /, *arrays: NDArray[Any], **named: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """What a call with these arrays would run on, by name; nothing is run.

        An array is copied only where its memory is not C-contiguous and aligned.

        Raises:
            InputError: As in a call.
            ClosedError: The session was closed.
        """
        self._opened()
        return self._feeds.bind(arrays, named)

    def run(
        self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run the model on `feeds` by the names of the graph.

        Args:
            feeds: One array for each input.
            outputs: Names of the outputs wanted; ``None`` for all. What only the others need is
                computed nevertheless.

        Returns:
            The wanted outputs by name, in the order asked for.

        Raises:
            InputError: As in a call; or `outputs` is empty or has a name that is no output.
            ClosedError: The session was closed.
            StoppedError: A `Cancellation` ended the call.
            EngineError: ONNX Runtime failed.
        """
        engine = self._opened()
        names = self._output_names if outputs is None else self._known_outputs(outputs)
        return dict(zip(names, run_engine(engine, names, self._feeds.check(feeds)), strict=True))

    def bind(
        self, feeds: Mapping[str, NDArray[Any]], *, share: Mapping[str, str] | None = None
    ) -> Binding:
        """Bind copies of `feeds` and room for the outputs, for calls that repeat at these shapes.

        Args:
            feeds: One array for each input.
            share: Outputs that are written into the buffer of an input, of the same shape and
                dtype: ``{"present_key": "past_key"}``. Where the contract has a cache, only what
                it says is written in place: ``contract.cache.shared``. Elsewhere it is the
                caller's promise that the kernel reads an entry before it overwrites it.

        Returns:
            What `Binding.run` runs.

        Raises:
            InputError: As in a call; an output's dims do not follow from the inputs; or `share`
                pairs tensors that cannot be one.
            ClosedError: The session was closed.
        """
        return Binding(
            self._opened,
            self.contract,
            self.provider,
            feeds,
            {} if share is None else share,
            self._limits,
        )

    def share(self, tensor: Any) -> Any:
        """An ``onnxruntime.OrtValue`` over the memory of `tensor`, for `run_shared`.

        Args:
            tensor: Anything with DLPack's protocol, or a DLPack capsule, which is used up.

        Raises:
            InputError: It has no such protocol, is not C-contiguous, may not be written to, or
                ONNX Runtime does not have its dtype.
        """
        return share(tensor)

    def run_shared(
        self, values: Mapping[str, Any], *, share: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Run on memory that is shared, not copied, on the CPU or on the provider's GPU.

        ONNX Runtime checks dtypes, ranks and fixed sizes here; that dims of one name have one
        size is the caller's promise, as is that nobody writes to the memory during the call.

        Args:
            values: What `share` made, one for each input.
            share: Outputs that are written into the memory of an input's value, out of what the
                contract says is written in place: ``contract.cache.shared``.

        Returns:
            One ``onnxruntime.OrtValue`` for each output, in the order of the contract, on the
            provider's device. Each has DLPack's protocol: ``torch.from_dlpack(value)`` is a
            tensor over the same memory, which lives as long as either; the memory of an input
            lives as long as the value that was given.

        Raises:
            InputError: An input is missing or unknown, `share` pairs what the contract does not,
                or the call is larger than `load` allowed.
            ClosedError: The session was closed.
            StoppedError: A `Cancellation` ended the call.
            EngineError: ONNX Runtime refuses a value, or failed.
        """
        engine = self._opened()
        names = {tensor.name for tensor in self.contract.inputs}
        if require_mapping("values", values).keys() != names:
            # ONNX Runtime would run without a missing input until a kernel reads it.
            raise InputError(f"`values` must be {sorted(names)}, got {sorted(values)}.")
        for name, value in values.items():
            if not isinstance(value, OrtValue):
                raise InputError(
                    f"`{name}` must be an onnxruntime.OrtValue, got {type(value).__name__}. Make "
                    "it with `share`."
                )
        shared = require_mapping("share", {} if share is None else share)
        if crossed := {
            output: source
            for output, source in shared.items()
            if not isinstance(source, str) or self._in_place.get(output) != source
        }:
            raise InputError(
                f"`share` must be out of {self._in_place}, which the contract says is written in "
                f"place, got {shown(crossed)}."
            )
        into = {output: values[source] for output, source in shared.items()}
        if self._limits is not None:
            shapes = {name: tuple(value.shape()) for name, value in values.items()}
            self._limits.check(shapes, named_sizes(self.contract, shapes))
        device = self.provider.memory
        return run_shared(engine, self._output_names, values, device, into)

    def close(self) -> None:
        """Let go of the model. A second call does nothing."""
        # Running calls hold the engine by a reference of their own, so nothing needs a lock.
        self._engine = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._engine is None

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "A Session must stay in its process, got pickled or copied. Send the path, and load "
            "it where it is called; threads may share one."
        )

    def __repr__(self) -> str:
        inputs = ", ".join(tensor.name for tensor in self.contract.inputs)
        outputs = ", ".join(self._output_names)
        state = ", closed" if self.closed else ""
        return f"<Session ({inputs}) -> ({outputs}) on {self.provider}{state}>"

    def _opened(self) -> InferenceSession:
        engine = self._engine
        if engine is None:
            raise ClosedError(
                "The session must be open, got a call after close(). Load the package again."
            )
        return engine

    def _known_outputs(self, outputs: Sequence[str]) -> list[str]:
        if not isinstance(outputs, list | tuple):
            raise InputError(f"`outputs` must be a list of names, got {shown(outputs)}.")
        known = set(self._output_names)
        if not outputs or not all(isinstance(name, str) and name in known for name in outputs):
            raise InputError(
                f"`outputs` must be names out of {self._output_names}, got {shown(outputs)}."
            )
        return list(dict.fromkeys(outputs))
