"""A service of KServe: its runtime and itself as manifests, what goes to the storage, a container.

::

    OUT/
      inference-service.yaml         # ServingRuntime and InferenceService, for kubectl apply
      storage/NAME/                  # the package: upload it to the storage URI
      container/Dockerfile           # the image of the runtime: no torch, no root
      container/constraints.txt      # versions of what this environment has
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from causal_attn.deploy.container import constraints_text, dockerfile_text
from causal_attn.deploy.place import free_place
from causal_attn.deploy.source import Source
from causal_attn.errors import MissingDependencyError, UsageError
from causal_attn.machine.provider import Provider

__all__ = ["Service", "manifests", "write_kserve"]

FORMAT = RUNTIME = "causal-attn"
MOUNT = "/mnt/models"
"""Where KServe's storage initializer puts what lies at the URI."""

_HTTP_PORT, _GRPC_PORT = 8080, 8081
_GRACE_SECONDS = 40
"""Of the pod: longer than `causal-attn serve` waits for what it took."""

# Names of Kubernetes (RFC 1123): parts of host names.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
_IMAGE = re.compile(r"[\w./:@-]{1,255}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """Of the cluster, as against the package.

    Attributes:
        storage_uri: Where the package will lie: ``pvc://claim/path``, ``s3://bucket/path``, …
        image: That the container becomes.
        min_replicas: 0 lets the last one go while nobody asks.
        max_replicas: At least `min_replicas`.

    Raises:
        UsageError: One of them cannot be.
    """

    storage_uri: str
    image: str = f"{RUNTIME}:latest"
    min_replicas: int = 1
    max_replicas: int = 1

    def __post_init__(self) -> None:
        if not _URI.fullmatch(self.storage_uri):
            raise UsageError(
                "`storage_uri` must be where the package will lie, such as pvc://models/llama or "
                f"s3://bucket/llama, got {self.storage_uri!r}."
            )
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(f"`image` must be a container image, got {self.image!r}.")
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise UsageError(
                "`min_replicas` and `max_replicas` must be 0 <= min <= max and max >= 1, got "
                f"{self.min_replicas} and {self.max_replicas}."
            )


def write_kserve(source: Source, out: Path, service: Service) -> Path:
    """Write manifests, storage and container to `out`, whole or not at all.

    Args:
        source: The package; a lone model will not do.
        out: A free place.
        service: Of the cluster.

    Returns:
        The file ``inference-service.yaml``.

    Raises:
        UsageError: Something is at `out`, it cannot be written, or the name is none of Kubernetes.
        PackageError: A file of the package cannot be read.
        CertificateError: The files changed after they were checked.
        MissingDependencyError: PyYAML is not installed.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(
            "Manifests need PyYAML. Install it with: pip install 'causal-attn[deploy]'",
            name="yaml",
        ) from error
    documents = manifests(source, service)
    with free_place(out) as staged:
        source.copy_package(_made(staged / "storage" / source.name))
        container = _made(staged / "container")
        (container / "Dockerfile").write_text(dockerfile_text(source.provider), "utf-8")
        (container / "constraints.txt").write_text(constraints_text(), "utf-8")
        text = yaml.safe_dump_all(documents, sort_keys=False)
        (staged / "inference-service.yaml").write_text(text, "utf-8")
    return out / "inference-service.yaml"


def manifests(source: Source, service: Service) -> list[dict[str, Any]]:
    """The ``ServingRuntime`` and the ``InferenceService``, as JSON values.

    Raises:
        UsageError: The name of the package is none of Kubernetes.
    """
    if not _NAME.fullmatch(source.name):
        raise UsageError(
            "`package` must have a name of Kubernetes (small letters, digits and -, at most 63), "
            f"got {source.name!r}. Give one: NAME=PATH."
        )
    return [_runtime(source, service), _inference_service(source, service)]


def _runtime(source: Source, service: Service) -> dict[str, Any]:
    arguments = [
        "serve",
        f"{{{{.Name}}}}={MOUNT}",
        # A pod has an address of its own; who may reach it is the cluster's to say.
        "--host=0.0.0.0",
        f"--port={_HTTP_PORT}",
        f"--grpc-port={_GRPC_PORT}",
        f"--provider={source.provider}",
        f"--accept={'certified' if source.certified else 'unverified'}",
    ]
    container: dict[str, Any] = {
        "name": "kserve-container",
        "image": service.image,
        "args": arguments,
        "ports": [{"containerPort": _HTTP_PORT, "protocol": "TCP"}],
        "readinessProbe": _probe("/v2/health/ready"),
        "livenessProbe": _probe("/v2/health/live"),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
        },
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": RUNTIME},
        "spec": {
            "supportedModelFormats": [{"name": FORMAT, "version": "1", "autoSelect": True}],
            "protocolVersions": ["v2"],
            "containers": [container],
        },
    }


def _inference_service(source: Source, service: Service) -> dict[str, Any]:
    model: dict[str, Any] = {
        "modelFormat": {"name": FORMAT, "version": "1"},
        "protocolVersion": "v2",
        "runtime": RUNTIME,
        "storageUri": service.storage_uri,
    }
    if source.provider in (Provider.CUDA, Provider.TENSORRT):
        model["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": source.name, "annotations": _told(source)},
        "spec": {
            "predictor": {
                "minReplicas": service.min_replicas,
                "maxReplicas": service.max_replicas,
                "terminationGracePeriodSeconds": _GRACE_SECONDS,
                "model": model,
            }
        },
    }


def _told(source: Source) -> dict[str, str]:
    """What the certificate says, for whoever looks at the service."""
    certificate = source.variant.certificate
    told = {"causal-attn/version": _version()}
    if certificate is not None:
        told["causal-attn/verdict"] = str(certificate.verdict)
        told["causal-attn/digest"] = f"sha256:{certificate.digest}"
    return told


def _version() -> str:
    try:
        return version("causal-attn")
    except PackageNotFoundError:
        return "unknown"


def _probe(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": _HTTP_PORT}, "periodSeconds": 5}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
