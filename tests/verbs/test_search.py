"""`vitrail embed --index` and `vitrail search`: neighbours, near copies, what the index does not cover, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitrail
from tests.forked import start_copy, wait_for_end
from tests.looked_at import picture
from vitrail.cli import run
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.inference import similarity
from vitrail.inference.index import read_index
from vitrail.inference.similarity import find_nearest, find_pairs
from vitrail.tables import import_pyarrow, save_array
from vitrail.weights.native import save_model

PLANE = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]])  # (N, D)
QUIET: dict[str, Any] = {"quiet": True, "log": lambda line: None}


def make_model(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    changes = {"image_size": 32, "width": 24, "depth": 1, "heads": 2, "classes": ["a", "b"]} | changes
    return vitrail.create_model("vit-ti16", **changes)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and photos in two splits: the second of val is a copy of the first of train, one file is broken."""
    for number, name in enumerate(("train/a/0.png", "train/a/1.png", "train/b/2.png", "val/a/3.png")):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(32, 32, seed=number).save(path)
    shutil.copy(tmp_path / "photos/train/a/0.png", tmp_path / "photos/val/a/4.png")
    (tmp_path / "photos/train/b/broken.png").write_bytes(b"broken")
    picture(32, 32, seed=1).save(tmp_path / "query.png")
    save_model(tmp_path / "model", make_model())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def index(place: Path) -> str:
    vitrail.embed("model", "photos", index="photos.index", **QUIET)
    return "photos.index"


def test_the_nearest_are_those_computed_by_hand_and_equal_ones_in_the_order_of_the_rows():
    queries = torch.tensor([[0.8, 0.6], [0.0, -1.0]])
    found = list(find_nearest(PLANE, queries, 3))
    assert found == [([1, 3, 0], [0.96, 0.96, 0.8]), ([0, 4, 1], [0.0, 0.0, -0.8])]
    assert [rows for rows, _ in find_nearest(PLANE, PLANE, 2, own=range(5))] == [
        [1, 3], [3, 2], [1, 3], [1, 2], [2, 1]
    ]  # fmt: skip


def test_of_more_equal_images_than_are_spare_the_first_are_found_in_any_block(monkeypatch):
    features = PLANE.repeat(60, 1)  # (300, D)
    for block in (32_768, 64, 7):
        ((rows, similarities),) = find_nearest(features, PLANE[1:2], 50, own=[3], block=block)
        assert rows == [row for row in range(300) if row % 5 in (1, 3) and row != 3][:50] and set(similarities) == {1.0}
    sizes: list[int] = []
    measure = similarity._measure
    monkeypatch.setattr(
        similarity, "_measure", lambda found, query: (sizes.append(len(found)), measure(found, query))[1]
    )
    monkeypatch.setattr(similarity, "ROWS", 4)
    assert next(find_pairs(0.001, features, block=20))[:2] == (0, 1)
    assert sum(sizes) < 20  # no other block was compared


def test_pairs_are_those_computed_by_hand_each_once():
    assert list(find_pairs(0.8, PLANE)) == [(1, 2, 0.8), (1, 3, 1.0), (2, 3, 0.8)]
    assert list(find_pairs(0.8, PLANE[:2], PLANE[2:])) == [(1, 0, 0.8), (1, 1, 1.0)]


def test_blocks_of_any_size_find_what_a_whole_product_finds(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(120, 8, generator=generator), dim=1)
    features[80:] = features[:40]  # ties
    queries = F.normalize(torch.randn(30, 8, generator=generator), dim=1)
    exact = (queries.double() @ features.double().T).round(decimals=6)  # (Q, N)
    order = exact.argsort(dim=1, descending=True, stable=True)[:, :9]
    nearest = list(zip(order.tolist(), exact.gather(1, order).tolist()))
    alike = [(*map(int, pair), exact[*pair].item()) for pair in (exact >= 0.7).nonzero()]
    own = (features.double() @ features.double().T).round(decimals=6)
    pairs = [
        (row, other, own[row, other].item()) for row, other in combinations(range(120), 2) if own[row, other] >= 0.7
    ]
    assert len(alike) > 20 and len(pairs) > 100
    for rows, block in ((256, 32_768), (256, 119), (7, 64), (1, 1)):
        monkeypatch.setattr(similarity, "ROWS", rows)
        assert list(find_nearest(features, queries, 9, block=block)) == nearest
        found = sorted(find_pairs(0.7, features, queries, block=block))
        assert found == sorted((b, a, each) for a, b, each in alike)
        assert sorted(find_pairs(0.7, features, block=block)) == pairs


def test_a_query_finds_its_copy_and_the_cosines_are_those_of_the_features(place, index):
    features = {key: torch.from_numpy(values) for key, values in vitrail.embed("model", "photos", **QUIET)}
    ((_, query),) = vitrail.embed("model", "query.png", **QUIET)
    found = vitrail.search(index, "query.png", top=4, **QUIET)
    assert [row["rank"] for row in found] == [1, 2, 3, 4]
    assert found[0] == {"query": "query.png", "rank": 1, "path": "photos/train/a/1.png", "similarity": 1.0}
    for row in found:
        cosine = F.cosine_similarity(features[row["path"]], torch.from_numpy(query), dim=0)
        assert row["similarity"] == pytest.approx(cosine.item(), abs=2e-6)
    assert [row["similarity"] for row in found] == sorted((row["similarity"] for row in found), reverse=True)


def test_an_image_of_the_index_is_no_neighbour_of_itself(place, index):
    inside = vitrail.search(index, str(place / "photos/train/a/0.png"), **QUIET)
    assert inside[0]["path"] == "photos/val/a/4.png" and len(inside) == 4
    among = vitrail.search(index, **QUIET)  # the images of the index themselves, for which no model is needed
    assert len(among) == 5 * 4 and all(row["query"] != row["path"] for row in among)
    assert [row["path"] for row in among[:4]] == [row["path"] for row in inside]


def test_paths_of_a_table_are_those_beside_it(place, index):
    Path("photos/train/a/list.csv").write_text("path\n0.png\n")
    found = vitrail.search(index, "photos/train/a/list.csv", **QUIET)
    assert found[0]["query"] == "0.png" and len(found) == 4 and found[0]["path"] == "photos/val/a/4.png"
    picture(32, 32).save("0.png")  # another file of that name
    assert vitrail.search(index, "0.png", top=1, **QUIET)[0]["path"] == "photos/train/a/0.png"


def test_copies_are_found_across_splits(index):
    (found,) = vitrail.search(index, copies=1, **QUIET)
    assert found == {
        "query": "photos/train/a/0.png",
        "path": "photos/val/a/4.png",
        "similarity": 1.0,
        "query_split": "train",
        "split": "val",
    }
    every = vitrail.search(index, copies=0.001, **QUIET)
    assert every[0] == found and len({(row["query"], row["path"]) for row in every}) == len(every)
    assert [row["similarity"] for row in every] == sorted((row["similarity"] for row in every), reverse=True)
    of_queries = vitrail.search(index, ["query.png", "photos/val/a/4.png"], copies=1, **QUIET)
    assert [(row["query"], row["path"], row["query_split"]) for row in of_queries] == [
        ("query.png", "photos/train/a/1.png", ""),
        ("photos/val/a/4.png", "photos/train/a/0.png", "val"),
    ]


def test_an_index_of_a_table_has_all_its_splits_and_others_say_which_they_took(place):
    rows = [("photos/train/a/0.png", "train"), ("photos/train/a/1.png", "train"), ("query.png", "val")]
    Path("table.csv").write_text("\n".join(["path,split", *map(",".join, rows)]))
    said: list[str] = []
    vitrail.embed("model", "table.csv", index="table.index", **QUIET)
    assert read_index(Path("table.index")).paths == [path for path, _ in rows]
    for verb in (vitrail.embed, vitrail.predict):
        said.clear()
        assert len(list(verb("model", "table.csv", quiet=True, log=said.append))) == 1
        assert sum("2 of train left out, as the data have the split val" in line for line in said) == 1
    np.savez("arrays.npz", **{name: np.zeros((2, 32, 32, 3), np.uint8) for name in ("x_train", "x_test")})
    vitrail.embed("model", "arrays.npz", index="arrays.index", **QUIET)
    assert len(read_index(Path("arrays.index")).paths) == 4


def test_each_image_and_each_pair_comes_once_however_often_its_path_is_given(place, index):
    said = vitrail.embed(
        "model", ["photos", "photos/val/a/4.png", str(place / "photos/val/a/3.png")], index="again", **QUIET
    )
    assert said.startswith("index of 5 images in again, 24 features of each; 2 repeated paths left out")
    assert read_index(Path("again")).paths == read_index(Path(index)).paths
    twice = ["photos/val/a/4.png", "photos/val/a/4.png"]
    assert len(vitrail.search(index, twice, **QUIET)) == 4
    pairs = vitrail.search(index, [*twice, "photos/train/a/0.png"], copies=1, **QUIET)
    assert [(row["query"], row["path"]) for row in pairs] == [("photos/val/a/4.png", "photos/train/a/0.png")]


def test_what_the_index_does_not_cover_comes_first(place, index):
    picture(32, 32, seed=9).save(place / "new.png")
    found = vitrail.search(index, ["query.png", "new.png"], top=2, least=True, **QUIET)
    assert [(row["query"], row["rank"]) for row in found] == [
        ("new.png", 1), ("new.png", 2), ("query.png", 1), ("query.png", 2)
    ]  # fmt: skip


def test_an_index_is_searched_with_another_one_of_the_same_model_only(place, index):
    vitrail.embed("model", "query.png", index="queries.index", **QUIET)
    shutil.rmtree("model")
    assert vitrail.search(index, "queries.index", top=1, **QUIET)[0]["path"] == "photos/train/a/1.png"
    save_model(place / "other", make_model(seed=1))
    vitrail.embed("other", "query.png", index="others.index", **QUIET)
    with pytest.raises(CheckpointError, match="another model"):
        vitrail.search(index, "others.index", **QUIET)


def test_the_model_may_move_and_no_other_one_is_taken(place, index):
    shutil.move("model", "moved")
    with pytest.raises(ConfigError):
        vitrail.search(index, "query.png", **QUIET)
    assert vitrail.search(index, "query.png", model="moved", top=1, **QUIET)[0]["similarity"] == 1
    with pytest.raises(CheckpointError, match="other weights or preprocessing"):
        vitrail.search(index, "query.png", model=make_model(seed=1), **QUIET)


def test_queries_are_read_as_the_images_of_the_index_were(place):
    """Another crop and statistics, a network of one channel for an oblong, and bf16, also of a model in memory."""
    save_model(place / "grey", make_model(in_channels=1, image_size=(32, 64)))
    given = {"crop": "48x32", "mean": [0.3], "std": "0.2", "precision": "bf16"}
    vitrail.embed("grey", "photos", index="grey.index", **given, **QUIET)
    found = vitrail.search("grey.index", "query.png", top=1, **QUIET)
    assert (found[0]["path"], found[0]["similarity"]) == ("photos/train/a/1.png", 1.0)
    vitrail.embed(vitrail.load("model"), "photos", index="memory.index", precision="bf16", **QUIET)
    assert read_index(Path("memory.index")).precision == "bf16"
    with pytest.raises(ConfigError, match="model in memory"):
        vitrail.search("memory.index", "query.png", **QUIET)
    assert vitrail.search("memory.index", "query.png", model="model", top=1, **QUIET)[0]["similarity"] == 1


def test_an_index_holds_unit_vectors_of_the_good_images_and_counts_the_others(place):
    said = []
    written = vitrail.embed("model", "photos", index="a/photos.index", quiet=True, log=said.append)
    assert written == "index of 5 images in a/photos.index, 24 features of each"
    assert "inputs   5 embedded, 1 unreadable" in said
    values = np.load("a/photos.index/features.npy")
    assert values.dtype == np.float32 and np.allclose(np.linalg.norm(values, axis=1), 1)
    found = read_index(Path("a/photos.index"))
    assert found.paths[0] == "photos/train/a/0.png" and "photos/train/b/broken.png" not in found.paths
    assert found.model == str(place / "model")


def test_an_index_is_replaced_whole_and_other_folders_are_left_alone(place, index):
    before = sorted(path.name for path in Path("photos").rglob("*"))
    for folder in ("photos", "model"):
        with pytest.raises(ConfigError, match="not those of an index"):
            vitrail.embed("model", "photos", index=folder, **QUIET)
    assert sorted(path.name for path in Path("photos").rglob("*")) == before
    vitrail.embed("model", "query.png", index=index, **QUIET)
    assert read_index(Path(index)).paths == ["query.png"]
    with pytest.raises(ConfigError, match="--out and --index"):
        vitrail.embed("model", "photos", index=index, out="a.csv", **QUIET)
    with pytest.raises(ConfigError, match="--index and --parts"):
        vitrail.embed("model", "photos", index=index, parts="parts", **QUIET)


def test_damage_and_folders_of_others_are_refused(place, index):
    with pytest.raises(DataError, match="no index of images in photos"):
        vitrail.search("photos", **QUIET)
    file = Path(index, "features.npy")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"features\.npy was changed"):
        vitrail.search(index, **QUIET)
    file.write_bytes(content)
    Path(index, "index.json").write_text('{"format": "something else"}')
    with pytest.raises(DataError, match="damaged, or not that of an index"):
        vitrail.search(index, **QUIET)


def test_features_that_are_not_finite_are_refused(place, monkeypatch):
    model = make_model()
    with torch.no_grad():
        model.backbone.norm.weight[0] = float("nan")
    with pytest.raises(CheckpointError, match="5 of 5 images are not finite"):
        vitrail.embed(model, "photos", index="nan.index", **QUIET)
    assert not any(Path("nan.index").iterdir())
    monkeypatch.setattr("vitrail.inference.index.check_finite", lambda values: None)
    vitrail.embed(model, "photos", index="nan.index", **QUIET)
    with pytest.raises(DataError, match="not finite"):
        vitrail.search("nan.index", **QUIET)
    monkeypatch.undo()
    monkeypatch.chdir(place)
    vitrail.embed(make_model(), "photos", index="photos.index", **QUIET)
    monkeypatch.setattr("vitrail.inference.index.digest_of", lambda model: read_index(Path("photos.index")).digest)
    monkeypatch.setattr("vitrail.inference.features.digest_of", lambda model: read_index(Path("photos.index")).digest)
    with pytest.raises(CheckpointError, match="1 of 1 images are not finite"):
        vitrail.search("photos.index", "query.png", model=model, **QUIET)


@pytest.mark.parametrize("moment", ["inference.index.save_array", "inference.index.move_files", "files._move_out"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_killed_embed_leaves_the_index_that_was_there_or_the_new_one(moment, is_new, index, monkeypatch):
    if is_new:
        shutil.rmtree(index)

    def die(*given: Any) -> None:
        if moment.endswith("save_array"):
            save_array(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(f"vitrail.{moment}", die)
        child = start_copy(lambda: vitrail.embed("model", "query.png", index=index, **QUIET))
    assert wait_for_end(child) == -signal.SIGKILL
    if moment == "files._move_out":  # all files were complete
        assert read_index(Path(index)).paths == ["query.png"]
    elif is_new:
        with pytest.raises(DataError, match="no index"):
            read_index(Path(index))
        vitrail.embed("model", "query.png", index=index, **QUIET)
    else:
        assert len(read_index(Path(index)).paths) == 5
    assert sorted(os.listdir(index)) == ["features.npy", "index.json"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"top": 0}, "top is 0"),
        ({"copies": 0}, "copies is 0"),
        ({"copies": 1.5}, r"copies is 1\.5"),
        ({"copies": 0.9, "least": True}, "--copies and --least"),
        ({"out": "rows.txt"}, r"rows\.txt has an unknown format"),
    ],
)
def test_values_that_make_no_sense_are_refused(given, said, index):
    with pytest.raises(ConfigError, match=said):
        vitrail.search(index, **given, **QUIET)


def test_too_many_copies_are_refused_before_memory_is_full(index, monkeypatch):
    monkeypatch.setattr("vitrail.verbs.search.MOST_PAIRS", 0)
    with pytest.raises(ConfigError, match="more than 0 pairs"):
        vitrail.search(index, copies=1, **QUIET)


def test_a_named_query_that_cannot_be_read_is_an_error_and_one_of_a_folder_is_counted(index):
    with pytest.raises(DataError, match=r"broken\.png could not be read"):
        vitrail.search(index, ["query.png", "photos/train/b/broken.png"], **QUIET)
    said = []
    assert len(vitrail.search(index, "photos/train/b", top=1, quiet=True, log=said.append)) == 1
    assert "inputs   1 embedded, 1 unreadable" in said


def test_tables_and_the_command_line_have_the_same_rows(index, capsys):
    rows = vitrail.search(index, **QUIET)
    vitrail.search(index, out="rows.jsonl", **QUIET)
    assert [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()] == rows
    vitrail.search(index, copies=1, out="copies.parquet", **QUIET)
    read = import_pyarrow().parquet.read_table("copies.parquet").to_pylist()
    assert read == vitrail.search(index, copies=1, **QUIET)
    capsys.readouterr()
    assert run(["search", index, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    assert run(["search", index, "query.png", "--top", "1", "--quiet"]) == 0
    assert capsys.readouterr().out == "query,rank,path,similarity\nquery.png,1,photos/train/a/1.png,1.0\n"
    assert run(["embed", "model", "photos", "--index", "other.index", "--quiet"]) == 0
    assert capsys.readouterr().out == "index of 5 images in other.index, 24 features of each\n"


def test_the_page_shows_the_queries_with_their_neighbours(place, index, monkeypatch):
    Image.new("RGB", (32, 32)).save(place / "<b>.png")
    said: list[str] = []
    vitrail.search(index, ["query.png", "<b>.png"], top=2, out="page.html", quiet=True, log=said.append)
    page = Path("page.html").read_text()
    assert page.count('<img src="data:image/') == 6 and "&lt;b&gt;.png" in page and "<b>.png" not in page
    assert "1.000" in page and said[-1] == "written  page.html: 2 queries, of 2"
    Path("photos/train/a/1.png").unlink()
    monkeypatch.setattr("vitrail.verbs.search.SHOWN", 1)
    vitrail.search(index, ["query.png", "<b>.png"], top=1, out="page.html", **QUIET)
    page = Path("page.html").read_text()
    assert page.count("no picture") == 1 and "1 query is left out" in page
    vitrail.search(index, copies=1, out="page.html", **QUIET)
    assert '<span class="wrong">val</span>' in Path("page.html").read_text()
    rows = vitrail.search(index, copies=0.001, out="page.html", quiet=True, log=said.append)
    queries = len({row["query"] for row in rows})
    assert said[-1] == f"written  page.html: 1 query, of {queries}" and len(rows) > queries > 1
    assert "left out" in Path("page.html").read_text().partition("Images</h")[2]  # also of one query
