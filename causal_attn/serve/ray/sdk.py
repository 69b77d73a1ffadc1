"""The one door to Ray: what the parts of an application take from it, by its own names."""

from __future__ import annotations

from causal_attn.errors import MissingDependencyError

__all__ = [
    "Application",
    "AutoscalingConfig",
    "BackPressureError",
    "DeploymentHandle",
    "DeploymentUnavailableError",
    "RayError",
    "RayTaskError",
    "deployment",
    "ingress",
]

try:
    from ray.exceptions import RayError, RayTaskError
    from ray.serve import Application, deployment, ingress
    from ray.serve.config import AutoscalingConfig
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
    from ray.serve.handle import DeploymentHandle
except ImportError as error:
    raise MissingDependencyError(
        "A cluster needs Ray Serve. Install it with: pip install 'causal-attn[ray]'",
        name=error.name,
    ) from error
