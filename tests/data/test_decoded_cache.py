"""Sets of small images are kept decoded; a rule on the source decides, and bad images are named."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError
from vitrail.images.decode import decode


def folder(root, sizes, channels=3):
    """PNG files of these (height, width), two classes; and their pixels."""
    random = np.random.default_rng(0)
    arrays = []
    for number, size in enumerate(sizes):
        array = random.integers(0, 256, (*size, channels)).astype(np.uint8)
        arrays.append(array)
        path = root / "ab"[number % 2] / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(array.squeeze(2) if channels == 1 else array).save(path)
    return arrays


def opened(root):
    return open_data(root, validation=0).train


def test_small_images_of_one_size_become_an_array(tmp_path):
    arrays = folder(tmp_path, [(32, 24)] * 10)
    files = opened(tmp_path)
    kept = keep_decoded(files)
    assert kept.kind == "arrays"
    assert kept.images.shape == (10, 32, 24, 3)
    assert list(kept.keys) == list(files.keys)
    assert kept.targets.tolist() == files.targets.tolist()
    assert kept.classes == files.classes
    for row, key in enumerate(kept.keys):
        np.testing.assert_array_equal(kept.images[row], arrays[int(key[2:5])])


def test_a_sample_stands_for_all_images(tmp_path):
    arrays = folder(tmp_path, [(8, 6)] * 10)
    files = opened(tmp_path)
    sampled = keep_decoded(files, sample=2)
    assert sampled.images.shape == (10, 8, 6, 3)
    assert list(sampled.keys) == list(files.keys)
    first, last = (arrays[int(files.keys[row][2:5])] for row in (0, -1))
    for row in range(10):
        np.testing.assert_array_equal(sampled.images[row], last if row % 2 else first)


def test_grey_is_kept_grey_where_one_channel_is_asked_for(tmp_path):
    arrays = folder(tmp_path, [(8, 8)] * 4, channels=1)
    kept = keep_decoded(opened(tmp_path), channels=1)
    assert kept.images.shape == (4, 8, 8, 1)
    np.testing.assert_array_equal(kept.images[0], arrays[0])


@pytest.mark.parametrize("sizes", [[(65, 64)] * 4, [(32, 32), (32, 32), (32, 31), (32, 32)], [(300, 400)] * 2])
def test_other_sets_stay_files(tmp_path, sizes):
    folder(tmp_path, sizes)
    files = opened(tmp_path)
    assert keep_decoded(files) is files


def test_one_image_of_another_size_that_no_probe_saw_leaves_the_set_as_files(tmp_path):
    folder(tmp_path, [(4, 4)] * 199 + [(4, 5)])
    root = tmp_path / "a/002.png"  # row 1 of 200; the probes are 3 apart
    Image.new("RGB", (5, 4)).save(root)
    (tmp_path / "b/199.png").unlink()
    files = opened(tmp_path)
    assert keep_decoded(files) is files


def test_bad_images_are_named_and_missing(tmp_path):
    folder(tmp_path, [(8, 8)] * 10)
    (tmp_path / "a/004.png").write_bytes(b"broken")
    (tmp_path / "b/007.png").unlink()
    files_before = opened(tmp_path)
    (tmp_path / "b/009.png").unlink()
    told = []
    kept = keep_decoded(files_before, bad=lambda key, reason: told.append((key, reason)))
    assert told == [
        ("a/004.png", "not a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM image"),
        ("b/009.png", "No such file or directory"),
    ]
    assert len(kept) == 7
    assert "a/004.png" not in kept.keys
    assert kept.targets.tolist() == [0] * 4 + [1] * 3
    with pytest.raises(DataError, match=r"a/004\.png is bad: not a JPEG"):
        keep_decoded(files_before)


def test_a_truncated_image_is_bad_and_not_half_grey(tmp_path):
    folder(tmp_path, [(32, 32)] * 4)
    path = tmp_path / "a/002.png"
    path.write_bytes(path.read_bytes()[:-100])
    told = []
    assert len(keep_decoded(opened(tmp_path), bad=lambda *each: told.append(each))) == 3
    assert told[0][0] == "a/002.png"


def test_arrays_and_a_users_dataset_stay_what_they_are():
    arrays = open_data("digits", validation=0).train
    assert keep_decoded(arrays) is arrays
    dataset = open_data([(Image.new("RGB", (8, 8)), 0), (Image.new("RGB", (8, 8)), 1)], validation=0).train
    assert keep_decoded(dataset) is dataset


def test_pictures_are_upright_before_their_size_is_evaluated(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png", exif=exif)
    assert keep_decoded(opened(tmp_path)).images.shape == (2, 8, 8, 3)


def test_real_cifar_is_kept(real_data):
    files = open_data(real_data / "cifar10", validation=0).test.subset(range(0, 10_000, 20))
    kept = keep_decoded(files)
    assert kept.images.shape == (500, 32, 32, 3)
    content = files.read(123).content
    np.testing.assert_array_equal(kept.images[123], np.asarray(Image.open(BytesIO(content)).convert("RGB")))
    np.testing.assert_array_equal(kept.images[123], np.asarray(decode(content)))
