"""The service behind the routes: the served model, its batcher, decoder threads, reloading and metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from vitrail.errors import VitrailError
from vitrail.images.decode import BadImage, header_size
from vitrail.serving.batcher import Batcher, deadline_error
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.processes import METRICS
from vitrail.serving.refusals import Refused
from vitrail.serving.uploads import Upload

Kind = TypeVar("Kind")
ADDRESS = re.compile(r"<[^>]*\bat 0x[0-9a-fA-F]+>")  # Pillow's name of a file in memory
LARGE = 16_000_000  # pixels
log = logging.getLogger("vitrail.serving")


class Service:
    """One model with one queue, for one event loop, and ``threads`` threads that decode images.

    ``load`` loads the model, also on reload; it is None for a server without a model (runs only). ``announce_reload`` is called
    after a reload that a client asked for.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel] | None,
        limits: ServerLimits,
        *,
        threads: int = 2,
        announce_reload: Callable[[], None] = lambda: None,
    ) -> None:
        served = None if load is None else load()  # before the metrics, which say that a process is not ready
        self.load, self.limits, self.metrics, self.announce_reload = load, limits, Metrics(), announce_reload
        self.batcher = Batcher(batch=limits.batch, capacity=limits.queue, observe=self.metrics.batch)
        self.threads = threads
        self.decoders = ThreadPoolExecutor(threads, thread_name_prefix="decoder")
        self.held = 0  # bytes of requests in memory
        self.draining = False
        self.last_request = time.monotonic()
        self._reloading: asyncio.Future[LoadedModel] | None = None
        self._large = threading.Lock()
        self._served: LoadedModel | None = None
        if served is not None:
            self._take(served)
        self.update_gauges()

    def _take(self, served: LoadedModel) -> None:
        self._served = served
        self.batcher.guess = served.seconds
        self.metrics.take(served.name, served.version)

    def update_gauges(self) -> None:
        """Sets the gauges of the metrics to the current state."""
        self.metrics.queue.set(self.batcher.reserved)
        self.metrics.held.set(self.held)
        self.metrics.ready.set(not self.unready)

    @property
    def served(self) -> LoadedModel:
        """The current model. Requests that started with a previous one keep it. Raises `Refused` without a model."""
        if self._served is None:
            raise Refused("not_found", "this server has no model", "start it with: vitrail serve MODEL")
        return self._served

    @property
    def unready(self) -> str:
        """The reason why the server does not accept new requests; empty if it does."""
        if self.draining:
            return "draining"
        return "" if self.batcher.is_healthy else "the model does not respond"

    async def reload(self, *, by_client: bool = False) -> tuple[LoadedModel, str]:
        """Loads the model again and serves it. Returns the new model and the previous version.

        If a client asked for it, it is announced. Raises `Refused` if the new model is invalid; the old one is kept.
        """
        before = self.served
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.ensure_future(self._load_again(by_client))
            self._reloading.add_done_callback(lambda done: done.cancelled() or done.exception())
        # concurrent requests share one reload, which continues if the client that started it disconnects
        return await asyncio.shield(self._reloading), before.version

    async def _load_again(self, by_client: bool) -> LoadedModel:
        before = self.served
        assert self.load is not None
        try:
            new = await asyncio.to_thread(self.load)
        except Exception as error:
            self.metrics.reloads.labels("refused").inc()
            log.error("reload failed, keeping %s %s: %s", before.name, before.version, error)
            # the error message may contain paths, which are only logged
            reason = type(error).__name__ if isinstance(error, VitrailError) else "error"
            what = f"the new model is invalid ({reason}); the old one is kept"
            raise Refused("conflict", what, "see the log") from error
        self._take(new)
        if by_client:  # here, as the client may be gone
            self.announce_reload()
        self.metrics.reloads.labels("taken").inc()
        log.info("reloaded: serving %s %s instead of %s", new.name, new.version, before.version)
        return new

    async def run_in_thread(self, work: Callable[..., Kind], *arguments: Any, deadline: float) -> Kind:
        """Calls ``work`` with ``arguments`` in a decoder thread. Raises `Refused` after the deadline."""
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                return await asyncio.get_running_loop().run_in_executor(self.decoders, work, *arguments)
        except TimeoutError:
            raise deadline_error() from None

    async def prepare(self, prepare: Callable[..., Kind], upload: Upload, deadline: float) -> Kind:
        """Calls ``prepare``, a method of `LoadedModel`, on an image file in a thread. Raises `Refused`."""
        try:
            prepared, seconds = await self.run_in_thread(self._decode, prepare, upload.content, deadline=deadline)
        except BadImage as error:
            self.metrics.bad_images.inc()
            reason = ADDRESS.sub("", error.reason)
            raise Refused("bad_image", f"invalid image: {reason}", "send another file") from error
        self.batcher.preparation.add(1, seconds / self.threads)
        return prepared

    def _decode(self, prepare: Callable[..., Kind], content: bytes) -> tuple[Kind, float]:
        """Returns the result of ``prepare`` and the seconds that it took."""
        height, width = header_size(content) or (0, 0)
        # decoding keeps several copies of an image in memory, so only one large image is decoded at a time
        with self._large if height * width > LARGE else nullcontext():
            start = time.monotonic()
            return prepare(content, most_pixels=self.limits.pixels), time.monotonic() - start

    async def run_each(
        self, served: LoadedModel, work: Callable[[list[Any]], Any], uploads: list[Upload], deadline: float
    ) -> list[Any]:
        """Returns the result of ``work``, a method of ``served``, for each upload, or a `Refused` for an invalid one.

        Raises `Refused` if the deadline has passed, or every image is invalid.
        """

        async def one(upload: Upload) -> Any:
            try:
                picture = await self.prepare(served.prepare, upload, deadline)
            except Refused as refused:
                return refused
            return await self.batcher.run(work, picture, deadline)

        answers = await asyncio.gather(*map(one, uploads), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        others = [error for error in errors if not isinstance(error, Refused) or error.code != "bad_image"]
        if others or len(errors) == len(answers):
            raise (others or errors)[0]
        return answers

    def close(self) -> None:
        """Stops the threads after the queue has been processed."""
        self.batcher.close()
        self.decoders.shutdown(wait=False, cancel_futures=True)


async def get_service(request: Request) -> Service:
    return request.app.state.service


CurrentService = Annotated[Service, Depends(get_service)]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server, in their own registry, or of all its processes. All methods are thread-safe."""

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
        # the modes say how those of several processes are joined
        self.model = Gauge(
            "model_info",
            "Name and version of the served model.",
            ("name", "version"),
            multiprocess_mode="livemax",
            **options,
        )
        self.queue = Gauge(
            "queue_images", "Images accepted and not yet answered.", multiprocess_mode="livesum", **options
        )
        self.held = Gauge("held_bytes", "Bytes of request bodies in memory.", multiprocess_mode="livesum", **options)
        self.ready = Gauge("ready", "1 if the server accepts new requests.", multiprocess_mode="livemin", **options)
        self._taken: Gauge | None = None  # of the current model

    def take(self, name: str, version: str) -> None:
        """Names the model that is served from now on."""
        if self._taken is not None:
            self._taken.set(0)  # files of several processes keep what was written
        if METRICS not in os.environ:
            self.model.clear()
        self._taken = self.model.labels(name, version)
        self._taken.set(1)

    def request(self, route: str, code: int, seconds: float) -> None:
        self.requests.labels(route, str(code)).inc()
        self.seconds.labels(route).observe(seconds)

    def batch(self, size: int, seconds: float) -> None:
        self.images.inc(size)
        self.batches.observe(size)
        self.inference.observe(seconds)

    def text(self) -> bytes:
        registry = self.registry
        if METRICS in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)
