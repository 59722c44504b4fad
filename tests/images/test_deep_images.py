"""Images of more than 8 bits, of floats and of many bands: what becomes 0 and 1, in training and in prediction alike."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.each_row import each_row
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.deep_files import open_deep
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError
from vitrail.images.decode import BadImage, decode
from vitrail.images.deep_images import decode_deep, decode_file, describe_pixels
from vitrail.tasks.user_images import to_pixels

RAMP = np.arange(40 * 48, dtype=np.uint16).reshape(40, 48)  # 0 to 1919, as of a 12-bit camera


def encode(values: np.ndarray, kind: str) -> bytes:
    buffer = BytesIO()
    if values.ndim == 3:
        tifffile = pytest.importorskip("tifffile")
        tifffile.imwrite(buffer, values, photometric="minisblack", planarconfig="contig")
    else:
        Image.fromarray(values).save(buffer, kind)
    return buffer.getvalue()


def bands(count: int, dtype: type = np.uint16) -> np.ndarray:
    """(40, 48, count), band b is RAMP + b, in 8 bits RAMP modulo 256."""
    values = RAMP[..., None] + np.arange(count)
    return (values % 256 if dtype == np.uint8 else values).astype(dtype)


DEEP = [
    (RAMP, "PNG", (0, 1919), 1),
    (RAMP, "TIFF", (0, 1919), 1),
    (RAMP.astype(np.float32) - 100, "TIFF", (-100, 1819), 1),
    (RAMP.astype(np.int32) - 5, "TIFF", (-5, 1914), 3),
    (bands(13), "TIFF", (0, 1931), 13),
    (bands(5, np.float32), "TIFF", (0, 1923), 5),
    (bands(4), "TIFF", (0, 1922), 4),
    (bands(4, np.uint8), "TIFF", (0, 255), 4),
]


@each_row("values, kind, levels, channels", DEEP)
def test_levels_become_zero_to_one(values, kind, levels, channels) -> None:
    made = decode_deep(encode(values, kind), channels=channels, levels=levels)
    stored = values[..., None] if values.ndim == 2 else values
    expected = (stored.astype(np.float64) - levels[0]) / (levels[1] - levels[0])
    assert made.shape == (40, 48, channels) and made.dtype == np.float32
    np.testing.assert_allclose(made, np.broadcast_to(expected, made.shape), atol=1e-6)
    assert len(np.unique(made)) >= len(np.unique(stored))  # no two levels become one


def test_values_beyond_the_levels_are_clipped() -> None:
    made = decode_deep(encode(RAMP, "PNG"), channels=1, levels=(100, 200))
    assert made.min() == 0 and made.max() == 1
    assert made.reshape(-1)[150] == np.float32(0.5)


def test_turned_and_inverted_images() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying
    buffer = BytesIO()
    Image.fromarray(RAMP).save(buffer, "PNG", exif=exif)
    made = decode_deep(buffer.getvalue(), channels=1, levels=(0, 1919))
    np.testing.assert_allclose(made[..., 0], np.rot90(RAMP, -1) / 1919, atol=1e-6)
    buffer = BytesIO()
    Image.fromarray(RAMP).save(buffer, "TIFF", tiffinfo={262: 0})  # white is zero
    made = decode_deep(buffer.getvalue(), channels=1, levels=(65535 - 1919, 65535))
    np.testing.assert_allclose(made[..., 0], 1 - RAMP / 1919, atol=1e-4)


def test_images_of_8_bits_are_decoded_as_ever() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (40, 48, 3)).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    made = decode_deep(buffer.getvalue(), channels=3, levels=(0, 4095))
    np.testing.assert_allclose(made, picture / 255, atol=1e-6)


REFUSED = [
    (encode(RAMP, "PNG"), r"largest value is 1,919 of 65,535, which would give 8 grey levels; .*--pixel-range 0,1919"),
    (encode(RAMP.astype(np.float32), "TIFF"), r"floats have no defined range; give it with --pixel-range LOW,HIGH"),
    (encode(RAMP.astype(np.int32), "TIFF"), r"whole numbers of 32 bits have no defined range"),
    (b"\0" * 128 + b"DICM" + b"\0" * 40, r"DICOM files are not read; export the slices as 16-bit PNG or TIFF"),
]


@each_row("content, words", REFUSED)
def test_without_levels_deep_images_are_refused(content, words) -> None:
    with pytest.raises(BadImage, match=words):
        decode(content)


def test_a_tiff_of_several_bands_is_named() -> None:
    content = encode(bands(13), "TIFF")
    assert describe_pixels(content) == (13, 16, True)
    with pytest.raises(BadImage, match="a TIFF of a kind that Pillow does not read, as of several bands"):
        decode(content)
    with pytest.raises(BadImage, match="a TIFF of 13 bands of 16 bits, for a network of 3 channels; train on"):
        decode_file(content, channels=3)
    with pytest.raises(BadImage, match="--pixel-range"):
        decode_file(encode(RAMP.astype(np.float32), "TIFF"), channels=3)
    with pytest.raises(BadImage, match="it has 13 bands, and 5 are needed"):
        decode_deep(content, channels=5, levels=(0, 1))
    with pytest.raises(BadImage, match="over the limit"):
        decode_deep(content, channels=13, levels=(0, 1), max_pixels=100)


@each_row("levels", [(1.0, 1.0), (5.0, 1.0), (0.0, float("inf")), (1.0,)])
def test_bad_levels_are_refused(levels) -> None:
    with pytest.raises(ConfigError, match="the pixel range is"):
        Preprocessing(size=(8, 8), pixel_range=levels)


def write_classes(root: Path, make, kind: str) -> Path:
    """Three images of two classes in two splits: the second class is inverted."""
    for split in ("train", "val"):
        for number in range(3):
            for name, values in (("ramp", make()), ("fall", make()[::-1].copy())):
                path = root / split / name / f"{number}.{'png' if kind == 'PNG' else 'tif'}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encode(values, kind))
    return root


@pytest.mark.slow
@each_row(
    "make, kind, levels, channels",
    [(lambda: RAMP, "PNG", (0.0, 1919.0), 1), (lambda: bands(5), "TIFF", (0.0, 1923.0), 5)],
)
def test_a_run_measures_its_range_and_its_model_predicts_with_it(tmp_path, make, kind, levels, channels) -> None:
    data = write_classes(tmp_path / "data", make, kind)
    splits = open_deep(open_data(data))
    assert f"the values {levels[0]:g} to {levels[1]:g} become 0 to 1" in splits.layout
    settings = ["model.name=vit-ti16", "model.size=[32, 32]", "schedule.steps=2", "data.batch=4", "data.workers=0"]
    settings += ["model.changes.depth=1", "model.changes.width=24", "model.changes.heads=2", "compute.tune=false"]
    run = vitrail.train(data, out=tmp_path / "run", set=settings, quiet=True)
    model = vitrail.load(tmp_path / "run")
    assert model.preprocessing.pixel_range == levels and model.preprocessing.channels == channels
    path = data / "val" / "ramp" / f"0.{'png' if kind == 'PNG' else 'tif'}"
    seen = model.preprocessing.picture(to_pixels(path, model.preprocessing))
    expected = model.preprocessing.picture(decode_deep(path.read_bytes(), channels=channels, levels=levels))
    np.testing.assert_array_equal(seen, expected)
    figures = vitrail.evaluate(tmp_path / "run", data, split="val", quiet=True).figures
    assert figures["top1"] == pytest.approx(run.figures["top1"])
    assert [row["error"] for row in vitrail.predict(tmp_path / "run", [path], quiet=True).to_rows()] == [""]


def test_every_verb_takes_the_limit_of_pixels(tmp_path) -> None:
    paths = [tmp_path / "small.png", tmp_path / "large.png"]
    for path, size in zip(paths, ((10, 10, 3), (20, 30, 3))):
        Image.fromarray(np.zeros(size, np.uint8)).save(path)
    model = vitrail.create_model("vit-ti16", image_size=32, width=24, depth=1, heads=2, classes=["ant", "bee"])
    verbs = {
        "predict": partial(vitrail.predict, model, paths),
        "embed": partial(vitrail.embed, model, paths),
        "explain": partial(vitrail.explain, model, paths, out=tmp_path / "out", method="occlusion"),
    }
    for name, verb in verbs.items():
        for most, bad in ((599, 1), (600, 0)):
            results = verb(max_pixels=most, quiet=True, log=lambda line: None)
            assert len(list(results)) == 2 - bad, name
            assert [reason for reason in results.failed.values() if "over the limit" in reason] == [
                *results.failed.values()
            ]
            assert len(results.failed) == bad, name
