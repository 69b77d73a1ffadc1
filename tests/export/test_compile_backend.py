"""``torch.compile(backend="causal_attn")``: right results, shared memory, and refusals by name."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends import registry

import causal_attn.export.compile.backend as backend_module
from causal_attn import causal_attention
from causal_attn.attention.operator import attend
from causal_attn.errors import CaptureError, CheckError, ProviderError, UsageError
from causal_attn.export import compile_report
from causal_attn.export.compile.backend import compile_backend
from causal_attn.runtime import Session


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    compile_report(clear=True)
    with torch.no_grad():
        yield


def compiled(f: Callable[..., Any], *, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(f, backend=compile_backend, dynamic=dynamic, options=options)


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    """A pre-norm transformer block as GPT-2 has it."""

    def __init__(self, width: int = 32, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout
        self.register_buffer("gain", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width)) * self.gain
        x = x + self.down(F.gelu(self.up(self.second(x))))
        return F.dropout(x, self.dropout, self.training)


class TestResults:
    def test_the_reference_at_one_size_then_at_any(self) -> None:
        f = compiled(lambda q, k, v: causal_attention(q, k, v, window=3))
        for tokens in (5, 9, 40, 6):
            q, k, v = torch.randn(3, 2, 3, tokens, 8)
            for got, wanted in zip(f(q, k, v), causal_attention(q, k, v, window=3), strict=True):
                close(got, wanted)
        first, second = compile_report().graphs
        assert first.attention == second.attention == {"attend": 1, "kept": {}}
        assert (first.form, first.recompiled) == ("decomposed", "")
        assert "2 runs against float64" in first.checked[0]
        assert "7 runs against float64" in second.checked[0]
        assert second.recompiled.startswith("q float32[2, 3, 5, 8] -> float32[2, 3, s")
        assert compile_report().recompiles == (second,)

    def test_a_block_whose_weights_change(self) -> None:
        block = Block()
        f = compiled(block, dynamic=True, form="attention")
        for tokens in (7, 12):
            x = torch.randn(2, tokens, 32)
            close(f(x), block(x))
        block.up.weight.mul_(3)
        close(f(x), block(x))
        block.down.weight.data = torch.randn_like(block.down.weight)
        close(f(x), block(x))
        (graph,) = compile_report().graphs
        assert (graph.form, graph.weights) == ("attention", 13)
        assert list(graph.inputs) == ["x"]
        assert "attention: 1 calls, written attention" in str(compile_report())

    def test_a_weight_that_is_not_contiguous_is_not_remembered(self) -> None:
        block = Block()
        block.up.weight.data = torch.randn(32, 128).t()
        f = compiled(block, dynamic=True)
        x = torch.randn(2, 7, 32)
        close(f(x), block(x))
        block.up.weight.mul_(3)
        close(f(x), block(x))

    def test_masks_of_every_kind(self) -> None:
        def f(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor, row: Tensor) -> Any:
            sdpa = F.scaled_dot_product_attention
            masked = sdpa(q, k, v, seen) + sdpa(q, k, v, bias) + sdpa(q, k, v, row)
            return masked + attend(q, k, v)[0]

        seen = torch.rand(2, 1, 5, 5) < 0.5
        seen[:, :, 2] = False
        bias = torch.zeros(5, 5).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
        row = torch.rand(2, 3, 5, 1) < 0.5
        q, k, v = torch.randn(3, 2, 3, 5, 8)
        close(compiled(f)(q, k, v, seen, bias, row), f(q, k, v, seen, bias, row))
        assert compile_report().graphs[0].attention == {
            "attend": 1,
            "kept": {
                "scaled_dot_product_attention: its mask is not known to be the causal one": 3
            },
        }

    def test_lengths_that_add_up_and_results_that_are_no_tensors(self) -> None:
        def f(x: Tensor, y: Tensor, both: Tensor) -> tuple[Any, ...]:
            doubled = x * 2 if x.shape[0] > 4 else x
            return torch.cat([doubled, y]) + both, x.shape[0] * 2 + y.shape[0], y, None, doubled

        g = compiled(f, dynamic=True)
        for a, b in ((6, 9), (20, 3), (3, 4)):
            arguments = torch.randn(a, 3), torch.randn(b, 3), torch.randn(a + b, 3)
            got, wanted = g(*arguments), f(*arguments)
            close(got[0], wanted[0])
            assert got[1] == wanted[1]
            assert got[2] is arguments[1]
            assert got[3] is None
            close(got[4], wanted[4])
        assert (
            compile_report().graphs[-1].recompiled == "a value that the code branches on differs"
        )

    def test_what_export_asks_of_lengths_is_guarded(self) -> None:
        f = compiled(lambda x: x[:, :30] * 2, dynamic=True)
        for tokens in (20, 25, 50, 40, 20):
            x = torch.randn(2, tokens)
            close(f(x), x[:, :30] * 2)
        # Exported at 20, the slice is all of the tensor; at 50 it is not.
        assert len(compile_report().graphs) == 2

    def test_scalars_that_change(self) -> None:
        def f(x: Tensor, times: int, factor: float, columns: int, eps: float) -> Tensor:
            return F.layer_norm(x[:, :columns] * times + factor, (columns,), eps=eps)

        g = compiled(f, dynamic=True)
        x = torch.randn(3, 40)
        for numbers in ((2, 0.5, 30, 0.1), (3, 0.75, 30, 0.1), (3, 0.75, 20, 0.1)):
            close(g(x, *numbers), f(x, *numbers))
        # Arithmetic takes any number; a shape is compiled again.
        assert len(compile_report().graphs) == 2
        close(g(x, 3, 0.75, 20, 10.0), f(x, 3, 0.75, 20, 10.0))

    def test_one_tensor_given_twice(self) -> None:
        f = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        q, k, v = torch.randn(3, 1, 2, 5, 8)
        for arguments in ((q, k, v), (q, k, k)):
            wanted = F.scaled_dot_product_attention(*arguments, is_causal=True)
            close(f(*arguments), wanted)

    def test_integer_inputs_keep_to_their_range(self) -> None:
        table = nn.Embedding(11, 8)
        ids = torch.tensor([[0, 10, 4], [10, 3, 1]])
        close(compiled(table, dynamic=True)(ids), table(ids))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
    def test_other_dtypes(self, dtype: torch.dtype) -> None:
        def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        q, k, v = torch.randn(3, 1, 2, 5, 8, dtype=dtype)
        got = compiled(f)(q, k, v)
        assert got.dtype == dtype
        # torch's own half precision is the less exact of the two.
        wanted = f(q.double(), k.double(), v.double()).to(dtype)
        torch.testing.assert_close(got, wanted)

    def test_many_threads(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x @ x.T

        g = compiled(f)
        inputs = [torch.randn(64, 64) for _ in range(8)]
        g(inputs[0])
        results: dict[int, Tensor] = {}

        def work(index: int) -> None:
            with torch.no_grad():
                results[index] = g(inputs[index])

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index, x in enumerate(inputs):
            close(results[index], f(x))


class TestSharedMemory:
    def test_neither_inputs_nor_results_are_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shared: list[int] = []
        returned: list[int] = []
        share, run_shared = Session.share, Session.run_shared

        def sharing(self: Session, tensor: Any) -> Any:
            value = share(self, tensor)
            shared.append(value.data_ptr())
            return value

        def running(self: Session, values: Any) -> list[Any]:
            results = run_shared(self, values)
            returned.extend(value.data_ptr() for value in results)
            return results

        block = Block()
        f = compiled(block)
        x = torch.randn(2, 7, 32)
        f(x)
        monkeypatch.setattr(Session, "share", sharing)
        monkeypatch.setattr(Session, "run_shared", running)
        again = f(x)
        # The weights were shared by the first call.
        assert shared == [x.data_ptr()]
        assert returned == [again.data_ptr()]
        block.up.weight.data = torch.randn_like(block.up.weight)
        f(x)
        assert set(shared) == {x.data_ptr(), block.up.weight.data_ptr()}

    def test_results_live_on_their_own(self) -> None:
        f = compiled(lambda x: x.mul(2) + 1)
        x = torch.randn(500, 500)
        first = f(x)
        wanted = x * 2 + 1
        torch.compiler.reset()
        del f
        gc.collect()
        torch.randn(500, 500)
        assert torch.equal(first, wanted)

    def test_inputs_are_not_written_and_need_not_be_contiguous(self) -> None:
        f = compiled(lambda x, y: (x + 1) * y)
        x, y = torch.randn(4, 6), torch.randn(6, 4).t()
        before = x.clone()
        result = f(x, y)
        close(result, (x + 1) * y)
        result.zero_()
        assert torch.equal(x, before)


def refused(
    f: Callable[..., Any], *arguments: Any, error: type[Exception], match: str, **options: Any
) -> None:
    """`f` raises `error` at every call, and the report says so."""
    g = compiled(f, **options)
    for _ in range(2):
        with pytest.raises(error, match=match):
            g(*arguments)
    (graph,) = compile_report().refusals
    assert graph.refused


def falls_back(f: Callable[..., Any], *arguments: Any) -> Any:
    """What `f` returns from torch, which the report says it runs in."""
    torch.compiler.reset()
    result = compiled(f, fallback=True)(*arguments)
    (graph,) = compile_report().fallbacks
    assert graph.eager
    assert f"runs in torch: {graph.eager}" in str(compile_report())
    return result


class TestRefusals:
    def test_gradients(self) -> None:
        block, x = Block(), torch.randn(2, 5, 32)
        with torch.enable_grad():
            refused(block, x, error=UsageError, match="must be called for inference")
            assert falls_back(block, x).requires_grad
        with torch.inference_mode():
            assert not compiled(block)(x).requires_grad

    def test_a_write_to_an_argument(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x.add_(1) * 2

        refused(f, torch.randn(3, 4), error=CaptureError, match="must not change")
        x = torch.zeros(3, 4)
        assert (falls_back(f, x) == 2).all()
        assert (x == 1).all()

    def test_a_view_of_an_argument(self) -> None:
        refused(
            lambda x: (x + 1, x.t()), torch.randn(3, 4), error=CaptureError, match="return a view"
        )

    def test_random_numbers(self) -> None:
        refused(
            Block(dropout=0.1).train(),
            torch.randn(2, 5, 32),
            error=CaptureError,
            match="random numbers from",
        )

    def test_an_operator_that_onnx_lacks(self) -> None:
        refused(
            lambda x: torch.linalg.eigvals(x).abs(),
            torch.randn(3, 3),
            error=CaptureError,
            match=r"must do with complex numbers what has a rule here, got aten\.linalg_eigvals",
        )

    def test_a_dtype_without_kernels(self) -> None:
        refused(
            lambda x: x * 2,
            torch.randn(3, 3).bfloat16(),
            error=UsageError,
            match="not right for torch.bfloat16",
        )

    def test_a_graph_that_computes_something_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lower = getattr(backend_module, "lower")  # noqa: B009

        def wrong(*arguments: Any) -> Any:
            lowered = lower(*arguments)
            for node in lowered.model.graph.all_nodes():
                if node.op_type == "Softmax":
                    node.attributes.add(ir.AttrInt64("axis", 1))
            return lowered

        monkeypatch.setattr(backend_module, "lower", wrong)
        arguments = torch.randn(3, 2, 3, 5, 8).unbind()
        refused(
            lambda q, k, v: causal_attention(q, k, v).output,
            *arguments,
            error=CheckError,
            match=r"must agree with the captured one on cpu, got `output_0` as called: ",
        )
        compile_report(clear=True)
        compiled(lambda q, k, v: causal_attention(q, k, v).output, check=False)(*arguments)
        assert compile_report().graphs[0].checked == ("nothing: options={'check': False}",)

    def test_a_provider_that_is_not_there(self) -> None:
        f = compiled(lambda x: x * 2, provider="gpu")
        with pytest.raises(ProviderError, match="`provider` must be one of"):
            f(torch.randn(3))
        assert compile_report().refusals[0].provider == "gpu"

    def test_tensors_elsewhere(self) -> None:
        f = compiled(lambda x: x * 2, provider="cuda")
        with pytest.raises(
            UsageError, match="must run where the tensors are, got 'cuda' for `l_x_"
        ):
            f(torch.randn(3))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"providers": "cpu"}, r"`options` must be out of .*, got \['providers'\]"),
            ({"fallback": 1}, r"`options\['fallback'\]` must be bool, got 1"),
            ({"provider": None}, r"`options\['provider'\]` must be str, got None"),
            ({"form": "fused"}, r"`form` must be one of"),
        ],
    )
    def test_options(self, options: dict[str, Any], message: str) -> None:
        f = torch.compile(lambda x: x * 2, backend=compile_backend, options=options)
        with pytest.raises(UsageError, match=message):
            f(torch.randn(3))

    def test_modes_of_other_backends(self) -> None:
        f = torch.compile(lambda x: x * 2, backend=compile_backend, mode="max-autotune")
        with pytest.raises(UsageError, match="`mode` must be None"):
            f(torch.randn(3))


class TestReport:
    def test_a_break_makes_two_graphs(self) -> None:
        def f(x: Tensor) -> Tensor:
            y = x * 2
            torch._dynamo.graph_break()
            return y + 1

        x = torch.randn(3)
        close(compiled(f)(x), f(x))
        assert len({graph.frame for graph in compile_report().graphs}) == 2
        values = compile_report(clear=True).to_dict()
        assert [values[key] for key in ("recompiles", "fallbacks", "refusals")] == [0, 0, 0]
        assert values["graphs"][0]["inputs"] == {"x": "float32[3]"}
        assert not compile_report().graphs


class TestTheName:
    def test_torch_finds_it_by_the_entry_point(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import tomllib

        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
        points = project["project"]["entry-points"]["torch_dynamo_backends"]
        point = EntryPoint("causal_attn", points["causal_attn"], "torch_dynamo_backends")
        assert point.load() is compile_backend
        # As torch's own discovery leaves it, whether or not this checkout is installed.
        registry.list_backends()
        monkeypatch.setitem(registry._BACKENDS, "causal_attn", point)
        monkeypatch.delitem(registry._COMPILER_FNS, "causal_attn", raising=False)
        assert "causal_attn" in torch._dynamo.list_backends()
        f = torch.compile(lambda x: x * 2, backend="causal_attn", options={"provider": "cpu"})
        x = torch.randn(3)
        close(f(x), x * 2)
        assert len(compile_report().graphs) == 1
        registry._COMPILER_FNS.pop("causal_attn")
