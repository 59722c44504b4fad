"""Training crops against Pillow's own crop and resize, scaled decoding against full, and pictures that lie on their side."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageOps

import vitrail
from vitrail.data import prepare
from vitrail.data.augment.policy import Augment
from vitrail.data.prepare import Evaluated, TrainingCrop, crop, jpeg_size
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import Arrays, Files, Strings
from vitrail.data.windows import Windows
from vitrail.images.decode import BadImage, decode

SIZE = (48, 64)


def photograph(height, width):
    """Smooth colours with a fine grain, and no symmetry: (H, W, 3) uint8."""
    down, across = np.mgrid[:height, :width]
    waves = [np.sin(down / 57), np.cos(across / 83), np.sin((down + 2 * across) / 131)]
    grain = np.random.default_rng(0).integers(-8, 9, (height, width, 3))
    return (np.stack(waves, -1) * 100 + 128 + grain).clip(0, 255).astype(np.uint8)


def picture_of(path, size=SIZE, channels=3):
    contents = Files(str(path.parent), Strings([path.name]))
    return TrainingCrop(contents, Augment(), size, 0, channels)(0, 0, 0).pixels


def by_hand(array, box, size=SIZE):
    """Pillow's crop, then its resize: (C, h, w)."""
    cut = Image.fromarray(array).crop(box).resize(size[::-1], Image.Resampling.BICUBIC)
    return np.asarray(cut).transpose(2, 0, 1)


def mean_difference(some, others):
    return np.abs(some.astype(int) - others.astype(int)).mean()


@pytest.fixture
def choose(monkeypatch):
    """A function that fixes the part (left, top, width, height) of the picture, in hundredths."""

    def choose(*part):
        def crop_box(policy, seed, epoch, sample, view, height, width, *, aspect, attempt):
            return tuple(each * whole / 100 for each, whole in zip(part, (width, height, width, height)))

        monkeypatch.setattr("vitrail.data.prepare.crop_box", crop_box)

    return choose


def test_a_crop_is_what_pillow_cuts_out_and_scales(tmp_path, choose):
    choose(25, 10, 50, 40)
    array = photograph(200, 300)
    Image.fromarray(array).save(tmp_path / "picture.png")
    made = picture_of(tmp_path / "picture.png")
    # the edges differ: here the filter sees beyond the cut
    assert np.abs(made[:, 2:-2, 2:-2].astype(int) - by_hand(array, (75, 20, 225, 100))[:, 2:-2, 2:-2]).max() <= 1


def test_a_crop_of_a_jpeg_decoded_at_a_part_of_its_size_is_nearly_that_of_all_its_pixels(tmp_path, choose):
    Image.fromarray(photograph(801, 1203)).save(tmp_path / "picture.jpg", quality=95)
    with Image.open(tmp_path / "picture.jpg") as image:
        full = np.asarray(image)
    for part in ((0, 0, 100, 100), (30, 20, 60, 70), (80, 75, 20, 25)):
        choose(*part)
        left, top, wide, tall = (each * whole / 100 for each, whole in zip(part, (1203, 801, 1203, 801)))
        box = round(left), round(top), round(left + wide), round(top + tall)
        assert mean_difference(picture_of(tmp_path / "picture.jpg"), by_hand(full, box)) < 0.7, part


def test_a_large_jpeg_is_decoded_at_a_part_only_where_the_crop_is_twice_the_result(tmp_path, choose, monkeypatch):
    decoded = []
    plain = prepare.decode

    def watched(*arguments, **options):
        decoded.append(plain(*arguments, **options))
        return decoded[-1]

    monkeypatch.setattr("vitrail.data.prepare.decode", watched)
    Image.fromarray(photograph(480, 640)).save(tmp_path / "picture.jpg")
    for part in (100, 39, 21, 19, 5):
        choose(0, 0, part, part)
        picture_of(tmp_path / "picture.jpg")
    assert [image.size for image in decoded] == [(80, 60), (320, 240), (320, 240), (640, 480), (640, 480)]


def test_the_crop_of_a_jpeg_that_lies_on_its_side_is_that_of_the_upright_picture(tmp_path, choose):
    choose(10, 20, 60, 30)
    lying, exif, path = Image.fromarray(photograph(500, 800)), Image.Exif(), tmp_path / "picture.jpg"
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        lying.save(path, quality=95, exif=exif)
        with Image.open(path) as image:
            upright = np.asarray(ImageOps.exif_transpose(image))
        height, width = upright.shape[:2]
        assert jpeg_size(path.read_bytes()) == (height, width), orientation
        box = width // 10, height // 5, width * 7 // 10, height // 2
        assert mean_difference(picture_of(path), by_hand(upright, box)) < 0.7, orientation


def test_only_a_jpeg_has_a_size_to_decode_at_and_a_broken_one_has_none():
    buffer = BytesIO()
    Image.new("RGB", (30, 20)).save(buffer, "PNG")
    assert jpeg_size(buffer.getvalue()) is None
    Image.new("RGB", (30, 20)).save(buffer := BytesIO(), "JPEG")
    assert jpeg_size(buffer.getvalue()) == (20, 30)
    assert jpeg_size(buffer.getvalue()[:40]) is None


def test_the_policy_is_told_the_shape_of_the_upright_picture_and_the_aspect_of_the_result(tmp_path, monkeypatch):
    told = []

    def crop_box(policy, *arguments, aspect, attempt):
        told.append((*arguments, aspect))
        return 0, 0, 70, 90

    monkeypatch.setattr("vitrail.data.prepare.crop_box", crop_box)
    (exif := Image.Exif())[0x0112] = 6
    for name in ("picture.jpg", "picture.png"):
        Image.fromarray(photograph(70, 90)).save(tmp_path / name, exif=exif)
        TrainingCrop(Files(str(tmp_path), Strings([name])), Augment(), SIZE, 11, 3)(1, 0, 2)
    assert told == [(11, 1, 0, 2, 90, 70, 64 / 48)] * 2


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (2, "LA"), (4, "RGBA")])
def test_files_come_in_the_asked_number_of_channels(tmp_path, choose, channels, mode):
    choose(0, 0, 50, 50)
    Image.fromarray(photograph(80, 80)).convert(mode).save(tmp_path / "picture.png")
    made = picture_of(tmp_path / "picture.png", channels=channels)
    assert made.shape == (channels, *SIZE)
    assert made.dtype == np.uint8
    assert made[0].std() > 5


def test_each_channel_of_an_array_is_cropped_like_a_grey_picture(choose):
    choose(10, 20, 50, 40)
    images = np.concatenate([photograph(90, 70), photograph(90, 70)[::-1]], axis=2)[None, ..., :5]
    made = TrainingCrop(Arrays(images, Strings("a")), Augment(), SIZE, 0, 5)(0, 0, 0).pixels
    floats = TrainingCrop(Arrays(images / np.float32(255), Strings("a")), Augment(), SIZE, 0, 5)(0, 0, 0).pixels
    for plane, channel in zip(made, images[0].transpose(2, 0, 1)):
        alone = Image.fromarray(channel).resize(SIZE[::-1], Image.Resampling.BICUBIC, box=(7, 18, 42, 54))
        assert np.array_equal(plane, alone)
    assert floats.dtype == np.float32
    assert np.abs(floats * 255 - made).max() < 1.5  # bytes round between the two passes of a resize


def test_an_array_of_another_number_of_channels_is_a_bad_image():
    with pytest.raises(BadImage, match=r"shape \(9, 9, 5\), where \(H, W, 3\)"):
        crop(np.zeros((9, 9, 5), np.uint8), (0, 0, 9, 9), SIZE, 3)


@pytest.mark.parametrize("zoom", [1, 2])
def test_a_jpeg_above_the_usual_limit_is_decoded_at_a_reduced_scale(tmp_path, monkeypatch, zoom):
    levels = np.random.default_rng(0).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    Image.fromarray(levels).resize((640, 480), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=95)
    contents = Files(str(tmp_path), Strings(["a.jpg"]))
    whole = Preprocessing(size=(24, 32))
    preprocessing = whole if zoom == 1 else Windows(whole, zoom)
    asked = []
    monkeypatch.setattr("vitrail.data.prepare.PIXELS", 640 * 480 - 1)
    monkeypatch.setattr(
        Preprocessing, "decode", lambda self, content, **how: asked.append(how["at_least"]) or decode(content, **how)
    )
    with pytest.raises(BadImage, match="over the limit"):
        Evaluated(contents, preprocessing, max_pixels=640 * 480 - 1)(0, 0, 0)
    made = Evaluated(contents, preprocessing, max_pixels=640 * 480)(0, 0, 0)
    assert asked == [None, (24 * zoom, 32 * zoom)]
    assert made.full == (480, 640)
    exact = preprocessing.picture(Image.open(tmp_path / "a.jpg"))
    assert np.abs(made.pixels.astype(int) - exact).mean() < 3


def test_a_run_takes_the_limit_of_pixels(tmp_path):
    for folder, size in (("ant", (40, 30)), ("bee", (40, 30))):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for number in range(6):
            wide = 80 if number == 5 else size[0]
            levels = (
                np.random.default_rng([number, len(folder) + ord(folder[0])])
                .integers(0, 256, (size[1], wide, 3))
                .astype(np.uint8)
            )
            Image.fromarray(levels).save(tmp_path / "data" / folder / f"{number}.png")
    settings = ["model.name=vit-ti16", "model.size=[32, 32]", "model.changes={depth: 1, width: 24, heads: 2}"]
    how = {"settings": settings, "steps": 2, "batch": 4, "workers": 0, "max_bad": 1.0, "quiet": True}
    for limit, bad in ((80 * 30, []), (80 * 30 - 1, ["ant/5.png", "bee/5.png"])):
        run = tmp_path / str(limit)
        vitrail.train(tmp_path / "data", out=run, max_pixels=limit, **how)
        listed = [line.split(",")[0] for line in (run / "bad_images.csv").read_text().splitlines()[1:]] if bad else []
        assert sorted(listed) == bad
        assert (run / "bad_images.csv").exists() == bool(bad)
