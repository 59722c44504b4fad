"""The server says which images are unlike those of the training, where the model can tell."""

from __future__ import annotations

from base64 import b64encode

import pytest
import torch

from tests.looked_at import shaken
from vitrail.serving.loaded_model import LoadedModel
from vitrail.tasks.classification.unlikeness import Unlikeness


@pytest.fixture
def fitted(png) -> LoadedModel:
    """The model of ``served``, with a threshold that half of some pictures are above."""
    model = shaken()
    with torch.no_grad():
        features = model.features(model.preprocess([png(seed=seed) for seed in range(40)]))
    labels = torch.arange(40) % len(model.classes)
    model.set_unlikeness(Unlikeness.fit(features, labels, features, len(model.classes), 0.5), 0.5)
    return LoadedModel(model, "tiny")


def test_replies_have_it_by_both_protocols_and_the_description_names_it(start, fitted, served, png):
    client, files = start(lambda: fitted), [png(seed=seed) for seed in range(6)]
    with torch.no_grad():
        expected = fitted.model(fitted.model.preprocess(files))[:, -1]
    sent = [("file", (f"{place}.png", file)) for place, file in enumerate(files)]
    answers = client.post("/v1/predict", files=sent).json()["predictions"]
    assert [each["unlikeness"] for each in answers] == pytest.approx(expected.tolist(), abs=2e-4)
    assert [each["unknown"] for each in answers] == (expected > 1).tolist()
    assert 0 < sum(each["unknown"] for each in answers) < 6
    image = {"name": "image", "datatype": "BYTES", "shape": [6], "data": [b64encode(file).decode() for file in files]}
    told = client.post("/v2/models/tiny/infer", json={"inputs": [image]}).json()["outputs"]
    (output,) = [each for each in told if each["name"] == "unlikeness"]
    assert output["shape"] == [6] and output["data"] == pytest.approx(expected.tolist(), abs=2e-4)
    assert [each["name"] for each in client.get("/v2/models/tiny").json()["outputs"]] == [each["name"] for each in told]
    assert {"unknown", "unlikeness"} <= client.get("/openapi.json").json()["components"]["schemas"]["Answer"][
        "properties"
    ].keys()
    assert fitted.version != served.version
    plain = start(lambda: served)
    assert "unknown" not in plain.post("/v1/predict", files=sent[:1]).json()["predictions"][0]
