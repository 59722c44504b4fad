"""The routes that answer for images, compared with what the library says of the same files."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from base64 import b64decode, b64encode
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.looked_at import picture, shaken
from tests.models.tiny import TINY
from tests.weights.graphs import write_graph
from vitrail.analysis.attention import compute_head_maps
from vitrail.analysis.explanation import ExplainOptions
from vitrail.analysis.occlusion import measure_class, occlusion
from vitrail.analysis.rollout import rollout
from vitrail.analysis.similarity import patch_similarity
from vitrail.inference.options import InferenceOptions
from vitrail.serving.loaded_model import Abandoned, ExplanationRequest, LoadedModel, load_model
from vitrail.tasks.classification.classifier import Classifier


def encoded(content: bytes) -> str:
    return b64encode(content).decode()


def test_three_ways_of_sending_give_the_answer_of_the_library(client, served, png):
    expected = served.model.predict([png()], top=3)[0]
    raw = client.post("/v1/predict?top=3", content=png(), headers={"content-type": "image/png"})
    form = client.post("/v1/predict?top=3", files={"file": ("cat.png", png(), "image/png")})
    words = client.post("/v1/predict?top=3", json={"image": {"name": "cat.png", "data": encoded(png())}})
    for reply, name in ((raw, None), (form, "cat.png"), (words, "cat.png")):
        assert reply.status_code == 200 and reply.headers["x-request-id"]
        told = reply.json()
        assert told["model"] == {"name": "tiny", "version": served.version} and told["multi_label"] is False
        (answer,) = told["predictions"]
        assert answer["name"] == name and answer["label"] == expected.label
        assert [each["label"] for each in answer["top"]] == [label for label, _ in expected.top]
        assert np.allclose([each["score"] for each in answer["top"]], [score for _, score in expected.top], atol=1e-6)


def test_every_answer_in_json_names_the_version_of_the_model(client, served, png):
    for path in ("predict", "predict?explain=rollout", "embed", "explain", "explain?method=occlusion"):
        told = client.post(f"/v1/{path}", files={"file": png()}).json()
        assert told["model"] == {"name": "tiny", "version": served.version}, path


def test_uploads_are_decoded_as_the_files_of_an_evaluation(client, served, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    whole, clear = picture(40, 60), picture(40, 60, seed=1).convert("RGBA")
    clear.putalpha(picture(40, 60, seed=2).convert("L"))
    deep = np.random.default_rng(0).integers(0, 2**16, (40, 60), dtype=np.uint16)
    whole.save(tmp_path / "turned.jpg", exif=exif)
    clear.save(tmp_path / "clear.png")
    Image.fromarray(deep).save(tmp_path / "deep.png")
    whole.convert("CMYK").save(tmp_path / "inks.jpg")
    paths = sorted(tmp_path.iterdir())
    told = client.post("/v1/predict?top=7", files=[("file", path.read_bytes()) for path in paths]).json()["predictions"]
    expected = vitrail.predict(served.model, paths, top=7, quiet=True, log=lambda line: None)
    for answer, here in zip(told, expected, strict=True):
        assert {each["label"]: each["score"] for each in answer["top"]} == pytest.approx(dict(here.top), abs=1e-6), (
            here.key
        )


def test_several_images_are_answered_in_their_order_and_a_bad_one_in_its_place(client, served, png):
    files = [("file", (f"{seed}.png", png(seed=seed))) for seed in range(4)]
    files.insert(2, ("file", ("no.png", b"nothing of the kind")))
    told = client.post("/v1/predict", files=files).json()["predictions"]
    assert [each["name"] for each in told] == ["0.png", "1.png", "no.png", "2.png", "3.png"]
    assert told.pop(2)["error"]["code"] == "bad_image"
    expected = served.model.predict([png(seed=seed) for seed in range(4)])
    assert np.allclose([each["score"] for each in told], [each.score for each in expected], atol=1e-6)


def test_features_are_those_that_the_head_reads(client, served, png):
    told = client.post("/v1/embed", files={"file": png()}).json()["embeddings"][0]["features"]
    with torch.no_grad():
        expected = served.model.features(served.model.preprocess(png()))[0]
    assert np.allclose(told, expected, atol=1e-6)


def test_all_heads_of_all_layers_come_at_once_and_are_those_of_the_analysis(client, served, png):
    reply = client.post("/v1/explain?layer=all&head=all&query=1,2", files={"file": ("a.png", png())})
    told = reply.json()
    images = served.model.preprocess(png())
    assert [each["layer"] for each in told["maps"]] == [0, 1, 2]
    for each in told["maps"]:
        expected = compute_head_maps(served.model, images, each["layer"], (1, 2))[0]  # (H, h, w)
        assert [each["rows"], each["columns"]] == list(expected.shape[1:]) and each["heads"] == [0, 1]
        assert np.allclose(each["values"], expected.flatten(1), rtol=1e-4, atol=1e-6)
    assert told["prediction"]["label"] == served.model.predict(png())[0].label and len(told["prediction"]["top"]) == 5
    shown = Image.open(io.BytesIO(b64decode(told["picture"]["jpeg"])))
    assert shown.size == (52, 40) == (told["picture"]["width"], told["picture"]["height"])


def test_a_large_picture_is_shown_small_and_its_box_with_it(client, png):
    told = client.post("/v1/explain", files={"file": png(600, 2048)}).json()
    assert (told["picture"]["width"], told["picture"]["height"]) == (1024, 300)
    top, left, bottom, right = told["box"]
    assert 0 <= top < bottom <= 300.01 and 0 <= left < right <= 1024.01


def test_rollout_is_one_map_and_so_is_a_mean_of_heads(client, served, png):
    images = served.model.preprocess(png())
    (rolled,) = client.post("/v1/explain?method=rollout", files={"file": png()}).json()["maps"]
    assert rolled["layer"] is None and np.allclose(
        rolled["values"], rollout(served.model, images).flatten(1), rtol=1e-4
    )
    (mean,) = client.post("/v1/explain?layer=1", files={"file": png()}).json()["maps"]
    assert mean["layer"] == 1 and mean["heads"] is None
    assert np.allclose(mean["values"], compute_head_maps(served.model, images, 1).mean(1).flatten(1), rtol=1e-4)


def test_explanations_come_as_pictures_too(client, png):
    for asked in ("head=all", "head=1&layer=0", "method=gradient", "method=occlusion", "query=0,3"):
        reply = client.post(f"/v1/explain?as=png&{asked}", files={"file": png()})
        assert reply.status_code == 200 and reply.headers["content-type"] == "image/png", asked
        assert Image.open(io.BytesIO(reply.content)).width > 0, asked


def test_predictions_may_come_with_their_explanation(client, png):
    files = [("file", png(seed=1)), ("file", b"none"), ("file", png(seed=2))]
    told = client.post("/v1/predict?explain=rollout", files=files).json()["predictions"]
    assert [each.get("explanation", {}).get("method") for each in told] == ["rollout", None, "rollout"]


REFUSED = [
    ("/v1/predict?top=0", 422, "invalid", "top"),
    ("/v1/predict?explain=magic", 422, "invalid", "explain"),
    ("/v1/explain?layer=3", 422, "cannot_explain", "layer 3"),
    ("/v1/explain?head=2", 422, "cannot_explain", "head 2"),
    ("/v1/explain?query=4,0", 422, "cannot_explain", "no query patch"),
    ("/v1/explain?method=rollout&head=1", 422, "cannot_explain", "no head"),
    ("/v1/explain?method=rollout&layer=all", 422, "cannot_explain", "no layer"),
    ("/v1/explain?target=unicorn", 422, "cannot_explain", "unicorn"),
    ("/v1/predict?topp=3", 422, "invalid", "topp"),
    ("/v1/nothing", 404, "not_found", "Not Found"),
]


def test_invalid_requests_are_refused_with_a_reason(client, png):
    wrong = []
    for asked, status, code, word in REFUSED:
        reply = client.post(asked, files={"file": png()})
        told = reply.json()
        if (reply.status_code, told["error"]["code"]) != (status, code) or word not in told["error"]["message"]:
            wrong.append((asked, reply.status_code, told))
        assert told["request_id"] == reply.headers["x-request-id"], asked
    assert not wrong


def test_one_bad_image_is_a_refusal_without_a_path_or_an_address(client):
    reply = client.post("/v1/predict", files={"file": b"\x89PNG\r\n\x1a\n broken"})
    told = reply.json()["error"]
    assert reply.status_code == 422 and told["code"] == "bad_image"
    assert "/" not in told["message"] and " 0x" not in told["message"]


def test_an_encoder_without_a_head_embeds_and_does_not_predict(start, png):
    served = LoadedModel(shaken(TINY["swin"], ()), "encoder")
    client = start(lambda: served)
    assert client.post("/v1/embed", files={"file": png()}).status_code == 200
    assert client.post("/v1/predict", files={"file": png()}).json()["error"]["code"] == "no_head"
    told = client.post("/v1/explain?layer=all&head=all", files={"file": png()}).json()
    assert told["prediction"] is None and len(told["maps"]) == 4
    assert client.get("/v1/model").json()["methods"] == ["attention", "rollout", "similarity"]


def test_a_network_without_attention_offers_occlusion_and_similarity(start, png):
    served = LoadedModel(shaken(TINY["bit"]), "bit")
    client = start(lambda: served)
    about = client.get("/v1/model").json()
    assert about["attention"] is None and about["methods"] == ["occlusion", "similarity"]
    assert client.post("/v1/explain?method=occlusion", files={"file": png()}).status_code == 200
    assert client.post("/v1/explain", files={"file": png()}).json()["error"]["code"] == "cannot_explain"


def test_any_patch_is_compared_with_all_by_the_last_features(start, png):
    served = LoadedModel(shaken(TINY["swin"]), "swin")
    client = start(lambda: served)
    grid = client.get("/v1/model").json()["feature_map"]
    images = served.model.preprocess(png())
    for query, patch in (("", None), ("&query=0,1", (0, 1))):
        (found,) = client.post(f"/v1/explain?method=similarity{query}", files={"file": png()}).json()["maps"]
        assert [found["rows"], found["columns"]] == grid and found["heads"] is None
        expected = patch_similarity(served.model, images, patch).flatten(1)
        assert np.allclose(found["values"], expected, rtol=1e-4, atol=1e-5)
    refused = client.post(f"/v1/explain?method=similarity&query={grid[0]},0", files={"file": png()})
    assert refused.status_code == 422 and "there is no patch" in refused.json()["error"]["message"]
    assert client.post("/v1/explain?method=similarity&as=png", files={"file": png()}).content[1:4] == b"PNG"


def test_an_exported_graph_answers_embeds_and_is_explained_by_occlusion_alone(start, png, tmp_path):
    served = load_model(str(write_graph(tmp_path / "a.onnx")), name=None, options=InferenceOptions(), log=print)
    client = start(lambda: served)
    expected = served.model.predict([png()])[0]
    assert client.post("/v1/predict", files={"file": png()}).json()["predictions"][0]["label"] == expected.label
    assert client.post("/v1/embed", files={"file": png()}).status_code == 200
    assert client.get("/v1/model").json()["methods"] == ["occlusion"]
    (found,) = client.post("/v1/explain?method=occlusion", files={"file": png()}).json()["maps"]
    images = served.model.preprocess(png())
    measure = measure_class(served.model, served.model(images).argmax(1))
    assert np.allclose(found["values"], occlusion(served.model, images, measure).flatten(1), rtol=1e-4, atol=1e-6)
    refused = client.post("/v1/explain", files={"file": png()}).json()["error"]
    assert refused["code"] == "cannot_explain" and "occlusion" in refused["remedy"]


def test_the_class_token_of_cait_is_nobody_to_click_on(start, png):
    served = LoadedModel(shaken(TINY["cait"]), "cait")
    client = start(lambda: served)
    layers = client.get("/v1/model").json()["attention"]["layers"]
    asking = [number for number, layer in enumerate(layers) if layer["asks"] == "all"]
    assert 0 < len(asking) < len(layers)
    told = client.post("/v1/explain?layer=all&head=mean&query=0,0", files={"file": png()}).json()
    assert [each["layer"] for each in told["maps"]] == asking


def test_occlusion_uses_larger_regions_if_time_is_short_and_reports_it(monkeypatch, png):
    now = [0.0]

    class Slow(Classifier):
        def forward(self, images):
            now[0] += len(images) / 8  # a second for each forward pass of an occlusion map
            return super().forward(images)

    served = LoadedModel(shaken(), "tiny")
    served.model.__class__ = Slow
    monkeypatch.setattr("vitrail.serving.loaded_model.time", SimpleNamespace(monotonic=lambda: now[0]))
    prepared = served.prepare_explanation(png(), most_pixels=10**6)
    request = ExplanationRequest(options=ExplainOptions(method="occlusion"))
    patch = served.model.config.patch_size[0]
    measure = measure_class(served.model, served.model(prepared.images).argmax(1))
    for left, side, note in (
        (100.0, 4, None),
        (4.0, 2, "2 x 2 regions; 4 x 4 would take longer than the deadline"),
        (0.1, 2, "2 x 2 regions; 4 x 4 would take longer than the deadline"),
    ):
        (found,) = served.maps(prepared, request, now[0] + left)
        window = (4 // side * patch, 4 // side * patch)
        assert found.note == note
        assert np.allclose(found.values, occlusion(served.model, prepared.images, measure, window=window), atol=1e-6)


def test_an_explanation_stops_when_nobody_waits_for_it_any_more(start, png, monkeypatch):
    served = LoadedModel(shaken(), "tiny")
    client = start(lambda: served)
    seen, ahead, stopped, given_up = [], [0], threading.Event(), threading.Event()

    class Slow(Classifier):
        def forward(self, images):
            seen.append(len(images))
            ahead[0] = 1000  # the first batch takes longer than the client waits
            loop.call_soon_threadsafe(given_up.is_set)  # wakes the loop
            assert given_up.wait(600)
            return super().forward(images)

    served.model.__class__ = Slow
    until = served.until

    @contextmanager
    def told(over):
        over.set, set_it = lambda: (set_it(), given_up.set()), over.set
        try:
            with until(over):
                yield
        except Abandoned:
            stopped.set()
            raise

    monkeypatch.setattr(served, "until", told)
    with client:
        loop = client.portal.call(asyncio.get_running_loop)
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + ahead[0])
        # sixteen patches, eight at a time, and two looks before them: four batches, of which there is time for one
        late = client.post("/v1/explain?method=occlusion&as=png", files={"file": png()})
        assert late.status_code == 504 and stopped.wait(600) and len(seen) == 1
    assert not served.model._forward_pre_hooks


def test_an_answer_that_is_not_finite_fails_alone_with_a_reason(start, png):
    classifier = shaken()

    class Poisoned(Classifier):
        def forward(self, images):
            logits = super().forward(images)
            return torch.where(images.mean((1, 2, 3), keepdim=True)[:, :, 0, 0] > 0.9, torch.nan, logits)

    classifier.__class__ = Poisoned
    served = LoadedModel(classifier, "poisoned")
    client = start(lambda: served)
    file = io.BytesIO()
    Image.new("RGB", (40, 40), "white").save(file, "PNG")
    reply = client.post("/v1/predict", files={"file": file.getvalue()})
    assert reply.status_code == 500 and reply.json()["error"]["code"] == "internal"
    assert client.post("/v1/predict", files={"file": png()}).status_code == 200
