"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The figures of one server, in a registry of their own; methods may be called by any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options = {"namespace": "vitrail", "registry": self.registry}
        self.requests = Counter("requests", "Requests answered, by route and status.", ("route", "code"), **options)
        self.seconds = Histogram(
            "request_seconds", "From the head of a request to its reply.", ("route",), buckets=SECONDS, **options
        )
        self.images = Counter("images", "Images that the network has seen.", **options)
        self.bad_images = Counter("bad_images", "Images that could not be decoded.", **options)
        self.batches = Histogram("batch_size", "Images that the network saw at one time.", buckets=SIZES, **options)
        self.inference = Histogram("inference_seconds", "The network's time for a batch.", buckets=SECONDS, **options)
        self.reloads = Counter("reloads", "New models asked for, and whether one was taken.", ("outcome",), **options)
        self.model = Gauge("model_info", "The model that answers.", ("name", "version"), **options)
        self.queue = Gauge("queue_images", "Images that were taken in and are not answered yet.", **options)
        self.held = Gauge("held_bytes", "Bytes of requests that are not answered yet.", **options)
        self.ready = Gauge("ready", "Whether new requests are welcome.", **options)

    def request(self, route: str, code: int, seconds: float) -> None:
        self.requests.labels(route, str(code)).inc()
        self.seconds.labels(route).observe(seconds)

    def batch(self, size: int, seconds: float) -> None:
        self.images.inc(size)
        self.batches.observe(size)
        self.inference.observe(seconds)

    def serves(self, name: str, version: str) -> None:
        """Another model answers from now on."""
        self.model.clear()
        self.model.labels(name, version).set(1)

    def follow(self, queue: Callable[[], float], held: Callable[[], float], ready: Callable[[], float]) -> None:
        """Where the gauges look when they are asked."""
        self.queue.set_function(queue)
        self.held.set_function(held)
        self.ready.set_function(ready)

    def text(self) -> bytes:
        return generate_latest(self.registry)
