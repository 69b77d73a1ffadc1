"""Packages made to mislead, overwhelm or crash a reader: each is refused with a PackageError."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from package_samples import save_model, source

from causal_attn.errors import PackageError
from causal_attn.package import check_certificate, open_model, read_package, write_package
from causal_attn.package.confine import read_text

BAD_PATHS = [
    "../../../outside", "..", "x/../../../../outside", "/etc/passwd", "//host/share", "C:/x",
    "C:x", "a\\..\\b", "\\\\host\\share", "x\x00y", "x\ny", "file:x", "sha256:00", "~/x\x7f", "",
    "a" * 1025, "a" * 100_000, "a" * 300, "missing", "\ud800", 7, None, True, 1.5, ["model.onnx"],
    {"path": "model.onnx"},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy disk one fsync takes a second, and no test here pulls the plug."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A package with one variant, with external data, and files outside that must stay unread."""
    model = save_model(tmp_path / "source" / "m.onnx", data="m.onnx.data")
    write_package(tmp_path / "package", name="add", variants=[source(model)])
    shutil.copytree(tmp_path / "package" / "add" / "cpu", tmp_path / "outside")
    return tmp_path / "package"


def variant(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["components"]["add"]["variants"]["cpu"]
    return found


def change(root: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = root / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


def read_and_check(root: Path) -> None:
    for found in read_package(root).variants:
        check_certificate(found)


def refuse(root: Path, message: str | None = None) -> None:
    with pytest.raises(PackageError, match=message) as caught:
        read_and_check(root)
    text = str(caught.value)
    assert len(text) < 2000, "a hostile value fills the message"
    text.encode()


def test_the_package_that_the_rest_is_made_from_is_right(root: Path) -> None:
    check_certificate(read_package(root).select("cpu"))


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path)[:20])
class TestPaths:
    def test_variant_directory(self, root: Path, path: Any) -> None:
        change(root, lambda m: variant(m).update(variant_directory=path))
        refuse(root)

    def test_component(self, root: Path, path: Any) -> None:
        change(root, lambda m: m["components"].update(add=path))
        refuse(root)

    def test_model_file(self, root: Path, path: Any) -> None:
        change(root, lambda m: variant(m)["executor_info"]["ort"].update(model_file=path))
        refuse(root)

    def test_executor(self, root: Path, path: Any) -> None:
        if not isinstance(path, dict):
            change(root, lambda m: variant(m)["executor_info"].update(ort=path))
            refuse(root)

    def test_contract(self, root: Path, path: Any) -> None:
        change(root, lambda m: variant(m)["executor_info"]["causal_attn"].update(contract=path))
        refuse(root)

    def test_certificate(self, root: Path, path: Any) -> None:
        change(root, lambda m: variant(m)["executor_info"]["causal_attn"].update(certificate=path))
        refuse(root)


FILES = ["manifest.json", "add", "add/cpu"] + [
    f"add/cpu/{name}"
    for name in ("model.onnx", "m.onnx.data", "contract.json", "certificate.json")
]


@pytest.mark.parametrize("name", FILES)
class TestFiles:
    def test_missing(self, root: Path, name: str) -> None:
        (root / name).rename(root.parent / "away")
        refuse(root)

    def test_a_link_that_leads_outside(self, root: Path, name: str) -> None:
        (root / name).rename(root.parent / "away")
        (root / name).symlink_to(root.parent / "away")
        refuse(root, "stay inside")

    def test_a_link_to_itself(self, root: Path, name: str) -> None:
        (root / name).rename(root.parent / "away")
        (root / name).symlink_to(Path(name).name)
        refuse(root)

    def test_another_kind(self, root: Path, name: str) -> None:
        was_file = (root / name).is_file()
        (root / name).rename(root.parent / "away")
        if was_file:
            (root / name).mkdir()
        else:
            (root / name).write_text("a file")
        refuse(root)

    def test_a_pipe(self, root: Path, name: str) -> None:
        (root / name).rename(root.parent / "away")
        os.mkfifo(root / name)
        refuse(root)

    def test_truncated_empty_or_not_text(self, root: Path, name: str) -> None:
        if not (root / name).is_file():
            return
        whole = (root / name).read_bytes()
        for data in (b"", whole[:3], whole[: len(whole) // 2], whole[:-5], b"\xff\xfe" + whole):
            (root / name).write_bytes(data)
            refuse(root)


def test_a_device_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="regular file"):
        read_text(Path("/dev/zero"), "A package")


def test_a_link_inside_is_followed(root: Path) -> None:
    (root / "add" / "cpu").rename(root / "real")
    (root / "add" / "cpu").symlink_to("../real")
    found = read_package(root).select("cpu")
    check_certificate(found)
    assert found.directory == root.resolve() / "real"


def test_a_component_file_cannot_leave_by_its_own_folder(root: Path) -> None:
    manifest = json.loads((root / "manifest.json").read_text())
    component = manifest["components"]["add"]
    component["variants"]["cpu"]["variant_directory"] = "../../outside"
    (root / "add" / "component.json").write_text(json.dumps(component))
    change(root, lambda m: m["components"].update(add="add"))
    refuse(root, "relative path")


def test_the_installed_layout_gives_no_more_freedom(root: Path) -> None:
    outside = str(root.parent / "outside")
    change(root, lambda m: m.update(layout="installed"))
    check_certificate(read_package(root).select("cpu"))
    change(root, lambda m: variant(m).update(variant_directory=outside))
    refuse(root, "relative path")


TEXTS = ("package_name", "package_version", "description", "device")
WRONG = [None, True, 0, -1, 1.5, "", "x", [], ["x"], {"x": 1}, 10**400]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize(
    "place",
    [
        ("schema_version",),
        ("layout",),
        ("package_name",),
        ("package_version",),
        ("description",),
        ("additional_metadata",),
        ("components",),
        ("components", "add"),
        ("components", "add", "variants"),
        ("components", "add", "variants", "cpu"),
        ("components", "add", "variants", "cpu", "ep"),
        ("components", "add", "variants", "cpu", "device"),
        ("components", "add", "variants", "cpu", "executor_info"),
        ("components", "add", "variants", "cpu", "executor_info", "ort"),
        ("components", "add", "variants", "cpu", "executor_info", "ort", "session_options"),
        ("components", "add", "variants", "cpu", "executor_info", "ort", "provider_options"),
        ("components", "add", "variants", "cpu", "executor_info", "causal_attn"),
    ],
    ids=lambda place: place[-1],
)
def test_wrong_types(root: Path, place: tuple[str, ...], wrong: Any) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        for name in place[:-1]:
            manifest = manifest[name]
        manifest[place[-1]] = wrong

    change(root, edit)
    legal = {
        "additional_metadata": isinstance(wrong, dict),
        "provider_options": not wrong,
        "ep": wrong == "x",
    } | dict.fromkeys(TEXTS, isinstance(wrong, str))
    if legal.get(place[-1], False):
        read_and_check(root)
    else:
        refuse(root)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(extra=1), "must have only"),
        (lambda m: m["components"]["add"].update(extra=1), "must have only"),
        (lambda m: variant(m).update(extra=1), "must have only"),
        (lambda m: variant(m)["executor_info"]["causal_attn"].update(extra=1), "must have only"),
        (lambda m: m.update(schema_version="2.0"), "schema_version"),
        (lambda m: m.update(schema_version="1.0.0"), "schema_version"),
        (lambda m: m.pop("schema_version"), "schema_version"),
        (lambda m: m.pop("components"), "components"),
        (lambda m: m.update(components={}), "must have a variant"),
        (lambda m: variant(m).pop("ep"), "`ep` must name"),
        (lambda m: variant(m)["executor_info"].pop("ort"), "must be an object"),
        (lambda m: variant(m)["executor_info"].pop("causal_attn"), "not written by causal_attn"),
        (lambda m: variant(m)["executor_info"]["causal_attn"].pop("contract"), "`contract`"),
        (lambda m: variant(m)["executor_info"]["causal_attn"].pop("certificate"), "must have a"),
    ],
)
def test_manifests_of_another_shape(
    root: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    change(root, edit)
    refuse(root, message)


@pytest.mark.parametrize(
    "name",
    [
        "session.some_new_option",
        "session.model_external_initializers_file_folder_path",
        "ep.context_file_path",
        "session.optimized_model_external_initializers_file_name",
        "CACHE_DIR",
        "custom-op.library",
    ],
)
def test_session_options_outside_the_list(root: Path, name: str) -> None:
    options = {name: "/tmp"}
    change(root, lambda m: variant(m)["executor_info"]["ort"].update(session_options=options))
    refuse(root, "`session_options` must be out of")


def test_provider_options_are_refused(root: Path) -> None:
    options = {"backend_path": "evil.so"}
    change(root, lambda m: variant(m)["executor_info"]["ort"].update(provider_options=options))
    refuse(root, "provider_options")


@pytest.mark.parametrize(
    "name", ["manifest.json", "add/cpu/contract.json", "add/cpu/certificate.json"]
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "levels"),
        ('{"a":' * 200_000, "levels"),
        ("[" * 100 + "]" * 100, "at most 64 levels"),
        ('{"schema_version": "1.0", "schema_version": "1.0"}', "twice in one object"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "float64"),
        ('{"a": ' + "9" * 5000 + "}", "JSON"),
        ('["\\ud800"]', "Unicode"),
        ('{"\\udfff": 1}', "Unicode"),
        ("\ufeff{}", "JSON"),
        ('"' + "x" * (5 << 20) + '"', "at most 4194304 bytes"),
        ("{} {}", "JSON"),
        ("null", "object"),
    ],
    ids=lambda text: str(text)[:16],
)
def test_json_that_is_not_what_it_says(root: Path, name: str, text: str, message: str) -> None:
    (root / name).write_bytes(text.encode())
    refuse(root, message)


def test_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("file", "missing", "a" * 300, "x\0"):
        with pytest.raises(PackageError, match="must be a folder"):
            read_package(tmp_path / name)
    for name in ("missing", "a" * 300, "x\0", "."):
        with pytest.raises(PackageError, match="file"):
            open_model(tmp_path / name)


def test_wrong_metadata_in_a_lone_model(root: Path) -> None:
    model = root / "add" / "cpu" / "model.onnx"
    whole = model.read_bytes()
    for old, new in [(b'"captured"', b'"captured '), (b'"causal"', b'"causel"')]:
        assert old in whole
        model.write_bytes(whole.replace(old, new))
        with pytest.raises(PackageError):
            open_model(model)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(BAD_PATHS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children: list[Any] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    return [path] + [p for key, part in children for p in _places(part, (*path, key))]


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_change_of_any_json_is_read_or_refused(root: Path, data: st.DataObject) -> None:
    name = data.draw(
        st.sampled_from(["manifest.json", "add/cpu/contract.json", "add/cpu/certificate.json"])
    )
    path = root / name
    original = path.read_bytes()
    value = json.loads(original)
    place = data.draw(st.sampled_from(_places(value)[1:]))
    inside = value
    for key in place[:-1]:
        inside = inside[key]
    if data.draw(st.booleans()):
        inside[place[-1]] = data.draw(json_values)
    elif isinstance(inside, dict):
        inside[data.draw(st.text())] = inside.pop(place[-1])
    path.write_text(json.dumps(value))
    try:
        with suppress(PackageError):
            read_and_check(root)
    finally:
        path.write_bytes(original)


def _mutated(data: st.DataObject, whole: bytes) -> bytes:
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(changed) - 1, 0)))
        kind = data.draw(st.sampled_from(["set", "insert", "cut", "copy"]))
        if kind == "set":
            changed[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(max_size=12))
        elif kind == "cut":
            del changed[at : at + data.draw(st.integers(1, 50))]
        else:
            size = data.draw(st.integers(1, 50))
            other = data.draw(st.integers(0, len(changed)))
            changed[at:at] = changed[other : other + size]
    return bytes(changed)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_change_of_any_file_is_read_or_refused(root: Path, data: st.DataObject) -> None:
    path = root / data.draw(st.sampled_from([name for name in FILES if "." in name]))
    original = path.read_bytes()
    path.write_bytes(_mutated(data, original))
    try:
        with suppress(PackageError):
            read_and_check(root)
        with suppress(PackageError):
            check_certificate(open_model(root / "add" / "cpu" / "model.onnx"))
    finally:
        path.write_bytes(original)
