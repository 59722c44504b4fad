"""What every test may ask for: one thread, and the folder of real data."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["tests.durations", "tests.left_out", "tests.lost_workers"]

# one thread for every test and every process that one starts: on shared cores tiny networks spend their time waiting
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks for weights of the hub, but those that start a mirror


def pytest_configure(config: pytest.Config) -> None:
    """Gives whoever runs tests, and what they start, one core: verbs take as many threads as there are cores.

    Ctrl-C reaches them also where a shell started the suite in the background, and had it ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    starts_workers = worker is None and getattr(config.option, "numprocesses", None)
    if hasattr(os, "sched_setaffinity") and not starts_workers:
        cores = sorted(os.sched_getaffinity(0))
        number = os.getpid() if worker is None else int(worker.removeprefix("gw"))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def pytest_collection_finish() -> None:
    """Keeps the garbage collector off the modules and tests, which it would walk through for 2 % of the time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept between runs lies in a folder of the tests, not in that of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A verb that was given more threads hands none of them on to the next test."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def registries() -> Iterator[None]:
    """Removes the networks, losses, metrics and objectives that a test registers."""
    from vitrail import plugins
    from vitrail.models.family import ARCHITECTURES, BACKBONES, MODELS

    registries: list[dict[Any, Any]] = [plugins.LOSSES, plugins.METRICS, plugins.OBJECTIVES]
    registries += [MODELS, ARCHITECTURES, BACKBONES]
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before):
        registry.clear()
        registry.update(kept)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data, from ``VITRAIL_TEST_DATA``; skips without it, fails where CI=true."""
    given = os.environ.get("VITRAIL_TEST_DATA")
    if given and (folder := Path(given)).is_dir():
        return folder.resolve()
    message = f"VITRAIL_TEST_DATA={given!r} is not a folder; set it to the folder of real data"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
