"""Features of a source: what the head reads, computed once, kept on the disk, and never taken for those of something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.looked_at import QUIET, shaken, write_pictures
from tests.models.tiny import TINY
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.inference.features import Features, default_cache, describe_cache, features_of
from vitrail.inference.options import InferenceOptions
from vitrail.tasks.classification.classifier import Classifier, create_classifier


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of three pictures of other shapes than the model's; one of the ants is broken."""
    folder = write_pictures(tmp_path / "photos", ("ant", "bee"), [(70, 90), (79, 90), (88, 90)])
    (folder / "ant" / "01.png").write_bytes(b"\x89PNG\r\n\x1a\n no picture")
    return folder


def whole(data: object) -> Source:
    source = open_data(data, validation=0).train
    assert source is not None
    return source


def arrays(channels: int = 3, kind: type = np.uint8, shape: tuple[int, int] = (20, 28)) -> Source:
    images = np.random.default_rng(1).integers(0, 256, (7, *shape, channels))
    return whole(((images / 255 if kind is np.float32 else images).astype(kind), np.arange(7) % 2))


def count_passes(model: Classifier) -> list[int]:
    """The sizes of the batches that the model sees from now on."""
    seen: list[int] = []
    before = model.backbone.features

    def watched(images: torch.Tensor) -> object:
        seen.append(len(images))
        return before(images)

    model.backbone.features = watched  # type: ignore[method-assign]
    return seen


def test_features_are_what_the_head_reads_without_the_bad_images(photos: Path) -> None:
    model, source = shaken(), whole(photos)
    found = features_of(model, source, options=replace(QUIET, batch=2))
    assert found.keys == ["ant/00.png", "ant/02.png", "bee/00.png", "bee/01.png", "bee/02.png"]
    assert found.targets.tolist() == [0, 0, 1, 1, 1]
    with torch.inference_mode():
        images = model.preprocess([Image.open(photos / key) for key in found.keys])
        expected = model.pool(model.forward_features(images)).numpy()
    np.testing.assert_allclose(found.values, expected, atol=1e-5)
    assert found.only(np.array([1, 2, 4])).keys == ["ant/02.png", "bee/01.png"]


@pytest.mark.parametrize(("channels", "kind"), [(1, np.uint8), (5, np.float32)])
def test_arrays_of_any_shape_and_channel_count_have_features(channels: int, kind: type) -> None:
    model = create_classifier(TINY["vit"], classes=(), in_channels=channels)
    found = features_of(model, arrays(channels, kind), options=QUIET)
    assert found.values.shape == (7, model.width)
    assert found.targets.tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_a_second_time_the_model_is_not_run(photos: Path, tmp_path: Path) -> None:
    model, source = shaken(), whole(photos)
    seen = count_passes(model)
    first, again = (features_of(model, source, options=QUIET, cache=tmp_path / "kept") for _ in range(2))
    assert sum(seen) == 5
    np.testing.assert_array_equal(again.values, first.values)
    assert again.keys == first.keys
    assert len(list((tmp_path / "kept").iterdir())) == 1


def move_weights(model: Classifier, photos: Path) -> Classifier:
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    return model


def change_config(model: Classifier, photos: Path) -> Classifier:
    other = create_classifier(replace(model.config, norm_eps=1e-3), classes=model.classes)
    other.load_state_dict(model.state_dict())
    return other


def change_preprocessing(model: Classifier, photos: Path) -> Classifier:
    model.preprocessing = model.preprocessing.override(mean=[0.4])
    return model


@pytest.mark.parametrize(
    "change",
    [move_weights, change_config, change_preprocessing],
    ids=lambda each: each.__name__,
)
def test_a_change_that_affects_all_features_misses_the_cache(
    change: Callable[[Classifier, Path], Classifier], photos: Path, tmp_path: Path
) -> None:
    model = shaken()
    features_of(model, whole(photos), options=QUIET, cache=tmp_path / "kept")
    model = change(model, photos)
    seen = count_passes(model)
    features_of(model, whole(photos), options=QUIET, cache=tmp_path / "kept")
    assert sum(seen) == 5


def test_only_images_that_are_new_or_changed_are_computed(photos: Path, tmp_path: Path) -> None:
    model = shaken()
    features_of(model, whole(photos), options=QUIET, cache=tmp_path / "kept")
    os.utime(photos / "bee" / "02.png", ns=(1, 1))
    Image.new("RGB", (80, 80)).save(photos / "ant" / "00b.png")
    (photos / "ant" / "3.png").write_bytes(b"no picture either")
    (photos / "bee" / "00.png").unlink()
    seen, grown = count_passes(model), whole(photos)
    found = features_of(model, grown, options=QUIET, cache=tmp_path / "kept")
    assert seen == [2]
    assert found.keys == ["ant/00.png", "ant/00b.png", "ant/02.png", "bee/01.png", "bee/02.png"]
    np.testing.assert_allclose(found.values, features_of(shaken(), grown, options=QUIET).values, atol=1e-5)
    features_of(model, grown, options=QUIET, cache=tmp_path / "kept")
    assert seen == [2], "bad images are remembered, those of both files"


def test_subsets_are_served_and_other_pixels_and_precisions_are_not(tmp_path: Path) -> None:
    model, source = shaken(), arrays()
    changed = source.images.copy()
    changed[3, 2, 1, 0] ^= 1
    seen = count_passes(model)
    everything = features_of(model, source, options=QUIET, cache=tmp_path)
    part = features_of(model, source.subset([5, 0, 5]), options=QUIET, cache=tmp_path)
    np.testing.assert_array_equal(part.values, everything.values[[5, 0, 5]])
    features_of(model, whole((changed, source.targets)), options=QUIET, cache=tmp_path)
    features_of(model, source, options=replace(QUIET, precision="bf16"), cache=tmp_path)
    features_of(model, source, options=QUIET, cache=tmp_path)
    assert seen == [7, 1, 7]


def test_a_cache_keeps_its_limit_by_removing_what_was_not_used_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [shaken(replace(TINY["vit"], norm_eps=eps)) for eps in (1e-6, 1e-5, 1e-4)]
    source, lines = arrays(), []
    strange = tmp_path / "weights.safetensors"
    strange.write_bytes(b"a user's own")
    for model in models[:2]:
        features_of(model, source, options=QUIET, cache=tmp_path, log=lines.append)
        for path in tmp_path.glob("*/*"):
            os.utime(path, (1000, 1000))
    features_of(models[0], source, options=QUIET, cache=tmp_path)  # so the second was not used for longest
    size = max(path.stat().st_size for path in tmp_path.glob("*/*"))
    monkeypatch.setenv("VITRAIL_CACHE_GB", str(2.5 * size / 1e9))
    features_of(models[2], source, options=QUIET, cache=tmp_path, log=lines.append)
    assert strange.exists() and len(list(tmp_path.glob("*/*"))) == 2
    assert "VITRAIL_CACHE_GB" in lines[-1]
    seen = [count_passes(model) for model in models]
    for number in (0, 2, 1):
        features_of(models[number], source, options=QUIET, cache=tmp_path)
    assert seen == [[], [7], []]


def test_features_above_the_limit_are_not_kept_and_a_wrong_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    monkeypatch.setenv("VITRAIL_CACHE_GB", "1e-7")
    features_of(shaken(), arrays(), options=QUIET, cache=tmp_path, log=lines.append)
    assert not list(tmp_path.iterdir()) and "not cached" in lines[0]
    assert describe_cache() == f"0.0 of 0.0 GB in {tmp_path}"
    monkeypatch.setenv("VITRAIL_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="VITRAIL_CACHE_GB is 'much'"):
        describe_cache()


@pytest.mark.parametrize("harm", ["cut", "flip", "replace"])
def test_a_damaged_file_is_made_anew(harm: str, tmp_path: Path) -> None:
    model, source = shaken(), arrays()
    first = features_of(model, source, options=QUIET, cache=tmp_path)
    (file,) = tmp_path.glob("*/*")
    content = bytearray(file.read_bytes())
    sound = bytes(content)
    content[-5] ^= 1
    file.write_bytes({"cut": sound[:-9], "flip": bytes(content), "replace": b"nothing"}[harm])
    seen = count_passes(model)
    again = features_of(model, source, options=QUIET, cache=tmp_path)
    assert seen == [7]
    np.testing.assert_array_equal(again.values, first.values)
    features_of(model, source, options=QUIET, cache=tmp_path)
    assert seen == [7], "what was made anew is sound"


def test_bad_images_are_bad_from_the_cache_too(photos: Path, tmp_path: Path) -> None:
    model = shaken()
    features_of(model, whole(photos), options=QUIET, cache=tmp_path / "kept")
    for options in (InferenceOptions(quiet=True, on_bad="stop"), InferenceOptions(quiet=True, max_bad=0.01)):
        with pytest.raises(DataError, match=r"ant/01\.png"):
            features_of(model, whole(photos), options=options, cache=tmp_path / "kept")


def test_rows_of_parquet_are_kept_and_told_apart(photos: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    files = sorted(photos.glob("bee/*.png"))
    rows = {"image": [{"bytes": each.read_bytes(), "path": None} for each in files], "label": [0, 1, 0]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "bees.parquet")
    model, source = shaken(), whole(tmp_path / "bees.parquet")
    seen = count_passes(model)
    for each in (source, whole(tmp_path / "bees.parquet"), source.subset([0, 2]), source.subset([0, 1])):
        found = features_of(model, each, options=QUIET, cache=tmp_path / "kept")
        np.testing.assert_allclose(found.values[0], features_of(shaken(), source, options=QUIET).values[0], atol=1e-5)
    assert seen == [3]


def test_a_users_pictures_are_never_kept(tmp_path: Path) -> None:
    class Pictures:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            return Image.new("RGB", (40, 40), (60 * index,) * 3), index % 2

    found = features_of(shaken(), whole(Pictures()), options=QUIET, cache=tmp_path)
    assert isinstance(found, Features)
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lines: list[str] = []
    found = features_of(shaken(), arrays(), options=QUIET, cache=tmp_path / "file", log=lines.append)
    assert len(found) == 7
    assert "could not be cached" in lines[0]


def test_features_that_are_no_numbers_are_refused_and_not_kept(tmp_path: Path) -> None:
    model = shaken()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(CheckpointError, match="not finite"):
        features_of(model, arrays(), options=QUIET, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_folder_of_the_cache_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", "/somewhere/else")
    assert default_cache() == Path("/somewhere/else")
    monkeypatch.delenv("VITRAIL_CACHE")
    assert default_cache().parts[-3:] == (".cache", "vitrail", "features")
