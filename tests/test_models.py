"""What ships in models/ is what the exporter writes today."""

from __future__ import annotations

from pathlib import Path

from causal_attn import causal_attention, models
from causal_attn.export import export
from causal_attn.package import check_certificate, read_package
from causal_attn.package.digest import model_digest


def test_exporting_again_gives_the_same_graph(tmp_path: Path) -> None:
    shipped = read_package(models.path("causal_attention"))
    again = export(causal_attention, tmp_path / "p", lengths=(1, 2)).variants[0]
    assert {variant.name for variant in shipped.variants} == {"cpu", "cuda", "openvino", "webgpu"}
    for variant in shipped.variants:
        assert model_digest(variant.model) == model_digest(again.model), "run `make models`"
        assert variant.contract.inputs == again.contract.inputs
        check_certificate(variant)


def test_it_is_small() -> None:
    files = [file for file in models.path("causal_attention").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 100_000
