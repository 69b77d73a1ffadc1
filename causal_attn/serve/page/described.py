"""A model in JSON: its contract, its certificate, where its nodes run, and how it does now."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from causal_attn.package.contract import Contract, TensorContract
from causal_attn.serve.language_model import LanguageModel
from causal_attn.serve.page.attentions import heads_of
from causal_attn.serve.tensor_model import TensorModel

__all__ = ["described"]

_SHORT_DIGEST = 12


def described(model: TensorModel) -> dict[str, Any]:
    """What the page says of `model`; nothing of it is a path or a secret."""
    session = model.session
    return {
        "name": model.name,
        "ready": model.ready,
        "provider": str(session.provider),
        "contract": _contract(session.contract),
        "certificate": _certificate(model),
        "placement": _placement(model),
        "numbers": model.numbers(),
        "language": _language(model) if isinstance(model, LanguageModel) else None,
    }


def _contract(contract: Contract) -> dict[str, Any]:
    cache = contract.cache
    kept = set() if cache is None else {entry.input for entry in cache.entries}
    made = set() if cache is None else {entry.output for entry in cache.entries}
    return {
        "inputs": [_tensor(tensor, tensor.name in kept) for tensor in contract.inputs],
        "outputs": [_tensor(tensor, tensor.name in made) for tensor in contract.outputs],
        "form": contract.form,
        "opset": contract.opset,
        "tokens": contract.tokens,
        "bounds": {name: list(sizes) for name, sizes in contract.bounds.items()},
        "onnxruntime": contract.onnxruntime,
    }


def _tensor(tensor: TensorContract, cached: bool) -> dict[str, Any]:
    return {**asdict(tensor), "dims": list(tensor.dims), "cache": cached}


def _certificate(model: TensorModel) -> dict[str, Any] | None:
    certificate = model.session.certificate
    if certificate is None:
        return None
    return {
        "verdict": str(certificate.verdict),
        "passed": certificate.passed,
        "conditions": list(certificate.conditions),
        "score_bound": certificate.score_bound,
        "digest": certificate.digest[:_SHORT_DIGEST],
        "versions": dict(certificate.versions),
        "checks": [
            {
                "name": check.name,
                "passed": check.passed,
                "detail": check.detail,
                "provider": check.provider,
            }
            for check in certificate.checks
        ],
    }


def _placement(model: TensorModel) -> list[dict[str, Any]]:
    """Providers and how many nodes of each operator they run, the most first."""
    counts: dict[str, Counter[str]] = {}
    for node in model.session.placement:
        counts.setdefault(str(node.provider), Counter())[node.op_type] += 1
    return [
        {
            "provider": provider,
            "nodes": operators.total(),
            "operators": [list(pair) for pair in operators.most_common()],
        }
        for provider, operators in counts.items()
    ]


def _language(model: LanguageModel) -> dict[str, Any]:
    text = model.generator.text
    return {
        "text": text is not None,
        "chat": text is not None and text.chats,
        "vocabulary": model.generator.decoder.vocabulary,
        "longest": model.generator.decoder.longest,
        "heads": heads_of(model.session.contract),
    }
