"""Packages: written, read back, selected from, replaced, and opened by ONNX Runtime itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from package_samples import CONTRACT, certify, load, save_model, source

from causal_attn.errors import CertificateError, PackageError, ProviderError, UsageError
from causal_attn.machine.provider import Provider
from causal_attn.package import (
    Package,
    check_certificate,
    open_model,
    read_package,
    write_package,
)
from causal_attn.package import replace as store
from causal_attn.package.contract import SCHEMA
from causal_attn.package.digest import model_digest, read_metadata, write_metadata

ALL = (Provider.CPU, Provider.CUDA, Provider.OPENVINO)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy disk one fsync takes a second, and no test here pulls the plug."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "source" / "add.onnx")


@pytest.fixture
def package(tmp_path: Path, model: Path) -> Package:
    return write_package(
        tmp_path / "package",
        name="add",
        variants=[source(model, provider) for provider in ALL],
        description="Adds one.",
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def edit(package: Package, change: dict[str, Any], variant: str = "cpu") -> None:
    """Update one variant's entry in the manifest on disk."""
    path = package.root / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["components"]["add"]["variants"][variant].update(change)
    path.write_text(json.dumps(manifest))


def test_round_trip(package: Package, model: Path) -> None:
    assert read_package(package.root) == package
    assert (package.name, package.version, package.description) == ("add", "1", "Adds one.")
    assert [variant.name for variant in package.variants] == ["cpu", "cuda", "openvino"]
    assert [variant.device for variant in package.variants] == ["cpu", "gpu", "cpu"]
    for variant, provider in zip(package.variants, ALL, strict=True):
        assert variant.provider is provider
        assert variant.ep == provider.ort_name
        assert variant.contract == CONTRACT
        assert variant.certificate == certify(model)
        assert variant.model == package.root.resolve() / "add" / str(provider) / "model.onnx"
        check_certificate(variant)


def test_a_lone_model_carries_its_contract_and_certificate(package: Package) -> None:
    lone = open_model(package.select("cpu").model)
    assert (lone.contract, lone.certificate) == (CONTRACT, package.variants[0].certificate)
    assert (lone.name, lone.ep, lone.provider) == ("model", "", None)
    check_certificate(lone)


def test_a_model_without_a_contract_is_refused(model: Path) -> None:
    with pytest.raises(PackageError, match=r"must carry 'causal_attn\.contract'"):
        open_model(model)


def test_external_data_travels(tmp_path: Path) -> None:
    model = save_model(tmp_path / "source" / "m.onnx", data="weights/m.onnx.data")
    package = write_package(tmp_path / "package", name="add", variants=[source(model)])
    written = package.select("cpu")
    assert (written.directory / "weights" / "m.onnx.data").read_bytes() == b"\x00\x00\x80\x3f"
    check_certificate(written)
    (written.directory / "weights" / "m.onnx.data").write_bytes(b"\x00\x00\x00\x40")
    with pytest.raises(CertificateError, match="changed after it was checked"):
        check_certificate(written)


def test_external_data_must_not_take_our_names(tmp_path: Path) -> None:
    model = save_model(tmp_path / "source" / "m.onnx", data="Contract.json")
    with pytest.raises(PackageError, match="must not be called"):
        write_package(tmp_path / "package", name="add", variants=[source(model)])
    assert os.listdir(tmp_path) == ["source"]


def test_same_arguments_same_bytes(tmp_path: Path, package: Package, model: Path) -> None:
    other = write_package(
        tmp_path / "other",
        name="add",
        variants=[source(model, provider) for provider in ALL],
        description="Adds one.",
    )
    assert tree(other.root) == tree(package.root)


def test_onnx_runtime_opens_it_and_runs_it(package: Package) -> None:
    ort = pytest.importorskip("onnxruntime")
    if not hasattr(ort, "ModelPackage"):
        pytest.skip(f"onnxruntime {ort.__version__} has no ModelPackage reader in Python")
    info = ort.ModelPackage.open(str(package.root)).get_info()
    assert (info["package_name"], info["layout"]) == ("add", "portable")
    read = {variant["name"]: variant for variant in info["components"][0]["variants"]}
    for variant in package.variants:
        assert read[variant.name]["ep"] == variant.ep
        assert Path(read[variant.name]["variant_directory"]) == variant.directory
        slot = json.loads(read[variant.name]["executor_info"]["causal_attn"])
        assert slot == {"contract": "contract.json", "certificate": "certificate.json"}
    component = ort.ModelPackageContext(str(package.root)).select_component(
        "add", ort.ModelPackageOptions(ort.SessionOptions())
    )
    session = component.create_session(None)
    (result,) = session.run(None, {"x": np.array([1, 2], np.float32)})
    assert result.tolist() == [2, 3]
    assert session.get_modelmeta().custom_metadata_map == read_metadata(
        package.select("cpu").model
    )


def test_we_open_what_onnx_runtime_writes(package: Package) -> None:
    ort = pytest.importorskip("onnxruntime")
    if not hasattr(ort, "ModelPackage"):
        pytest.skip(f"onnxruntime {ort.__version__} has no ModelPackage writer in Python")
    with ort.ModelPackage.open(str(package.root)) as opened:
        opened.set_metadata(description="Written by ONNX Runtime.")
        opened.commit()
    theirs = read_package(package.root)
    assert theirs.description == "Written by ONNX Runtime."
    assert [(v.name, v.ep, v.contract, v.certificate) for v in theirs.variants] == [
        (v.name, v.ep, v.contract, v.certificate) for v in package.variants
    ]
    for variant in theirs.variants:
        check_certificate(variant)


def test_component_and_executor_files(package: Package) -> None:
    """The other spellings of the format: component.json, default directory, executor files."""
    root, path = package.root, package.root / "manifest.json"
    manifest = json.loads(path.read_text())
    component = manifest["components"]["add"]
    for name, variant in component["variants"].items():
        del variant["variant_directory"]
        for who, entry in variant["executor_info"].items():
            (root / "add" / name / f"{who}.json").write_text(json.dumps(entry))
            variant["executor_info"][who] = f"{who}.json"
    (root / "add" / "component.json").write_text(json.dumps(component))
    for spelling in ("add", "add/component.json"):
        manifest["components"]["add"] = spelling
        path.write_text(json.dumps(manifest))
        assert read_package(root) == package
        ort = pytest.importorskip("onnxruntime")
        if hasattr(ort, "ModelPackage"):
            ort.ModelPackageContext(str(root)).select_component(
                "add", ort.ModelPackageOptions(ort.SessionOptions())
            ).create_session(None)


@pytest.mark.parametrize("version", ["1.0", "1.1", "1", 1])
def test_schema_versions(package: Package, version: str | int) -> None:
    path = package.root / "manifest.json"
    manifest = json.loads(path.read_text()) | {"schema_version": version}
    path.write_text(json.dumps(manifest))
    assert read_package(package.root) == package


def test_a_folder_of_transformers_must_be_exported_first(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(PackageError, match="a model of transformers") as caught:
        read_package(folder)
    assert str(caught.value).endswith(f"causal-attn export '{folder}' -o OUT")


def test_a_later_minor_version_may_have_more_fields(package: Package) -> None:
    path = package.root / "manifest.json"
    manifest = json.loads(path.read_text()) | {"schema_version": "1.1", "news": 1}
    path.write_text(json.dumps(manifest))
    assert read_package(package.root) == package


class TestSelect:
    @pytest.mark.parametrize("name", ["openvino", "OpenVINOExecutionProvider", Provider.OPENVINO])
    def test_by_any_name(self, package: Package, name: str) -> None:
        assert package.select(name).name == "openvino"

    def test_what_is_not_there_lists_what_is(self, package: Package) -> None:
        with pytest.raises(ProviderError, match=r"'tensorrt'.*has cpu, cuda, openvino"):
            package.select(Provider.TENSORRT)

    def test_unknown_provider_and_component(self, package: Package) -> None:
        with pytest.raises(ProviderError, match="'gpu'"):
            package.select("gpu")
        with pytest.raises(UsageError, match=r"`component` must be one of \['add'\]"):
            package.select("cpu", component="decoder")

    def test_an_unknown_ep_is_kept_as_it_is(self, package: Package) -> None:
        edit(package, {"ep": "NewExecutionProvider"}, "cuda")
        variant = read_package(package.root).select("NewExecutionProvider")
        assert (variant.name, variant.provider) == ("cuda", None)
        with pytest.raises(ProviderError, match="has cpu, NewExecutionProvider, openvino"):
            read_package(package.root).select("cuda")

    def test_two_variants_for_one_provider_need_a_name(self, tmp_path: Path, model: Path) -> None:
        package = write_package(
            tmp_path / "package",
            name="add",
            variants=[source(model, name="small"), source(model, name="large")],
        )
        with pytest.raises(UsageError, match=r"one of the variants \['small', 'large'\]"):
            package.select("cpu")
        assert package.select("cpu", name="large").name == "large"

    def test_several_components(self, tmp_path: Path, model: Path) -> None:
        sources = [replace(source(model), component=name) for name in ("one", "two")]
        package = write_package(tmp_path / "package", name="both", variants=sources)
        assert package.select("cpu", "two").directory.parent.name == "two"
        with pytest.raises(UsageError, match=r"`component` must be one of \['one', 'two'\]"):
            package.select("cpu")

    def test_foreign_variants_are_named_and_left_alone(self, package: Package) -> None:
        edit(package, {"executor_info": {"genai": {}}, "variant_directory": "gone"}, "cuda")
        read = read_package(package.root)
        assert read.foreign == ("add/cuda",)
        assert [variant.name for variant in read.variants] == ["cpu", "openvino"]


class TestCertificate:
    def test_none(self, tmp_path: Path, model: Path) -> None:
        package = write_package(
            tmp_path / "package", name="add", variants=[replace(source(model), certificate=None)]
        )
        assert not (package.root / "add" / "cpu" / "certificate.json").exists()
        with pytest.raises(CertificateError, match="must have a certificate"):
            check_certificate(package.select("cpu"))

    def test_a_failed_one_is_not_written(self, tmp_path: Path, model: Path) -> None:
        failed = replace(source(model), certificate=certify(model, passed=False))
        with pytest.raises(CertificateError, match=r"not passed, \['parity'\]"):
            write_package(tmp_path / "package", name="add", variants=[failed])
        assert os.listdir(tmp_path) == ["source"]

    def test_that_of_another_model_is_not_written(self, tmp_path: Path, model: Path) -> None:
        other = save_model(tmp_path / "source" / "other.onnx", weight=2)
        with pytest.raises(CertificateError, match="must be of this model"):
            write_package(
                tmp_path / "package",
                name="add",
                variants=[replace(source(model), certificate=certify(other))],
            )
        assert os.listdir(tmp_path) == ["source"]

    def test_a_failed_one_is_refused(self, package: Package) -> None:
        path = package.root / "add" / "cpu" / "certificate.json"
        path.write_text(path.read_text().replace('"passed": true', '"passed": false'))
        with pytest.raises(CertificateError, match=r"not passed, \['parity'\]"):
            check_certificate(read_package(package.root).select("cpu"))

    def test_a_changed_model_is_refused(self, package: Package) -> None:
        variant = package.select("cpu")
        proto = load(variant.model)
        proto.graph.node[0].op_type = "Sub"
        variant.model.write_bytes(proto.SerializeToString())
        with pytest.raises(CertificateError, match="changed after it was checked"):
            check_certificate(variant)

    def test_a_changed_contract_is_refused(self, package: Package) -> None:
        path = package.root / "add" / "cpu" / "contract.json"
        path.write_text(path.read_text().replace('"captured"', '"attention"'))
        with pytest.raises(CertificateError, match="contract must be the one inside"):
            check_certificate(read_package(package.root).select("cpu"))

    def test_another_certificate_inside_is_refused(self, package: Package) -> None:
        variant = package.select("cpu")
        entries = read_metadata(variant.model)
        certificate = entries["causal_attn.certificate"].replace("budget", "bounds")
        write_metadata(variant.model, entries | {"causal_attn.certificate": certificate})
        with pytest.raises(CertificateError, match="certificate must be the one inside"):
            check_certificate(variant)


class TestReplace:
    def test_an_earlier_package_is_replaced_whole(self, package: Package, model: Path) -> None:
        written = write_package(package.root, name="add", variants=[source(model)])
        assert sorted(tree(written.root)) == [
            "add/cpu/certificate.json",
            "add/cpu/contract.json",
            "add/cpu/model.onnx",
            "manifest.json",
        ]
        assert sorted(os.listdir(package.root.parent)) == ["package", "source"]

    def test_without_an_exchange_of_the_system(
        self, package: Package, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "_exchange", lambda *_: False)
        written = write_package(package.root, name="new", variants=[source(model)])
        assert written.name == "new"
        assert sorted(os.listdir(package.root.parent)) == ["package", "source"]

    def test_a_package_may_be_made_from_itself(self, package: Package) -> None:
        again = write_package(
            package.root, name="add", variants=[source(package.select("cpu").model)]
        )
        check_certificate(again.select("cpu"))

    def test_one_with_a_contract_of_another_version_is_replaced(
        self, package: Package, model: Path
    ) -> None:
        contract = package.variants[0].directory / "contract.json"
        contract.write_text(contract.read_text().replace(SCHEMA, "causal_attn.contract/1"))
        with pytest.raises(PackageError, match="Export the model again"):
            read_package(package.root)
        write_package(package.root, name="add", variants=[source(model)])
        assert SCHEMA in contract.read_text()

    def test_new_and_empty_folders(self, tmp_path: Path, model: Path) -> None:
        (tmp_path / "empty").mkdir()
        for path in (tmp_path / "empty", tmp_path / "deep" / "new"):
            assert write_package(path, name="add", variants=[source(model)]).root == path

    def test_folders_have_the_usual_mode(self, tmp_path: Path, package: Package) -> None:
        (tmp_path / "usual").mkdir()
        (tmp_path / "usual.txt").touch()
        assert package.root.stat().st_mode == (tmp_path / "usual").stat().st_mode
        written = package.select("cpu").model.stat().st_mode
        assert written == (tmp_path / "usual.txt").stat().st_mode

    @pytest.mark.parametrize(
        "files",
        [
            {"notes.txt": "mine"},
            {"manifest.json": '{"name": "a web extension", "manifest_version": 3}'},
            {"manifest.json": "not JSON"},
            {"package.json": "{}", "manifest.json": "[]"},
        ],
    )
    def test_anything_else_is_not_replaced(
        self, tmp_path: Path, model: Path, files: dict[str, str]
    ) -> None:
        place = tmp_path / "place"
        place.mkdir()
        for name, text in files.items():
            (place / name).write_text(text)
        with pytest.raises(UsageError, match="free, empty or an earlier package"):
            write_package(place, name="add", variants=[source(model)])
        assert {path.name: path.read_text() for path in place.iterdir()} == files

    def test_files_and_links_are_not_replaced(self, tmp_path: Path, package: Package) -> None:
        model = package.select("cpu").model
        (tmp_path / "file").write_text("mine")
        (tmp_path / "link").symlink_to(package.root)
        for name in ("file", "link"):
            with pytest.raises(UsageError, match="a link or a file"):
                write_package(tmp_path / name, name="add", variants=[source(model)])
        assert (tmp_path / "link").is_symlink()

    @pytest.mark.parametrize("exchange", [True, False])
    @pytest.mark.parametrize("call", range(1, 14))
    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
    def test_an_interruption_leaves_the_old_one(
        self,
        package: Package,
        model: Path,
        monkeypatch: pytest.MonkeyPatch,
        exchange: bool,
        call: int,
        error: Any,
    ) -> None:
        """Fail at the n-th step that touches the disk; afterwards the old or the new is there."""
        before, count = tree(package.root), 0

        def failing(name: str) -> Any:
            original = getattr(os, name)

            def step(*arguments: Any) -> Any:
                nonlocal count
                count += 1
                if count == call:
                    raise error
                return original(*arguments)

            return step

        if not exchange:
            monkeypatch.setattr(store, "_exchange", lambda *_: False)
        sources = [source(model)]
        for name in ("fsync", "rename", "replace"):
            monkeypatch.setattr(os, name, failing(name))
        with suppress(KeyboardInterrupt, UsageError, PackageError):
            write_package(package.root, name="new", variants=sources)
        monkeypatch.undo()
        if read_package(package.root).name == "add":
            assert tree(package.root) == before
        assert sorted(os.listdir(package.root.parent)) == ["package", "source"]

    @pytest.mark.skipif(sys.platform != "linux", reason="the exchange in one step is Linux's")
    def test_a_killed_writer_leaves_a_whole_package(self, package: Package, model: Path) -> None:
        """Whenever the writer dies, one whole package stands at the path."""
        script = (
            "import sys; from package_samples import source\n"
            "from causal_attn.package import write_package\n"
            "from pathlib import Path\n"
            "sources = [source(Path(sys.argv[2]))]\n"
            "print('ready', flush=True)\n"
            "while True: write_package(sys.argv[1], name='new', variants=sources)\n"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        writer = subprocess.Popen(
            [sys.executable, "-c", script, str(package.root), str(model)],
            env=environment,
            stdout=subprocess.PIPE,
        )
        with writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                assert (package.root / "manifest.json").is_file()
            writer.send_signal(signal.SIGKILL)
        check_certificate(read_package(package.root).select("cpu"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../add"}, "`name` must be"),
        ({"name": ""}, "`name` must be"),
        ({"variants": []}, "at least one variant"),
        ({"variants": "two"}, "'add/cpu' twice"),
        ({"variants": "named"}, "`name of a variant` must be"),
        ({"variants": "component"}, "`component` must be"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, model: Path, change: dict[str, Any], message: str
) -> None:
    one = source(model)
    sources = {
        "two": [one, one],
        "named": [replace(one, name="a/b")],
        "component": [replace(one, component="..")],
    }
    arguments = {"name": "add", "variants": [one]} | change
    if isinstance(arguments["variants"], str):
        arguments["variants"] = sources[arguments["variants"]]
    with pytest.raises(UsageError, match=re.escape(message)):
        write_package(tmp_path / "package", **arguments)
    assert os.listdir(tmp_path) == ["source"]


def test_a_place_that_cannot_be_written(model: Path) -> None:
    with pytest.raises(UsageError, match="a place that can be written"):
        write_package("/proc/none/package", name="add", variants=[source(model)])


def test_session_options_come_back(tmp_path: Path, model: Path) -> None:
    options = {"session.use_env_allocators": "0"}
    package = write_package(
        tmp_path / "package",
        name="add",
        variants=[replace(source(model), session_options=options)],
    )
    assert package.select("cpu").session_options == options


def test_only_the_standard_library_is_needed(package: Package) -> None:
    script = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnxruntime', 'numpy', 'google', 'typer', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from causal_attn.package import check_certificate, open_model, read_package\n"
        "variant = read_package(sys.argv[1]).select('cpu')\n"
        "check_certificate(variant); check_certificate(open_model(variant.model))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(package.root)],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_digest_is_that_of_the_source(package: Package, model: Path) -> None:
    assert {model_digest(variant.model) for variant in package.variants} == {model_digest(model)}
