"""A model is read once, within bounds, wherever its external data hangs in the graph."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from package_samples import CONTRACT, save_model

from causal_attn.errors import PackageError
from causal_attn.machine import memory
from causal_attn.package import Variant, hold, protobuf
from causal_attn.package.digest import model_digest
from causal_attn.package.hold import PADDING_BYTES, Weights, hold_model
from causal_attn.package.protobuf import ELEMENT_BITS, external_data, fields, inlined
from causal_attn.runtime.loading import open_variant
from causal_attn.runtime.ort import SessionOptions


def external(name: str, value: float, location: str, *, length: bool = True) -> TensorProto:
    tensor = numpy_helper.from_array(np.full(64, value, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    if length:
        tensor.external_data.add(key="length", value="256")
    return tensor


def save(folder: Path, graph: onnx.GraphProto, functions: Any = (), **files: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_bytes(np.full(64, value, np.float32).tobytes())
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def graph_of(*nodes: onnx.NodeProto, constants: Any = (), name: str = "g") -> onnx.GraphProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])
    inputs = [x] if name == "g" else []
    return helper.make_graph(list(nodes), name, inputs, [y], list(constants))


def in_a_constant(location: str) -> tuple[onnx.GraphProto, list[onnx.FunctionProto]]:
    constant = helper.make_node("Constant", [], ["c"], value=external("c", 0, location))
    return graph_of(constant, helper.make_node("Add", ["x", "c"], ["y"])), []


def in_a_branch(location: str) -> tuple[onnx.GraphProto, list[onnx.FunctionProto]]:
    inner = graph_of(
        helper.make_node("Add", ["x", "w"], ["y"]),
        constants=[external("w", 0, location)],
        name="inner",
    )
    inner.output[0].name = inner.node[0].output[0] = "z"
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
    yes = numpy_helper.from_array(np.array(True), "yes")
    return graph_of(branch, constants=[yes]), []


def in_a_function(location: str) -> tuple[onnx.GraphProto, list[onnx.FunctionProto]]:
    body = [
        helper.make_node("Constant", [], ["c"], value=external("c", 0, location)),
        helper.make_node("Add", ["a", "c"], ["b"]),
    ]
    opset = [helper.make_opsetid("", 18)]
    function = helper.make_function("own", "Shift", ["a"], ["b"], body, opset)
    return graph_of(helper.make_node("Shift", ["x"], ["y"], domain="own")), [function]


def in_the_graph(location: str) -> tuple[onnx.GraphProto, list[onnx.FunctionProto]]:
    add = helper.make_node("Add", ["x", "w"], ["y"])
    return graph_of(add, constants=[external("w", 0, location, length=False)]), []


PLACES = [in_the_graph, in_a_constant, in_a_branch, in_a_function]


def run(path: Path, weights: Any, options: SessionOptions | None = None) -> float:
    contract = CONTRACT.from_json(CONTRACT.to_json().replace('        "tokens"\n', "        64\n"))
    variant = Variant(
        name="m", component="", ep="", provider=None, device="", directory=path.parent,
        model=path, contract=contract, certificate=None,
    )  # fmt: skip
    with open_variant(variant, "cpu", weights=weights, session_options=options) as session:
        result = session(np.zeros(64, np.float32)).y
    assert (result == result[0]).all()
    return float(result[0])


@pytest.mark.parametrize("weights", [Weights.COPY, Weights.MAP])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_external_data_is_taken_from_what_was_held_wherever_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[str], tuple[onnx.GraphProto, list[onnx.FunctionProto]]],
    shared: bool,
    weights: Weights,
) -> None:
    graph, functions = place("w")
    path = save(tmp_path / "m", graph, functions, w=7)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "w").write_bytes(np.full(64, 666, np.float32).tobytes())
    monkeypatch.chdir(tmp_path / "here")
    assert run(path, weights, SessionOptions() if shared else None) == 7


@pytest.mark.parametrize("location", ["./w", "a/../w", "a//w", "a/./w", "link"])
def test_a_location_in_another_spelling_is_the_held_file_or_refused(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "m", in_the_graph(location)[0], w=7)
    (path.parent / "a").mkdir()
    (path.parent / "a" / "w").write_bytes(np.full(64, 7, np.float32).tobytes())
    (path.parent / "link").symlink_to("w")
    monkeypatch.chdir(tmp_path)
    for weights in Weights:
        if ".." in location:
            with pytest.raises(PackageError, match=r"without '\.\.'"):
                run(path, weights)
        else:
            assert run(path, weights) == 7


def test_only_what_must_be_is_put_inside(tmp_path: Path) -> None:
    branch, _ = in_a_branch("nested")
    branch.initializer.append(external("w", 0, "plain"))
    path = save(tmp_path, branch, nested=3, plain=4)
    with hold_model(path, Weights.COPY) as held:
        some = onnx.ModelProto.FromString(held.with_data_inside(all_of_it=False))
        every = onnx.ModelProto.FromString(held.with_data_inside(all_of_it=True))
        assert held.with_data_inside(all_of_it=True) != held.data
    inner = some.graph.node[0].attribute[0].g.initializer[0]
    assert numpy_helper.to_array(inner)[0] == 3
    assert not inner.external_data
    plain = next(tensor for tensor in some.graph.initializer if tensor.name == "w")
    assert plain.data_location == TensorProto.EXTERNAL
    plain = next(tensor for tensor in every.graph.initializer if tensor.name == "w")
    assert numpy_helper.to_array(plain)[0] == 4
    assert list(external_data(every.SerializeToString())) == []


def test_a_model_without_external_data_keeps_its_bytes(tmp_path: Path) -> None:
    data = save_model(tmp_path / "m.onnx").read_bytes()
    assert inlined(data, lambda _: b"") is data


def test_sizes_of_elements_are_those_of_onnx() -> None:
    names = {number: name for name, number in TensorProto.DataType.items()}
    assert names.keys() - ELEMENT_BITS.keys() == {0, TensorProto.STRING}
    for number in names.keys() & ELEMENT_BITS.keys():
        raw = bytes(16 * ELEMENT_BITS[number] // 8)
        tensor = helper.make_tensor("t", number, [16], raw, raw=True)
        assert numpy_helper.to_array(tensor).shape == (16,), names[number]


def test_one_file_under_many_names_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{'./' * n}w" for n in range(50)]
    tensors = [external(f"w{n}", 0, name) for n, name in enumerate(names)]
    add = helper.make_node("Add", ["x", "w0"], ["y"])
    path = save(tmp_path, graph_of(add, constants=tensors), w=7)
    read = 0
    original = hold._pieces

    def counted(*arguments: Any) -> Any:
        nonlocal read
        read += 1
        return original(*arguments)

    monkeypatch.setattr(hold, "_pieces", counted)
    model_digest(path)
    assert read == 1


@pytest.mark.parametrize("weights", [*Weights, None])
def test_a_file_longer_than_its_tensors_need_is_refused_unread(
    tmp_path: Path, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, in_the_graph("w")[0], w=7)
    os.truncate(tmp_path / "w", 256 + PADDING_BYTES)
    with hold_model(path, weights) as held:
        assert held.files["w"].size == 256 + PADDING_BYTES
    monkeypatch.setattr(hold, "_pieces", lambda *_: pytest.fail("it was read"))
    monkeypatch.setattr(hold, "_copy", lambda *_: pytest.fail("it was read"))
    for size in (256 + PADDING_BYTES + 1, 8 << 40):
        os.truncate(tmp_path / "w", size)
        with pytest.raises(PackageError, match="must end with its last tensor, at byte 256"):
            hold_model(path, weights)


def test_a_length_makes_no_room_that_the_dims_do_not(tmp_path: Path) -> None:
    tensor = external("w", 0, "w", length=False)
    tensor.external_data.add(key="length", value=str(1 << 40))
    path = save(tmp_path, graph_of(helper.make_node("Add", ["x", "w"], ["y"]), constants=[tensor]))
    (tmp_path / "w").write_bytes(b"")
    os.truncate(tmp_path / "w", 1 << 40)
    with pytest.raises(PackageError, match="must end with its last tensor, at byte 256"):
        hold_model(path)


def test_more_than_the_memory_of_the_machine_is_refused(tmp_path: Path) -> None:
    size = 2 * memory.machine_bytes() // 4
    tensor = external("w", 0, "w", length=False)
    tensor.ClearField("dims")
    tensor.dims.append(size)
    path = save(tmp_path, graph_of(helper.make_node("Add", ["x", "w"], ["y"]), constants=[tensor]))
    (tmp_path / "w").write_bytes(b"")
    os.truncate(tmp_path / "w", size * 4)
    with pytest.raises(PackageError, match="must fit into memory"):
        hold_model(path)


def test_external_strings_have_no_size(tmp_path: Path) -> None:
    tensor = external("w", 0, "w")
    tensor.data_type = TensorProto.STRING
    path = save(tmp_path, graph_of(helper.make_node("Add", ["x", "w"], ["y"]), constants=[tensor]))
    (tmp_path / "w").write_bytes(bytes(256))
    with pytest.raises(PackageError, match="must have a dtype that ONNX gives a size"):
        hold_model(path)


@pytest.mark.parametrize("where", ["at the top", "in the graph", "in a tensor"])
def test_fields_are_counted_over_the_whole_model(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(protobuf, "MAX_FIELDS", 1000)
    empty = b"\x7a\x00" * 400
    size = bytes([len(empty) & 127 | 128, len(empty) >> 7])
    message = {"at the top": empty, "in the graph": b"\x3a" + size + empty}.get(where)
    if message is None:
        tensor = b"\x2a" + size + empty
        message = b"\x3a" + bytes([len(tensor) & 127 | 128, len(tensor) >> 7]) + tensor
    assert list(external_data(message * 2)) == []
    with pytest.raises(PackageError, match="at most 1000 protobuf fields"):
        list(external_data(message * 3))
    with pytest.raises(PackageError, match="at most 1000 protobuf fields"):
        list(fields(empty * 3))


def test_dims_are_bounded() -> None:
    dims = b"\x0a\x81\x10" + b"\x01" * 0x801
    tensor = b"\x2a" + bytes([len(dims) & 127 | 128, len(dims) >> 7]) + dims
    graph = b"\x3a" + bytes([len(tensor) & 127 | 128, len(tensor) >> 7]) + tensor
    with pytest.raises(PackageError, match="2049 bytes of dims"):
        list(external_data(graph))
