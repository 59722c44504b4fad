"""Boxes and maps of classes as targets: what is kept of them, and which are refused."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.annotations import UNCOUNTED, LabelMaps, Objects, PanopticObjects
from vitrail.data.sources.contents import Arrays, Files, Strings
from vitrail.data.sources.labels import Labels, join_labels
from vitrail.data.sources.source import Source, choose_held_out
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.images.masks import IGNORED, decode_mask
from vitrail.images.rle import Rle


def draw_objects(images: int, seed: int = 0) -> list[Objects]:
    generator = np.random.default_rng(seed)
    parts = []
    for count in generator.integers(0, 5, images).tolist():
        corners = generator.uniform(0, 50, (count, 2, 2)).cumsum(1).reshape(-1, 4)
        crowd, size = generator.random(count) < 0.3, tuple(generator.integers(100, 200, 2).tolist())
        outlines = [generator.bytes(4) for _ in range(count)]
        labels = generator.integers(0, 3, count)
        parts.append(Objects.of_image(corners, labels, crowd=crowd, size=size, outlines=outlines))
    return parts


def test_objects_are_those_of_each_image_whatever_rows_are_taken():
    parts = draw_objects(9)
    joined, rows = Objects.join(parts), np.array([7, 0, 3, 3, 8])
    taken = joined[rows]
    assert len(taken) == 5
    for place, row in enumerate(rows.tolist()):
        one, expected = taken.of(place), parts[row]
        for name in ("boxes", "labels", "crowd", "areas", "sizes", "ends"):
            np.testing.assert_array_equal(getattr(one, name), getattr(expected, name), err_msg=name)
        assert one.outlines == expected.outlines
    assert taken.digest(2) == taken.digest(3) != taken.digest(0)
    assert len(joined[np.zeros(0, int)]) == 0
    np.testing.assert_array_equal(joined.renumber(np.array([5, 6, 7]), 8).labels, joined.labels + 5)
    np.testing.assert_array_equal(Objects.of_image([[1, 2, 4, 8]], [0]).areas, [18])


THINGS = (True, False, True)


def panoptic_objects(*labels: int, things: tuple[bool, ...] = THINGS) -> PanopticObjects:
    """One image of 4 x 8 pixels with a segment of 2 columns for each label, from the left."""
    boxes = [[2 * place, 0, 2 * place + 2, 4] for place in range(len(labels))]
    outlines = [Rle.of_box(box, (4, 8)).to_text().encode() for box in boxes]
    return PanopticObjects.of_image(boxes, labels, size=(4, 8), outlines=outlines, things=things)


def test_segments_say_which_classes_are_things_whatever_rows_are_taken():
    joined = PanopticObjects.join([panoptic_objects(0, 1), panoptic_objects(2), panoptic_objects(1, 0)])
    assert type(joined) is PanopticObjects and len(joined.outlines) == 5
    taken = joined[np.array([2, 0])]
    assert type(taken) is type(taken.of(0)) is PanopticObjects and taken.things == taken.of(0).things == THINGS
    assert taken.labels.tolist() == [1, 0, 0, 1] and joined.strata().tolist() == [0, 2, 0]
    assert (taken.of(1).read_map(0, (4, 8))[0] >> 16).tolist() == [1, 1, 2, 2] + [UNCOUNTED >> 16] * 4
    with pytest.raises(AssertionError, match="whether it is one"):
        panoptic_objects(3)


def test_segments_whose_class_has_become_stuff_are_others():
    one, other = panoptic_objects(0, 1), panoptic_objects(0, 1, things=(False, False, True))
    assert one.digest(0) != other.digest(0) and one.hashes() != other.hashes()
    # of a class that does not occur it says nothing
    unused = panoptic_objects(0, 1, things=(True, False, False))
    assert one.digest(0) == unused.digest(0) and one.hashes() == unused.hashes()
    changed, same = (each.stamp(["a"]).versions != one.stamp(["a"]).versions for each in (other, unused))
    assert changed.all() and not same.any()


def test_things_follow_their_classes_into_another_order():
    splits = {
        "train": Labels(("sky", "cat"), panoptic_objects(1, 0, things=(False, True)), declared=True),
        # the class "unused" is not in the list, and has no segments
        "val": Labels(("cat", "sky", "unused"), panoptic_objects(1, things=(True, False, True)), declared=True),
    }
    names, targets = join_labels(splits, None)
    assert names == ("sky", "cat") and [part.things for part in targets.values()] == [(False, True)] * 2
    assert targets["val"].labels.tolist() == [0]
    names, targets = join_labels(splits, ("cat", "dog", "sky"))
    assert [part.things for part in targets.values()] == [(True, True, False)] * 2
    assert targets["train"].labels.tolist() == [0, 2]


def test_an_image_counts_for_its_rarest_class_in_a_stratified_split():
    common, rare = Objects.of_image([[0, 0, 1, 1]], [1]), Objects.of_image([[0, 0, 1, 1]] * 2, [1, 0])
    nothing = Objects.of_image([], [])
    objects = Objects.join([common] * 20 + [rare] * 4 + [nothing] * 4)
    assert objects.strata().tolist() == [1] * 20 + [0] * 4 + [2] * 4
    contents = Arrays(
        np.zeros((28, 2, 2, 3), np.uint8) + np.arange(28, dtype=np.uint8)[:, None, None, None],
        Strings(map(str, range(28))),
    )
    held, _ = choose_held_out(contents, objects, fraction=0.25, seed=0)
    assert [held[:20].sum(), held[20:24].sum(), held[24:].sum()] == [5, 1, 1]


def test_a_picture_of_another_size_than_its_annotation_is_a_bad_image():
    objects = Objects.join([Objects.of_image([], [], size=(60, 80)), Objects.of_image([], [])])
    objects.read_map(0, (60, 80))
    objects.read_map(1, (1, 1))  # the annotation does not say
    with pytest.raises(BadImage, match=r"for 80 x 60 pixels, the upright image has 81 x 60$"):
        objects.read_map(0, (60, 81))
    with pytest.raises(BadImage, match="annotated before it was turned upright"):
        objects.read_map(0, (80, 60))


def save_mask(levels: np.ndarray, mode: str, kind: str = "PNG") -> bytes:
    image = Image.fromarray(levels).convert("L" if mode == "P" else mode)
    if mode == "P":  # the palette has other numbers
        image.putpalette([level for index in range(256) for level in (255 - index, index, 7)])
    stream = BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


LEVELS = np.array([[0, 1, 2], [2, 255, 1]], np.uint8)


@pytest.mark.parametrize("mode", ["L", "P"])
def test_grey_and_palette_masks_are_their_numbers(mode):
    np.testing.assert_array_equal(decode_mask(save_mask(LEVELS, mode)), LEVELS)


def test_other_modes_of_masks():
    binary = np.array([[0, 255]], np.uint8)
    np.testing.assert_array_equal(decode_mask(save_mask(binary, "1")), [[0, 1]])
    np.testing.assert_array_equal(decode_mask(save_mask(LEVELS, "LA")), LEVELS)
    wide = BytesIO()
    Image.fromarray(LEVELS.astype(np.uint16)).save(wide, "PNG")
    np.testing.assert_array_equal(decode_mask(wide.getvalue()), LEVELS)
    too_wide = BytesIO()
    Image.fromarray(LEVELS.astype(np.uint16) + 300).save(too_wide, "PNG")
    with pytest.raises(BadImage, match="has the values 300, 301, 302, 555; save classes as numbers up to 254"):
        decode_mask(too_wide.getvalue())
    with pytest.raises(BadImage, match="in JPEG, which does not keep values exactly; save it as PNG"):
        decode_mask(save_mask(LEVELS, "L", "JPEG"))
    with pytest.raises(BadImage, match="the mask"):
        decode_mask(b"no image")


def label_maps(folder: Path, masks: list[bytes], values: list, indices: list[int]) -> LabelMaps:
    for number, mask in enumerate(masks):
        (folder / f"{number}.png").write_bytes(mask)
    names = Strings([f"{number}.png" for number in range(len(masks))])
    return LabelMaps(Files(str(folder), names), np.array(values, np.uint8), np.array(indices, np.uint8))


def test_values_of_masks_become_classes_and_unknown_ones_are_named(tmp_path):
    maps = label_maps(tmp_path, [save_mask(LEVELS, "L")], [0, 2, 1, 255], [4, 5, 6, IGNORED])
    np.testing.assert_array_equal(maps.of(0), [[4, 6, 5], [5, IGNORED, 6]])
    np.testing.assert_array_equal(maps.count_classes(7), [0, 0, 0, 0, 1, 2, 2])
    np.testing.assert_array_equal(maps.renumber(np.arange(7) + 1, 8).of(0), [[5, 7, 6], [6, IGNORED, 7]])
    fewer = label_maps(tmp_path, [save_mask(LEVELS, "L")], [0, 255], [0, IGNORED])
    with pytest.raises(BadImage, match="the mask contains 1, 2, which stands for no class"):
        fewer.of(0)
    with pytest.raises(BadImage, match="the mask is for 3 x 2 pixels, the upright image has 6 x 2"):
        maps.read_map(0, (2, 6))


def test_colours_of_masks_become_classes(tmp_path):
    colours = np.array([[[200, 0, 0], [0, 0, 200]], [[0, 0, 200], [1, 2, 3]]], np.uint8)
    masks = [save_mask(colours, "RGB"), save_mask(LEVELS, "L")]
    maps = label_maps(tmp_path, masks, [[0, 0, 200], [200, 0, 0], [1, 2, 3]], [0, 1, IGNORED])
    np.testing.assert_array_equal(maps.of(0), [[1, 0], [0, IGNORED]])
    with pytest.raises(BadImage, match=r"the mask contains \[0, 0, 0\], .* which stands for no class"):
        maps.of(1)
    numbers = label_maps(tmp_path, masks, [0, 1, 2, 255], [0, 1, 2, IGNORED])
    with pytest.raises(BadImage, match="the mask has colours, others have numbers"):
        numbers.of(0)
    np.testing.assert_array_equal(maps.count_classes(2), [2, 1])  # the mask that cannot be used is left out


def test_what_needs_classes_of_images_refuses_boxes_by_name():
    contents = Arrays(np.zeros((2, 4, 4, 3), np.uint8), Strings(["a", "b"]))
    source = Source(contents=contents, targets=Objects.join([Objects.of_image([], [])] * 2), classes=("cell",))
    with pytest.raises(DataError, match="classes of images are required, and the data have classes of objects"):
        _ = source.labels
