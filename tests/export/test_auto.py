"""``form="auto"``: what it chooses from which figures, and the graph that switches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from causal_attn.attention.numpy_reference import run_spec
from causal_attn.attention.spec import AttentionSpec, CacheKind
from causal_attn.errors import EngineError, UsageError
from causal_attn.export import export
from causal_attn.export.choose import measure
from causal_attn.export.choose.auto import candidates, fixed_choice
from causal_attn.export.choose.measure import LONGEST_SWITCH, MEASURE_LENGTHS, measured_choice
from causal_attn.export.forms.table import FORMS
from causal_attn.machine.provider import Provider
from causal_attn.package.certificate import Certificate, Verdict
from causal_attn.package.contract import Contract
from causal_attn.runtime import load
from causal_attn.verify import verify
from causal_attn.verify.compare.comparison import compare
from causal_attn.verify.feeds.feeder import Feeder, switch_lengths
from causal_attn.verify.interface import runnable

CPU = Provider.CPU
OP = "GroupQueryAttention"


def choice_of(**times: list[float]) -> tuple[str, tuple[int, ...]]:
    figures = {
        name: dict(zip(MEASURE_LENGTHS, spent, strict=True)) for name, spent in times.items()
    }
    choice = measured_choice(FORMS, figures, CPU, {})
    return choice.name, choice.last


def test_the_fastest_form_is_chosen_for_each_range_of_lengths() -> None:
    assert choice_of(attention=[1, 1, 1, 3, 3, 3, 3], blocked=[2, 2, 2, 2, 2, 2, 2]) == (
        "attention+blocked",
        (181,),
    )


def test_three_forms_may_share_the_lengths() -> None:
    assert choice_of(
        attention=[1, 1, 5, 9, 9, 9, 9],
        blocked=[4, 4, 2, 2, 2, 9, 9],
        gqa=[9, 9, 9, 9, 9, 3, 3],
    ) == ("attention+blocked+gqa", (90, 724))


def test_a_switch_that_saves_next_to_nothing_is_not_made() -> None:
    assert choice_of(attention=[1.0] * 7, blocked=[1.01] * 6 + [0.97]) == ("attention", ())


def test_no_switch_lies_where_the_checks_do_not_reach() -> None:
    name, last = choice_of(attention=[1] * 7, blocked=[1, 1, 1, 1, 3, 3, 0.01])
    assert (name, last) == ("attention+blocked", (724,))
    assert last[0] <= LONGEST_SWITCH


def test_the_table_is_fixed_and_needs_no_measuring() -> None:
    def fixed(spec: AttentionSpec, provider: Provider) -> tuple[str, tuple[int, ...]]:
        usable, _ = candidates(spec, torch.float32, provider, 23)
        choice = fixed_choice(usable, provider)
        return choice.name, choice.last

    assert fixed(AttentionSpec(), CPU) == ("attention+blocked", (192,))
    assert fixed(AttentionSpec(window=8), CPU) == ("decomposed+blocked", (128,))
    assert fixed(AttentionSpec(), Provider.CUDA) == ("decomposed", ())


@pytest.mark.parametrize(
    ("form", "spec", "dtype", "provider", "word"),
    [
        ("attention", AttentionSpec(window=3), torch.float32, CPU, "window"),
        ("attention", AttentionSpec(), torch.float16, CPU, "float16"),
        ("attention", AttentionSpec(), torch.float64, CPU, "float64"),
        ("attention", AttentionSpec(), torch.float32, Provider.OPENVINO, "openvino"),
        ("blocked", AttentionSpec(), torch.float16, CPU, "float16"),
        ("blocked", AttentionSpec(), torch.float32, Provider.CUDA, "cpu"),
        ("gqa", AttentionSpec(head_dim=8), torch.float32, CPU, "num_heads"),
        ("gqa", AttentionSpec(num_heads=2), torch.float32, CPU, "head_dim"),
        ("gqa", AttentionSpec(num_heads=2, head_dim=12), torch.float32, CPU, "multiple of 8"),
        (
            "gqa",
            AttentionSpec(num_heads=2, head_dim=8),
            torch.float32,
            Provider.OPENVINO,
            "openvino",
        ),
    ],
)
def test_what_a_form_cannot_do_it_refuses_with_the_reason(
    form: str, spec: AttentionSpec, dtype: torch.dtype, provider: Provider, word: str
) -> None:
    reason = FORMS[form].refusal(spec, dtype, provider, 23)
    assert reason is not None
    assert form in reason
    assert word in reason


@pytest.mark.parametrize("form", ["gqa", "blocked"])
def test_forms_without_weights_say_so(form: str, tmp_path: Path) -> None:
    spec = AttentionSpec(num_heads=2, head_dim=8)
    with pytest.raises(UsageError, match="return_weights=False"):
        export(spec, tmp_path / "package", form=form)


def test_weights_keep_auto_decomposed(tmp_path: Path) -> None:
    package = export(AttentionSpec(), tmp_path / "package", lengths=(1, 2, 5))
    contract = package.variants[0].contract
    assert (contract.form, contract.opset) == ("decomposed", 18)
    assert contract.choice == {"rule": "decomposed runs on every provider"}


def test_a_graph_that_switches_is_right_on_both_sides(tmp_path: Path) -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, softcap=4.0, cache=CacheKind.DYNAMIC)
    path = tmp_path / "package"
    package = export(spec, path, return_weights=False, measure=False, lengths=(1, 2, 5))
    variant = package.variants[0]
    assert variant.contract.form == "attention+blocked"
    assert variant.contract.choice["rule"] == "fixed table, not measured"
    assert switch_lengths(variant.contract) == (192, 193)
    assert variant.certificate is not None
    # The softcap keeps scores below 4, far above the finite mask of the first branch.
    assert variant.certificate.verdict is Verdict.CAUSAL
    parity = next(check for check in variant.certificate.checks if check.name == "parity")
    assert "193 tokens" in parity.detail
    random = np.random.default_rng(0)
    with load(path) as session:
        for tokens in (1, 191, 192, 193, 194):
            sizes = {"tokens": tokens, "batch": 2, "features": 16, "past_tokens": 3}
            feeds = Feeder(contract=session.contract).make(sizes, random)
            oracle = run_spec(spec, {n: a.astype(np.float64) for n, a in feeds.items()})
            plain = run_spec(spec, feeds)
            for name, array in session.run(feeds).items():
                assert compare(array, oracle[name], plain[name]).passed, (tokens, name)
    report = verify(path, lengths=(1, 2, 5))
    assert report.exit_code == 0
    assert report.variants[0].certificate.verdict is Verdict.CAUSAL


def test_a_branch_that_is_wrong_does_not_get_through(tmp_path: Path) -> None:
    """The switched-to branch is broken; lengths below the switch alone would not show it."""
    path = tmp_path / "package"
    export(AttentionSpec(), path, return_weights=False, measure=False, lengths=(1, 2))
    model = next(path.rglob("model.onnx"))
    proto = onnx.load(model)
    choose = next(node for node in proto.graph.node if node.op_type == "If")
    blocked = next(a.g for a in choose.attribute if a.name == "else_branch")
    scan = next(node for node in blocked.node if node.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    attention = next(node for node in body.node if node.op_type == "Attention")
    del attention.input[3]
    lone = tmp_path / "broken.onnx"
    onnx.save(proto, lone)
    report = verify(lone, lengths=(1, 2, 5))
    assert report.exit_code == 1


def test_blocks_that_see_their_future_do_not_get_through(tmp_path: Path) -> None:
    path = tmp_path / "package"
    spec = AttentionSpec(num_heads=2, head_dim=8)
    export(spec, path, form="blocked", return_weights=False, lengths=(1, 2))
    proto = onnx.load(next(path.rglob("model.onnx")))
    graph = proto.graph
    while grouped := [node for node in graph.node if node.op_type in ("Scan", OP)]:
        node = grouped[0]
        if node.op_type == OP:
            node.attribute.append(onnx.helper.make_attribute("causal", 0))
            break
        graph = next(a.g for a in node.attribute if a.name == "body")
    lone = tmp_path / "broken.onnx"
    onnx.save(proto, lone)
    report = verify(lone, lengths=(1, 2, 5))
    assert report.exit_code == 1


class Layer(nn.Module):
    """Attention over embeddings with a table of 48 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10, 16), nn.Embedding(48, 16)
        self.project = nn.Linear(16, 48)

    def forward(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1])
        x = self.project(self.words(input_ids) + self.places(places))
        q, k, v = x.unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, dim=1)
        output = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return output.transpose(1, 2).flatten(2)


class WrittenByHand(nn.Module):
    """Attention that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 16)

    def forward(self, input_ids: Tensor) -> Tensor:
        x: Tensor = self.words(input_ids)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (x @ x.transpose(1, 2)).masked_fill(future, -torch.inf)
        return scores.softmax(-1) @ x


def export_layer(
    path: Path, module: nn.Module, measured: tuple[int, ...] = (4, 32, 64)
) -> Contract:
    ids = torch.randint(0, 10, (1, 5))
    package = export(
        module, path, example_inputs=[ids], measure_lengths=measured, lengths=(1, 2, 5)
    )
    return package.variants[0].contract


def test_a_module_gets_the_one_form_that_is_best_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "load", lambda: 0.1)
    contract = export_layer(tmp_path / "package", Layer())
    figures = contract.choice["milliseconds"]
    assert contract.form in figures
    assert set(figures) | set(contract.choice["refused"]) == set(FORMS)
    assert "scores are bounded" in contract.choice["refused"]["attention"]
    certificate = Certificate.from_json(next(tmp_path.rglob("certificate.json")).read_text())
    assert certificate.verdict is Verdict.CAUSAL
    # Of the lengths asked for, 64 is behind its table of positions.
    assert all(set(by_length) == {"4", "32"} for by_length in figures.values())
    with load(tmp_path / "package") as session:
        assert session(np.array([[1, 2, 3]]))[0].shape == (1, 3, 16)


@pytest.mark.parametrize("lengths", [(64, 100), (64, 4)])
def test_lengths_that_a_module_does_not_run_at_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...]
) -> None:
    monkeypatch.setattr(measure, "load", lambda: 0.1)
    contract = export_layer(tmp_path / "package", Layer(), lengths)
    # Of lengths that are all beyond the table of 48 positions, its end stands for them.
    measured = {"4"} if 4 in lengths else {"48"}
    assert set(contract.choice["milliseconds"]["decomposed"]) == measured


def test_a_module_without_attention_that_was_captured_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "load", lambda: 0.1)
    monkeypatch.setattr(measure, "time_models", None)
    contract = export_layer(tmp_path / "package", WrittenByHand())
    assert contract.choice["rule"] == "decomposed runs on every provider"


def test_a_module_on_a_busy_machine_is_decomposed(tmp_path: Path) -> None:
    contract = export_layer(tmp_path / "package", Layer())
    assert contract.form == "decomposed"
    assert contract.choice["rule"].startswith("fixed table: the machine was busy")


@pytest.mark.parametrize("form", ["blocked", "gqa"])
def test_a_window_longer_than_any_sequence(form: str, tmp_path: Path) -> None:
    spec = AttentionSpec(num_heads=2, head_dim=8, window=(1 << 32) + 1)
    path = tmp_path / "package"
    assert export(spec, path, form=form, return_weights=False, lengths=(1, 5)).root == path


def test_a_module_in_blocks_is_verified_with_parity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the graph itself in float64, where onnx's evaluator meets a shared cache."""
    # However busy the machine is: blocks are of 512 tokens, and lengths behind them are tried.
    monkeypatch.setattr(runnable, "_SECONDS", 600)
    path, ids = tmp_path / "package", torch.randint(0, 10, (1, 5))
    export(Layer(), path, form="blocked", example_inputs=[ids], lengths=(1, 2, 5))
    (variant,) = verify(path, lengths=(1, 2, 5)).variants
    assert "parity" in {check.name for check in variant.certificate.checks}
    assert not variant.not_checked


def test_a_busy_machine_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "load", lambda: 64.0)
    monkeypatch.setattr(measure, "cores", lambda: 4)
    package = export(
        AttentionSpec(), tmp_path / "package", return_weights=False, lengths=(1, 2, 5)
    )
    contract = package.variants[0].contract
    assert contract.form == "attention+blocked"
    assert contract.choice["rule"] == (
        "fixed table: the machine was busy, at a load of 64.0 on 4 cores"
    )


def test_measured_figures_are_in_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "load", lambda: 0.1)
    package = export(
        AttentionSpec(num_heads=2, head_dim=8),
        tmp_path / "package",
        return_weights=False,
        measure_lengths=(4, 300),
        lengths=(1, 2, 5),
    )
    contract = Contract.from_json(package.variants[0].contract.to_json())
    figures = contract.choice["milliseconds"]
    assert set(figures) == {"decomposed", "attention", "gqa", "blocked"}
    assert all(set(by_length) == {"4", "300"} for by_length in figures.values())
    assert all(spent > 0 for by_length in figures.values() for spent in by_length.values())
    assert contract.form.split("+")[0] in figures
    assert json.loads(contract.to_json())["choice"]["provider"] == "cpu"
    assert contract.choice["cores"] >= 1


@pytest.mark.parametrize("lengths", [(), (0, 5)])
def test_measure_lengths_must_be_lengths(lengths: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="measure_lengths"):
        export(AttentionSpec(), tmp_path / "package", measure_lengths=lengths)


def test_a_model_that_cannot_be_timed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"absent\.onnx"):
        measure.time_models(
            {"attention": tmp_path / "absent.onnx"}, (), None, CPU, (2,), lambda _: None
        )


def test_a_variant_equal_to_another_keeps_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are decomposed: on cpu it was the fastest, on cuda it is the fixed table's."""
    monkeypatch.setattr(measure, "load", lambda: 0.1)
    monkeypatch.setattr(
        measure,
        "time_models",
        lambda models, *_: {n: {5: 1.0 if n == "decomposed" else 2.0} for n in models},
    )
    package = export(
        AttentionSpec(num_heads=2, head_dim=8),
        tmp_path / "package",
        providers=("cpu", "cuda"),
        check_on=("cpu",),
        return_weights=False,
        measure_lengths=(5,),
        lengths=(1, 2),
    )
    cpu, cuda = (variant.contract for variant in package.variants)
    assert cpu.form == cuda.form == "decomposed"
    assert cpu.choice["provider"] == "cpu"
    assert cuda.choice == {"rule": "fixed table, not measured"}
