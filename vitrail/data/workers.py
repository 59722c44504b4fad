"""Worker processes that prepare images: Python processes with numpy, Pillow and this package, connected by pipes.

A worker imports neither torch nor the user's script (unless something in the script has to be unpickled), so it starts in
a third of a second. It receives the rows of a batch and sends one image after the other, so if it dies, the image is
known. It has no state to save: closing kills it, and if the parent process ends in any way, the worker reads the end of
its pipe and exits.

The parent sends one pickle, of the function to call; everything else is lines of JSON and the bytes of images. So nothing
from the process that opens untrusted files is ever unpickled.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import BufferedReader
from multiprocessing import spawn
from queue import SimpleQueue
from typing import Any, BinaryIO, TypeVar

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.pictures import Picture
from vitrail.errors import ConfigError, DataError, VitrailError

Row = Sequence[int]  # epoch, sample, view
Make = Callable[[int, int, int], Picture]  # raises BadImage
Made = Picture | str  # a picture, or the reason of the failure
Job = TypeVar("Job")
Result = TypeVar("Result")

MARK = "VITRAIL_DATA_WORKER"  # environment variable that is set in workers
PIPE_BYTES = 2**20  # a few images, so that a worker continues while the parent is busy
START = "from vitrail.data.workers import serve; serve()"


def make_all(make: Make, rows: Iterable[Row]) -> list[Made]:
    """Every image of a batch, or the reason why it is missing."""
    return [_attempt(make, row) for row in rows]


def _attempt(make: Make, row: Row) -> Made:
    try:
        return make(*row)
    except BadImage as bad:
        return bad.reason


def in_order(
    work: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    threads: int,
    close: Callable[[], None] = lambda: None,
) -> Generator[Result, None, None]:
    """Yield ``work(job)`` for each job, in order. Threads run ahead while the caller uses a result.

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

    Raises:
        ConfigError: ``make`` cannot be pickled, or this process is itself a worker.
    """

    def __init__(self, make: Make, count: int, keys: Sequence[str]) -> None:
        refuse_in_worker()
        self.keys = keys
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        content = _pickle(make)
        # the worker imports the user's script only if the pickle refers to it
        script = _describe_script() if b"__main__" in content else {}
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(count):
                self.processes.append(_start())
        except BaseException:
            self.close()
            raise
        for process in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it died at once; the first request reports it
                process.stdin.write(_encode_line(script))
                process.stdin.write(content)
                process.stdin.flush()
            self._idle.put(process)

    def __call__(self, rows: np.ndarray) -> list[Made]:
        """The images of rows (B, 3), from the next free worker.

        Raises:
            DataError: the worker died.
            ConfigError, DataError: raised by ``make`` in the worker.
            RuntimeError: any other exception of ``make`` except `BadImage`, with the traceback of the worker.
        """
        process = self._idle.get()
        try:
            return self._ask(process, rows.tolist())
        finally:
            self._idle.put(process)

    def _ask(self, process: subprocess.Popen[bytes], rows: list[list[int]]) -> list[Made]:
        assert process.stdin is not None
        assert isinstance(process.stdout, BufferedReader)
        with suppress(BrokenPipeError):  # the worker died; its last reply can still be read
            process.stdin.write(_encode_line(rows))
            process.stdin.flush()
        made: list[Made] = []
        for row in rows:
            try:
                answer = _receive(process.stdout)
            except (EOFError, OSError, ValueError):
                raise self._describe_death(process, self.keys[row[1]]) from None
            if isinstance(answer, Exception):
                raise answer
            made.append(answer)
        return made

    def _describe_death(self, process: subprocess.Popen[bytes], key: str) -> DataError:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # alive, but it sent an invalid reply
            process.kill()
            code = process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        remedy = "use fewer workers if memory ran out (SIGKILL); if it always dies at this image, remove the image"
        return DataError(f"the data worker {process.pid} died ({cause}) at the image {key}", remedy)

    def close(self) -> None:
        """Kill all workers."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):  # unread data
                    pipe.close()


def refuse_in_worker() -> None:
    """Raises `ConfigError` in a worker: it imported the user's script, and the script started training again."""
    if os.environ.get(MARK):
        fact = "a data worker imported the script that started it, and the script ran again"
        raise ConfigError(fact, "put the code of the script under `if __name__ == '__main__':`, or use workers=0")


def _start() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # one thread per worker, also in numpy and transforms
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", MARK: "1"},
        start_new_session=True,  # Ctrl-C is handled by the parent
    )
    assert process.stdout is not None
    # Linux limits the pipe memory of a user; other systems cannot set it
    with suppress(OSError, AttributeError, ImportError):
        import fcntl

        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


def _pickle(make: Make) -> bytes:
    try:
        return pickle.dumps(make, protocol=5)
    except Exception as error:  # pickle raises several types
        remedy = "define it at the top of a module, or use workers=0"
        raise ConfigError(f"the dataset or transform cannot be sent to worker processes: {error}", remedy) from error


def _describe_script() -> dict[str, str]:
    """How a worker finds the user's script, as arguments of `multiprocessing.spawn.prepare`."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(path)} if path else {}


def serve() -> None:
    """The main loop of a worker: read the function, then rows, and write images."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when this ends
        signal.signal(number, signal.SIG_IGN)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # output of user code must not mix with the images
    with suppress(BrokenPipeError):  # the parent is gone
        _serve(requests, replies)
    os._exit(0)


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    try:
        spawn.prepare(json.loads(requests.readline()))
        make = pickle.load(requests)
    except (AttributeError, ImportError) as error:
        remedy = "define it at the top of a module, or use workers=0"
        return _send(ConfigError(f"a worker process cannot find the dataset or transform: {error}", remedy), replies)
    except Exception as error:  # the user's script or its unpickling may raise anything
        return _send(error, replies)
    for line in requests:
        for row in json.loads(line):
            try:
                _send(_attempt(make, row), replies)
            except BrokenPipeError:
                raise
            except Exception as error:
                return _send(error, replies)


def _encode_line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _send(answer: Made | Exception, replies: BinaryIO) -> None:
    if isinstance(answer, Picture):
        pixels = answer.pixels
        shown = {"crop": answer.crop, "full": answer.full, "map": None if answer.map is None else answer.map.shape}
        replies.write(_encode_line({"shape": pixels.shape, "type": pixels.dtype.str, **shown}))
        for array in (pixels, answer.map):
            if array is not None:
                replies.write(np.ascontiguousarray(array).data)
    elif isinstance(answer, VitrailError):
        words = {"what": answer.what, "remedy": answer.remedy, "value": answer.value}
        replies.write(_encode_line({"error": type(answer).__name__, **words}))
    elif isinstance(answer, Exception):
        replies.write(_encode_line({"error": "", "what": "".join(traceback.format_exception(answer))}))
    else:
        replies.write(_encode_line({"reason": answer}))
    replies.flush()


def _receive(replies: BufferedReader) -> Made | Exception:
    """Receives what `_send` has sent. Raises `EOFError` or `ValueError` if it is incomplete."""
    head = json.loads(replies.readline())
    if "reason" in head:
        return head["reason"]
    if "error" in head:
        kind = {"ConfigError": ConfigError, "DataError": DataError}.get(head["error"])
        return kind(head["what"], head["remedy"], value=head["value"]) if kind else RuntimeError(head["what"])
    pixels = _receive_array(replies, head["shape"], head["type"])
    levels = None if head["map"] is None else _receive_array(replies, head["map"], "u1")
    crop, full = (None if value is None else tuple(value) for value in (head["crop"], head["full"]))
    return Picture(pixels, crop, full, levels)


def _receive_array(replies: BufferedReader, shape: list[int], kind: str) -> np.ndarray:
    array = np.empty(shape, kind)
    if replies.readinto(array.data.cast("B")) < array.nbytes:
        raise EOFError
    return array
