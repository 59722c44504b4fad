"""`vitrail explain`: what is written for an image, whatever the image and the model, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.looked_at import NAMES, QUIET, picture, shaken
from tests.models.tiny import QUICK, TINY
from vitrail.analysis.attention import attention_map
from vitrail.analysis.explanation import METHODS, NEEDS_ATTENTION, OF_PREDICTIONS, ExplainOptions
from vitrail.analysis.rollout import relevance, rollout
from vitrail.analysis.similarity import patch_similarity
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError, DiskError
from vitrail.inference.options import InferenceOptions
from vitrail.models.config import changed
from vitrail.verbs.explain.scores import measure_faithfulness
from vitrail.verbs.explain.write import explain_inputs
from vitrail.weights.native import save_model


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for name, size in {"a/wide": (40, 130), "b/wide": (90, 50), "grey ü": (33, 33)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture(*size).save(folder / f"{name}.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_each_image_gets_an_overlay_of_its_own_size_its_heads_and_the_numbers(photos, tmp_path, method):
    model, out = shaken(), tmp_path / "out"
    found = list(
        explain_inputs(model, [str(photos)], out, options=ExplainOptions(method=method, layer=1), inference=QUIET)
    )
    assert [Path(each.key).name for each in found] == ["wide.png", "wide.png", "grey ü.png"]
    assert [each.files["overlay"] for each in found] == [
        f"{name}.{method}.png" for name in ("wide", "wide-2", "grey ü")
    ]
    for each in found:
        with Image.open(each.key) as original, Image.open(out / each.files["overlay"]) as lit:
            assert lit.size == original.size
            content = Path(each.key).read_bytes()
        with Image.open(out / each.files["heads"]) as sheet:
            assert sheet.width == 1280
        images = model.preprocess(content)
        with torch.no_grad():
            scores = model.probabilities(model(images))[0]
        assert each.answer is not None
        answered = (each.answer.label, each.answer.score)
        assert answered == (NAMES[int(scores.argmax())], pytest.approx(float(scores.max())))
        numbers = np.load(out / each.files["numbers"])
        assert numbers["heads"].shape == (2, 4, 4)
        np.testing.assert_allclose(numbers["heads"].mean(0), attention_map(model, images, 1)[0], rtol=1e-5)
        truth = {"attention": attention_map(model, images, 1), "rollout": rollout(model, images)}
        truth |= {"gradient": relevance(model, images), "similarity": patch_similarity(model, images)}
        if method in truth:
            np.testing.assert_allclose(numbers["heat"], truth[method][0], rtol=1e-5)
    stored = json.loads((out / f"{method}.json").read_text())
    assert (stored["method"], stored["layer"], len(stored["images"])) == (method, 1, 3)
    assert "broken.jpg" in (out / "bad_images.csv").read_text()


def test_one_head_and_every_head(photos, tmp_path):
    model, wide = shaken(), str(photos / "a" / "wide.png")
    one, two = (
        next(explain_inputs(model, [wide], tmp_path / "out", options=ExplainOptions(head=head), inference=QUIET))
        for head in (1, "all")
    )
    np.testing.assert_array_equal(one.heat, one.heads[1])
    np.testing.assert_allclose(two.heat, two.heads.mean(0), rtol=1e-6)
    assert {f"wide.attention.head{head}.png" for head in (0, 1)} <= {each.name for each in (tmp_path / "out").iterdir()}


def test_another_class_than_the_answer_can_be_explained(photos, tmp_path):
    model, wide = shaken(), str(photos / "a" / "wide.png")
    images = model.preprocess(Path(wide).read_bytes())
    for target in NAMES:
        how = ExplainOptions(method="gradient", target=target)
        found = next(explain_inputs(model, [wide], tmp_path / "out", options=how, inference=QUIET))
        truth = relevance(model, images, torch.tensor([NAMES.index(target)]))[0]
        np.testing.assert_allclose(found.heat, truth, rtol=1e-5)
        assert found.answer is not None and found.answer.target == target


@pytest.mark.parametrize("name", QUICK)
def test_every_architecture_is_explained_by_every_method_that_it_has(name, photos, tmp_path):
    model = shaken(TINY[name])
    has_attention = bool(model.attention_grids(model.config.image_size))
    for method in METHODS:
        wide, options = [str(photos / "b" / "wide.png")], ExplainOptions(method=method)
        if method in NEEDS_ATTENTION and not has_attention:
            with pytest.raises(ConfigError, match=r"has no attention, .*\n.*occlusion"):
                explain_inputs(model, wide, tmp_path / "out", options=options, inference=QUIET)
            continue
        found = next(explain_inputs(model, wide, tmp_path / "out", options=options, inference=QUIET))
        assert np.isfinite(found.heat).all() and found.heat.max() > 0
        assert (found.heads is not None) == has_attention


@pytest.mark.parametrize("channels", [1, 5])
def test_arrays_of_other_channels(tmp_path, channels):
    np.save(tmp_path / "some.npy", np.random.default_rng(0).integers(0, 256, (2, 40, 48, channels), dtype=np.uint8))
    model = shaken(changed(TINY["vit"], in_channels=channels))
    found = list(
        explain_inputs(
            model,
            [str(tmp_path / "some.npy")],
            tmp_path / "out",
            options=ExplainOptions(method="rollout"),
            inference=QUIET,
        )
    )
    assert [each.files["overlay"] for each in found] == ["some-0.rollout.png", "some-1.rollout.png"]
    with Image.open(tmp_path / "out" / "some-0.rollout.png") as lit:
        assert lit.size == (48, 40)


def test_an_encoder_without_a_head_is_looked_into_but_has_no_answer_to_explain(photos, tmp_path):
    encoder = shaken(names=())
    for method in ("attention", "rollout"):
        out = tmp_path / method
        found = list(
            explain_inputs(encoder, [str(photos)], out, options=ExplainOptions(method=method), inference=QUIET)
        )
        assert len(found) == 3 and all(each.answer is None and each.heat.max() > 0 for each in found)
        rows = json.loads((out / f"{method}.json").read_text())["images"]
        assert "label" not in rows[0] and (out / rows[0]["heads"]).exists()
    for asked in ({"method": "gradient"}, {"method": "occlusion"}, {"target": "ant"}):
        with pytest.raises(ConfigError, match="no head"):
            list(
                explain_inputs(
                    encoder, [str(photos)], tmp_path / "out", options=ExplainOptions(**asked), inference=QUIET
                )
            )


def test_invalid_options_raise_errors_that_name_the_value(photos, tmp_path):
    def refused(inputs: Path = photos, out: str = "out", **how) -> str:
        with pytest.raises((ConfigError, DataError, DiskError)) as caught:
            list(
                explain_inputs(shaken(), [str(inputs)], tmp_path / out, options=ExplainOptions(**how), inference=QUIET)
            )
        return str(caught.value)

    assert "unknown method 'rolout'\n  hint: did you mean 'rollout'" in refused(method="rolout")
    assert "there is no layer 3: the model has 3" in refused(layer=3)
    assert "there is no head 2: the model has 2" in refused(head=2)
    assert "head is 'both'" in refused(head="both")
    assert "the method rollout takes no head, but head is all" in refused(method="rollout", head="all")
    assert "no class 'aunt'\n  hint: did you mean 'ant'" in refused(target="aunt")
    assert "there is no image" in refused(photos / "wyde.png")
    assert "the image could not be read: " in refused(photos / "broken.jpg")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(out="file/out")


def test_methods_are_evaluated_on_the_same_images_against_random_maps(photos):
    images, scores = measure_faithfulness(shaken(), [str(photos)], steps=4, draws=2, inference=QUIET)
    assert images == 3
    assert [each.method for each in scores] == [*OF_PREDICTIONS, "random"]
    random = scores[-1]
    assert random.deletion_gain is None
    for each in scores[:-1]:
        gain, low, high = each.deletion_gain
        assert low <= gain <= high
        assert gain == pytest.approx(each.deletion - random.deletion, abs=1e-6)
        assert each.insertion_gain[0] == pytest.approx(each.insertion - random.insertion, abs=1e-6)


def test_a_model_without_attention_is_evaluated_by_what_it_has(photos):
    _, scores = measure_faithfulness(shaken(TINY["bit"]), [str(photos)], steps=2, draws=1, inference=QUIET)
    assert [each.method for each in scores] == ["occlusion", "random"]


def test_methods_are_evaluated_on_maps_of_few_cells(photos):
    model = shaken(changed(TINY["vit"], image_size=(16, 16)))  # 2 x 2 patches, less than the steps that are asked for
    images, scores = measure_faithfulness(model, [str(photos / "a" / "wide.png")], draws=1, inference=QUIET)
    assert (images, len(scores)) == (1, len(OF_PREDICTIONS) + 1)


def test_a_single_image_has_no_interval(photos):
    _, scores = measure_faithfulness(shaken(), [str(photos / "a" / "wide.png")], steps=2, draws=1, inference=QUIET)
    assert {(each.deletion_gain, each.insertion_gain) for each in scores} == {(None, None)}


def test_covered_images_are_shown_as_many_at_a_time_as_asked_for(photos, tmp_path):
    model, seen = shaken(), []
    model.backbone.patch_embed.register_forward_hook(lambda module, given, found: seen.append(len(given[0])))
    how, options = ExplainOptions(method="occlusion"), InferenceOptions(quiet=True, batch=5)
    next(explain_inputs(model, [str(photos / "a" / "wide.png")], tmp_path / "out", options=how, inference=options))
    assert seen.count(5) == 3 and max(seen) == 5  # 16 windows


def test_bad_images_of_another_time_do_not_count(photos, tmp_path):
    (photos / "worse.jpg").write_bytes(b"no picture")
    said = []
    list(explain_inputs(shaken(), [str(photos)], tmp_path / "out", inference=QUIET, log=said.append))
    assert said[-1].startswith("inputs   3 explained, 2 unreadable (listed in ")
    few = [str(photos / "a" / "wide.png"), str(photos / "broken.jpg")]
    assert len(list(explain_inputs(shaken(), few, tmp_path / "out", inference=replace(QUIET, max_bad=0.5)))) == 1


@pytest.mark.slow
def test_the_command_prints_a_table_and_leaves_with_the_codes_of_the_house(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_model("a", shaken())
    assert run(["explain", "a", "photos", "--out", "out", "--method", "rollout", "--quiet"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "path,label,score,target,target_score,overlay,numbers,heads,error"
    assert len(rows) == 4 and rows[2].startswith("photos/broken.jpg,,,")
    assert run(["explain", "a", "photos", "--out", "out", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["overlay"] == "grey ü.attention.png"
    assert run(["explain", "a", "photos", "--faithfulness", "--quiet"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["method", *OF_PREDICTIONS, "random", "over"]
    assert run(["explain", "a", "photos", "--faithfulness", "--json", "--quiet"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["images"] == 3
    gain = figures["rollout_deletion"] - figures["random_deletion"]
    assert figures["rollout_deletion_gain"] == pytest.approx(gain, abs=2e-6)
    assert figures["rollout_deletion_gain_low"] <= gain <= figures["rollout_deletion_gain_high"]
    assert run(["explain", "a", "photos", "--out", "out", "--head=--1", "--quiet"]) == 2
    assert "head is '--1'" in capsys.readouterr().err
    assert run(["explain", "a", "photos"]) == 2
    assert "--out" in capsys.readouterr().err
    assert run(["explain", "a", "photos", "--out", "out", "--layer", "12", "--quiet"]) == 2
    assert "there is no layer 12: the model has 3" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["swin, odd map", "pvt, odd map"])
def test_a_map_that_was_filled_up_lies_where_it_looked(name, tmp_path):
    """Of images of 34 x 27 pixels the places of the last map, of 16 pixels, cover 48 x 32."""
    model = shaken(TINY[name])
    picture(34, 27).save(tmp_path / "small.png")
    found = next(explain_inputs(model, [str(tmp_path / "small.png")], tmp_path / "out", inference=QUIET))
    assert found.heat.shape == (3, 2)
    assert found.reach == found.heads_reach == (48 / 34, 32 / 27)
    how = ExplainOptions(method="rollout")
    found = next(explain_inputs(model, [str(tmp_path / "small.png")], tmp_path / "out", options=how, inference=QUIET))
    assert found.reach == (36 / 34, 28 / 27)  # 9 x 7 patches of 4 pixels


def test_a_file_named_twice_is_one(photos, tmp_path):
    wide = str(photos / "a" / "wide.png")
    found = list(explain_inputs(shaken(), [wide, wide], tmp_path / "out", inference=QUIET))
    assert [each.files["overlay"] for each in found] == ["wide.attention.png"] * 2


def test_the_folder_of_a_run_is_refused(photos, tmp_path):
    for name in ("status.json", "config.yaml"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=r"is the folder of a run\n.*inside"):
        next(explain_inputs(shaken(), [str(photos)], tmp_path, inference=QUIET))
