"""The routes about the server itself, and a new model in its place."""

from __future__ import annotations

import json
import re
import time

from tests.looked_at import shaken
from tests.serving.test_admission import SHOWN, TOKEN
from vitrail.errors import CheckpointError
from vitrail.inference.options import InferenceOptions
from vitrail.serving.batcher import HUNG
from vitrail.serving.loaded_model import LoadedModel, load_model
from vitrail.weights.native import save_model


def test_the_model_description_has_all_that_the_page_needs(client, served):
    told = client.get("/v1/model").json()
    assert told["classes"] == list(served.model.classes) and told["metrics"] == {"top1": 0.5}
    layer = {"heads": 2, "map": [4, 4], "asks": "all", "reads": "class token"}
    assert told["attention"]["layers"] == [layer] * 3
    assert told["methods"] == ["attention", "rollout", "gradient", "occlusion", "similarity"]
    assert told["parameters"] == sum(each.numel() for each in served.model.parameters())
    assert told["limits"]["images"] == client.service.limits.images


def test_every_reference_of_the_description_leads_somewhere(client):
    document = client.get("/openapi.json").json()
    references = re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document))
    assert references
    for reference in set(references):
        part = document
        for name in reference.split("/"):
            assert name in part, reference
            part = part[name]


def test_a_run_is_served_by_its_name_with_its_card_and_figures_and_no_path(tmp_path, capsys):
    run = tmp_path / "runs" / "flowers"
    save_model(run / "model", shaken(), metrics={"top1": 0.75})
    (run / "card.md").write_text(f"# Flowers\n\n`vitrail predict {run} photo.jpg`\n")
    served = load_model(str(run), name=None, options=InferenceOptions(), log=print)
    assert served.name == "flowers" and served.about["metrics"] == {"top1": 0.75}
    assert served.about["sha256"] in capsys.readouterr().out
    assert served.about["card"] == "# Flowers\n\n`vitrail predict flowers photo.jpg`\n"


def test_the_origin_of_a_model_is_shown_without_folders(start):
    classifier = shaken()
    source = {"source": "/home/anna/photos", "split": {"seed": 3, "of": [r"C:\photos\val", "hf:owner/name", "digits"]}}
    classifier.provenance = {"data": source}
    told = start(lambda: LoadedModel(classifier, "tiny")).get("/v1/model").json()["provenance"]
    assert told == {"data": {"source": "photos", "split": {"seed": 3, "of": ["val", "hf:owner/name", "digits"]}}}


def test_probes_may_ask_for_the_head_alone(client):
    assert client.head("/livez").status_code == client.head("/readyz").status_code == 200


def test_a_network_that_hangs_for_two_minutes_or_has_died_is_not_alive(client):
    batcher = client.service.batcher

    def statuses() -> list[int]:
        return [client.get(path).status_code for path in ("/livez", "/readyz", "/v2/health/live")]

    for seconds, status in ((60, 200), (121, 503)):
        batcher._current = (time.monotonic() - seconds, 0.0)
        assert statuses() == [status] * 3, seconds
    batcher._current = None
    assert statuses() == [200] * 3 and HUNG == 120
    batcher.close()
    batcher._thread.join()
    assert statuses() == [503] * 3


def test_prometheus_is_told_of_requests_batches_and_bad_images(client, png):
    client.post("/v1/predict", files=[("file", png()), ("file", b"none")])
    client.get("/v1/nothing")
    told = client.get("/metrics").text
    for line in (
        'vitrail_requests_total{code="200",route="/v1/predict"} 1.0',
        'vitrail_requests_total{code="404",route="none"} 1.0',
        "vitrail_images_total 1.0",
        "vitrail_bad_images_total 1.0",
        "vitrail_ready 1.0",
        "vitrail_queue_images 0.0",
    ):
        assert line in told.splitlines()


def test_a_server_that_drains_is_not_ready_lives_and_closes_its_connections(client, png):
    client.service.draining = True
    ready = client.get("/readyz")
    assert ready.status_code == 503 and ready.json() == {"ready": False, "reason": "draining"}
    reply = client.post("/v1/predict", files={"file": png()})
    assert reply.status_code == 200 and reply.headers["connection"] == "close"
    assert client.get("/livez").status_code == 200


def test_a_reload_swaps_the_model_and_a_bad_one_leaves_it(start, png):
    models = [LoadedModel(shaken(names=tuple(f"{letter}{at}" for at in range(7))), letter) for letter in "ab"]
    given = iter([models[0], models[1], CheckpointError("/secret/path is damaged", "mend it")])

    def load() -> LoadedModel:
        new = next(given)
        if isinstance(new, Exception):
            raise new
        return new

    client = start(load, token=TOKEN)
    ask = lambda: client.post("/v1/predict", files={"file": png()}, headers=SHOWN).json()["predictions"][0]["label"]  # noqa: E731
    assert ask().startswith("a")
    told = client.post("/v1/reload", headers=SHOWN).json()
    assert told == {"model": {"name": "b", "version": models[1].version}, "previous": models[0].version}
    assert ask().startswith("b") and f'version="{models[1].version}"' in client.get("/metrics", headers=SHOWN).text
    bad = client.post("/v1/reload", headers=SHOWN)
    assert bad.status_code == 409 and "secret" not in bad.text and ask().startswith("b")


def test_a_reload_needs_a_token_that_the_server_was_given(client):
    assert client.post("/v1/reload").json()["error"]["code"] == "forbidden"


def test_the_version_depends_on_classes_and_temperature(served):
    other = shaken()
    assert LoadedModel(other, "same").version == served.version
    other.temperature = 2.0
    assert LoadedModel(other, "warmer").version != served.version


def test_a_server_of_runs_alone_has_no_model(start, png):
    client = start(None)
    assert client.get("/v1/model").status_code == 404 and client.get("/readyz").status_code == 200
    reply = client.post("/v1/predict", files={"file": png()})
    assert reply.status_code == 404 and "has no model" in reply.json()["error"]["message"]


def test_another_method_is_refused_with_those_that_are_allowed(client):
    for path in ("/v1/predict", "/v1/reload"):
        reply = client.get(path)
        assert reply.status_code == 405 and reply.headers["allow"] == "POST", path
        assert reply.json()["error"]["code"] == "method_not_allowed", path
