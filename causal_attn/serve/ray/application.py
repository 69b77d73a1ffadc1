"""The application: which packages, how many replicas, what one request may ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from causal_attn.errors import UsageError
from causal_attn.json_text import shown
from causal_attn.package import check_certificate, open_model, read_package
from causal_attn.package.read import Variant
from causal_attn.runtime.acceptance import Accept
from causal_attn.runtime.providers import require_provider
from causal_attn.serve.gate import Gate
from causal_attn.serve.named_paths import named_paths
from causal_attn.serve.ray.door import Door
from causal_attn.serve.ray.replica import Replica
from causal_attn.serve.ray.sdk import Application, AutoscalingConfig, deployment, ingress
from causal_attn.serve.settings import Limits

__all__ = ["application"]

CONSTRUCTIONS = 3
"""Times that a replica may fail to start before the application is given up."""


def application(
    packages: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
    *,
    replicas: int | AutoscalingConfig = 1,
    doors: int = 1,
    attempts: int = 3,
    limits: Limits | None = None,
    token: str | None = None,
    accept: str = "certified",
    provider: str = "cpu",
    threads: int = 1,
    gpus: float = 0.0,
    health_seconds: float = 10.0,
) -> Application:
    """An application of Ray Serve over verified packages, for ``ray.serve.run``.

    It answers over HTTP what ``causal-attn serve`` does. A request that a replica lost, because
    its process or its node died, is sent to another one, `attempts` times in all; once part of the
    answer has gone out, it ends with an error instead. Answers depend on nothing but the request,
    so that to ask twice does no harm.

    Every replica runs the very models that are read here: one that finds another model at its
    path, on its node or at a later start, refuses it.

    Args:
        packages: A package, called by the last part of its path; or packages by the names that
            clients call them. Each path must be there on every node.
        replicas: Processes that each hold all packages, >= 1; or an ``AutoscalingConfig``, whose
            ``target_ongoing_requests`` counts for a replica those that it runs and those that wait
            for it.
        doors: Processes that take requests, retry them and hold no model, >= 1; at most one a
            node. Have one on each node that clients connect to: theirs is used first.
        attempts: Replicas that a request may be sent to, one after another, >= 1. A request that
            ends every process it comes to must not end all of them.
        limits: Of one request, in each replica; ``max_waiting`` is also how many may wait at a
            door for a replica that takes them. ``None``: the defaults.
        token: What clients must send; ``None``: nothing.
        accept: As in `causal_attn.runtime.load`.
        provider: As in `causal_attn.runtime.load`.
        threads: Of one call, >= 1, and the CPUs that a replica takes of its node.
        gpus: That a replica takes of its node, >= 0.
        health_seconds: Between two checks of a replica, each of which is one call of each model
            and may take as long, > 0; after three failures it is replaced.

    Raises:
        UsageError: An argument is wrong.
        CausalAttnError: A package is not there or not what it says, as in
            `causal_attn.runtime.load`.
        MissingDependencyError: The extra ``[ray]`` or ``[serve]`` is not installed.
    """
    for name, count in (("doors", doors), ("attempts", attempts), ("threads", threads)):
        _require_count(name, count)
    if not isinstance(replicas, AutoscalingConfig):
        _require_count("replicas", replicas)
    limited = limits or Limits()
    if not isinstance(limited, Limits):
        raise UsageError(f"`limits` must be Limits or None, got {shown(limits)}.")
    Gate(token)  # raises for one that no header carries
    paths = _paths(packages)
    options = {
        "paths": paths,
        "digests": _digests(paths, provider, Accept(accept)),
        "provider": provider,
        "accept": accept,
        "threads": threads,
    }
    amount: dict[str, Any] = (
        {"autoscaling_config": replicas}
        if isinstance(replicas, AutoscalingConfig)
        else {"num_replicas": replicas}
    )
    replica = deployment(
        name="replica",
        max_ongoing_requests=limited.max_running,
        max_queued_requests=limited.max_waiting,
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
        health_check_period_s=health_seconds,
        health_check_timeout_s=health_seconds,
        graceful_shutdown_timeout_s=limited.grace_seconds,
        max_constructor_retry_count=CONSTRUCTIONS,
        **amount,
    )(Replica)
    door = deployment(
        name="door",
        num_replicas=doors,
        max_replicas_per_node=1,
        # It waits for others nearly all the time: more of them must fit than a replica runs.
        max_ongoing_requests=10_000,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=limited.grace_seconds,
    )(ingress()(Door))
    return door.bind(replica.bind(options, limited), limited, token, attempts)


def _require_count(name: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= 100_000:
        raise UsageError(f"`{name}` must be an integer from 1 to 100000, got {shown(value)}.")


def _paths(packages: object) -> dict[str, Path]:
    """Absolute: the working folder of a replica is another one."""
    entries = (
        [f"{name}={os.fspath(path)}" for name, path in packages.items()]
        if isinstance(packages, Mapping)
        else [os.fspath(packages)]  # type: ignore[call-overload]
    )
    return {name: path.resolve() for name, path in named_paths(entries).items()}


def _digests(paths: Mapping[str, Path], provider: str, accept: Accept) -> dict[str, str]:
    """What each model must be wherever a replica starts, by the names of packages."""
    digests = {}
    for name, path in paths.items():
        variant = _variant(path, provider)
        if accept is Accept.CERTIFIED:
            check_certificate(variant)
        if variant.certificate is not None:
            digests[name] = f"sha256:{variant.certificate.digest}"
    return digests


def _variant(path: Path, provider: str) -> Variant:
    if path.is_dir():
        return read_package(path).select(require_provider(provider))
    return open_model(path)
