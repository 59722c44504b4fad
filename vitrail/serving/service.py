"""The service behind the routes: the current model, its batches, the decoder threads, reload and shutdown."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from vitrail.data.decode import BadImage, header_size
from vitrail.errors import VitrailError
from vitrail.serving.batcher import Batcher, deadline_error
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.metrics import Metrics
from vitrail.serving.refusals import Refused
from vitrail.serving.uploads import Upload

Kind = TypeVar("Kind")
ADDRESS = re.compile(r"<[^>]*\bat 0x[0-9a-fA-F]+>")  # what Pillow calls a file in memory
LARGE = 16_000_000  # pixels
log = logging.getLogger("vitrail.serving")


class Service:
    """One model behind one queue, for one event loop.

    Args:
        load: reads the model anew; None serves runs alone.
        threads: that decode images.
    """

    def __init__(self, load: Callable[[], LoadedModel] | None, limits: ServerLimits, *, threads: int = 2) -> None:
        self.load, self.limits, self.metrics = load, limits, Metrics()
        self.batcher = Batcher(batch=limits.batch, room=limits.queue, watcher=self.metrics)
        self.decoders = ThreadPoolExecutor(threads, thread_name_prefix="decoder")
        self.held = 0  # bytes of requests in memory
        self.draining = False
        self.last_request = time.monotonic()
        self._reloading: asyncio.Future[LoadedModel] | None = None
        self._large = threading.Lock()
        self._served: LoadedModel | None = None
        self.metrics.follow(lambda: self.batcher.taken, lambda: self.held, lambda: not self.unready)
        if load is not None:
            self._take(load())

    def _take(self, served: LoadedModel) -> None:
        self._served = served
        self.metrics.serves(served.name, served.version)

    @property
    def served(self) -> LoadedModel:
        """The model that answers from now on; whoever began with another one keeps it. Raises `Refused` where there is none."""
        if self._served is None:
            raise Refused("not_found", "this server was started without a model", "start it as: vitrail serve MODEL")
        return self._served

    @property
    def unready(self) -> str:
        """Why new requests should go elsewhere; empty where they are welcome."""
        if self.draining:
            return "draining"
        return "" if self.batcher.alive else "the network does not answer"

    async def reload(self) -> tuple[LoadedModel, str]:
        """Reads the model anew and lets it answer from then on; the version before it.

        Raises:
            Refused: the new model is bad; the old one stays.
        """
        before = self.served
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.ensure_future(self._load_again())
            self._reloading.add_done_callback(lambda done: done.cancelled() or done.exception())
        # whoever asks meanwhile waits for the same one, and it goes on though who asked first has left
        return await asyncio.shield(self._reloading), before.version

    async def _load_again(self) -> LoadedModel:
        before = self.served
        assert self.load is not None
        try:
            new = await asyncio.to_thread(self.load)
        except Exception as error:
            self.metrics.reloads.labels("refused").inc()
            log.error("reload refused, %s %s stays: %s", before.name, before.version, error)
            # the words of the error may hold paths, which are for the log
            reason = type(error).__name__ if isinstance(error, VitrailError) else "error"
            raise Refused(
                "conflict", f"the new model is refused ({reason}); the old one stays", "see the log"
            ) from error
        self._take(new)
        self.metrics.reloads.labels("taken").inc()
        log.info("reloaded: %s %s answers instead of %s", new.name, new.version, before.version)
        return new

    async def run_in_thread(self, work: Callable[..., Kind], *arguments: Any, deadline: float) -> Kind:
        """What ``work`` makes of ``given`` in one of the decoders' threads. Raises `Refused` after the deadline."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                return await loop.run_in_executor(self.decoders, work, *arguments)
        except TimeoutError:
            raise deadline_error() from None

    async def prepare(self, prepare: Callable[..., Kind], upload: Upload, deadline: float) -> Kind:
        """What ``prepare``, a method of `LoadedModel`, makes of an image file, in a thread. Raises `Refused`."""
        try:
            return await self.run_in_thread(self._decode, prepare, upload.content, deadline=deadline)
        except BadImage as error:
            self.metrics.bad_images.inc()
            reason = ADDRESS.sub("", error.reason)
            raise Refused("bad_image", f"the image cannot be used: {reason}", "send another file") from error

    def _decode(self, prepare: Callable[..., Kind], content: bytes) -> Kind:
        size = header_size(content)
        # several copies of a picture are held while it is decoded: large ones are, one after another
        is_large = size is not None and size[0] * size[1] > LARGE
        with self._large if is_large else nullcontext():
            return prepare(content, most_pixels=self.limits.pixels)

    async def run_each(
        self, served: LoadedModel, work: Callable[[list[Any]], Any], uploads: list[Upload], deadline: float
    ) -> list[Any]:
        """What ``work``, a method of ``served``, answers for each upload; a `Refused` in the place of one that is bad.

        Raises:
            Refused: nothing can be answered: the deadline has passed, or every image is bad.
        """

        async def one(upload: Upload) -> Any:
            try:
                picture = await self.prepare(served.prepare, upload, deadline)
            except Refused as refused:
                return refused
            return await self.batcher.run(work, picture, deadline)

        answers = await asyncio.gather(*map(one, uploads), return_exceptions=True)
        bad = [answer for answer in answers if isinstance(answer, Refused) and answer.code == "bad_image"]
        for answer in answers:
            if isinstance(answer, BaseException) and answer not in bad:
                raise answer
        if len(bad) == len(answers):
            raise bad[0]
        return answers

    def close(self) -> None:
        """Ends the threads, once everything is answered."""
        self.batcher.close()
        self.decoders.shutdown(wait=False, cancel_futures=True)


async def get_service(request: Request) -> Service:
    return request.app.state.service


CurrentService = Annotated[Service, Depends(get_service)]
