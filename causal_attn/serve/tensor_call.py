"""A call with tensors as its model sees it, whichever protocol it came by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

__all__ = ["Asked", "TensorCall"]


class Asked(NamedTuple):
    """What a call is to be run on.

    Attributes:
        feeds: Arrays by the names of inputs; they may not be written to.
        outputs: Names of those that are wanted; ``None``: all.
    """

    feeds: dict[str, NDArray[Any]]
    outputs: list[str] | None


class TensorCall(Protocol):
    """One call in the words of its protocol.

    Both methods run in a thread of the model: numbers in JSON take longer to read than most models
    to run, and the event loop has others to serve meanwhile.
    """

    def read(self) -> Asked:
        """What is asked for.

        Raises:
            RequestError: The call is not what the protocol says.
        """
        ...

    def write(self, model: str, results: Mapping[str, NDArray[Any]]) -> Any:
        """The answer: `results` of the model of that name, by the names of outputs."""
