"""Language models with a cache of fixed capacity: checked as growing ones, written in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_families import FAMILIES, build
from sampled import sampled

from causal_attn.errors import CaptureError, UsageError
from causal_attn.export import export
from causal_attn.package.cache_layout import EntryKind
from causal_attn.package.certificate import Verdict
from causal_attn.runtime import load
from causal_attn.runtime.generate import Generator

LENGTHS = (1, 2, 7, 33)
PROMPT = [3, 17, 42, 9]
CAPACITY = 24

REFUSED = ("bloom", "falcon", "mpt")
WRITTEN = [family for family in FAMILIES if family not in REFUSED]


@pytest.mark.parametrize("family", sampled(WRITTEN, 1, "llama"))
def test_a_family_exports_and_generates_in_place(tmp_path: Path, family: str) -> None:
    path = tmp_path / "package"
    package = export(build(family), path, form="decomposed", lengths=LENGTHS, cache="static")
    certificate = package.variants[0].certificate
    assert certificate is not None
    assert certificate.verdict is Verdict.CAUSAL
    passed = {check.name for check in certificate.checks if check.passed}
    wanted = {
        "parity", "decode is equivalent", "padding is invisible", "unused slots are not read"
    }  # fmt: skip
    assert wanted <= passed
    with torch.no_grad():
        generated = build(family).generate(  # type: ignore[operator]
            torch.tensor([PROMPT]),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=None,
            pad_token_id=0,
        )
    wanted_tokens = generated[0, len(PROMPT) :].tolist()
    assert _in_place(path, 12) == wanted_tokens
    with Generator.open(path) as generator:
        tokens = generator.generate(PROMPT, max_new_tokens=12, ends=())
        assert [token.id for token in tokens] == wanted_tokens


def _in_place(path: Path, count: int) -> list[int]:
    """Greedy tokens, each call bound to the buffers, whose other slots are large numbers."""
    tokens: list[int] = []
    with load(path, provider="cpu") as session:
        contract = session.contract
        layout = contract.cache
        assert layout is not None
        assert {entry.kind for entry in layout.entries} == {EntryKind.FIXED}
        assert (layout.in_place, layout.finite, layout.lengths) == (True, True, "past_lengths")
        buffers = {
            tensor.name: np.full(
                (1, int(tensor.dims[1]), CAPACITY, int(tensor.dims[3])), 6e4
            ).astype(np.float32)
            for tensor in contract.inputs
            if tensor.name in layout.pairs
        }
        feeds = _feeds([PROMPT[0]], 0)
        feeds = {t.name: (feeds | buffers)[t.name] for t in contract.inputs}
        step = session.bind(feeds, share=layout.shared)
        ids = list(PROMPT)
        for position in range(len(PROMPT) + count - 1):
            new = _feeds([ids[position]], position)
            step.update({name: new[name] for name in feeds if name in new})
            step.run()
            if position + 1 >= len(PROMPT):
                tokens.append(int(step.read("logits")[0, -1].argmax()))
                ids.append(tokens[-1])
        end = len(PROMPT) + count - 1
        for name in buffers:
            held = step.read(name)
            assert (held[:, :, end:] == 6e4).all()
            assert (np.abs(held[:, :, :end]) < 1e4).all()
    return tokens


def _feeds(ids: list[int], held: int) -> dict[str, np.ndarray]:
    return {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, CAPACITY), np.int64),
        "position_ids": np.arange(held, held + len(ids))[None],
        "past_lengths": np.array([held]),
    }


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_takes_one_length_is_refused(tmp_path: Path, family: str) -> None:
    with pytest.raises(CaptureError, match="asks no registry and takes one length"):
        export(build(family), tmp_path / "package", cache="fixed")


def test_other_words_and_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`cache` must be one of .*, got 'rolling'"):
        export(build("llama"), tmp_path / "x", cache="rolling")
    with pytest.raises(UsageError, match="`cache` must be left out"):
        export(torch.nn.Linear(2, 2), tmp_path / "x", cache="static")
