"""Shards in an S3 store that answers with errors, cuts answers off and stalls: the batches are those of the folder."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import train_batches
from vitrail.data.sources.open import open_data
from vitrail.shards import cache
from vitrail.verbs.data import shard_data

pytestmark = pytest.mark.slow


class Faulty:
    """A WSGI application in front of the store; every third of the answers for shards is one of three faults."""

    def __init__(self, store):
        self.store, self.lock, self.ended = store, threading.Lock(), threading.Event()
        self.asked, self.faults, self.on = 0, Counter(), False

    def __call__(self, environ, start_response):
        if not (self.on and environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].endswith(".tar")):
            return self.store(environ, start_response)
        with self.lock:
            self.asked += 1
            fault = ("error", "cut off", "stalled")[self.asked // 3 % 3] if self.asked % 3 == 0 else ""
            self.faults[fault] += 1
        if fault == "error":
            start_response("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        body = self.store(environ, start_response)
        if fault == "cut off":
            return [b"".join(body)[:1000]]
        if fault == "stalled":
            self.ended.wait(600)
        return body


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    from moto.server import DomainDispatcherApplication, create_backend_app
    from s3fs import S3FileSystem
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_):
            pass

    app = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("VITRAIL_SHARDS", str(tmp_path / "cache"))
    monkeypatch.setenv("VITRAIL_SHARDS_GB", "1")
    monkeypatch.setattr(cache, "STALLED", 5.0)
    monkeypatch.setattr(cache, "BACK_OFF", 0.1)
    S3FileSystem().mkdir("bucket")
    yield app
    app.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()
    S3FileSystem.clear_instance_cache()


def photos(root):
    noise = np.random.default_rng(0)
    for number in range(30):
        path = root / ("ant" if number % 3 else "bee") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 255, (20, 30, 3), np.uint8)).save(path)
    return root


def test_batches_of_a_faulty_store_are_those_of_the_folder(bucket, tmp_path):
    from s3fs import S3FileSystem

    folder = photos(tmp_path / "photos")
    shard_data(folder, tmp_path / "shards", images=3, quiet=True)
    S3FileSystem().put(f"{tmp_path}/shards/", "bucket/shards/", recursive=True)
    bucket.on = True

    def batches(data):
        source, policy = open_data(data, validation=0).train, POLICIES["inception"]
        return train_batches(source, policy=policy, size=(16, 16), batch=8, seed=1, start=0, stop=20, workers=1)

    for one, other in zip(batches(folder), batches("s3://bucket/shards"), strict=True):
        assert one.images.equal(other.images) and one.targets.equal(other.targets) and one.keys == other.keys
    assert all(bucket.faults[fault] for fault in ("error", "cut off", "stalled"))
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 10
