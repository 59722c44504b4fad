"""Worker processes that prepare images: Python processes with numpy, Pillow and this package.

A worker imports neither torch nor the user's script (unless something in the script has to be unpickled), so it starts in
a third of a second. It receives the rows of a batch through a pipe, writes the images into memory that it shares with the
parent, and replies where each is. It has no state to save: if the parent ends in any way, it reads the end of its pipe and exits.

The parent sends one pickle, of the function to call; everything else is lines of JSON and the bytes of images. So nothing
from the process that opens untrusted files is ever unpickled.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import spawn
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar

import numpy as np

from vitrail.data.prepare import Picture
from vitrail.errors import ConfigError, DataError, LostProcessError, VitrailError
from vitrail.images.decode import BadImage

HEAD = 64  # bytes before the first array: the mark; arrays are aligned to as many
Location = tuple[int, Sequence[int], str]  # the byte where an array starts, its shape, its type as `numpy.dtype.str`
TYPES = {"|u1": 1, "<i4": 4, "<f4": 4}  # what a reader accepts, and the bytes of an element


def create_memory() -> BinaryIO:
    """Returns a file of memory that grows with its use and ends with the last process that has it open.

    On Linux it is a memfd, to which the size of /dev/shm does not apply, sealed so that no process can take pages from another.
    """
    if hasattr(os, "memfd_create"):
        import fcntl

        descriptor = os.memfd_create("vitrail-pictures", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        memory: BinaryIO = open(descriptor, "r+b", buffering=0)  # the caller closes it
    else:
        memory = TemporaryFile(buffering=0)
    memory.truncate(HEAD)
    return memory


class Writer:
    """Appends arrays to a memory, from the start for each batch."""

    def __init__(self, memory: BinaryIO) -> None:
        self._memory = memory
        self._bytes = _map(memory, mmap.PROT_READ | mmap.PROT_WRITE)
        self._used = HEAD

    def restart(self) -> None:
        """Lets the next array take the place of the first, and sets the mark to 0."""
        self._used = HEAD
        self.mark(0)

    def mark(self, row: int) -> None:
        """Sets the number that `Reader.marked` returns, also after this process died."""
        struct.pack_into("<Q", self._bytes, 0, row)

    def append(self, array: np.ndarray) -> Location:
        """Copies an array and returns where it is."""
        start, end = self._used, self._used + array.nbytes
        if end > len(self._bytes):
            self._memory.truncate(2 * end)  # pages that are never written take no memory
            self._bytes = _map(self._memory, mmap.PROT_READ | mmap.PROT_WRITE)
        np.ndarray(array.shape, array.dtype, self._bytes, start)[...] = array
        self._used = -(-end // HEAD) * HEAD
        return start, array.shape, array.dtype.str


class Reader:
    """Reads the arrays of a `Writer` in place: they change when the writer restarts."""

    def __init__(self, memory: BinaryIO) -> None:
        self._memory = memory
        self._bytes = _map(memory, mmap.PROT_READ)

    def marked(self) -> int:
        """The number that the writer has marked, 0 or more."""
        return struct.unpack_from("<Q", self._bytes)[0]

    def view(self, start: int, shape: Sequence[int], kind: str) -> np.ndarray:
        """The array at a `Location`, read-only. Raises `ValueError` for one outside of the memory, or of none of `TYPES`."""
        if kind not in TYPES or start < HEAD:
            raise ValueError(f"not an array of a picture: {kind} {shape} at {start}")
        if start + math.prod(shape) * TYPES[kind] > len(self._bytes):
            self._bytes = _map(self._memory, mmap.PROT_READ)  # it has grown
        try:
            return np.ndarray(shape, kind, self._bytes, start)
        except TypeError as error:
            raise ValueError(str(error)) from error


def _map(memory: BinaryIO, access: int) -> mmap.mmap:
    return mmap.mmap(memory.fileno(), 0, prot=access)


Row = Sequence[int]  # epoch, sample, view
Make = Callable[[int, int, int], Picture]  # raises BadImage
Made = Picture | str  # a picture, or the reason of the failure
Job = TypeVar("Job")
Result = TypeVar("Result")

MARK = "VITRAIL_DATA_WORKER"  # environment variable that is set in workers
START = "from vitrail.data.workers import serve; serve({})"
FINDABLE = "define it at the top of a module, or use workers=0"  # the remedy for what a worker cannot unpickle


@contextmanager
def make_all(make: Make, rows: Iterable[Row]) -> Iterator[list[Made]]:
    """Every image of a batch, or the reason why it is missing, prepared in this process; as `Workers.prepare`."""
    yield [_attempt(make, row) for row in rows]


def _attempt(make: Make, row: Row) -> Made:
    try:
        return make(*row)
    except BadImage as bad:
        return bad.reason


def in_order(
    work: Callable[[Job], Result], jobs: Iterable[Job], *, threads: int, close: Callable[[], None] = lambda: None
) -> Generator[Result, None, None]:
    """Yields ``work(job)`` for each job, in order. Threads run ahead while the caller uses a result.

    Args:
        threads: number of jobs that run at a time; as many more may be finished and waiting.
        close: called at the end, also after an error; must unblock the threads.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="vitrail-data")
    pending: deque[Future[Result]] = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(work, job))
            if len(pending) > 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        close()
        pool.shutdown()


class Workers:
    """A pool of identical worker processes. Any worker can prepare any rows; calls are thread-safe.

    Args:
        make: returns the image of (epoch, sample, view), or raises `BadImage`; sent to each worker as a pickle.
        count: number of processes.
        keys: names of the samples, for messages.

    Raises `ConfigError` if ``make`` cannot be pickled, or this process is itself a worker.
    """

    def __init__(self, make: Make, count: int, keys: Sequence[str]) -> None:
        refuse_in_worker()
        self.keys = keys
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        try:
            content = pickle.dumps(make, protocol=5)
        except Exception as error:  # pickle raises several types
            raise ConfigError(
                f"the dataset or transform cannot be sent to worker processes: {error}", FINDABLE
            ) from error
        # the worker imports the user's script only if the pickle refers to it
        start = _encode_line(_describe_script() if b"__main__" in content else {}) + content
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(_Worker())
        except BaseException:
            self.close()
            raise
        for worker in self._workers:
            worker.write(start)
            self._idle.put(worker)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [worker.process for worker in self._workers]

    @contextmanager
    def prepare(self, rows: np.ndarray) -> Iterator[list[Made]]:
        """Lends the images of rows (B, 3), from the next free worker: their arrays are its memory, until the context ends.

        Raises:
            LostProcessError: the worker was ended by SIGKILL or SIGTERM.
            DataError: it died otherwise.
            ConfigError, DataError: raised by ``make`` in the worker; RuntimeError for others, with the traceback of the worker.
        """
        worker = self._idle.get()
        try:
            yield worker.ask(rows.tolist(), self.keys)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Kills all workers."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.close()


class _Worker:
    """A worker process and the memory in which it puts the images of a batch."""

    def __init__(self) -> None:
        self._memory = create_memory()
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        try:
            self._images = Reader(self._memory)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", START.format(self._memory.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._memory.fileno(),),
                # one thread per worker, also in numpy and transforms
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", MARK: "1"},
                start_new_session=True,  # Ctrl-C is handled by the parent
            )
        except BaseException:
            self._memory.close()
            raise
        assert self.process.stdin is not None and self.process.stdout is not None
        self._requests, self._replies = self.process.stdin, self.process.stdout

    def write(self, content: bytes) -> None:
        with suppress(BrokenPipeError):  # it died; its last reply can still be read
            self._requests.write(content)
            self._requests.flush()

    def ask(self, rows: list[list[int]], keys: Sequence[str]) -> list[Made]:
        self.write(_encode_line(rows))
        try:
            answer = json.loads(self._replies.readline())
            if "error" not in answer:
                return [self._find(made) for made in answer["made"]]
        except (OSError, ValueError):
            row = rows[min(self._images.marked(), len(rows) - 1)]
            raise self._describe_death(keys[row[1]]) from None
        kind = {"ConfigError": ConfigError, "DataError": DataError}.get(answer["error"])
        raise kind(answer["what"], answer["remedy"], value=answer["value"]) if kind else RuntimeError(answer["what"])

    def _find(self, made: list[Any] | str) -> Made:
        if isinstance(made, str):
            return made
        pixels, crop, full, levels = made
        view = self._images.view
        return Picture(view(*pixels), crop and tuple(crop), full and tuple(full), levels and view(*levels))

    def _describe_death(self, key: str) -> LostProcessError | DataError:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        self.process.kill()  # if it is alive, and sent an invalid reply
        code = self.process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what = f"the data worker {self.process.pid} died ({cause}) at the image {key}"
        if -code in (signal.SIGKILL, signal.SIGTERM):
            return LostProcessError(what, "run the same command again; if memory ran out, with fewer workers")
        return DataError(what, "if it always dies at this image, remove the image")

    def close(self) -> None:
        """Waits for the end of the process, and lets go of its memory."""
        self.process.wait()
        self._memory.close()
        for pipe in (self._requests, self._replies):
            with suppress(OSError):  # unread data
                pipe.close()


def refuse_in_worker() -> None:
    """Raises `ConfigError` in a worker: it imported the user's script, and the script started training again."""
    if os.environ.get(MARK):
        fact = "a data worker imported the script that started it, and the script ran again"
        raise ConfigError(fact, "put the code of the script under `if __name__ == '__main__':`, or use workers=0")


def _describe_script() -> dict[str, str]:
    """How a worker finds the user's script, as arguments of `multiprocessing.spawn.prepare`."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(path)} if path else {}


def serve(memory: int) -> None:
    """The main loop of a worker: reads the function, then rows, and writes images into the memory."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when this ends
        signal.signal(number, signal.SIG_IGN)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # output of user code must not mix with the replies
    with suppress(BrokenPipeError):  # the parent is gone
        _serve(requests, replies, Writer(open(memory, "r+b", buffering=0)))
    os._exit(0)


def _serve(requests: BinaryIO, replies: BinaryIO, memory: Writer) -> None:
    def send(answer: dict[str, Any]) -> None:
        replies.write(_encode_line(answer))
        replies.flush()

    try:
        spawn.prepare(json.loads(requests.readline()))
        make = pickle.load(requests)
    except (AttributeError, ImportError) as error:
        return send(_describe(ConfigError(f"a worker process cannot find the dataset or transform: {error}", FINDABLE)))
    except Exception as error:  # the user's script or its unpickling may raise anything
        return send(_describe(error))
    for line in requests:
        made = []
        for number, row in enumerate(json.loads(line)):
            memory.mark(number)
            try:
                made.append(_put(_attempt(make, row), memory))
            except Exception as error:
                return send(_describe(error))
        memory.restart()
        send({"made": made})


def _put(made: Made, memory: Writer) -> list[Any] | str:
    """The fields of a picture, with places in the memory instead of arrays."""
    if isinstance(made, str):
        return made
    return [memory.append(each) if isinstance(each, np.ndarray) else each for each in made]


def _describe(error: Exception) -> dict[str, Any]:
    if isinstance(error, VitrailError):
        return {"error": type(error).__name__, "what": error.what, "remedy": error.remedy, "value": error.value}
    return {"error": "", "what": "".join(traceback.format_exception(error))}


def _encode_line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
