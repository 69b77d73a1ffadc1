"""Form ``decomposed``: products, a select and a softmax, as the reference has them.

The only form that can do all that the op can, for every dtype and on every provider.
"""

from __future__ import annotations

import torch

from causal_attn.attention.operator import by_reference
from causal_attn.export.forms.demand import Need
from causal_attn.export.forms.form import Form

__all__ = ["DECOMPOSED"]

DECOMPOSED = Form(
    name="decomposed",
    lower=by_reference,
    opset=18,
    dtypes=frozenset({torch.float16, torch.float32, torch.float64}),
    has=frozenset(Need),
)
