"""From packages to a service: the Open Inference Protocol and OpenAI's, without torch.

On the command line: ``causal-attn serve PACKAGE…``. It needs the extra ``[serve]``, which brings
the KServe SDK. See ``docs/serve.md``.
"""

from __future__ import annotations

from causal_attn.serve.loading import load_models, named_paths
from causal_attn.serve.server import serve
from causal_attn.serve.settings import Address, Limits

__all__ = ["Address", "Limits", "load_models", "named_paths", "serve"]
