"""The experts that a model of `transformers` calls while it is traced.

Every expert sees every token, and what a token was not sent to is weighed with zero. That is more
arithmetic than the library's own ways by the number of experts over those chosen, but no shape and
no index depends on data, so that the graph runs and is proved at every length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface

__all__ = ["NAME", "register"]

NAME = "causal_attn"
"""What the experts are called in ``config._experts_implementation``."""


def _experts(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """``hidden_states [tokens, width]`` through the experts chosen, weighed and summed.

    Args:
        module: Holds the weights of all experts, each tensor with the experts along axis 0.
        hidden_states: ``[tokens, width]``.
        top_k_index: ``[tokens, chosen]`` int64.
        top_k_weights: ``[tokens, chosen]``.
    """
    first = _each(module, hidden_states, "gate_up_proj" if module.has_gate else "up_proj")
    inner = module._apply_gate(first) if module.has_gate else module.act_fn(first)  # type: ignore[operator]
    outer = _each(module, inner, "down_proj")
    if module.has_post_expert_norm:
        outer = module.post_expert_norm(outer)  # type: ignore[operator]
    experts = torch.arange(outer.shape[0], device=outer.device)
    chosen = (top_k_index[None] == experts[:, None, None]).to(top_k_weights.dtype)
    share = (chosen * top_k_weights[None]).sum(-1)
    return (outer * share[:, :, None]).sum(0).to(hidden_states.dtype)


def _each(module: nn.Module, inputs: Tensor, name: str) -> Tensor:
    """``[tokens, in]``, or of each expert, through its matrix: ``[experts, tokens, out]``."""
    weight = module.get_parameter(name)
    result = inputs @ (weight if module.is_transposed else weight.transpose(1, 2))
    return result + module.get_parameter(f"{name}_bias")[:, None] if module.has_bias else result


def register() -> None:
    """Make them known to the library; again is harmless."""
    ExpertsInterface.register(NAME, _experts)
