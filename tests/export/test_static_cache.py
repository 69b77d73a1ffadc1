"""A cache of fixed capacity: exported, checked, and written in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from causal_attn import AttentionSpec, causal_attention
from causal_attn.attention.call import AttendCall, AttendResult
from causal_attn.attention.numpy_reference import run_spec
from causal_attn.attention.operator import ATTEND, attend, by_reference
from causal_attn.attention.reference import attend as reference_attend
from causal_attn.attention.spec import CacheKind
from causal_attn.bench.cases import Case, Mode
from causal_attn.bench.systems import PackageSystem, TorchSystem
from causal_attn.errors import CheckError, InputError, UsageError
from causal_attn.export import export
from causal_attn.export.choose.auto import choose
from causal_attn.export.forms.demand import Demand
from causal_attn.export.forms.table import FORMS
from causal_attn.export.target import reference_target
from causal_attn.machine.provider import Provider
from causal_attn.package.cache_layout import CacheEntry, CacheLayout, EntryKind
from causal_attn.package.contract import Contract, TensorContract
from causal_attn.runtime import load
from causal_attn.verify import verify
from causal_attn.verify.feeds.cache_slots import held
from causal_attn.verify.feeds.feeder import Feeder

LENGTHS = (1, 2, 7)
HEADS, KV_HEADS, FEATURES = 4, 2, 8
SHARE = {"present_key": "past_key", "present_value": "past_value"}
FORM_NAMES = ("decomposed", "gqa")

Arrays = dict[str, NDArray[Any]]


def spec(**options: Any) -> AttentionSpec:
    shape = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": FEATURES}
    return AttentionSpec(**{**shape, "cache": CacheKind.STATIC, **options})


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for form in FORM_NAMES:
        made[form] = tmp_path_factory.mktemp("static") / form
        export(spec(), made[form], form=form, return_weights=False, lengths=LENGTHS)
    return made


@pytest.fixture(params=FORM_NAMES)
def package(request: pytest.FixtureRequest, packages: dict[str, Path]) -> Path:
    return packages[request.param]


def sequences(batch: int, tokens: int, *, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    return {
        name: rng.standard_normal((batch, count, tokens, FEATURES)).astype(np.float32)
        for name, count in heads.items()
    }


def part(whole: Arrays, tokens: slice) -> Arrays:
    return {name: np.ascontiguousarray(array[:, :, tokens]) for name, array in whole.items()}


def reference(whole: Arrays) -> NDArray[Any]:
    q, k, v = (torch.from_numpy(whole[name]).double() for name in "qkv")
    output: NDArray[Any] = causal_attention(q, k, v).output.numpy()
    return output


def buffers(batch: int, capacity: int, value: float = np.nan) -> Arrays:
    shape = (batch, KV_HEADS, capacity, FEATURES)
    return {name: np.full(shape, value, np.float32) for name in SHARE.values()}


def test_the_contract_names_buffers_and_lengths(package: Path) -> None:
    with load(package) as session:
        contract = session.contract
    dims = {t.name: t.dims for t in (*contract.inputs, *contract.outputs)}
    assert [t.name for t in contract.inputs] == [
        "q", "k", "v", "past_key", "past_value", "past_lengths"
    ]  # fmt: skip
    assert dims["past_lengths"] == ("batch",)
    for present, past in SHARE.items():
        assert dims[present] == dims[past] == ("batch", KV_HEADS, "capacity", FEATURES)
    assert contract.inputs[-1].dtype == "int64"


def test_a_package_passes_every_check_again_without_torch(package: Path) -> None:
    (report,) = verify(package, lengths=LENGTHS).variants
    assert report.certificate.passed
    names = {check.name for check in report.certificate.checks}
    assert {"influence proof", "parity", "future is invisible", "decode is equivalent"} <= names


@pytest.mark.parametrize(
    "options",
    [
        {"window": 3, "softcap": 2.0, "scale": 0.3},
        {"num_heads": None, "num_kv_heads": None, "head_dim": None},
    ],
    ids=["window, softcap, scale", "open sizes"],
)
def test_decomposed_writes_weights_and_every_spec(options: dict[str, Any], tmp_path: Path) -> None:
    package = export(spec(**options), tmp_path / "p", form="decomposed", lengths=LENGTHS)
    certificate = package.variants[0].certificate
    assert certificate is not None
    names = {check.name for check in certificate.checks}
    assert {"weights", "parity"} | ({"window"} if "window" in options else set()) <= names


def test_gqa_writes_window_softcap_and_scale_in_float16(tmp_path: Path) -> None:
    options = {"window": 3, "softcap": 2.0, "scale": 0.3}
    package = export(
        spec(**options), tmp_path / "p", form="gqa", return_weights=False, dtype="float16",
        lengths=(1, 2, 7, 12),
    )  # fmt: skip
    certificate = package.variants[0].certificate
    assert certificate is not None
    assert "window" in {check.name for check in certificate.checks}


@pytest.mark.parametrize("batch", [1, 3])
def test_decoding_in_place_says_what_the_whole_says(package: Path, batch: int) -> None:
    tokens = 9
    whole = sequences(batch, tokens)
    want = reference(whole)
    with load(package) as session:
        first = part(whole, slice(0, 1)) | buffers(batch, tokens + 2)
        lengths = np.zeros(batch, np.int64)
        bound = session.bind({**first, "past_lengths": lengths}, share=SHARE)
        for step in range(tokens):
            now = part(whole, slice(step, step + 1))
            bound.update({**now, "past_lengths": np.full(batch, step)})
            bound.run()
            got = bound.read("output")[:, :, 0]
            np.testing.assert_allclose(got, want[:, :, step], rtol=1e-4, atol=1e-5)
        for past, name in (("past_key", "k"), ("past_value", "v")):
            cache = bound.read(past)
            np.testing.assert_array_equal(cache[:, :, :tokens], whole[name])
            assert np.isnan(cache[:, :, tokens:]).all()


def test_a_full_cache_is_refused_before_a_kernel_sees_it(package: Path) -> None:
    now = part(sequences(2, 2), slice(0, 2)) | buffers(2, 5)
    with load(package) as session:
        for lengths in ([0, 4], [5, 0], [-1, 0], [0, 1 << 40]):
            feeds = {**now, "past_lengths": np.array(lengths)}
            with pytest.raises(InputError, match=r"`past_lengths` must be 0 to 3, got"):
                session.run(feeds)
            with pytest.raises(InputError, match="5 slots and 2 new tokens"):
                session.bind(feeds, share=SHARE)
        bound = session.bind({**now, "past_lengths": np.array([3, 0])}, share=SHARE)
        with pytest.raises(InputError, match=r"got \[3, 4\]"):
            bound.update({"past_lengths": np.array([3, 4])})
        bound.run()
        assert bound.read("past_lengths").tolist() == [3, 0]


@pytest.mark.parametrize(
    "share",
    [{"present_key": "past_value", "present_value": "past_key"}, {"output": "q"}],
)
def test_only_a_present_is_written_into_its_past(package: Path, share: dict[str, str]) -> None:
    now = part(sequences(2, 2), slice(0, 2)) | buffers(2, 5)
    with load(package) as session, pytest.raises(InputError, match="`share` must be out of"):
        session.bind({**now, "past_lengths": np.zeros(2, np.int64)}, share=share)


def test_decoding_in_place_equals_the_growing_cache(package: Path, tmp_path: Path) -> None:
    form = package.name
    dynamic = tmp_path / "dynamic"
    export(spec(cache=CacheKind.DYNAMIC), dynamic, form=form, return_weights=False, lengths=(1, 3))
    whole = sequences(2, 6)
    grown = {name: array[:, :, :0] for name, array in buffers(2, 1).items()}
    with load(package) as session, load(dynamic) as growing:
        first = {**part(whole, slice(0, 1)), **buffers(2, 6, np.inf)}
        bound = session.bind({**first, "past_lengths": np.zeros(2, np.int64)}, share=SHARE)
        for step in range(6):
            now = part(whole, slice(step, step + 1))
            results = growing.run({**now, **grown})
            grown = {past: results[present] for present, past in SHARE.items()}
            bound.update({**now, "past_lengths": np.full(2, step)})
            bound.run()
            np.testing.assert_allclose(
                bound.read("output"), results["output"], rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("share", [{}, SHARE], ids=["apart", "in place"])
def test_several_tokens_follow_pasts_of_different_lengths(
    package: Path, batch: int, share: dict[str, str]
) -> None:
    feeds = case(batch, tokens=4, capacity=11)
    want = run_spec(spec(), feeds)
    with load(package) as session:
        bound = session.bind(feeds, share=share)
        bound.run()
        got = {name: bound.read(name) for name in ("output", *SHARE)}
    np.testing.assert_allclose(got["output"], want["output"], rtol=1e-4, atol=1e-5)
    for present in SHARE:
        for row, past in enumerate(feeds["past_lengths"]):
            held = slice(0, past + 4)
            np.testing.assert_array_equal(got[present][row, :, held], want[present][row, :, held])


def test_the_bench_binds_it_in_place(packages: dict[str, Path]) -> None:
    step = Case(
        mode=Mode.DECODE, batch=2, heads=HEADS, kv_heads=KV_HEADS, head_dim=FEATURES, tokens=20,
        dtype="float32",
    )  # fmt: skip
    arrays = step.arrays(1)
    ours, torchs = PackageSystem(Provider.CPU), TorchSystem(Provider.CPU)
    for system in (ours, torchs):
        system.prepare(step, packages["gqa"])
        system.load(arrays)
    for _ in range(2):
        np.testing.assert_allclose(ours.output(), torchs.output(), rtol=1e-4, atol=1e-5)
    assert ours._binding is not None
    np.testing.assert_array_equal(ours._binding.read("past_key")[:, :, -1:], arrays["k"])
    ours.release()


def test_what_lies_in_unused_slots_changes_nothing(package: Path) -> None:
    feeds = case(3, tokens=2, capacity=8)
    with load(package) as session:
        outputs = []
        for value in (np.nan, np.inf, -1e30, 0.0):
            for name in SHARE.values():
                for row, past in enumerate(feeds["past_lengths"]):
                    feeds[name][row, :, past:] = value
            outputs.append(session.run(feeds)["output"].tobytes())
    assert len(set(outputs)) == 1


@pytest.mark.parametrize("form", ["attention", "blocked"])
def test_other_forms_refuse_a_static_cache(form: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cache of fixed capacity: use form 'decomposed'"):
        export(spec(), tmp_path / "p", form=form, return_weights=False)
    assert FORMS[form].refusal(spec(), torch.float32, Provider.CPU, 23) is not None
    call = AttendCall.of(*arguments()[:9], False, arguments()[10])
    assert "no cache of fixed capacity" in (FORMS[form].lacks(Demand.of_call(call)) or "")


def test_gqa_refuses_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="never holds the weights"):
        export(spec(), tmp_path / "p", form="gqa")


@pytest.mark.parametrize(("return_weights", "form"), [(False, "gqa"), (True, "decomposed")])
def test_auto_takes_the_form_that_writes_in_place(return_weights: bool, form: str) -> None:
    target = reference_target(spec(), dtype=torch.float32, return_weights=return_weights)
    choice, _ = choose(
        target, torch.float32, Provider.CPU, None, return_weights=return_weights, measuring=None
    )
    assert choice.name == form


def _reads_too_far(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    tokens = query.shape[2]
    return reference_attend(
        query, key, value, past=lengths + 1, kv_lengths=lengths + tokens + 1
    ).output


def _multiplies_garbage_by_0(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    return reference_attend(query, key, value, past=lengths).output


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (_reads_too_far, "influence proof: not causal"),
        (_multiplies_garbage_by_0, r"got parity: `output` at .* NaN where the oracle has none"),
    ],
)
def test_the_checks_see_slots_that_must_not_be_read(
    broken: Callable[..., Tensor], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower(call: AttendCall) -> AttendResult:
        right = by_reference(call)
        wrong = broken(call.query, right.present_key, right.present_value, call.past_lengths)
        return replace(right, output=wrong)

    monkeypatch.setitem(FORMS, "decomposed", replace(FORMS["decomposed"], lower=lower))
    with pytest.raises(CheckError, match=found):
        export(spec(), tmp_path / "p", form="decomposed", return_weights=False, lengths=(2, 5))


def test_feeds_differ_between_sequences_and_leave_garbage() -> None:
    assert case(1, tokens=2, capacity=8)["past_lengths"].tolist() == [3]
    feeds = case(3, tokens=2, capacity=8)
    assert feeds["past_lengths"].tolist() == [6, 3, 0]
    assert np.isnan(feeds["past_key"][2]).any()
    assert np.isinf(feeds["past_key"][2]).any()
    assert np.isfinite(feeds["past_key"][0, :, :6]).all()
    assert not np.isfinite(feeds["past_key"][0, :, 6:]).all()


def case(batch: int, *, tokens: int, capacity: int) -> Arrays:

    cache = ("batch", KV_HEADS, "capacity", FEATURES)
    dims: dict[str, tuple[str | int, ...]] = {
        "q": ("batch", HEADS, "tokens", FEATURES),
        **dict.fromkeys("kv", ("batch", KV_HEADS, "tokens", FEATURES)),
        **dict.fromkeys(SHARE.values(), cache),
        "past_lengths": ("batch",),
    }
    contract = Contract(
        inputs=tuple(
            TensorContract(
                name=name, dtype="int64" if name == "past_lengths" else "float32", dims=shape
            )
            for name, shape in dims.items()
        ),
        outputs=(
            TensorContract(name="output", dtype="float32", dims=dims["q"]),
            *(TensorContract(name=name, dtype="float32", dims=cache) for name in SHARE),
        ),
        cache=CacheLayout(
            entries=tuple(
                CacheEntry(input=past, output=present, kind=EntryKind.FIXED, axis=2)
                for present, past in SHARE.items()
            ),
            lengths="past_lengths",
            capacity="capacity",
        ),
        form="gqa",
        opset=23,
        spec=spec(),
    )
    feeder = Feeder(contract=contract, fixed={"past_lengths": held(contract)})
    sizes = {"batch": batch, "tokens": tokens, "capacity": capacity}
    return feeder.make(sizes, np.random.default_rng(7))


def arguments(*, dtype: torch.dtype = torch.float64, grad: bool = False) -> tuple[Any, ...]:
    """Of the op: two sequences with 1 and 3 tokens held, 2 new ones, room for 6."""
    random = torch.Generator().manual_seed(0)

    def make(heads: int, tokens: int) -> torch.Tensor:
        drawn = torch.randn(2, heads, tokens, 4, generator=random, dtype=torch.float64)
        return drawn.to(dtype).requires_grad_(grad)

    given = (make(2, 2), make(1, 2), make(1, 2), make(1, 6), make(1, 6))
    return (*given, None, None, None, None, True, torch.tensor([1, 3]))


def test_the_op_says_what_each_sequence_says_alone() -> None:
    query, key, value, past_key, past_value, *_, lengths = arguments()
    output, weights, present_key, _ = attend(*arguments())
    for row, past in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        k = torch.cat([past_key[one, :, :past], key[one]], dim=2)
        v = torch.cat([past_value[one, :, :past], value[one]], dim=2)
        want = causal_attention(query[one], k, v, past=past)
        torch.testing.assert_close(output[one], want.output)
        torch.testing.assert_close(weights[one, ..., : past + 2], want.weights)
        assert not weights[one, ..., past + 2 :].any()
        torch.testing.assert_close(present_key[one, :, : past + 2], k)


def test_torch_accepts_the_op_with_lengths() -> None:
    torch.library.opcheck(ATTEND, arguments(dtype=torch.float32, grad=True))


def test_gradients_reach_the_buffers() -> None:
    given = arguments(grad=True)
    assert torch.autograd.gradcheck(lambda *args: attend(*args)[0], given, fast_mode=True)


@pytest.mark.parametrize("broken", ["no past", "kv_lengths too"])
def test_lengths_need_a_past_and_nothing_else(broken: str) -> None:
    given = list(arguments())
    if broken == "no past":
        given[3] = given[4] = None
    else:
        given[5] = torch.tensor([1, 2])
    with pytest.raises(InputError, match="`past_lengths` must come with a past"):
        attend(*given)
