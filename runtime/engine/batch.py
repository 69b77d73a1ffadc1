"""Sequences that decode together, padded on the left to one length.

::

              past                 mask
    row 0     . . . a b c d        0 0 0 1 1 1 1        '.' is zeros, which no token sees
    row 1     e f g h i j k        1 1 1 1 1 1 1

Rows join and leave between two steps. Then the past is laid out anew, as long as its longest row
is now, in memory that starts as zeros: nothing of a row that left stays. A cache of fixed capacity
has each row's tokens at the beginning of its buffer, and the padding behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from causal_attn.runtime.generate.decoder import Decoder, Past
from causal_attn.runtime.generate.decoding import Decoding

__all__ = ["Batch"]


class Batch:
    """The rows and what the model keeps of them; for one thread.

    Args:
        decoder: The model.

    Attributes:
        lengths: Tokens of each row that went through the model.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._past: Past = {}
        self._columns = 0
        self.lengths: list[int] = []

    def change(self, kept: Sequence[int], joined: Sequence[Decoding]) -> None:
        """Keep the rows `kept`, in that order, and put `joined` behind them.

        Nothing is changed if it fails.
        """
        if not joined and list(kept) == list(range(len(self.lengths))):
            return
        lengths = [self.lengths[row] for row in kept] + [len(one.tokens) for one in joined]
        columns = max(lengths, default=0)
        if not lengths:
            self._past, self._columns, self.lengths = {}, 0, []
            return
        sources = [(self._past, row) for row in kept] + [(one.past, 0) for one in joined]
        past = self._decoder.laid(sources, lengths)
        self._past, self._columns, self.lengths = past, columns, lengths

    def step(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """One more token for every row.

        Args:
            ids: One for each.

        Returns:
            Logits ``[rows, vocabulary]`` of what comes after it.

        Raises:
            EngineError: ONNX Runtime failed; the rows are as they were.
        """
        columns = np.arange(self._columns + 1)
        first = self._columns - np.array(self.lengths)
        mask = (columns >= first[:, None]).astype(np.int64)
        called = self._decoder.call(np.array(ids, np.int64)[:, None], mask, self._past)
        self._past, self._columns = called.past, self._columns + 1
        self.lengths = [length + 1 for length in self.lengths]
        logits: NDArray[np.float32] = called.logits[:, -1]
        return logits
