"""The Open Inference Protocol: its paths, its words, its three kinds of input."""

from __future__ import annotations

import json
from base64 import b64encode

import numpy as np
import pytest


@pytest.fixture
def path(served) -> str:
    return "/v2/models/tiny"


def ask(client, path, name, kind, data, shape=None, **more):
    shape = list(np.shape(data)) if shape is None else shape
    flat = data.ravel().tolist() if isinstance(data, np.ndarray) else data
    given = {"inputs": [{"name": name, "datatype": kind, "shape": shape, "data": flat}], **more}
    return client.post(f"{path}/infer", json=given)


def test_its_paths_are_all_there(client, path, served):
    assert client.get("/v2").json()["name"] == "vitrail"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    told = client.get(path).json()
    assert told["versions"] == [served.version]
    assert [each["name"] for each in told["inputs"]] == ["image", "pixels", "images"]
    assert client.get(f"{path}/versions/{served.version}").json() == told
    assert client.get(f"{path}/ready").json() == {"name": "tiny", "ready": True}
    assert client.get(f"{path}/versions/{served.version}/ready").status_code == 200


def test_files_pixels_and_normalised_images_get_the_same_answer(client, path, served, png):
    files = [png(seed=seed) for seed in range(3)]
    logits = served.model(served.model.preprocess(files)).detach().numpy()
    pixels = np.stack([served.prepare(each, most_pixels=10**6).pixels for each in files]).transpose(0, 2, 3, 1)
    images = served.model.preprocess(files).numpy()
    replies = [
        ask(client, path, "image", "BYTES", [b64encode(each).decode() for each in files], id="seven"),
        ask(client, f"{path}/versions/{served.version}", "pixels", "UINT8", pixels),
        ask(client, path, "images", "FP32", images),
    ]
    assert replies[0].json()["id"] == "seven" and replies[0].json()["model_version"] == served.version
    for reply in replies:
        told = {each["name"]: each for each in reply.json()["outputs"]}
        assert told["logits"]["shape"] == [3, 7] and np.allclose(told["logits"]["data"], logits.ravel(), atol=1e-5)
        assert told["label"]["data"] == [served.model.classes[at] for at in logits.argmax(1)]


def test_outputs_may_be_chosen_once_each(client, path, png):
    image = b64encode(png()).decode()
    told = ask(client, path, "image", "BYTES", [image], outputs=[{"name": "label"}]).json()
    assert [each["name"] for each in told["outputs"]] == ["label"]
    for outputs in ([{"name": "boxes"}], "label", [{"name": "label"}] * 2):
        assert ask(client, path, "image", "BYTES", [image], outputs=outputs).status_code == 400, outputs


NO_INPUTS = [
    ("image", "BYTES", [1], ["no base64!"], 400),
    ("image", "BYTES", [2], ["YQ=="], 400),
    ("image", "BYTES", [1], [3], 422),
    ("image", "BYTES", [1], ["YQ=="], 422),
    ("image", "FP32", [1], [1.0], 400),
    ("video", "BYTES", [1], ["YQ=="], 400),
    ("pixels", "UINT8", [1, 32, 32, 3], [0] * 10, 400),
    ("pixels", "UINT8", [1, 32, 32, 3], [256] * 3072, 400),
    ("pixels", "UINT8", [1, 32, 32, 3], [0.5] * 3072, 400),
    ("pixels", "UINT8", [1, 3, 32, 32], [0] * 3072, 400),
    ("images", "FP32", [1, 3, 32, 32], ["one"] * 3072, 400),
    ("images", "FP32", [1, 3, 32, 32], [[1], [1, 2]], 400),
    ("images", "FP32", [1, 3, 32, 32], [None] * 3072, 400),
    ("images", "FP32", [17, 3, 32, 32], [0.0], 413),
    ("images", "FP32", [], [], 400),
    ("images", "FP32", [True], [0.0], 400),
    ("images", "FP32", [-1, 3, 32, 32], [], 400),
]


def test_invalid_inputs_get_an_error_of_the_protocol(client, path):
    wrong = []
    for name, kind, shape, data, status in NO_INPUTS:
        reply = ask(client, path, name, kind, data, shape)
        if reply.status_code != status or list(reply.json()) != ["error"] or not isinstance(reply.json()["error"], str):
            wrong.append((name, kind, shape, data[:3], reply.status_code, reply.text[:200]))
    assert not wrong


def test_another_model_or_version_is_not_there(client):
    for path in ("/v2/models/other", "/v2/models/tiny/versions/1", "/v2/models/other/ready"):
        reply = client.get(path)
        assert reply.status_code == 404 and isinstance(reply.json()["error"], str), path


def test_numbers_too_large_for_json_or_fp32_are_refused(client, path):
    body = b'{"inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 3, 32, 32], "data": [1e999]}]}'
    assert client.post(f"{path}/infer", content=body).status_code == 400


def test_finite_images_whose_outputs_are_not_finite_are_refused(client, path):
    reply = ask(client, path, "images", "FP32", [3e38] * 3072, [1, 3, 32, 32])
    assert reply.status_code == 400
    assert "are not finite" in reply.json()["error"]


def test_an_id_that_is_not_unicode_is_refused(client, path, png):
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [b64encode(png()).decode()]}
    replies = [
        client.post(f"{path}/infer", content=json.dumps({"id": name, "inputs": [tensor]}))
        for name in ("\U0001f600", "\ud800")
    ]
    assert [reply.status_code for reply in replies] == [200, 400]
    assert replies[0].json()["id"] == "\U0001f600"
