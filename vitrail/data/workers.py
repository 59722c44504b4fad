"""Worker processes that make pictures: plain Pythons which know numpy, Pillow and this room, and answer through a pipe.

A worker does not import the user's script (unless something in it has to be unpickled) nor torch, so it starts in a
third of a second; it is asked for the rows of a batch and sends one picture after the other, so that its death has the
name of an image. It holds nothing worth saving: closing kills it, and when its parent is gone, however that went, it
reads the end of its pipe and leaves.

The parent pickles what is to be made; all else is lines of JSON, and the bytes of pictures. So nothing that comes from
the side that opens strange files is ever unpickled.
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
Made = Picture | str  # a picture, or the reason why there is none
Job = TypeVar("Job")
Result = TypeVar("Result")

MARK = "VITRAIL_DATA_WORKER"  # in the environment of workers
PIPE_BYTES = 2**20  # a few pictures: a worker goes on while the parent is busy
START = "from vitrail.data.workers import serve; serve()"


def make_all(make: Make, rows: Iterable[Row]) -> list[Made]:
    """Every picture of a batch, or why it is missing."""
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
    """``work(job)`` of each job, in order, done in threads while the caller uses the last one.

    Args:
        threads: jobs under way at a time; as many more may lie finished.
        close: called at the end, however it comes; makes what the threads wait for return.
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
    """Processes that all make the same; any of them may be asked for any rows, from any thread.

    Args:
        make: gives the picture of (epoch, sample, view), or raises `BadImage`; is pickled once for each worker.
        count: of processes.
        keys: names of the samples, for messages.

    Raises:
        ConfigError: ``make`` cannot be pickled, or this process is a worker itself.
    """

    def __init__(self, make: Make, count: int, keys: Sequence[str]) -> None:
        refuse_in_worker()
        self.keys = keys
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        content = _pickled(make)
        # of the parent, only what the worker has to unpickle from the user's own script
        script = _script() if b"__main__" in content else {}
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(count):
                self.processes.append(_start())
        except BaseException:
            self.close()
            raise
        for process in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it died at once; the first request says so
                process.stdin.write(_line(script))
                process.stdin.write(content)
                process.stdin.flush()
            self._idle.put(process)

    def __call__(self, rows: np.ndarray) -> list[Made]:
        """The pictures of rows (B, 3), from the next worker that is free.

        Raises:
            DataError: the worker died.
            ConfigError, DataError: as ``make`` raised them there.
            RuntimeError: anything else that it raised but `BadImage`, with the worker's traceback.
        """
        process = self._idle.get()
        try:
            return self._ask(process, rows.tolist())
        finally:
            self._idle.put(process)

    def _ask(self, process: subprocess.Popen[bytes], rows: list[list[int]]) -> list[Made]:
        assert process.stdin is not None
        assert isinstance(process.stdout, BufferedReader)
        with suppress(BrokenPipeError):  # then its last words may still be read
            process.stdin.write(_line(rows))
            process.stdin.flush()
        made: list[Made] = []
        for row in rows:
            try:
                answer = _receive(process.stdout)
            except (EOFError, OSError, ValueError):
                raise self._death(process, self.keys[row[1]]) from None
            if isinstance(answer, Exception):
                raise answer
            made.append(answer)
        return made

    def _death(self, process: subprocess.Popen[bytes], key: str) -> DataError:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:  # alive, and talking nonsense
            process.kill()
            code = process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        remedy = "use fewer workers if memory ran out (SIGKILL); if it always dies there, take that image away"
        return DataError(f"the data worker {process.pid} died ({cause}) at the image {key}", remedy)

    def close(self) -> None:
        """Ends them all, whatever they do."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):  # what was not read any more
                    pipe.close()


def refuse_in_worker() -> None:
    """Raises `ConfigError` in a worker: it has imported the user's script, and the script has begun again."""
    if os.environ.get(MARK):
        fact = "a data worker imported the script that started it, and the script began again"
        raise ConfigError(fact, "put what the script does under `if __name__ == '__main__':`, or use workers=0")


def _start() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # one thread a worker, also in what numpy or a transform brings
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", MARK: "1"},
        start_new_session=True,  # a Ctrl-C in the terminal is the parent's affair
    )
    assert process.stdout is not None
    # a user's pipes may hold so much in all, and other systems than Linux have nothing to ask
    with suppress(OSError, AttributeError, ImportError):
        import fcntl

        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


def _pickled(make: Make) -> bytes:
    try:
        return pickle.dumps(make, protocol=5)
    except Exception as error:  # pickle raises four kinds
        remedy = "define it at the top of a module, or use workers=0"
        raise ConfigError(f"the dataset or transform cannot be sent to worker processes: {error}", remedy) from error


def _script() -> dict[str, str]:
    """How a worker finds the user's script, in the words of `multiprocessing.spawn.prepare`."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(path)} if path else {}


def serve() -> None:
    """The life of a worker: reads what to make, then rows, and writes what it made."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when this ends
        signal.signal(number, signal.SIG_IGN)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the user's code prints must not fall among the pictures
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


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _send(answer: Made | Exception, replies: BinaryIO) -> None:
    if isinstance(answer, Picture):
        pixels = answer.pixels
        shown = {"crop": answer.crop, "full": answer.full}
        replies.write(_line({"shape": pixels.shape, "type": pixels.dtype.str, **shown}))
        replies.write(np.ascontiguousarray(pixels).data)
    elif isinstance(answer, VitrailError):
        words = {"what": answer.what, "remedy": answer.remedy, "value": answer.value}
        replies.write(_line({"error": type(answer).__name__, **words}))
    elif isinstance(answer, Exception):
        replies.write(_line({"error": "", "what": "".join(traceback.format_exception(answer))}))
    else:
        replies.write(_line({"reason": answer}))
    replies.flush()


def _receive(replies: BufferedReader) -> Made | Exception:
    """What `_send` sent. Raises `EOFError` or `ValueError` where the worker could not finish it."""
    head = json.loads(replies.readline())
    if "reason" in head:
        return head["reason"]
    if "error" in head:
        kind = {"ConfigError": ConfigError, "DataError": DataError}.get(head["error"])
        return kind(head["what"], head["remedy"], value=head["value"]) if kind else RuntimeError(head["what"])
    pixels = np.empty(head["shape"], head["type"])
    if replies.readinto(pixels.data.cast("B")) < pixels.nbytes:
        raise EOFError
    crop, full = (None if value is None else tuple(value) for value in (head["crop"], head["full"]))
    return Picture(pixels, crop, full)
