"""Tokens from a package, without torch: numpy and ONNX Runtime alone.

::

    from causal_attn.runtime.generate import Generator

    with Generator.open("model") as generator:
        for token in generator.generate([3, 17, 42], max_new_tokens=20):
            print(token.id, token.text)

Text in and out needs the extra ``[text]``, and a tokenizer beside the model.
"""

from __future__ import annotations

from causal_attn.runtime.generate.answer import Options, Request, Token
from causal_attn.runtime.generate.decoder import Decoder
from causal_attn.runtime.generate.decoding import Decoding
from causal_attn.runtime.generate.defaults import Defaults
from causal_attn.runtime.generate.generator import Generator
from causal_attn.runtime.generate.sampling import Sampling
from causal_attn.runtime.generate.text import Text

__all__ = [
    "Decoder",
    "Decoding",
    "Defaults",
    "Generator",
    "Options",
    "Request",
    "Sampling",
    "Text",
    "Token",
]
