"""The routes for a detector and a segmenter: their answers are those of the model, as JSON, as pictures and as tensors."""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import vitrail
from tests.tasks.dense_models import create
from tests.weights.graphs import OPSET
from vitrail.images.rle import Rle, mask_ious
from vitrail.inference.options import InferenceOptions
from vitrail.serving.loaded_model import LoadedModel, load_model
from vitrail.tasks.dense.drawing import class_colours, to_hex
from vitrail.tasks.instances.answer import Instances
from vitrail.tasks.user_images import to_pixels
from vitrail.weights.description import KEY, describe
from vitrail.weights.onnx import PARITY

TASKS = ("detection", "segmentation", "instances")
CLASSES = ("background", "cat", "dog")


@pytest.fixture(scope="module")
def models():
    anything = {"most": 5, "threshold": 0.0}  # five objects, whatever their scores
    return {task: create(task, classes=CLASSES, **({} if task == "segmentation" else anything)) for task in TASKS}


@pytest.fixture
def clients(models, start):
    return {task: start(lambda task=task: LoadedModel(models[task], "tiny")) for task in TASKS}


def ask(client, content: bytes, **query):
    return client.post("/v1/predict", params=query, files={"file": ("a.png", content)})


def infer(client, tensor):
    """The outputs of the other protocol."""
    return client.post("/v2/models/tiny/infer", content=json.dumps({"inputs": [tensor]})).json()["outputs"]


def test_objects_are_those_of_the_model_in_pixels_of_the_picture(clients, models, png):
    content = png()  # 40 x 52 pixels
    reply = ask(clients["detection"], content, threshold=0).json()
    assert reply["task"] == "detection"
    (told,), (expected,) = reply["predictions"], models["detection"].predict([content], threshold=0)
    assert (told["name"], told["width"], told["height"]) == ("a.png", 52, 40)
    assert [each["label"] for each in told["objects"]] == list(expected.labels)
    np.testing.assert_allclose([each["box"] for each in told["objects"]], expected.boxes, atol=1e-3)
    scores = [each["score"] for each in told["objects"]]
    assert scores == pytest.approx(expected.scores.tolist(), abs=1e-5) and len(scores) == 5
    fewer = ask(clients["detection"], content, threshold=(scores[1] + scores[2]) / 2).json()["predictions"][0]
    assert len(fewer["objects"]) == 2


def test_masks_are_those_of_the_model_in_both_protocols(clients, models, png):
    content = png()  # 40 x 52 pixels
    (told,) = ask(clients["instances"], content, threshold=0).json()["predictions"]
    (expected,) = models["instances"].predict([content], threshold=0)
    assert [each["label"] for each in told["objects"]] == list(expected.labels)
    assert [each["mask"] for each in told["objects"]] == [mask.to_coco() for mask in expected.masks]
    assert [each["area"] for each in told["objects"]] == [mask.area for mask in expected.masks]
    image = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [b64encode(content).decode()]}
    outputs = {each["name"]: each for each in infer(clients["instances"], image)}
    assert (outputs["masks"]["datatype"], outputs["masks"]["shape"]) == ("UINT8", [1, 5, 8, 8])
    assert list(outputs) == ["boxes", "scores", "labels", "masks"]


def test_masks_come_as_polygons_or_not_at_all(clients, models, png, monkeypatch):
    y, x = np.mgrid[:40, :52]
    blobs = [((x - a) / 9) ** 2 + ((y - b) / 7) ** 2 < 1 for a, b in ((12, 11), (35.4, 26), (12, 30))]
    pixels = [blobs[0], blobs[0] | blobs[1] | blobs[2], blobs[1] | (y == 39) & (x < 5)]  # of one, three and two parts
    drawn = [Rle.of_patch(each, (0, 0), (40, 52)) for each in pixels]
    answer = Instances(np.zeros((3, 4)), np.ones(3), ("cat", "dog", "cat"), (40, 52), masks=tuple(drawn))
    monkeypatch.setattr(type(models["instances"]), "decode", lambda *given, **how: [answer])
    objects = {
        masks: ask(clients["instances"], png(), masks=masks).json()["predictions"][0]["objects"]
        for masks in ("rle", "polygon", "none")
    }
    for coded, outlined, bare, mask in zip(*objects.values(), drawn, strict=True):
        assert coded["mask"] == mask.to_coco() and coded["area"] == outlined["area"] == bare["area"] == mask.area
        assert "mask" not in bare and outlined["mask"]["size"] == [40, 52]
        again = Rle.of_polygons(outlined["mask"]["polygons"], (40, 52))
        assert mask_ious([again], [mask], np.array([False]))[0, 0] > 0.97
    assert [len(each["mask"]["polygons"]) for each in objects["polygon"]] == [1, 3, 2]


def test_a_map_is_that_of_the_model_in_the_size_of_the_picture_or_smaller(clients, models, png):
    content = png()
    (told,) = ask(clients["segmentation"], content).json()["predictions"]
    (expected,) = models["segmentation"].predict([content])
    levels = np.asarray(Image.open(io.BytesIO(b64decode(told["map"]["png"]))))
    assert told["map"]["size"] == [40, 52] == list(levels.shape)
    assert (levels == expected.map).mean() > 0.99
    assert {each["label"]: each["share"] for each in told["classes"]} == pytest.approx(expected.shares, abs=0.01)
    (small,) = ask(clients["segmentation"], content, side=26).json()["predictions"]
    assert (small["map"]["size"], small["width"], small["height"]) == ([20, 26], 52, 40)
    levels = np.asarray(Image.open(io.BytesIO(b64decode(small["map"]["png"]))))
    assert (levels == expected.map[1::2, 1::2]).mean() > 0.8


def test_a_broken_image_among_several_has_its_error(clients, png):
    for client in clients.values():
        reply = client.post("/v1/predict", files=[("file", png()), ("file", b"none"), ("file", png(30, 20, 1))])
        first, second, third = reply.json()["predictions"]
        assert second["error"]["code"] == "bad_image"
        assert (first["width"], third["width"]) == (52, 20)


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_drawn_as_the_model_draws_them(clients, models, png, task):
    content = png(200, 300)
    reply = ask(clients[task], content, **{"as": "png"})
    assert reply.headers["content-type"] == "image/png"
    drawn = np.asarray(Image.open(io.BytesIO(reply.content)), int)
    (expected,) = models[task].predict([content])
    assert np.abs(drawn - np.asarray(expected.draw(content), int)).mean() < 1


def test_options_that_an_answer_does_not_have_are_refused(clients, client, png):
    refusals = [
        (client, {"threshold": 0.5}, "have no objects with a score"),
        (client, {"as": "png"}, "an answer of the task classification cannot be drawn"),
        (clients["segmentation"], {"threshold": 0.5}, "have no objects with a score"),
        (clients["detection"], {"side": 100}, "have no map of classes"),
        (clients["detection"], {"threshold": 2}, "threshold"),
        (clients["detection"], {"masks": "none"}, "masks is none, and answers of the task detection have no masks"),
        (client, {"masks": "rle"}, "answers of the task classification have no masks of objects"),
        (clients["instances"], {"masks": "png"}, "masks: Input should be 'rle', 'polygon' or 'none'"),
    ]
    for asked, query, words in refusals:
        reply = ask(asked, png(), **query)
        assert reply.status_code == 422 and reply.json()["error"]["code"] == "invalid", query
        assert words in reply.json()["error"]["message"]
    two = clients["detection"].post("/v1/predict?as=png", files=[("file", png()), ("file", png())])
    assert "2 images cannot be drawn" in two.json()["error"]["message"]


def test_a_large_picture_is_drawn_small(clients, png):
    large = ask(clients["segmentation"], png(60, 2048), **{"as": "png"})
    assert Image.open(io.BytesIO(large.content)).size == (1024, 30)


@pytest.mark.parametrize("task", TASKS)
def test_attention_is_shown_and_what_explains_a_class_is_refused(clients, models, png, task):
    assert clients[task].get("/v1/model").json()["methods"] == ["attention", "rollout", "similarity"]
    told = clients[task].post("/v1/explain?layer=all&head=all", files={"file": png()}).json()
    assert told["prediction"] is None and len(told["maps"]) == 1
    for method in ("gradient", "occlusion"):
        refused = clients[task].post(f"/v1/explain?method={method}", files={"file": png()}).json()["error"]
        assert refused["code"] == "cannot_explain"
        assert f"explains the class of an image: the task is {task}" in refused["message"]
    (embedding,) = clients[task].post("/v1/embed", files={"file": png()}).json()["embeddings"]
    assert len(embedding["features"]) == models[task].width


def test_the_model_description_has_task_and_colours(clients, client):
    for task, asked in clients.items():
        told = asked.get("/v1/model").json()
        colours = class_colours(CLASSES)
        assert told["task"] == task and told["colours"] == [to_hex(colours[name]) for name in CLASSES]
        assert told["temperature"] is None
    assert clients["detection"].get("/v1/model").json()["threshold"] == 0
    told = client.get("/v1/model").json()
    assert (told["task"], told["colours"], told["threshold"]) == ("classification", None, None)


def test_tensors_have_their_types_and_boxes_of_files_are_in_their_pixels(clients, models, png):
    content = png()
    image = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [b64encode(content).decode()]}
    told = infer(clients["detection"], image)
    outputs = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in told}
    kinds = {"boxes": "FP32", "scores": "FP32", "labels": "INT64"}
    assert {each["name"]: each["datatype"] for each in told} == kinds
    (expected,) = models["detection"].predict([content], threshold=0)
    np.testing.assert_allclose(outputs["boxes"][0], expected.boxes, atol=1e-3)
    assert [CLASSES[label] for label in outputs["labels"][0]] == list(expected.labels)
    preprocessing = models["detection"].preprocessing
    pixels = preprocessing.picture(to_pixels(content, preprocessing)).transpose(1, 2, 0)
    tensor = {"name": "pixels", "shape": [1, *pixels.shape], "datatype": "UINT8", "data": pixels.ravel().tolist()}
    boxes = infer(clients["detection"], tensor)[0]["data"]
    scale = np.tile([len(pixels) / 52, len(pixels) / 40], 2)
    np.testing.assert_allclose(np.reshape(boxes, (5, 4)), expected.boxes * scale, atol=1e-3)
    (map,) = infer(clients["segmentation"], image)
    assert (map["name"], map["datatype"], map["shape"]) == ("map", "UINT8", [1, 32, 32])
    described = clients["segmentation"].get("/v2/models/tiny").json()["outputs"]
    assert described == [{"name": "map", "datatype": "UINT8", "shape": [-1, 32, 32]}]


def write_detector(path, model, parity):
    """A graph with the description of a detector: five boxes that depend on the means of the channels."""
    corners = np.add.outer(np.arange(5), [2, 4, 20, 24]).ravel()
    bias = np.concatenate([corners, np.linspace(3, -1, 5)]).astype(np.float32)
    weight = np.random.default_rng(0).normal(size=(3, 25)).astype(np.float32)
    constants = {"axes": np.array([2, 3]), "ends": np.array([20, 5]), "shape": np.array([-1, 5, 4])}
    constants |= {"weight": weight, "bias": bias, "three": np.float32([3])}
    nodes = [
        helper.make_node("ReduceMean", ["images", "axes"], ["means"], keepdims=0),
        helper.make_node("Gemm", ["means", "weight", "bias"], ["both"]),
        helper.make_node("Split", ["both", "ends"], ["corners", "logits"], axis=1),
        helper.make_node("Reshape", ["corners", "shape"], ["boxes"]),
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("Mul", ["scores", "three"], ["shares"]),
        helper.make_node("Cast", ["shares"], ["labels"], to=TensorProto.INT64),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["B", 3, 32, 32])
    kinds = {"boxes": TensorProto.FLOAT, "scores": TensorProto.FLOAT, "labels": TensorProto.INT64}
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    tensors = [numpy_helper.from_array(values, name) for name, values in constants.items()]
    graph = helper.make_model(
        helper.make_graph(nodes, "graph", [images], outputs, tensors), opset_imports=OPSET, ir_version=10
    )
    helper.set_model_props(graph, {KEY: json.dumps(describe(model)), PARITY: json.dumps(parity)})
    path.write_bytes(graph.SerializeToString())
    return str(path)


@pytest.mark.slow
def test_an_exported_graph_answers_as_it_does_in_the_library(start, models, png, tmp_path):
    file = write_detector(tmp_path / "tiny.onnx", models["detection"], {"largest": 1e-6})
    served = load_model(file, name=None, options=InferenceOptions(), log=print)
    client = start(lambda: served)
    about = client.get("/v1/model").json()
    assert (about["task"], about["methods"], about["parity"]) == ("detection", [], {"largest": 1e-6})
    (told,), (expected,) = ask(client, png()).json()["predictions"], vitrail.load(file).predict([png()])
    np.testing.assert_allclose([each["box"] for each in told["objects"]], expected.boxes, atol=1e-3)
    assert [each["label"] for each in told["objects"]] == list(expected.labels)
    assert len(set(expected.labels)) > 1
    refused = client.post("/v1/embed", files={"file": png()}).json()["error"]
    assert "gives no features of whole images" in refused["message"]
    assert ask(client, png(), **{"as": "png"}).status_code == 200
