"""Real clients of the Open Inference Protocol get what the runtime gives in this process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from server_process import Server
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from causal_attn import models
from causal_attn.runtime import load

Feeds = dict[str, NDArray[Any]]


def feeds(tokens: int = 7, dtype: Any = np.float32) -> Feeds:
    random = np.random.default_rng(tokens)
    return {name: random.standard_normal((2, 3, tokens, 4)).astype(dtype) for name in "qkv"}


def expected(given: Feeds) -> dict[str, NDArray[Any]]:
    with load(models.path("causal_attention"), intra_op_threads=1) as session:
        return session.run(given)


def inputs_of(module: ModuleType, given: Feeds, **how: Any) -> list[Any]:
    inputs = []
    for name, array in given.items():
        one = module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        one.set_data_from_numpy(array, **how)
        inputs.append(one)
    return inputs


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Any:
    """Triton's client and its module, over HTTP and over gRPC."""
    module = getattr(tritonclient, request.param)
    url = server.http.removeprefix("http://") if request.param == "http" else server.grpc
    with module.InferenceServerClient(url) as one:
        yield module, one


def post(server: Server, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.http + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_results_are_those_of_the_runtime(client: Any, tokens: int) -> None:
    module, one = client
    given = feeds(tokens)
    answer = one.infer("attention", inputs_of(module, given), request_id="one")
    for name, array in expected(given).items():
        np.testing.assert_array_equal(answer.as_numpy(name), array)


def test_one_output_may_be_asked_for(client: Any) -> None:
    module, one = client
    given = feeds()
    wanted = [module.InferRequestedOutput("weights")]
    answer = one.infer("attention", inputs_of(module, given), outputs=wanted)
    np.testing.assert_array_equal(answer.as_numpy("weights"), expected(given)["weights"])
    assert answer.as_numpy("output") is None


def test_numbers_in_json_are_answered_in_json(server: Server) -> None:
    given = feeds()
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.tolist()}
        for name, array in given.items()
    ]
    status, answer = post(server, "/v2/models/attention/infer", {"id": "seven", "inputs": inputs})
    assert (status, answer["id"], answer["model_name"]) == (200, "seven", "attention")
    for output in answer["outputs"]:
        array = np.array(output["data"], np.float32).reshape(output["shape"])
        np.testing.assert_array_equal(array, expected(given)[output["name"]])


def test_metadata_is_the_contract(client: Any) -> None:
    _, one = client
    assert one.is_server_live()
    assert one.is_server_ready()
    assert one.is_model_ready("attention")
    metadata = one.get_model_metadata("attention")
    if not isinstance(metadata, dict):
        metadata = one.get_model_metadata("attention", as_json=True)
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["q", "k", "v"]
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["output", "weights"]
    assert {tensor["datatype"] for tensor in metadata["inputs"]} == {"FP32"}
    assert {int(size) for tensor in metadata["inputs"] for size in tensor["shape"]} == {-1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("v"), "v"),
        (lambda given: given.update(w=given["v"]), "w"),
        (lambda given: given.update(v=given["v"].astype(np.float64)), "float64"),
        (lambda given: given.update(v=given["v"][0]), "`v`"),
        (lambda given: given.update(v=given["v"][:, :, :3]), "tokens"),
    ],
)
def test_wrong_tensors_are_refused_by_name(client: Any, change: Any, message: str) -> None:
    module, one = client
    given = feeds()
    change(given)
    with pytest.raises(InferenceServerException, match=message) as caught:
        one.infer("attention", inputs_of(module, given))
    assert "INVALID_ARGUMENT" in str(caught.value) or caught.value.status() == "400"


def test_an_unknown_model_is_not_found(client: Any) -> None:
    module, one = client
    with pytest.raises(InferenceServerException, match="no model of this name") as caught:
        one.infer("nobody", inputs_of(module, feeds()))
    assert "NOT_FOUND" in str(caught.value) or caught.value.status() == "404"


def test_nothing_is_loaded_by_a_request(client: Any) -> None:
    _, one = client
    with pytest.raises(InferenceServerException):
        one.unload_model("attention")
    assert one.is_model_ready("attention")


def tensor(**changed: Any) -> dict[str, Any]:
    return {"name": "q", "shape": [1, 1, 1, 2], "datatype": "FP32", "data": [1, 2], **changed}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[1]", "object"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
        ({}, "`inputs` must be a list"),
        ({"inputs": {}}, "`inputs` must be a list"),
        ({"inputs": [1]}, "`inputs` must be a list"),
        ({"inputs": [{}]}, "neither"),
        ({"inputs": [tensor(name=3)]}, r"`inputs\[0\].name`"),
        ({"inputs": [tensor(datatype="BYTES")]}, "datatype"),
        ({"inputs": [tensor(datatype=[])]}, "datatype"),
        ({"inputs": [tensor(shape=[-1, 2])]}, "shape"),
        ({"inputs": [tensor(shape=[1 << 62, 1 << 62])]}, "bytes"),
        ({"inputs": [tensor(shape="12")]}, "shape"),
        ({"inputs": [tensor(shape=[1] * 65)]}, "shape"),
        ({"inputs": [tensor(data=[1, "2"])]}, "data"),
        ({"inputs": [tensor(data=[1, [2]])]}, "data"),
        ({"inputs": [tensor(data=[True, 2])]}, "data"),
        ({"inputs": [tensor(datatype="INT64", data=[[True], [2]])]}, "data"),
        ({"inputs": [tensor(data=["a" * 1_000_000, *["b"] * 100_000])]}, "data"),
        ({"inputs": [tensor(shape=[1 << 62, 1 << 62, 0], data=[])]}, "shape"),
        ({"inputs": [tensor(data=[1, 1e300])]}, "finite"),
        ({"inputs": [tensor(datatype="INT64", data=[1 << 63, -1])]}, "from -9223372036854775808"),
        ({"inputs": [tensor(datatype="UINT64", data=[1 << 63, 1])]}, "got no 'k', 'v'"),
        ({"inputs": [tensor(datatype="INT8", data=[1, 1000])]}, "from -128 to 127"),
        ({"inputs": [tensor(datatype="INT32", data=[1, 1.5])]}, "data"),
        ({"inputs": [tensor(datatype="BOOL", data=[1, 0])]}, "data"),
        ({"inputs": [tensor(), tensor()]}, "twice"),
        ({"inputs": [tensor(parameters=3)]}, "parameters"),
        ({"inputs": [tensor(parameters={"binary_data_size": -1})]}, "binary_data_size"),
        ({"inputs": [tensor(parameters={"binary_data_size": 8})]}, "binary_data_size"),
        ({"inputs": [], "outputs": [{}]}, r"`outputs\[0\].name`"),
        ({"inputs": []}, "q"),
        ({"inputs": [], "id": 3}, "`id`"),
    ],
)
def test_a_malformed_body_is_a_400_with_a_sentence(
    server: Server, body: Any, message: str
) -> None:
    status, answer = post(server, "/v2/models/attention/infer", body)
    assert status == 400
    assert set(answer) == {"error"}
    with pytest.raises(ValueError, match=message):
        raise ValueError(answer["error"])
    assert "Traceback" not in answer["error"]


@pytest.mark.parametrize("length", ["-1", "x", "9999", "1" * 30])
def test_a_wrong_length_of_the_json_is_refused(server: Server, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    status, answer = post(server, "/v2/models/attention/infer", {"inputs": []}, **headers)
    assert status == 400
    assert "Inference-Header-Content-Length" in answer["error"]


def test_an_unknown_output_is_refused(server: Server) -> None:
    inputs = [tensor(name=name) for name in "qkv"]
    body = {"inputs": inputs, "outputs": [{"name": "other"}]}
    status, answer = post(server, "/v2/models/attention/infer", body)
    assert status == 400
    assert "['output', 'weights']" in answer["error"]


def test_an_empty_tensor_is_refused_as_the_runtime_refuses_it(server: Server) -> None:
    inputs = [tensor(name=name, shape=[1, 1, 0, 2], data=[]) for name in "qkv"]
    status, answer = post(server, "/v2/models/attention/infer", {"inputs": inputs})
    assert status == 400
    assert "tokens" in answer["error"]


@pytest.mark.parametrize("path", ["/nowhere", "/v2/repository/models/attention/unload"])
def test_there_is_nothing_at_other_paths(server: Server, path: str) -> None:
    status, answer = post(server, path, {})
    assert status == 404
    assert "no such path" in json.dumps(answer)


def test_metrics_say_what_is_loaded_and_what_came(server: Server) -> None:
    post(server, "/v2/models/attention/infer", b"{")
    with urllib.request.urlopen(server.http + "/metrics", timeout=30) as answer:
        page = answer.read().decode()
    assert 'causal_attn_model{digest="' in page
    assert 'model_name="attention",provider="cpu",verdict="causal"} 1.0' in page
    assert 'causal_attn_requests_total{outcome="refused",protocol="http"}' in page
    assert "request_predict_seconds_bucket" in page
    assert 'causal_attn_tokens_generated{model_name="letters"}' in page


def test_a_request_keeps_its_id(server: Server) -> None:
    request = urllib.request.Request(server.http + "/v2", headers={"X-Request-Id": "mine-1"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["x-request-id"] == "mine-1"
    assert server.logged(request_id="mine-1")["outcome"] == "ok"
