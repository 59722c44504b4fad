"""Sheets of many pictures: each tile in its place as it is, its words below it and not beyond."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import ImageFont

from tests.analysis.drawn import is_paper, noise
from vitrail.analysis.palette import ABSENT, map_colours
from vitrail.analysis.render import (
    GAP,
    MARGIN,
    draw_contact_sheet,
    draw_filters,
    draw_mosaic,
    scale_levels,
    shorten,
)


def test_a_sheet_holds_every_tile_in_its_place_as_it_is():
    side = (640 - 2 * MARGIN - 2 * GAP) // 3
    tiles = [noise(40 + 1, side, 3) // (index + 1) for index in range(5)]
    sheet = draw_contact_sheet(tiles, [f"head {index}" for index in range(5)], columns=3, title="Block 3", width=640)
    assert sheet.shape[1:] == (640, 3) and sheet.dtype == np.uint8
    found = []
    for tile in tiles:
        corners = np.argwhere((sheet[:-40, : -side + 1] == tile[0, 0]).all(-1))
        found += [(y, x) for y, x in corners.tolist() if np.array_equal(sheet[y : y + 41, x : x + side], tile)]
    assert [x for _, x in found] == [
        MARGIN,
        MARGIN + side + GAP,
        MARGIN + 2 * (side + GAP),
        MARGIN,
        MARGIN + side + GAP,
    ]
    assert [y for y, _ in found[:3]] == [found[0][0]] * 3 and found[3][0] == found[4][0] > found[0][0] + 41
    for y, x in found:
        below = sheet[y + 41 : y + 41 + 26, x : x + side]
        assert not is_paper(below).all()
    assert is_paper(sheet[found[3][0] :, MARGIN + 2 * (side + GAP) :]).all()


@pytest.mark.parametrize("count", [1, 2, 7, 48])
@pytest.mark.parametrize("size", [(100, 500), (300, 100), (1, 1), (3, 4000)])
def test_any_number_of_tiles_of_any_shape_keeps_it(count, size):
    black = [np.zeros(size, np.uint8)] * count
    sheet = draw_contact_sheet(black, [""] * count, columns=6, title="", width=400)
    side = (400 - 2 * MARGIN - 5 * GAP) // 6
    painted = ~is_paper(sheet)
    across, down = np.flatnonzero(painted.any(0)), np.flatnonzero(painted.any(1))
    columns, rows = min(count, 6), math.ceil(count / 6)
    assert (across[0], across[-1]) == (MARGIN, MARGIN + columns * side + (columns - 1) * GAP - 1)
    assert len(down) == rows * max(1, round(side * size[0] / size[1]))
    assert down[0] == MARGIN and sheet.shape[0] - down[-1] > MARGIN


@pytest.mark.parametrize(("side", "hard"), [(8, True), (300, False)])
def test_pixels_that_become_large_squares_keep_their_edges_and_photographs_are_smooth(side, hard):
    tile = np.zeros((side, side), np.uint8)
    tile[:, side // 2 :] = 255
    sheet = draw_contact_sheet([tile], [""], columns=1, title="", width=2 * MARGIN + 350)
    across = sheet[MARGIN + 100, MARGIN:-MARGIN]
    assert (len(np.unique(across)) == 2) is hard


WORDS = [
    "head 3",
    "a name that is much longer than the column that it is to be written into is wide",
    "unbrokenunbrokenunbrokenunbrokenunbrokenunbroken",
    "日本語の画像とても長い名前のファイル日本語の画像とても長い名前のファイル",
    "שלום עולם",
    "😀😀😀",
    "broken \ud800 and \x00 and \u202e",
    "two\nlines\tand a tab",
    "ÅÉ̂gjpqy",
    "",
]


@pytest.mark.parametrize("words", WORDS)
def test_no_words_leave_their_column_or_are_cut(words):
    tile = np.full((20, 60), 30, np.uint8)
    sheet = draw_contact_sheet([tile] * 4, [words] * 4, columns=4, title=words * 3, footnote=words * 5, width=480)
    side = (480 - 2 * MARGIN - 3 * GAP) // 4
    painted = ~is_paper(sheet)
    assert not painted[:, : MARGIN - 2].any() and not painted[:, 480 - MARGIN + 2 :].any()
    assert not painted[: MARGIN // 2].any() and not painted[-MARGIN // 2 :].any()
    first = np.flatnonzero((sheet[:, MARGIN] == 30).all(-1))
    captions = painted[first[-1] + 1 : first[-1] + 28]
    for column in range(1, 4):
        start = MARGIN + column * (side + GAP) - GAP
        assert not captions[:, start + 2 : start + GAP - 1].any()


def test_words_are_shortened_only_where_they_must_be_and_no_more_than_needed():
    font = ImageFont.load_default(15)
    assert shorten("head 12", font, 200) == "head 12"
    assert shorten("  two \n lines ", font, 200) == "two lines"
    assert shorten("head 12", font, font.getlength("head 12")) == "head 12"
    long = "the attention of the class token of the last block"
    short = shorten(long, font, 150)
    kept = short.removesuffix("…")
    assert short.endswith("…") and long.startswith(kept) and font.getlength(short) <= 150
    assert font.getlength(long[: len(kept) + 2] + "…") > 150
    assert shorten(long, font, font.getlength("…")) == "…"
    assert shorten(long, font, 1) == shorten(long, font, -5) == ""


def test_a_mosaic_is_a_grid_of_maps_on_one_scale():
    values = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4, 5))
    values[1, 2, 0, 0] = np.nan
    sheet = draw_mosaic(values, cell=3, gap=2)
    assert sheet.shape == (2 * (12 + 2) + 2, 3 * (15 + 2) + 2, 3)
    paper = np.ones(sheet.shape[:2], bool)
    for row in range(2):
        for column in range(3):
            y, x = 2 + row * 14, 2 + column * 17
            tile = map_colours(scale_levels(values[row, column], (-1, 1))).repeat(3, 0).repeat(3, 1)
            np.testing.assert_array_equal(sheet[y : y + 12, x : x + 15], tile)
            paper[y : y + 12, x : x + 15] = False
    np.testing.assert_array_equal(is_paper(sheet), paper)
    np.testing.assert_array_equal(sheet[16, 36], ABSENT)


def test_a_mosaic_needs_no_gap_and_takes_another_range():
    values = np.arange(4.0).reshape(2, 2, 1, 1)
    np.testing.assert_array_equal(
        draw_mosaic(values, range=(0, 3), cell=1, gap=0), map_colours(scale_levels(values[..., 0, 0]))
    )


def test_filters_stand_in_rows_with_hard_edges_on_the_paper():
    filters = noise(5, 4, 6, 3)
    sheet = draw_filters(filters, 3, cell=2, gap=1)
    assert sheet.shape == (2 * 9 + 1, 3 * 13 + 1, 3)
    for index, each in enumerate(filters):
        y, x = 1 + index // 3 * 9, 1 + index % 3 * 13
        np.testing.assert_array_equal(sheet[y : y + 8, x : x + 12], each.repeat(2, 0).repeat(2, 1))
    assert is_paper(sheet[10:, 27:]).all() and is_paper(sheet[[0, 9, -1]]).all()
