"""Many requests at once over one language model: continuous batching, without torch.

::

    from causal_attn.runtime.engine import Engine
    from causal_attn.runtime.generate import Generator

    with Engine(Generator.open("model")) as engine:
        stream = engine.submit("Once upon a time", max_new_tokens=50)
        for token in stream:  # or: async for token in stream
            print(token.text, end="")
"""

from __future__ import annotations

from causal_attn.runtime.engine.engine import Engine
from causal_attn.runtime.engine.stream import Stream

__all__ = ["Engine", "Stream"]
