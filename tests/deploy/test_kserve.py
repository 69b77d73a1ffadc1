"""KServe's own classes know every field of the manifests, and their command serves the storage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

from causal_attn import models
from causal_attn.cli import main
from causal_attn.deploy.kserve import Service, write_kserve
from causal_attn.deploy.source import open_source
from causal_attn.errors import UsageError
from causal_attn.runtime import load

REFERENCE = models.path("causal_attention")
URI = "s3://models/attention"

FIELDS = """
import json, re, sys
import kserve, kubernetes.client
def unknown(value, kind, where):
    if match := re.fullmatch(r"[lL]ist\\[(.*)\\]", kind):
        for index, part in enumerate(value):
            yield from unknown(part, match[1], f"{where}[{index}]")
    elif match := re.fullmatch(r"[dD]ict[([](.*), (.*)[)\\]]", kind):
        for name, part in value.items():
            yield from unknown(part, match[2], f"{where}.{name}")
    elif model := getattr(kserve, kind, None) or getattr(kubernetes.client, kind, None):
        fields = {key: name for name, key in model.attribute_map.items()}
        for key, part in value.items():
            if key in fields:
                yield from unknown(part, model.openapi_types[fields[key]], f"{where}.{key}")
            else:
                yield f"{where}.{key}"
    else:
        kinds = {"str": str, "int": int, "bool": bool, "object": object}
        if not isinstance(value, kinds[kind]):
            yield f"{where} is no {kind}"
found = []
for document in json.load(sys.stdin):
    kind = {"ServingRuntime": "V1alpha1ServingRuntime"}.get(
        document["kind"], "V1beta1" + document["kind"]
    )
    found += unknown(document, kind, document["kind"])
print(json.dumps(found))
"""
"""In a process of its own: the SDK and Triton's client define the same protobuf messages."""


def unknown_fields(documents: list[Any]) -> list[str]:
    """What the SDK's classes, which are made from the schema, do not have."""
    answer = subprocess.run(
        [sys.executable, "-c", FIELDS],
        input=json.dumps(documents), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[str] = json.loads(answer.stdout)
    return found


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[Any]]:
    """The folder, and what its manifests say."""
    file = write_kserve(
        open_source(f"attention={REFERENCE}"), tmp_path / "out", Service(storage_uri=URI)
    )
    return file.parent, list(yaml.safe_load_all(file.read_text()))


def test_every_field_is_one_of_the_schema(written: tuple[Path, list[Any]]) -> None:
    _, documents = written
    assert unknown_fields(documents) == []
    runtime, service = documents
    broken = json.loads(json.dumps(documents))
    broken[1]["spec"]["predictor"]["model"]["storageUrl"] = URI
    broken[0]["spec"]["containers"][0]["ports"][0]["containerPort"] = "8080"
    assert unknown_fields(broken) == [
        "ServingRuntime.spec.containers[0].ports[0].containerPort is no int",
        "InferenceService.spec.predictor.model.storageUrl",
    ]
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] == runtime["spec"]["supportedModelFormats"][0]["name"]
    assert model["storageUri"] == URI
    assert service["metadata"]["annotations"]["causal-attn/verdict"] == "causal"


def test_the_command_of_the_container_serves_the_storage(
    written: tuple[Path, list[Any]],
) -> None:
    root, (runtime, service) = written
    command = runtime["spec"]["containers"][0]["args"]
    name = service["metadata"]["name"]
    assert command[1] == "{{.Name}}=/mnt/models"
    here = ["--host=127.0.0.1", "--port=0", "--grpc-port=0"]
    assert [part.split("=")[0] for part in command[2:5]] == [part.split("=")[0] for part in here]
    server = subprocess.Popen(
        [
            sys.executable, "-c", "from causal_attn.cli import main; main()",
            command[0], f"{name}={root / 'storage' / name}", *here, *command[5:],
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stderr is not None
        http = next(
            json.loads(line)["http"]
            for line in server.stderr
            if line.startswith("{") and json.loads(line)["event"] == "ready"
        )
        probe = runtime["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"]
        with urllib.request.urlopen(http + probe) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"{http}/v2/models/{name}") as answer:
            assert [one["name"] for one in json.load(answer)["inputs"]] == ["q", "k", "v"]
    finally:
        server.terminate()
        server.communicate(timeout=30)


def test_the_storage_is_the_package(written: tuple[Path, list[Any]]) -> None:
    root, _ = written
    arrays = [np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32)] * 3
    with load(root / "storage" / "attention") as copy, load(REFERENCE) as original:
        assert np.array_equal(copy(*arrays).output, original(*arrays).output)


def test_the_container_has_no_torch_and_no_root(written: tuple[Path, list[Any]]) -> None:
    root, _ = written
    recipe = (root / "container" / "Dockerfile").read_text()
    pins = (root / "container" / "constraints.txt").read_text().split()
    assert "'causal-attn[cpu,serve,text]'" in recipe
    assert "USER 10001" in recipe
    assert not any(pin.startswith("torch") for pin in pins)
    assert all("==" in pin for pin in pins)
    assert {pin.split("==")[0] for pin in pins} >= {"causal-attn", "onnxruntime", "kserve"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"storage_uri": "models/llama"}, "`storage_uri` must be where"),
        ({"storage_uri": URI, "image": "a b"}, "`image` must be a container image"),
        ({"storage_uri": URI, "min_replicas": 3}, "0 <= min <= max"),
        ({"storage_uri": URI, "max_replicas": 0}, "0 <= min <= max"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Service(**options)


def test_a_name_of_no_host_and_a_lone_model_are_refused(tmp_path: Path) -> None:
    service = Service(storage_uri=URI)
    with pytest.raises(UsageError, match="a name of Kubernetes"):
        write_kserve(open_source(f"My_Model={REFERENCE}"), tmp_path / "out", service)
    model = open_source(str(REFERENCE)).variant.model
    source = open_source(f"lone={model}")
    with pytest.raises(UsageError, match="must be a package's folder"):
        write_kserve(source, tmp_path / "out", service)
    assert not (tmp_path / "out").exists()


def test_it_is_not_written_into_the_package(tmp_path: Path) -> None:
    package = tmp_path / "attention"
    shutil.copytree(REFERENCE, package)
    with pytest.raises(SystemExit):
        main(["deploy", str(package), str(package / "out"), "--for", "triton"])
    assert not (package / "out").exists()


def test_the_command_line_asks_for_the_storage(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from causal_attn.cli import main; main()", "deploy"]
    given = [*command, f"attention={REFERENCE}", str(tmp_path / "out"), "--for", "kserve"]
    refused = subprocess.run(given, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "`--storage-uri` must say where" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = subprocess.run(
        [*given, "--storage-uri", URI], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("inference-service.yaml")
