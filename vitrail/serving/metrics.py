"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server, in their own registry. All methods are thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options = {"namespace": "vitrail", "registry": self.registry}
        self.requests = Counter("requests", "Requests answered, by route and status.", ("route", "code"), **options)
        self.seconds = Histogram(
            "request_seconds", "Time from the head of a request to its reply.", ("route",), buckets=SECONDS, **options
        )
        self.images = Counter("images", "Images processed by the model.", **options)
        self.bad_images = Counter("bad_images", "Images that could not be decoded.", **options)
        self.batches = Histogram("batch_size", "Images per forward pass.", buckets=SIZES, **options)
        self.inference = Histogram("inference_seconds", "Time of a forward pass.", buckets=SECONDS, **options)
        self.reloads = Counter("reloads", "Reloads of the model, by outcome.", ("outcome",), **options)
        self.model = Gauge("model_info", "Name and version of the served model.", ("name", "version"), **options)
        self.queue = Gauge("queue_images", "Images accepted and not yet answered.", **options)
        self.held = Gauge("held_bytes", "Bytes of request bodies in memory.", **options)
        self.ready = Gauge("ready", "1 if the server accepts new requests.", **options)

    def request(self, route: str, code: int, seconds: float) -> None:
        self.requests.labels(route, str(code)).inc()
        self.seconds.labels(route).observe(seconds)

    def batch(self, size: int, seconds: float) -> None:
        self.images.inc(size)
        self.batches.observe(size)
        self.inference.observe(seconds)

    def serves(self, name: str, version: str) -> None:
        """Records the name and version of the served model."""
        self.model.clear()
        self.model.labels(name, version).set(1)

    def follow(self, queue: Callable[[], float], held: Callable[[], float], ready: Callable[[], float]) -> None:
        """Sets the functions that return the values of the gauges."""
        self.queue.set_function(queue)
        self.held.set_function(held)
        self.ready.set_function(ready)

    def text(self) -> bytes:
        return generate_latest(self.registry)
