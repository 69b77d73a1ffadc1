"""What is running: one step of the batch and one chunk of a prompt at a time.

::

    round     1        2        3        4
    prompt    C: 1-128 C: -200  D: 1-40
    batch     A B      A B      A B C    A C D      B is over after round 3

A long prompt delays the tokens of others by one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from causal_attn.errors import CausalAttnError, EngineError
from causal_attn.runtime.engine.batch import Batch
from causal_attn.runtime.engine.prefixes import Prefixes
from causal_attn.runtime.engine.work import Tally, Work
from causal_attn.runtime.generate.decoder import Decoder
from causal_attn.runtime.generate.decoding import Decoding

__all__ = ["Rounds"]


class Rounds:
    """The state of the engine's thread; nothing else touches it.

    Args:
        decoder: The model.
        prefixes: Where sequences begin.
        chunk: Tokens of a prompt in a round.
        tally: Counts what was reused.
    """

    def __init__(self, decoder: Decoder, prefixes: Prefixes, chunk: int, tally: Tally) -> None:
        self._decoder, self._prefixes, self._chunk = decoder, prefixes, chunk
        self._tally = tally
        self._batch = Batch(decoder)
        self._rows: list[Work] = []
        self._prompt: tuple[Work, Decoding | None] | None = None

    @property
    def works(self) -> list[Work]:
        """Everything that was begun and is not over."""
        begun = [*self._rows, *([self._prompt[0]] if self._prompt is not None else [])]
        return [work for work in begun if not work.over]

    @property
    def takes_a_prompt(self) -> bool:
        """Whether there is no prompt that has not gone in yet."""
        return self._prompt is None

    def begin(self, work: Work) -> None:
        """Let the prompt of `work` be the next that goes in."""
        self._prompt = work, None

    def run(self) -> None:
        """One round. Whatever fails, those concerned are told, and the others go on."""
        for work in self.works:
            work.end_if_unwanted()
        joined = self._feed_prompt()
        try:
            self._step(joined)
        # A step may fail in any way that ONNX Runtime, a lack of memory or `on_call` can, which
        # may call `sys.exit`: here it would end the thread for all of them.
        except BaseException as error:  # noqa: BLE001
            for work in self._rows:
                # Each waits in a thread of its own, which writes its own traceback into it.
                work.end(_alike(error))
        if not any(not work.over for work in self._rows):
            # Nobody may ask again for hours, and until then memory is not kept for the last rows.
            self._batch, self._rows = Batch(self._decoder), []

    def _feed_prompt(self) -> list[tuple[Work, Decoding]]:
        """One chunk of a prompt; what is returned is ready to join the batch."""
        if self._prompt is None:
            return []
        work, sequence = self._prompt
        self._prompt = None
        if work.over:
            return []
        ids = work.request.ids
        try:
            if sequence is None:
                sequence = self._prefixes.begin(ids)
                self._tally.add("reused", len(sequence.tokens))
            done = len(sequence.tokens)
            logits = sequence.feed(ids[done : done + self._chunk])
            if len(sequence.tokens) == len(ids):
                self._prefixes.keep(sequence)
        except BaseException as error:  # noqa: BLE001 as in `run`
            work.end(error)
            return []
        if len(sequence.tokens) < len(ids):
            self._prompt = work, sequence
            return []
        work.choose(logits)
        return [] if work.over else [(work, sequence)]

    def _step(self, joined: Sequence[tuple[Work, Decoding]]) -> None:
        kept = [row for row, work in enumerate(self._rows) if not work.over]
        self._rows = [self._rows[row] for row in kept] + [work for work, _ in joined]
        self._batch.change(kept, [sequence for _, sequence in joined])
        if self._rows:
            logits = self._batch.step([work.request.answer.ids[-1] for work in self._rows])
            for work, row in zip(self._rows, logits, strict=True):
                work.choose(row)


def _alike(error: BaseException) -> BaseException:
    if not isinstance(error, CausalAttnError):
        return error
    twin = EngineError(str(error))
    twin.__cause__ = error
    return twin
