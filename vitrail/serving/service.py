"""What stands behind the routes: the model that answers now, the batches, the threads that decode; starting, swapping, ending."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vitrail.data.images import BadImage
from vitrail.errors import VitrailError
from vitrail.serving.batcher import Batcher
from vitrail.serving.limits import Limits
from vitrail.serving.metrics import Metrics
from vitrail.serving.reading import Upload
from vitrail.serving.refusals import Refused
from vitrail.serving.served import Served

Kind = TypeVar("Kind")
ADDRESS = re.compile(r"<[^>]*\bat 0x[0-9a-fA-F]+>")  # what Pillow calls a file in memory
log = logging.getLogger("vitrail.serving")


class Service:
    """One model behind one queue, for one event loop.

    Args:
        load: reads the model anew; None serves runs alone.
        threads: that decode images.
    """

    def __init__(self, load: Callable[[], Served] | None, limits: Limits, *, threads: int = 2) -> None:
        self.load, self.limits, self.metrics = load, limits, Metrics()
        self.batcher = Batcher(batch=limits.batch, room=limits.queue, watcher=self.metrics)
        self.decoders = ThreadPoolExecutor(threads, thread_name_prefix="decoder")
        self.held = 0  # bytes of requests in memory
        self.draining = False
        self.last_request = time.monotonic()
        self._reloading = asyncio.Lock()
        self._served: Served | None = None
        self.metrics.follow(lambda: self.batcher.taken, lambda: self.held, lambda: not self.unready)
        if load is not None:
            self._take(load())

    def _take(self, served: Served) -> None:
        self._served = served
        self.metrics.serves(served.name, served.version)

    @property
    def served(self) -> Served:
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

    async def reload(self) -> tuple[Served, str]:
        """Reads the model anew and lets it answer from then on; the version before it.

        Raises:
            Refused: the new model is bad; the old one stays.
        """
        async with self._reloading:
            before = self.served
            assert self.load is not None
            try:
                new = await asyncio.to_thread(self.load)
            except Exception as error:
                self.metrics.reloads.labels("refused").inc()
                log.error("reload refused, %s %s stays: %s", before.name, before.version, error)
                # the words of the error may hold paths, which are for the log
                told = type(error).__name__ if isinstance(error, VitrailError) else "error"
                raise Refused(
                    "conflict", f"the new model is refused ({told}); the old one stays", "see the log"
                ) from error
            self._take(new)
        self.metrics.reloads.labels("taken").inc()
        log.info("reloaded: %s %s answers instead of %s", new.name, new.version, before.version)
        return new, before.version

    async def prepared(self, prepare: Callable[..., Kind], upload: Upload) -> Kind:
        """What ``prepare``, a method of `Served`, makes of an image file, in a thread. Raises `Refused`."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.decoders, self._decoded, prepare, upload.content)
        except BadImage as error:
            self.metrics.bad_images.inc()
            reason = ADDRESS.sub("", error.reason)
            raise Refused("bad_image", f"the image cannot be used: {reason}", "send another file") from error

    def _decoded(self, prepare: Callable[..., Kind], content: bytes) -> Kind:
        return prepare(content, most_pixels=self.limits.pixels)

    async def each(
        self, served: Served, work: Callable[[list[Any]], Any], uploads: list[Upload], deadline: float
    ) -> list[Any]:
        """What ``work``, a method of ``served``, answers for each upload; a `Refused` in the place of one that is bad.

        Raises:
            Refused: nothing can be answered: the deadline has passed, or every image is bad.
        """

        async def one(upload: Upload) -> Any:
            try:
                picture = await self.prepared(served.prepare, upload)
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
