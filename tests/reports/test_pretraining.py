"""The report and the card of a self-supervised run: one safe page from whatever is known."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.reports.reading import PAYLOAD, Page, read_report
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DiskError
from vitrail.evaluation.feature_health import FeatureHealth
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.reports.cards import pretraining_card as card
from vitrail.reports.cards import write_card
from vitrail.reports.pretraining import Panel, PretrainingFacts, write_pretrain_report
from vitrail.weights.tokenizers import save_tokenizer

RECORDS = [
    {"step": 0, "knn": 0.312, "chance": 0.1, "effective_rank": 66.0, "spread": 0.82},
    *(
        {"step": step, "loss": 2.0 / step, "lr": 1e-3, "images_per_second": 90.0, "data_wait": 0.25, "psnr": 10.0 + step}
        for step in (1, 2, 3)
    ),
    {"step": 3, "knn": 0.569, "chance": 0.1, "effective_rank": 106.0, "spread": 0.52},
]  # fmt: skip
COLLAPSE = "Dimensional collapse: the features use few of their 192 dimensions. The effective rank is 1.9."


def facts(**more: object) -> PretrainingFacts:
    """A run with everything in it, on four small images."""
    pictures = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 12), dtype=np.uint8)
    given: dict = {
        "title": "bees", "objective": "Masked autoencoding", "about_objective": "hidden patches are told", "records": RECORDS,
        "command": "vitrail pretrain bees", "config": {"optim": {"lr": 0.001}}, "images": {"train": 9, "val": 5},
        "panels": (Panel(name="original", caption="as it is", pictures=pictures),
                   Panel(name="predicted", caption="", pictures=pictures[:, :1] / 255)),
        "before": FeatureHealth(66.0, 0.82, 192), "after": FeatureHealth(106.0, 0.52, 192), "notes": ["one image was bad"],
        "model": "vit-ti16", "parameters": 5_717_416, "image_size": (8, 12), "data": "my bees", "location": "runs/bees",
        "preprocessing": {"size": (8, 12)}, "provenance": {"seed": 3},
    }  # fmt: skip
    return PretrainingFacts(**{**given, **more})


def without(*columns: str) -> list[dict]:
    return [{key: value for key, value in each.items() if key not in columns} for each in RECORDS]


def written(folder: Path, given: PretrainingFacts) -> Page:
    return read_report(write_pretrain_report(folder, given))


def test_a_full_report_has_every_section_and_every_drawing(tmp_path):
    page = written(tmp_path, facts())
    assert page.sections == ["curves", "pictures", "health", "run-details", "next-steps"]
    drawn = {path.stem for path in (tmp_path / "plots").iterdir()}
    assert drawn == {"loss", "knn", "effective-rank", "spread", "measured-psnr", "learning-rate", "speed"}


def test_text_from_outside_is_never_markup_and_never_a_path(tmp_path):
    plain, panels = facts(), [replace(each, name=PAYLOAD, caption=PAYLOAD) for each in facts().panels]
    hostile = replace(
        plain, title=PAYLOAD, command=PAYLOAD, config={PAYLOAD: PAYLOAD}, notes=[PAYLOAD], machine=PAYLOAD, data=PAYLOAD,
        layout=PAYLOAD, recipe=PAYLOAD, model=PAYLOAD, versions={PAYLOAD: PAYLOAD}, images={PAYLOAD: 1}, date=PAYLOAD,
        objective=PAYLOAD, about_objective=PAYLOAD, location=PAYLOAD, diagnosis=PAYLOAD, panels=panels,
        records=[*RECORDS, {"step": 3, f"../../{PAYLOAD}": 1.0}],
    )  # fmt: skip
    before, after = written(tmp_path / "plain", plain), written(tmp_path / "hostile", hostile)
    assert len(after.scripts) == 1
    assert len(after.all("img")) == len(before.all("img")) == 8
    assert not [each for _, each in after.elements if any(key.startswith("on") for key in each)]
    assert after.words.count(PAYLOAD) > 12
    assert len(list((tmp_path / "hostile/plots").iterdir())) == 8


def test_the_headline_says_what_training_gained(tmp_path):
    page = written(tmp_path, facts())
    assert (
        "56.9 % kNN accuracy A k-nearest-neighbour classifier on the features is correct for 56.9 % of the images"
        in page.said
    )
    assert (
        "Training without labels gained 25.7 percentage points; before training the accuracy was 31.2 %." in page.said
    )
    assert "Masked autoencoding : hidden patches are told" in page.said
    assert "chance: 10.0 %" in page.said
    lost = [*RECORDS, {"step": 4, "knn": 0.3}]
    assert "lost 1.2 percentage points" in written(tmp_path, facts(records=lost)).said


def test_tiles_have_the_last_value_and_the_one_before_training(tmp_path):
    page = written(tmp_path, facts())
    assert "Loss 0.667 initially 2.000" in page.said
    assert (
        "Effective rank 106.0 of 192 effective number of dimensions of the features; 66.0 before training" in page.said
    )
    assert (
        "Spread 0.52 about 1 if the features cover the sphere, 0 if they are equal; 0.82 before training" in page.said
    )
    assert "PSNR 13 dB" in page.said


def test_without_labels_the_loss_stands_first_and_nothing_is_said_of_neighbours(tmp_path):
    page = written(tmp_path, facts(records=without("knn", "chance")))
    assert "0.6667 loss" in page.said
    assert "not evaluated with labels" in page.said
    assert "kNN" not in page.words.replace("--protocol knn", "")
    assert not (tmp_path / "plots/knn.svg").exists()
    assert "vitrail probe runs/bees LABELLED-IMAGES --protocol knn" in page.said


def test_a_collapse_is_said_before_all_else(tmp_path):
    page = written(tmp_path, facts(diagnosis=COLLAPSE, after=FeatureHealth(1.9, 0.41, 192)))
    assert [each.get("role") for each in page.all("aside")] == ["alert", None]
    told = "Dimensional collapse The features use few of their 192 dimensions. The effective rank is 1.9."
    assert 0 < page.said.index(told) < page.said.index("kNN accuracy A k-nearest")
    assert "No sign of collapse" not in page.words
    healthy = written(tmp_path, facts(notes=()))
    assert not healthy.all("aside")
    assert "No sign of collapse" in healthy.words


def test_health_stands_in_a_table_with_both_sides_of_training(tmp_path):
    page = written(tmp_path, facts())
    assert "(complete collapse) 0.82 0.52 kNN accuracy" in page.said
    assert "on the features 31.2 % 56.9 %" in page.said
    unknown = written(tmp_path, facts(before=None, records=without("knn")))
    assert "(complete collapse) – 0.52" in unknown.said


def test_a_zero_is_a_figure_and_no_gap(tmp_path):
    page = written(
        tmp_path, facts(before=FeatureHealth(0.0, 0.0, 192), records=[{"step": 0, "knn": 0.0}, {"step": 1, "knn": 0.5}])
    )
    assert "dimensional collapse 0.0 106.0" in page.said
    assert "on the features 0 % 50.0 %" in page.said
    assert "gained 50.0 percentage points; before training the accuracy was 0 %" in page.said


def test_a_bare_run_has_what_was_run_and_what_comes_next(tmp_path):
    page = written(tmp_path, PretrainingFacts(title="bare", objective="Contrastive"))
    assert page.sections == ["run-details", "next-steps"]
    assert "vitrail train LABELLED-IMAGES --init path/to/this/folder" in page.said


def test_pictures_stand_in_a_row_for_each_image_with_a_name_below_each(tmp_path):
    given = facts()
    page = written(tmp_path, given)
    assert [each["alt"] for each in page.all("img")][:3] == [
        "Image 1, original",
        "Image 1, predicted",
        "Image 2, original",
    ]
    assert {each["class"] for each in page.all("img")} == {"drawing"}  # hard edges
    assert [each["style"] for each in page.all("ul") if each.get("class") == "panels small"] == ["--panels:2"]
    assert "Original as it is" in page.said
    assert "Predicted" not in page.words  # a panel that needs no explanation has none
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(str(each["src"]).split(",")[1])))) for each in page.all("img")
    ]
    np.testing.assert_array_equal(shown[2], given.panels[0].pictures[1].transpose(1, 2, 0))
    np.testing.assert_array_equal(shown[3], np.repeat(shown[2][..., :1], 3, 2))


def test_large_pictures_have_wide_columns(tmp_path):
    pictures = np.zeros((1, 3, 96, 96), np.uint8)
    page = written(tmp_path, facts(panels=(Panel(name="view 1", caption="", pictures=pictures),)))
    assert any(each.get("class") == "panels" for each in page.all("ul"))
    assert (
        "pictures"
        not in written(tmp_path, facts(panels=(Panel(name="x", caption="", pictures=pictures[:0]),))).sections
    )


def test_the_curve_of_a_rank_that_falls_is_drawn_on_a_linear_scale(tmp_path):
    ranks = [{"step": step, "effective_rank": rank} for step, rank in enumerate([150.0, 2.0, 2.0, 2.0, 1.5])]
    written(tmp_path, facts(records=ranks))
    drawing = (tmp_path / "plots/effective-rank.svg").read_text()
    assert [float(each) for each in re.findall(r'text-anchor="end">([\d.]+)</text>', drawing)] == [0, 50, 100, 150]


def test_a_measured_share_has_the_digits_of_the_other_percentages(tmp_path):
    records = [{"step": step, "loss": 1.0, "explained": share} for step, share in enumerate([-0.5, 0.1, 0.34982], 1)]
    page = written(tmp_path, facts(records=records))
    assert "Explained variance 35.0 %" in page.said
    drawing = (tmp_path / "plots/measured-explained.svg").read_text("utf-8")
    assert ">50 %</text>" in drawing and ">50.0" not in drawing


def test_an_unknown_measurement_is_drawn_under_its_own_name(tmp_path):
    records = [*RECORDS, {"step": 3, "target_entropy": 4.5, "words": "none"}]
    page = written(tmp_path, facts(records=records))
    assert "Target entropy 4.5 measured by the objective" in page.said
    assert (tmp_path / "plots/measured-target-entropy.svg").exists()


def test_commands_of_odd_names_can_be_typed(tmp_path):
    page = written(tmp_path, facts(location="my runs/it's"))
    assert """vitrail train 'my bees' --init 'my runs/it'"'"'s'""" in page.words


def test_loss_that_is_not_finite_is_said(tmp_path):
    page = written(tmp_path, facts(records=[*RECORDS, {"step": 4, "loss": float("nan")}]))
    assert "not finite in 1 record;" in page.words


def test_a_folder_that_cannot_be_written_is_a_disk_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="cannot be written"):
        write_pretrain_report(tmp_path / "file", facts())


def test_the_card_says_what_it_is_and_what_hubs_read(tmp_path):
    path = write_card(tmp_path / "new", card(facts()))
    assert path == tmp_path / "new/card.md"
    text = path.read_text("utf-8").replace("\u202f", "")
    assert (
        "# bees\n\nA vision encoder that maps images to features (vit-ti16, 5.72M parameters, images of 8 × 12" in text
    )
    assert "trained without labels with Masked autoencoding. The model was trained from scratch." in text
    matter = yaml.safe_load(text.split("---\n")[1])
    assert (matter["pipeline_tag"], matter["license"]) == ("image-feature-extraction", "unknown")
    assert matter["tags"] == ["vision-transformer", "self-supervised"]
    assert "Training started from base.npz." in card(facts(base="base.npz"))


def test_the_card_has_the_figures_of_both_sides_of_training():
    text = card(facts()).replace("\u202f", "")
    assert "| kNN accuracy | 31.2% | 56.9% | accuracy of k-nearest" in text
    assert (
        "| effective rank | 66.0 | 106.0 | effective number of dimensions of the features, at most 192; a low" in text
    )
    assert "| spread | 0.82 | 0.52 |" in text
    assert "| PSNR | – | 13dB |" in text
    assert "Not measured." in card(facts(records=(), after=None))


def test_the_card_says_a_collapse_above_the_figures():
    text = card(facts(diagnosis=COLLAPSE))
    assert f"## Feature quality\n\n**{COLLAPSE}**\n\n| metric |" in text


def test_the_python_lines_of_the_card_compile_wherever_the_encoder_lies():
    lines = re.search(r"```python\n(.*?)\n```", card(facts(location='it\'s "here"/runs')), re.DOTALL)
    assert lines is not None
    assert 'it\'s "here"/runs' in compile(lines[1], "card", "exec").co_consts


def test_text_from_outside_is_neither_markdown_nor_html_in_the_card():
    text = card(facts(objective="<script>", about_objective="two\n\n## Licence", records=[{"step": 1, "a|b": 1.0}]))
    assert "<script>" not in text
    assert text.count("\n## Licence\n") == 1
    assert r"| A\|b | – | 1 |" in text


def test_the_report_of_a_tokenizer_has_no_section_on_features(tmp_path):
    known = facts(objective="tokenizer", records=without("knn", "chance"), before=None, after=None)
    page, told = write_pretrain_report(tmp_path, known).read_text(encoding="utf-8"), card(known)
    for text in (page, told):
        assert "--objective beit --tokenizer runs/bees" in text
        assert not any(
            words in text for words in ("vitrail train", "vitrail probe", "--init", "features are", "a head")
        )
    assert "maps each patch of an image to a discrete code" in told


def test_the_python_lines_of_a_tokenizers_card_run(tmp_path):
    tokenizer = Tokenizer(TokenizerConfig(patch_size=4, width=4, depth=0, levels=(3, 3)))
    place = save_tokenizer(tmp_path / "it's", tokenizer, Preprocessing.paper((8, 12)))
    (lines,) = re.findall(r"```python\n(.*?)```", card(facts(objective="tokenizer", location=str(place))), re.DOTALL)
    found: dict = {}
    exec(lines, found)
    assert found["codes"].shape == (1, 2, 3)
