"""A picture that EXIF or XMP turns is set upright once, whatever its format."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.images.encoded import noise, png, saved
from vitrail.data.preprocessing import Preprocessing
from vitrail.images.decode import convert_image, decode

# where EXIF says the rows and columns of the stored picture lie -> what sets it upright
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_once(kind):
    stored, exif = noise(), Image.Exif()
    for orientation, turn in UPRIGHT.items():
        exif[0x0112] = orientation
        options = {"exif": exif, **({"lossless": True} if kind == "WEBP" else {})}
        once = decode(saved(Image.fromarray(stored), kind, **options))
        upright = np.asarray(once)
        np.testing.assert_array_equal(upright, turn(stored), err_msg=str(orientation))
        np.testing.assert_array_equal(np.asarray(convert_image(once)), upright, err_msg=str(orientation))
        as_it_is = Preprocessing(size=upright.shape[:2], resize="none")
        np.testing.assert_array_equal(as_it_is.picture(once), upright.transpose(2, 0, 1), err_msg=str(orientation))


def test_orientation_in_xmp_is_applied_once():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    stored = noise(16, 16)
    content = saved(Image.fromarray(stored), "WEBP", lossless=True, xmp=xmp)
    upright = decode(content)
    np.testing.assert_array_equal(np.asarray(upright), stored[::-1, ::-1])
    np.testing.assert_array_equal(np.asarray(convert_image(upright)), stored[::-1, ::-1])


def test_a_jpeg_is_turned_by_its_exif():
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[:, :16] = 255  # left half white; turned clockwise, the upper half
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = np.asarray(decode(saved(Image.fromarray(stored), "JPEG", exif=exif)))
    assert upright.shape == (32, 16, 3)
    assert upright[:16].min() > 250
    assert upright[16:].max() < 5


def test_broken_exif_does_not_spoil_a_picture():
    array = noise()
    np.testing.assert_array_equal(np.asarray(decode(png(array, exif=b"Exif\0\0MM\0*garbage"))), array)
