"""A real decoder, broken in every way a mask can be: each mutant is caught, and by which check.

The graph is GPT-2 with a cache (2 layers, 4 heads) as torch.onnx writes it; its mask is
``Where(key <= query and not padding, 0, lowest)``, added to the scores of each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from real_models import LAYERS, decoder, run_cached

from causal_attn.package import Variant
from causal_attn.package.certificate import Verdict
from causal_attn.runtime.loading import open_variant
from causal_attn.verify import verify
from causal_attn.verify.checks.parity import check_parity
from causal_attn.verify.checks.trial import Trial
from causal_attn.verify.feeds.feeder import Feeds
from causal_attn.verify.interface.discover import discover
from causal_attn.verify.oracle.yardstick import Yardstick

GRAPH = "torch-gpt2-cached"
LENGTHS = (1, 2, 5, 13)


class Editor:
    """Finds the parts of the mask by what they do, and puts nodes before those that read them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.writers = {name: node for node in self.graph.node for name in node.output}

    def only(self, op: str) -> onnx.NodeProto:
        node: onnx.NodeProto
        (node,) = [node for node in self.graph.node if node.op_type == op]
        return node

    def masks(self) -> list[onnx.NodeProto]:
        """The ``Add`` of scores and mask, layer by layer."""
        adds = [
            self.writers[node.input[0]] for node in self.graph.node if node.op_type == "Softmax"
        ]
        assert [add.op_type for add in adds] == ["Add"] * LAYERS
        return adds

    def constant(self, value: object, dtype: type) -> str:
        name = f"mutant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def before(self, node: onnx.NodeProto, op: str, inputs: list[str]) -> str:
        name = f"mutant_{len(self.graph.node)}"
        index = list(self.graph.node).index(node)
        self.graph.node.insert(index, helper.make_node(op, inputs, [name]))
        return name


def shifted(edit: Editor) -> None:
    """Each query sees one key more."""
    node = edit.only("LessOrEqual")
    node.input[1] = edit.before(node, "Add", [node.input[1], edit.constant(1, np.int64)])


def no_mask_in_a_layer(edit: Editor) -> None:
    add = edit.masks()[1]
    add.input[1] = edit.constant(0, np.float32)


def no_mask_in_a_head(edit: Editor) -> None:
    """The third head of the first layer sees everything."""
    add = edit.masks()[0]
    heads = np.array([False, False, True, False]).reshape(1, 4, 1, 1)
    chosen = [edit.constant(heads, bool), edit.constant(0, np.float32), add.input[1]]
    add.input[1] = edit.before(add, "Where", chosen)


def minus_ten_thousand(edit: Editor) -> None:
    where = edit.writers[edit.masks()[0].input[1]]
    where.input[2] = edit.constant(-1e4, np.float32)


def transposed(edit: Editor) -> None:
    edit.only("LessOrEqual").op_type = "GreaterOrEqual"


def frozen_past(edit: Editor) -> None:
    """The past is 3 tokens, as it was while tracing."""
    node = edit.writers[edit.writers[edit.only("LessOrEqual").input[1]].input[0]]
    add = edit.writers[node.input[0]]
    assert add.op_type == "Add"
    add.input[1] = edit.constant(3, np.int64)


def frozen_length(edit: Editor) -> None:
    """The mask is the one of 5 tokens after 3."""
    for add in edit.masks():
        mask = np.triu(np.full((5, 8), np.finfo(np.float32).min), 4).reshape(1, 1, 5, 8)
        add.input[1] = edit.constant(mask, np.float32)


def padding_is_ignored(edit: Editor) -> None:
    (both,) = [
        n
        for n in edit.graph.node
        if n.op_type == "And"
        and n.input[1] in edit.writers
        and edit.writers[n.input[1]].op_type == "GatherND"
    ]
    both.input[1] = edit.constant(True, bool)


def padding_is_shown(edit: Editor) -> None:
    """Tokens that the mask leaves out are read, and the others are too."""
    (both,) = [
        n
        for n in edit.graph.node
        if n.op_type == "And"
        and n.input[1] in edit.writers
        and edit.writers[n.input[1]].op_type == "GatherND"
    ]
    both.input[1] = edit.before(both, "Or", [both.input[1], edit.constant(True, bool)])


def cache_in_front(edit: Editor) -> None:
    """New keys and values of the first layer are put before the old ones."""
    for name in ("present.0.key", "present.0.value"):
        concat = edit.writers[name]
        concat.input[:] = list(concat.input)[::-1]


def keys_for_values(edit: Editor) -> None:
    """Keys and values of the first layer change places."""
    split = next(node for node in edit.graph.node if node.op_type == "Split")
    split.output[1], split.output[2] = split.output[2], split.output[1]


@dataclass(frozen=True, kw_only=True)
class Caught:
    """By what a mutant is caught: checks that fail, checks that leave it open, verdict, exit."""

    edit: Callable[[Editor], None]
    failed: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()
    verdict: Verdict = Verdict.NOT_CAUSAL
    exit_code: int = 1


PROOF, FUTURE, DECODE = "influence proof", "future is invisible", "decode is equivalent"

MUTANTS = {
    "mask shifted by one": Caught(edit=shifted, failed=frozenset({PROOF, FUTURE, DECODE})),
    "mask dropped in one layer of two": Caught(
        edit=no_mask_in_a_layer, failed=frozenset({PROOF, FUTURE, DECODE, "padding is invisible"})
    ),
    "mask dropped in one head of four": Caught(
        edit=no_mask_in_a_head, failed=frozenset({PROOF, FUTURE, DECODE, "padding is invisible"})
    ),
    "mask transposed": Caught(edit=transposed, failed=frozenset({PROOF, FUTURE, DECODE})),
    "mask of a past frozen at 3": Caught(
        edit=frozen_past, failed=frozenset({PROOF, FUTURE, DECODE})
    ),
    "mask frozen at a length": Caught(
        edit=frozen_length,
        failed=frozenset({"inputs are read"}),
        opened=frozenset({PROOF, "runs"}),
        verdict=Verdict.UNDECIDED,
    ),
    "padding ignored": Caught(
        edit=padding_is_ignored,
        failed=frozenset({"inputs are read", "padding is invisible"}),
        verdict=Verdict.CAUSAL,
    ),
    "padding shown": Caught(
        edit=padding_is_shown,
        failed=frozenset({"padding is invisible"}),
        verdict=Verdict.CAUSAL,
    ),
    "cache in front": Caught(edit=cache_in_front, failed=frozenset({PROOF, DECODE})),
}


def mutated(path: Path, folder: Path, edit: Callable[[Editor], None]) -> Path:
    model = onnx.load(path)
    edit(Editor(model))
    onnx.save(model, folder / "mutant.onnx")
    return folder / "mutant.onnx"


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(graph: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    caught = MUTANTS[name]
    report = verify(mutated(graph(GRAPH), tmp_path, caught.edit), lengths=LENGTHS)
    certificate = report.variants[0].certificate
    assert caught.failed <= {c.name for c in certificate.checks if c.passed is False}
    assert caught.opened <= {c.name for c in certificate.checks if c.passed is None}
    assert certificate.verdict is caught.verdict
    assert report.exit_code == caught.exit_code
    assert not certificate.passed


def test_a_small_mask_that_no_score_reaches_is_causal(
    graph: Callable[[str], Path], tmp_path: Path
) -> None:
    """Norms and weights keep scores below 10, and -1e4 hides up to 5e3: both are stated."""
    report = verify(mutated(graph(GRAPH), tmp_path, minus_ten_thousand), lengths=LENGTHS)
    certificate = report.variants[0].certificate
    assert certificate.verdict is Verdict.CAUSAL
    (proof,) = (check for check in certificate.checks if check.name == PROOF)
    assert "masks hide while it is below 4948" in proof.detail


def torch_run(dtype: torch.dtype) -> Callable[[Feeds], Feeds]:
    model = decoder("gpt2").to(dtype)

    def run(feeds: Feeds) -> Feeds:
        tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
        return {name: value.numpy() for name, value in run_cached(model, tensors).items()}

    return run


@pytest.mark.parametrize(("edit", "passed"), [(None, True), (keys_for_values, False)])
def test_keys_for_values_is_caught_by_parity_with_torch(
    graph: Callable[[str], Path],
    tmp_path: Path,
    edit: Callable[[Editor], None] | None,
    passed: bool,
) -> None:
    """Such a graph is causal and agrees with itself: only the source can tell, at export."""
    path = graph(GRAPH) if edit is None else mutated(graph(GRAPH), tmp_path, edit)
    interface = discover(onnx.load(path, load_external_data=False), path)
    variant = Variant(
        name="gpt2", component="", ep="", provider=None, device="", directory=path.parent,
        model=path, contract=interface.feeder.contract, certificate=None,
    )  # fmt: skip
    with open_variant(variant, "cpu") as session:
        check = check_parity(
            Trial(
                session=session,
                feeder=interface.feeder,
                yardstick=Yardstick(
                    oracle=torch_run(torch.float64), baseline=torch_run(torch.float32)
                ),
                lengths=LENGTHS,
            )
        )
    assert check is not None
    assert check.passed is passed, check.detail
    if edit is not None:
        assert verify(path, lengths=LENGTHS).variants[0].certificate.passed
