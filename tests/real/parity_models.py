"""Tiny language models of many families, as they come, and small true faults to find in them.

A fault is made in the module and not in the graph, which is exported once: the two then differ by
it, as they would if the exporter had made it.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from causal_attn.export.capture.captured import Captured
from causal_attn.export.choose.choice import Choice
from causal_attn.export.forms.table import FORMS
from causal_attn.export.target import Target, user_target
from causal_attn.export.torch_output import ExportLog
from causal_attn.export.torch_runs import yardstick
from causal_attn.export.write.graph_file import write_graph
from causal_attn.package import open_model
from causal_attn.package.certificate import Check
from causal_attn.runtime import Session
from causal_attn.verify.checks.parity import check_parity
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.subject import Subject, read_subject

# Its classes are made at run time and mean little to type checkers.
transformers: Any = importlib.import_module("transformers")

SPREAD = 0.3
"""Of every matrix of weights: large enough for scores that lie far apart."""

LENGTHS = (1, 2, 5, 13, 33)

_COMMON = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "vocab_size": 97,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _COMMON,
    "mistral": {**_COMMON, "sliding_window": 5},
    "qwen2": _COMMON,
    "qwen3": {**_COMMON, "head_dim": 8},
    "gemma": {**_COMMON, "head_dim": 8},
    "gemma2": {**_COMMON, "head_dim": 8, "sliding_window": 5},
    "gemma3_text": {**_COMMON, "head_dim": 8, "sliding_window": 5},
    "gpt2": _GPT,
    "gpt_neox": _COMMON,
    "gptj": {**_GPT, "rotary_dim": 4},
    "phi3": _COMMON,
    "phi": _COMMON,
    "opt": {**_COMMON, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {**_COMMON, "n_layer": 2, "n_head": 4},
    "falcon": _COMMON,
    "stablelm": _COMMON,
    "olmo2": _COMMON,
    "granite": _COMMON,
    "cohere": _COMMON,
    "starcoder2": _COMMON,
    "smollm3": _COMMON,
    "roformer": {**_COMMON, "is_decoder": True, "embedding_size": 32},
}


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def tiny(family: str) -> Logits:
    """A random model of `family`; attention through torch's own op where the family can."""
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    torch.manual_seed(0)
    try:
        config._attn_implementation = "sdpa"
        model = transformers.AutoModelForCausalLM.from_config(config)
    except ValueError:
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, SPREAD)
    return Logits(model.eval())


def exported(family: str, folder: Path) -> tuple[Target, Subject]:
    """A tiny model and its graph, written and not checked."""
    ids = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    target = user_target(tiny(family), (ids,), {"input_ids": ("batch", "tokens")}, dtype=None)
    captured = Captured.of(target, torch.float32, ExportLog())
    choice = Choice(forms=(FORMS["decomposed"],))
    file, _ = write_graph(captured, choice, 18, folder / family)
    return target, read_subject(open_model(file))


def parity(target: Target, subject: Subject, session: Session, seed: int) -> Check:
    """The check as `export` makes it, at other random values."""
    feeder = replace(subject.interface.feeder, bounds=target.bounds)
    trial = Trial(
        session=session, feeder=feeder, yardstick=yardstick(target), lengths=LENGTHS, seed=seed
    )
    check = check_parity(trial)
    assert check is not None
    return check


Fault = Callable[[Logits], object]
"""Makes the fault in a model, or returns a context in which the model has it.

``LookupError``: the model has nothing that could have it.
"""


def faulty(target: Target, fault: Fault) -> tuple[Target, Any]:
    """`target` with the fault, and the context in which it has it."""
    module = copy.deepcopy(target.module)
    assert isinstance(module, Logits)
    with torch.no_grad():
        context = fault(module)
    return replace(target, module=module), context or nullcontext()


def exact(target: Target) -> Tensor:
    """Results in float64, by which a fault shows that touches what is not read."""
    with torch.no_grad():
        logits: Tensor = copy.deepcopy(target.module).double()(torch.arange(3, 16)[None])
    return logits


def _modules(model: Logits, *attributes: str) -> Iterator[tuple[nn.Module, str]]:
    for module in model.modules():
        for attribute in attributes:
            if getattr(module, attribute, None) is not None:
                yield module, attribute


def _first(model: Logits, *attributes: str) -> tuple[Any, str]:
    found = next(_modules(model, *attributes), None)
    if found is None:
        raise LookupError(attributes)
    return found


def _norms(model: Logits) -> list[Any]:
    return [module for module in model.modules() if "Norm" in type(module).__name__]


def _matrix(model: Logits) -> Tensor:
    """The first matrix of weights that is not an embedding."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if (
            isinstance(weight, Tensor)
            and weight.ndim == 2
            and "Embed" not in type(module).__name__
        ):
            return weight
    raise LookupError("weight")


def scale_off(model: Logits) -> None:
    """The scale of one layer's scores, by 0.1 %."""
    module, name = _first(model, "scaling", "inv_norm_factor", "scale_attn")
    setattr(module, name, getattr(module, name) * 1.001)


def epsilon_off(model: Logits) -> None:
    """1e-5 for 1e-6 in every norm, or the other way round."""
    norms = list(_modules(model, "variance_epsilon", "eps"))
    if not norms:
        raise LookupError("eps")
    for module, name in norms:
        setattr(module, name, 1e-6 if getattr(module, name) == 1e-5 else 1e-5)


def norm_off(model: Logits) -> None:
    """One entry of one norm's weight, by 0.1 %."""
    for module in _norms(model):
        if isinstance(getattr(module, "weight", None), Tensor):
            # Gemma adds 1 to what it holds.
            module.weight.data[3] += 0.001
            return
    raise LookupError("norm")


def row_swapped(model: Logits) -> None:
    """Two rows of one matrix of weights."""
    weight = _matrix(model)
    weight[[0, 1]] = weight[[1, 0]]


def half_weight(model: Logits) -> None:
    """One matrix of weights went through bfloat16."""
    weight = _matrix(model)
    weight.copy_(weight.bfloat16())


def gelu_other(model: Logits) -> None:
    """The tangent's approximation for the error function, or the other way round."""
    found = 0
    for module in list(model.modules()):
        for name, child in module.named_children():
            kind = type(child).__name__
            if "GELU" not in kind.upper():
                continue
            exact = kind in ("GELU", "GELUActivation") and "tanh" not in repr(child)
            setattr(module, name, nn.GELU("tanh" if exact else "none"))
            found += 1
    if not found:
        raise LookupError("GELU")


def angles_off(model: Logits) -> None:
    """The frequencies of the rotary embedding, by 0.1 %."""
    modules = list(_modules(model, "inv_freq"))
    if not modules:
        raise LookupError("inv_freq")
    for module, name in modules:
        getattr(module, name).mul_(1.001)


def softcap_off(model: Logits) -> None:
    """The soft cap on the scores, by 2 %."""
    module, name = _first(model, "attn_logit_softcapping")
    setattr(module, name, getattr(module, name) * 1.02)


def heads_swapped(model: Logits) -> None:
    """The two key and value heads of one layer, each with the other's queries."""
    module, _ = _first(model, "k_proj")
    if module.k_proj.weight.shape[0] * 2 != module.q_proj.weight.shape[0]:
        raise LookupError("groups")
    for projection in (module.k_proj, module.v_proj):
        for tensor in (projection.weight, projection.bias):
            if tensor is not None:
                tensor.copy_(tensor.roll(tensor.shape[0] // 2, 0))


def rotary_off(model: Logits) -> Any:
    """Queries are rotated as those of the next position."""
    source = sys.modules[type(model.model).__module__]
    rotate = getattr(source, "apply_rotary_pos_emb", None)
    if rotate is None or "inv_freq" not in dict(model.named_buffers()).__str__():
        raise LookupError("rotary")

    def shifted(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **named: Any) -> Any:
        late = rotate(q, k, cos.roll(-1, -2), sin.roll(-1, -2), *rest, **named)
        return late[0], rotate(q, k, cos, sin, *rest, **named)[1]

    return mock.patch.object(source, "apply_rotary_pos_emb", shifted)


def window_off(model: Logits) -> Any:
    """One head does not see the oldest key that it should, in rows that see more than one."""
    if model.model.config._attn_implementation != "sdpa":  # type: ignore[union-attr]
        raise LookupError("sdpa")
    return _narrower()


@contextmanager
def _narrower() -> Iterator[None]:
    plain = nn.functional.scaled_dot_product_attention

    def narrower(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, **named: Any,
    ) -> Tensor:  # fmt: skip
        rows, keys = query.shape[-2], key.shape[-2]
        if attn_mask is None:
            seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        else:
            seen = attn_mask if attn_mask.dtype is torch.bool else attn_mask > -1e4
        seen = seen.expand(query.shape[0], query.shape[1], rows, keys).clone()
        oldest = seen.long().argmax(-1, keepdim=True)
        several = seen.sum(-1, keepdim=True) > 1
        hidden = torch.zeros_like(seen).scatter(-1, oldest, several)
        hidden[:, 1:] = False
        return plain(query, key, value, attn_mask=seen & ~hidden, **named)

    with mock.patch.object(nn.functional, "scaled_dot_product_attention", narrower):
        yield


FAULTS: dict[str, Fault] = {
    "scale off by 0.1 %": scale_off,
    "queries rotated by one more": rotary_off,
    "angles off by 0.1 %": angles_off,
    "epsilon 1e-5 for 1e-6": epsilon_off,
    "window of one head off by one": window_off,
    "tanh GELU for erf": gelu_other,
    "two rows of a matrix swapped": row_swapped,
    "norm weight off by 0.001": norm_off,
    "a matrix through bfloat16": half_weight,
    "soft cap off by 2 %": softcap_off,
    "key/value heads swapped": heads_swapped,
}
