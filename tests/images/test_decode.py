"""Every legal oddity of an image file against pixels that were worked out by hand, and every broken one refused."""

from __future__ import annotations

import struct
import warnings
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile

from tests.images.encoded import noise, png, saved
from tests.slow import few_or_nightly
from vitrail.errors import ConfigError
from vitrail.images.decode import BadImage, convert_image, decode, header_size, looks_like_image


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_by_hand(width: int, height: int, bits: int, colour: int, rows: bytes, *, between: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + between + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def tiff_by_hand(array: np.ndarray, *, bits: int, photometric: int, order: str, data: bytes, kind: int = 1) -> bytes:
    height, width = array.shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height, 279: len(data)}
    tags[339] = kind
    at = 8 + len(data)
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, at)
    return head + data + struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", 0)


def test_cmyk_becomes_rgb_as_light_left_by_the_inks():
    inks = np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 255, 0], [0, 0, 0, 255], [64, 128, 0, 51]]], np.uint8)
    decoded = np.asarray(decode(saved(Image.fromarray(inks, "CMYK").resize((80, 16), 0), "JPEG", quality=100)))
    light = (255 - inks[..., :3].astype(float)) * (255 - inks[..., 3:]) / 255  # (1, 5, 3)
    assert np.abs(decoded[8, 8::16] - light[0]).max() <= 3


def test_ycck_is_read_as_luma_and_colour_differences():
    flat = np.broadcast_to(np.array([55, 100, 160, 20], np.uint8), (16, 16, 4))
    content = saved(Image.fromarray(np.ascontiguousarray(flat), "CMYK"), "JPEG", quality=100)
    adobe = content.index(b"Adobe")
    ycck = content[: adobe + 11] + b"\x02" + content[adobe + 12 :]  # the marker's transform: 2 means YCCK
    luma, blue, red, black = 255.0 - flat[0, 0]  # Pillow stores inks inverted, as Adobe does
    colour = np.array(
        [
            luma + 1.402 * (red - 128),
            luma - 0.344136 * (blue - 128) - 0.714136 * (red - 128),
            luma + 1.772 * (blue - 128),
        ]
    )
    # the file's C, M, Y are 255 - colour, inverted again; its K is inverted
    light = (255 - colour.clip(0, 255)) * black / 255
    assert np.abs(np.asarray(decode(ycck)).reshape(-1, 3) - light).max() <= 3


DEEP = np.array([[0, 256, 32767, 32896, 65535], [1, 128, 129, 65407, 257]], np.uint16)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(kind):
    decoded = np.asarray(decode(saved(Image.fromarray(DEEP), kind), channels=1))
    np.testing.assert_array_equal(decoded, np.round(DEEP / 257))


def test_sixteen_bit_tiff_of_the_other_byte_order_gives_the_same_and_one_whose_zero_is_white_is_inverted():
    content = tiff_by_hand(DEEP, bits=16, photometric=1, order=">", data=DEEP.astype(">u2").tobytes())
    np.testing.assert_array_equal(np.asarray(decode(content, channels=1)), np.round(DEEP / 257))
    content = tiff_by_hand(DEEP, bits=16, photometric=0, order="<", data=DEEP.astype("<u2").tobytes())
    np.testing.assert_array_equal(np.asarray(decode(content, channels=1)), 255 - np.round(DEEP / 257))


def test_twelve_bits_have_their_own_white():
    levels = np.array([[0, 4095, 2048, 16]], np.uint16)
    packed = b"".join(
        bytes([int(a) >> 4, (int(a) & 15) << 4 | int(b) >> 8, int(b) & 255]) for a, b in levels.reshape(-1, 2)
    )
    content = tiff_by_hand(levels, bits=12, photometric=1, order="<", data=packed)
    np.testing.assert_array_equal(np.asarray(decode(content, channels=1)), np.round(levels / 4095 * 255))


def test_sixteen_bit_colour_keeps_the_high_byte():
    rows = b"\0" + struct.pack(">6H", 0x0102, 0x80FF, 0xFFFF, 0x00FF, 0x1000, 0xABCD)
    decoded = np.asarray(decode(png_by_hand(2, 1, 16, 2, rows)))
    np.testing.assert_array_equal(decoded, [[[0x01, 0x80, 0xFF], [0x00, 0x10, 0xAB]]])


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_tiff_without_a_range_of_brightness_is_refused(mode):
    with pytest.raises(BadImage, match="no defined range"):
        decode(saved(Image.new(mode, (3, 3)), "TIFF"))


def composite_on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    weight = alpha[..., None] / 255
    return colour * weight + 255 * (1 - weight)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_transparency_is_laid_on_white(kind):
    array = noise(channels=4)
    decoded = np.asarray(decode(saved(Image.fromarray(array), kind)))
    assert np.abs(decoded - composite_on_white(array[..., :3], array[..., 3])).max() <= 1


def test_grey_with_transparency_is_laid_on_white():
    array = noise(channels=2)
    decoded = np.asarray(decode(saved(Image.fromarray(array, "LA"), "PNG"), channels=1))
    assert np.abs(decoded - composite_on_white(array[..., :1], array[..., 1])[..., 0]).max() <= 1


def test_a_palette_with_an_alpha_for_each_entry_is_laid_on_white():
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    decoded = np.asarray(decode(saved(image, "PNG", transparency=bytes([255, 0, 51]))))
    assert np.abs(decoded - [[[10, 20, 30], [255, 255, 255], [218, 220, 222]]]).max() <= 1


def test_a_gif_with_one_transparent_entry_is_laid_on_white():
    image = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    np.testing.assert_array_equal(np.asarray(decode(saved(image, "GIF", transparency=1))), [[[10, 20, 30], [255] * 3]])


@pytest.mark.parametrize(
    ("bits", "colour", "clear", "rows"),
    [(8, 0, struct.pack(">H", 7), b"\0\x07\x08"), (8, 2, struct.pack(">3H", 7, 7, 7), b"\0\x07\x07\x07\x08\x08\x08")],
    ids=["grey", "colour"],
)
def test_a_png_with_one_clear_colour_shows_white_there(bits, colour, clear, rows):
    content = png_by_hand(2, 1, bits, colour, rows, between=chunk(b"tRNS", clear))
    np.testing.assert_array_equal(np.asarray(decode(content)), [[[255] * 3, [8] * 3]])


def test_deep_grey_with_one_clear_level_shows_white_there():
    content = png_by_hand(2, 1, 16, 0, b"\0\x12\x34\x12\x35", between=chunk(b"tRNS", b"\x12\x34"))
    np.testing.assert_array_equal(np.asarray(decode(content, channels=1)), [[255, 18]])


def test_four_channels_are_given_as_they_are():
    array = noise(channels=4)
    np.testing.assert_array_equal(decode(png(array), channels=4), array)


def test_one_bit_is_black_and_white():
    bits = np.array([[True, False, True]])
    np.testing.assert_array_equal(np.asarray(decode(saved(Image.fromarray(bits), "PNG"), channels=1)), [[255, 0, 255]])


def test_grey_becomes_colour_by_repetition_and_colour_grey_by_luma():
    grey = noise(channels=1)[..., 0]
    np.testing.assert_array_equal(np.asarray(decode(png(grey))), np.repeat(grey[..., None], 3, 2))
    colour = noise()
    assert np.abs(np.asarray(decode(png(colour), channels=1)) - colour @ [0.299, 0.587, 0.114]).max() <= 1


def test_a_colour_profile_is_left_alone():
    array = noise()
    np.testing.assert_array_equal(np.asarray(decode(png(array, icc_profile=b"not even a profile"))), array)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_is_decoded(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    options = {"lossless": True} if kind == "WEBP" else {}
    content = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(np.asarray(decode(content)), np.asarray(frames[0]))


def test_a_phones_file_of_several_jpegs_gives_the_first():
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    content = saved(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert np.abs(np.asarray(decode(content)).astype(int) - np.asarray(frames[0])).max() <= 2


@pytest.mark.parametrize("options", [{"progressive": True}, {"optimize": True}, {"subsampling": 2}])
def test_jpegs_are_decoded_as_pillow_does(options):
    content = saved(Image.fromarray(noise(40, 56)), "JPEG", **options)
    np.testing.assert_array_equal(np.asarray(decode(content)), np.asarray(Image.open(BytesIO(content))))


def test_an_interlaced_png_is_put_together():
    # 2 x 2, Adam7: pass 1 holds (0, 0), pass 6 holds (0, 1), pass 7 the second row
    header = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 1)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\x01\0\x02\0\x03\x04")) + chunk(b"IEND", b"")
    np.testing.assert_array_equal(np.asarray(decode(b"\x89PNG\r\n\x1a\n" + body, channels=1)), [[1, 2], [3, 4]])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_a_truncated_file_is_bad(kind):
    content = saved(Image.fromarray(noise(64, 64)), kind)
    for part in (0.3, 0.6, 0.9):
        with pytest.raises(BadImage):
            decode(content[: int(len(content) * part)])


def test_a_format_outside_the_list_is_bad():
    for kind in ("ICO", "JPEG2000", "TGA", "PDF", "ICNS"):
        with pytest.raises(BadImage, match="not a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM image"):
            decode(saved(Image.fromarray(noise(64, 64)), kind))


def test_portable_maps_are_read():
    pixels = noise(5, 7)
    np.testing.assert_array_equal(np.asarray(decode(saved(Image.fromarray(pixels), "PPM"))), pixels)
    grey = saved(Image.fromarray(pixels[..., 0]), "PPM")
    assert grey.startswith(b"P5")
    np.testing.assert_array_equal(np.asarray(decode(grey, channels=1)), pixels[..., 0])
    assert looks_like_image(grey[:16]) and not looks_like_image(b"P7 is no map")


@pytest.mark.parametrize(("brand", "name"), [(b"heic", "HEIC"), (b"avif", "AVIF")])
def test_a_format_that_phones_write_is_named_with_what_reads_it(brand, name):
    with pytest.raises(BadImage, match=f"{name} images are not supported; convert it to JPEG or PNG"):
        decode(b"\0\0\0\x18ftyp" + brand + bytes(40))


def test_an_empty_file_is_reported_as_empty():
    with pytest.raises(BadImage, match="the file is empty"):
        decode(b"")


def test_a_bomb_is_refused_from_its_header(monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail(f"pixels of {image.size} are decoded"))
    for size in ((65535, 65535), (13000, 13000), (1, 100_000_000), (8001, 8000)):
        with pytest.raises(BadImage, match="pixels"):
            decode(png_by_hand(*size, 8, 2, b""))


def test_the_limit_of_pixels_is_the_callers():
    content = png(noise(10, 10))
    decode(content, max_pixels=100)
    with pytest.raises(BadImage, match=r"10x10 is 0\.0 million pixels"):
        decode(content, max_pixels=99)


def test_pillows_warnings_do_not_leak():
    between = chunk(b"acTL", struct.pack(">II", 0, 0))
    content = png_by_hand(1, 1, 8, 0, b"\0\x05", between=between)
    with pytest.warns(UserWarning, match="Invalid APNG"):
        Image.open(BytesIO(content))
    filters = list(warnings.filters)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        decode(content)
        assert not heard
    assert warnings.filters == filters


@pytest.mark.parametrize("tries", few_or_nightly(300, 30_000))
def test_no_damage_gives_anything_but_a_picture_or_a_bad_image(tries):
    random = np.random.default_rng(3)
    image = Image.fromarray(noise(33, 41))
    whole = [
        saved(image.convert(mode), kind)
        for kind, mode in [
            ("JPEG", "RGB"),
            ("JPEG", "CMYK"),
            ("PNG", "P"),
            ("PNG", "RGBA"),
            ("WEBP", "RGB"),
            ("BMP", "RGB"),
            ("GIF", "P"),
            ("TIFF", "RGB"),
            ("TIFF", "CMYK"),
        ]
    ]
    outcomes = []
    for _ in range(tries):
        content = bytearray(whole[random.integers(len(whole))])
        for place in random.integers(0, min(len(content), 400), 6):
            content[place] = random.integers(256)
        try:
            outcomes.append(decode(bytes(content)).mode)
        except BadImage as error:
            outcomes.append("bad" if error.reason else "bad without a reason")
    assert 0.08 * tries < outcomes.count("bad") < 0.92 * tries
    assert set(outcomes) == {"RGB", "bad"}


def test_scaled_decoding_is_no_smaller_than_asked():
    content = saved(Image.fromarray(noise(300, 400)), "JPEG")
    assert decode(content, at_least=(70, 90)).size == (100, 75)
    assert decode(content, at_least=(80, 90)).size == (200, 150)
    assert decode(content, at_least=(300, 401)).size == (400, 300)
    assert decode(png(noise(300, 400)), at_least=(10, 10)).size == (400, 300)


def test_scaled_decoding_knows_a_picture_that_lies_on_its_side():
    exif = Image.Exif()
    exif[0x0112] = 6
    content = saved(Image.fromarray(noise(200, 400)), "JPEG", exif=exif)
    assert decode(content, at_least=(300, 100)).size == (200, 400)
    assert decode(content, at_least=(200, 100)).size == (100, 200)


def test_scaled_decoding_stays_near_the_full_one():
    gradient = np.add.outer(np.arange(256), np.arange(256))[..., None].repeat(3, 2) // 2
    content = saved(Image.fromarray(gradient.astype(np.uint8)), "JPEG", quality=95)
    fast = np.asarray(decode(content, at_least=(64, 64))).astype(float)
    full = np.asarray(decode(content).resize((64, 64), Image.Resampling.BOX)).astype(float)
    assert np.abs(fast - full).max() < 3


def test_five_channels_are_no_image_file():
    with pytest.raises(ConfigError, match="5 channels"):
        decode(png(noise()), channels=5)


def test_the_header_alone_gives_the_size():
    assert header_size(png_by_hand(70, 50, 8, 2, b"")) == (50, 70)
    assert header_size(b"nothing") is None


def test_a_pillow_image_in_memory_follows_the_same_rules_and_is_not_changed():
    image = Image.fromarray(noise(channels=4))
    before = image.copy()
    np.testing.assert_array_equal(np.asarray(convert_image(image)), np.asarray(decode(saved(image, "PNG"))))
    assert image == before


def test_real_photographs_are_decoded_as_pillow_does(real_data):
    paths = sorted((real_data / "imagenet_val" / "images").iterdir())[:30]
    assert len(paths) == 30
    for path in paths:
        np.testing.assert_array_equal(
            np.asarray(decode(path.read_bytes())), np.asarray(Image.open(path).convert("RGB"))
        )
