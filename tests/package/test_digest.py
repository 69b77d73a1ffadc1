"""The digest, the metadata entries, and the wire reading beneath them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from package_samples import load, save_model

from causal_attn.errors import PackageError, UsageError
from causal_attn.package import hold
from causal_attn.package.digest import external_files, model_digest, read_metadata, write_metadata
from causal_attn.package.protobuf import TENSOR_PATHS, external_data, fields, metadata_record

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy disk one fsync takes a second, and no test here pulls the plug."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model.onnx")


def _messages(descriptor: Any) -> Iterator[tuple[int, Any]]:
    for field in descriptor.fields:
        if field.message_type is not None:
            yield field.number, field.message_type


def _reaches_tensor(descriptor: Any, seen: frozenset[str] = frozenset()) -> bool:
    if descriptor.name in seen:
        return False
    return descriptor.name == "TensorProto" or any(
        _reaches_tensor(child, seen | {descriptor.name}) for _, child in _messages(descriptor)
    )


def test_every_way_to_a_tensor_is_known() -> None:
    found: dict[str, dict[int, str]] = {}
    pending: list[Any] = [onnx.ModelProto.DESCRIPTOR]
    while pending:
        descriptor = pending.pop()
        if descriptor.name in found or descriptor.name == "TensorProto":
            continue
        children = [(n, d) for n, d in _messages(descriptor) if _reaches_tensor(d)]
        found[descriptor.name] = {number: child.name for number, child in children}
        pending.extend(child for _, child in children)
    assert found == TENSOR_PATHS


def test_field_numbers_are_those_of_onnx() -> None:
    numbers = {
        (message, field): getattr(onnx, message).DESCRIPTOR.fields_by_name[field].number
        for message, field in [
            ("ModelProto", "graph"),
            ("ModelProto", "metadata_props"),
            ("TensorProto", "external_data"),
            ("TensorProto", "data_location"),
            ("StringStringEntryProto", "key"),
            ("StringStringEntryProto", "value"),
        ]
    }
    assert list(numbers.values()) == [7, 14, 13, 14, 1, 2]
    assert TensorProto.EXTERNAL == 1


def test_a_record_is_what_onnx_reads() -> None:
    read = onnx.ModelProto()
    read.ParseFromString(metadata_record("clé", "v" * 1000))
    assert [(entry.key, entry.value) for entry in read.metadata_props] == [("clé", "v" * 1000)]


def test_plain_model_has_its_plain_sha256(model: Path) -> None:
    expected = hashlib.sha256(model.read_bytes()).hexdigest()
    assert model_digest(model) == expected
    write_metadata(model, {"causal_attn.contract": "{}"})
    assert model_digest(model) == expected != hashlib.sha256(model.read_bytes()).hexdigest()


def test_external_data_is_framed_as_documented(tmp_path: Path) -> None:
    model = save_model(tmp_path / "m.onnx", data="w/m.data")
    frame = b"\0" + hashlib.sha256(b"w/m.data").digest()
    frame += hashlib.sha256((tmp_path / "w/m.data").read_bytes()).digest()
    assert model_digest(model) == hashlib.sha256(model.read_bytes() + frame).hexdigest()


def test_external_files_are_taken_by_name_whatever_their_order(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    graph = onnx.GraphProto(initializer=[_external("b"), _external("ä"), _external("a")])
    path.write_bytes(onnx.ModelProto(graph=graph).SerializeToString())
    frames = b""
    for name in ("a", "b", "ä"):
        (tmp_path / name).write_text(2 * (name + "~"))
        frames += b"\0" + hashlib.sha256(name.encode()).digest()
        frames += hashlib.sha256((tmp_path / name).read_bytes()).digest()
    assert list(external_files(path)) == ["a", "b", "ä"]
    assert model_digest(path) == hashlib.sha256(path.read_bytes() + frames).hexdigest()


def test_pieces_do_not_change_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_model(tmp_path / "m.onnx", data="w")
    before = model_digest(model)
    monkeypatch.setattr(hold, "_CHUNK_BYTES", 3)
    assert model_digest(model) == before
    write_metadata(model, {"causal_attn.contract": "x" * 50})
    assert read_metadata(model) == {"causal_attn.contract": "x" * 50}
    assert model_digest(model) == before


@settings(max_examples=60, deadline=None)
@given(
    foreign=st.lists(st.tuples(text, text), max_size=3, unique_by=lambda pair: pair[0]),
    first=st.dictionaries(text.map(lambda t: "causal_attn." + t), text, max_size=3),
    second=st.dictionaries(text.map(lambda t: "causal_attn." + t), text, max_size=3),
    front=st.booleans(),
)
def test_metadata_never_touches_the_rest(
    tmp_path_factory: pytest.TempPathFactory,
    foreign: list[tuple[str, str]],
    first: dict[str, str],
    second: dict[str, str],
    front: bool,
) -> None:
    path = save_model(tmp_path_factory.mktemp("m") / "model.onnx")
    others = [(key, value) for key, value in foreign if not key.startswith("causal_attn.")]
    records = b"".join(metadata_record(key, value) for key, value in others)
    plain = records + path.read_bytes() if front else path.read_bytes() + records
    ours = b"".join(metadata_record(key, value) for key, value in first.items())
    path.write_bytes(ours + plain)
    assert model_digest(path) == hashlib.sha256(plain).hexdigest()
    assert read_metadata(path) == first
    write_metadata(path, second)
    assert model_digest(path) == hashlib.sha256(plain).hexdigest()
    assert read_metadata(path) == second
    assert path.read_bytes().startswith(plain)
    read = {entry.key: entry.value for entry in load(path).metadata_props}
    assert read == dict(others) | second
    write_metadata(path, {})
    assert path.read_bytes() == plain


def test_every_byte_counts(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.onnx", data="model.onnx.data")
    before = model_digest(model)
    for path in (model, tmp_path / "model.onnx.data"):
        original = path.read_bytes()
        for index in range(len(original)):
            changed = bytearray(original)
            changed[index] ^= 1
            path.write_bytes(changed)
            with suppress(PackageError):
                assert model_digest(model) != before, f"{path.name} at {index}"
        path.write_bytes(original)
    assert model_digest(model) == before


def _external(name: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    return tensor


def _graph(name: str) -> onnx.GraphProto:
    return onnx.GraphProto(name="g", initializer=[_external(name)])


def test_external_data_is_found_wherever_a_tensor_can_be() -> None:
    model = onnx.ModelProto(graph=_graph("initializer"))
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(_external("values"))
    sparse.indices.CopyFrom(_external("indices"))
    node = model.graph.node.add()
    node.attribute.add().t.CopyFrom(_external("t"))
    node.attribute.add().tensors.append(_external("tensors"))
    node.attribute.add().g.CopyFrom(_graph("g"))
    node.attribute.add().graphs.append(_graph("graphs"))
    node.attribute.add().sparse_tensor.values.CopyFrom(_external("sparse_tensor"))
    node.attribute.add().sparse_tensors.add().indices.CopyFrom(_external("sparse_tensors"))
    deep = node.attribute.add().g.node.add().attribute.add().g.node.add()
    deep.attribute.add().t.CopyFrom(_external("deep"))
    function = model.functions.add()
    function.node.add().attribute.add().t.CopyFrom(_external("function"))
    function.attribute_proto.add().t.CopyFrom(_external("default"))
    training = model.training_info.add()
    training.initialization.CopyFrom(_graph("initialization"))
    training.algorithm.CopyFrom(_graph("algorithm"))
    found = {place.location for place in external_data(model.SerializeToString())}
    assert found == {
        "initializer", "values", "indices", "t", "tensors", "g", "graphs", "sparse_tensor",
        "sparse_tensors", "deep", "function", "default", "initialization", "algorithm",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "must name a location"),
        ({"offset": "0"}, "must name a location"),
        ({"location": ""}, "1 to 1024 characters"),
        ({"location": "a" * 1025}, "1 to 1024 characters"),
        ({"location": "../w"}, "relative path"),
        ({"location": "a/../../w"}, "relative path"),
        ({"location": "/etc/passwd"}, "relative path"),
        ({"location": "C:w"}, "relative path"),
        ({"location": "a\\w"}, "relative path"),
        ({"location": "w\0"}, "relative path"),
        ({"location": "missing"}, "must name what is there"),
        ({"location": "*/_ORT_MEM_ADDR_/*"}, "must name what is there"),
        ({"location": "."}, "regular file"),
        ({"location": "link"}, "stay inside"),
        ({"location": "loop"}, "must name what is there"),
        ({"location": "pipe"}, "regular file"),
        ({"location": "w", "offset": "-1"}, "decimal count"),
        ({"location": "w", "offset": "+1"}, "decimal count"),
        ({"location": "w", "offset": "1_0"}, "decimal count"),
        ({"location": "w", "offset": "٣"}, "decimal count"),
        ({"location": "w", "length": ""}, "decimal count"),
        ({"location": "w", "length": "9" * 20}, "decimal count"),
        ({"location": "w", "offset": "5"}, "must have 9 bytes"),
        ({"location": "w", "offset": "1", "length": "4"}, "must have 5 bytes"),
        ({"location": "w", "length": "9" * 19}, "must have 9+ bytes"),
    ],
)
def test_hostile_external_data(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    folder = tmp_path / "package"
    path = save_model(folder / "model.onnx", data="w")
    (tmp_path / "w").write_bytes(b"1234")
    (folder / "link").symlink_to("../w")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    proto = load(path)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("external_data")
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(PackageError, match=message):
        model_digest(path)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    path = save_model(tmp_path / "model.onnx", data="w")
    (tmp_path / "w").rename(tmp_path / "real")
    (tmp_path / "w").symlink_to("real")
    assert external_files(path) == {"w": tmp_path.resolve() / "real"}


def _field(number: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([number << 3 | 2, len(body)]) + body


_LOCATION = _field(13, _field(1, b"location") + _field(2, b"w"))


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(_LOCATION, id="merged: location in one piece"),
        pytest.param(b"\x70\x01" + _LOCATION + b"\x70\x07", id="unknown enum value after"),
        pytest.param(b"\x70\x81\x80\x80\x80\x10" + _LOCATION, id="low 32 bits say external"),
    ],
)
def test_what_another_reader_may_call_external_is_covered(tensor: bytes) -> None:
    assert [p.location for p in external_data(_field(7, _field(5, tensor)))] == ["w"]


@pytest.mark.parametrize("tensor", [b"\x70\x01\x70\x07", b"\x70\x81\x80\x80\x80\x10"])
def test_external_without_a_location_is_refused_in_any_spelling(tensor: bytes) -> None:
    with pytest.raises(PackageError, match="must name a location"):
        list(external_data(_field(7, _field(5, tensor))))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00", "a field numbered 0"),
        (b"\x3a", "the end of the data inside a number"),
        (b"\x3a\x05ab", "5 bytes where 2 are"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "18446744073709551615 bytes"),
        (b"\x08" + b"\xff" * 10, "more than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\xf8\xff\xff\xff\xff\x01\x00", "a field numbered"),
        (b"\x3b", "wire type 3"),
        (b"\x3e", "wire type 6"),
        (b"\x0d\x00", "4 bytes where 1 are"),
        (b"\x09\x00", "8 bytes where 1 are"),
        (b"\x08\x07", "without a graph"),
        (b"\x3a\x00" + _field(14, b"\x0a\x01\xff"), "not UTF-8"),
        (b"\x3a\x00" + _field(14, _field(1, b"a") * 2), "two keys"),
        (b"\x3a\x00" + metadata_record("causal_attn.x", "1") * 2, "once in its metadata"),
        (b"", "1 byte to 2 GiB"),
        (b"{}", "must be an ONNX file"),
    ],
)
def test_malformed_models_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(PackageError, match=message):
        read_metadata(path)


def test_two_locations_in_one_tensor_are_refused() -> None:
    with pytest.raises(PackageError, match="'location' once"):
        list(external_data(_field(7, _field(5, _LOCATION * 2))))


def test_nesting_is_bounded() -> None:
    graph = b""
    for _ in range(60):
        body = b"\x32" + _varint(len(graph)) + graph
        body = b"\x2a" + _varint(len(body)) + body
        graph = b"\x0a" + _varint(len(body)) + body
    with pytest.raises(PackageError, match="nest at most 100"):
        list(external_data(b"\x3a" + _varint(len(graph)) + graph))


def _varint(value: int) -> bytes:
    head = bytearray()
    while value >= 128:
        head.append(value & 127 | 128)
        value >>= 7
    return bytes([*head, value])


def test_a_truncated_model_is_refused_at_any_length(model: Path) -> None:
    whole = model.read_bytes()
    # Up to the end of the graph: what follows it are whole fields that a model can do without.
    end = max(field.end for field in fields(whole) if field.number == 7)
    for size in range(end):
        model.write_bytes(whole[:size])
        with pytest.raises(PackageError):
            model_digest(model)


def test_sizes_are_capped(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with open(path, "wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(PackageError, match="2 GiB"):
        model_digest(path)


def test_entries_must_be_ours_and_text(model: Path) -> None:
    before = model.read_bytes()
    for entries, message in [
        ({"other": "x"}, "start with 'causal_attn.'"),
        ({"causal_attn.x": "\ud800"}, "Unicode text"),
        ({"causal_attn.x": "x" * (5 << 20)}, "at most 4194304 bytes"),
    ]:
        with pytest.raises(UsageError, match=message):
            write_metadata(model, entries)
    assert model.read_bytes() == before


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_the_old_model(
    model: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Any
) -> None:
    before = model.read_bytes()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((KeyboardInterrupt, PackageError)):
        write_metadata(model, {"causal_attn.contract": "{}"})
    assert model.read_bytes() == before
    assert os.listdir(model.parent) == ["model.onnx"]


def test_mode_and_link_are_kept(model: Path) -> None:
    model.chmod(0o640)
    link = model.with_name("link.onnx")
    link.symlink_to("model.onnx")
    write_metadata(link, {"causal_attn.contract": "{}"})
    assert link.is_symlink()
    assert stat.S_IMODE(model.stat().st_mode) == 0o640
    assert read_metadata(model) == {"causal_attn.contract": "{}"}


def test_a_model_with_our_metadata_is_still_valid(model: Path) -> None:
    write_metadata(model, {"causal_attn.contract": "{}"})
    onnx.checker.check_model(load(model))
