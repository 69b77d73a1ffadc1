"""What Prometheus reads: requests by what became of them, times, and what runs now.

The KServe SDK adds its own histograms of each model's steps, ``request_predict_seconds`` and the
like, to the same page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from causal_attn.serve.tensor_model import TensorModel

__all__ = [
    "FIRST_TOKEN_SECONDS",
    "IN_FLIGHT",
    "REQUESTS",
    "REQUEST_SECONDS",
    "request_seconds",
    "watch",
]

REQUESTS = Counter(
    "causal_attn_requests", "Requests by protocol and what became of them", ["protocol", "outcome"]
)
SECONDS = tuple(factor * 10.0**power for power in range(-4, 2) for factor in (1, 1.5, 2.5, 4, 6))
"""Bounds of the histograms, from 0.1 ms to 60 s: a quantile is known to within a half."""

REQUEST_SECONDS = Histogram(
    "causal_attn_request_seconds",
    "From the first byte to the last",
    ["protocol"],
    buckets=SECONDS,
)
IN_FLIGHT = Gauge("causal_attn_requests_in_flight", "Requests that were taken and not answered")
FIRST_TOKEN_SECONDS = Histogram(
    "causal_attn_first_token_seconds",
    "From a request to its first token",
    ["model_name"],
    buckets=SECONDS,
)


class _Models(Collector):
    """What each model says of itself when it is asked."""

    def __init__(self, models: Sequence[TensorModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        named = ["model_name"]
        loaded = GaugeMetricFamily(
            "causal_attn_model",
            "1 for each model, with where it runs and what its certificate says",
            labels=[*named, "provider", "verdict", "digest"],
        )
        numbers: dict[str, GaugeMetricFamily] = {}
        for model in self._models:
            certificate = model.session.certificate
            verdict = str(certificate.verdict) if certificate else "unverified"
            digest = certificate.digest if certificate else ""
            loaded.add_metric([model.name, str(model.session.provider), verdict, digest], 1)
            for name, number in model.numbers().items():
                family = numbers.setdefault(
                    name, GaugeMetricFamily(f"causal_attn_{name}", name, labels=named)
                )
                family.add_metric([model.name], number)
        yield loaded
        yield from numbers.values()


def request_seconds() -> dict[str, list[tuple[float | None, float]]]:
    """By protocol: the upper bounds of `REQUEST_SECONDS` and how many requests took no longer.

    The last bound is ``None``: any time.
    """
    found: dict[str, list[tuple[float | None, float]]] = {}
    for family in REQUEST_SECONDS.collect():
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                known = None if bound == float("inf") else bound
                found.setdefault(sample.labels["protocol"], []).append((known, sample.value))
    return found


def watch(models: Sequence[TensorModel]) -> None:
    """Put `models` on the page, for as long as the process lives."""
    REGISTRY.register(_Models(models))
