"""The table of flips: every kind of file that vitrail writes and reads again, as small as it can be, and how it is read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from tests.looked_at import picture, shaken
from tests.studies.planned import POOL, fake_result, make_study
from tests.weights.graphs import write_graph
from tests.weights.kinds import a_model
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.bad_images import read_bad_images
from vitrail.data.sources.open import open_data
from vitrail.exports.sidecar import sums_of, write_sums
from vitrail.files import read_checksummed
from vitrail.images.decode import BadImage
from vitrail.inference.features import FeatureCache, stack_features
from vitrail.inference.index import read_index
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.runs import checkpoint
from vitrail.runs.cells import Cells
from vitrail.runs.folder import RECORDS, RunFolder
from vitrail.runtime.distributed import SINGLE
from vitrail.shared_work import Attempts
from vitrail.studies.plan import make_plan, read_plan, write_plan, write_result
from vitrail.training.fingerprint import STAMPS, _read_stamps
from vitrail.verbs.convert import convert
from vitrail.verbs.export import export
from vitrail.weights.description import describe
from vitrail.weights.native import save_model
from vitrail.weights.onnx import add_checksum_to_onnx
from vitrail.weights.tokenizers import load_tokenizer, save_tokenizer

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))  # (B, C, H, W)
CHANGES = "model.changes={width: 8, depth: 1, heads: 1, mlp_width: 8, patch_size: [4, 4]}"
LogFunction = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """Files that are written together, and the function that reads them: everything that depends on their content.

    ``unread`` are patterns of the files beside them in ``folder`` that vitrail does not read again.
    """

    name: str
    files: list[Path]
    read: Callable[[LogFunction], Any]
    folder: Path | None = None
    unread: tuple[str, ...] = ()


def list_files(folder: Path) -> list[Path]:
    """The files in a folder and its folders that are not empty."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def read_model(path: Path) -> Callable[[LogFunction], Any]:
    def read(log: LogFunction) -> Any:
        model = vitrail.weights.load(path, log=log)
        with torch.inference_mode():
            answers = [output.numpy().tobytes() for output in (model(IMAGES), model.features(IMAGES))]
        return answers, describe(model)

    return read


def read_tokenizer(path: Path) -> Callable[[LogFunction], Any]:
    def read(log: LogFunction) -> Any:
        saved = load_tokenizer(path, log)
        weights = {name: tensor.numpy().tobytes() for name, tensor in saved.tokenizer.state_dict().items()}
        return weights, saved.tokenizer.config, saved.preprocessing, saved.provenance

    return read


def read_run(path: Path) -> Callable[[LogFunction], Any]:
    """What a resumed run and its report read."""
    folder = RunFolder(path)

    def read(log: LogFunction) -> Any:
        for damage in folder.find_damage():
            log(damage)
        for name in ("status.json", "split.json"):
            if read_checksummed(path / name) is None:
                log(f"{name} is damaged")
        if _read_stamps(folder, read_checksummed(path / "split.json") or {}) is None:
            log("stamps.npz is damaged")
        saved = checkpoint.load_newest(folder.checkpoints)
        for refused in saved.refused:
            log(refused)
        weights = {
            group: {name: tensor.numpy().tobytes() for name, tensor in named.items()}
            for group, named in saved.tensors.items()
        }
        status = [folder.status().get(name) for name in ("state", "steps", "seconds", "figures")]
        split = [(read_checksummed(path / "split.json") or {}).get(name) for name in ("seed", "images", "held_out")]
        records = folder.metrics(), folder.timing(), status, split, read_bad_images(path / "bad_images.csv")
        return folder.read_config(), records, saved.step, weights, saved.state

    return read


def write_kinds(place: Path, *, exports: bool) -> Iterator[Kind]:
    """Every kind of file; with ``exports``, also graphs that are exported, which takes seconds."""
    yield from write_models(place, exports=exports)
    tokenizer = Tokenizer(TokenizerConfig(in_channels=1, patch_size=(2, 2), width=4, levels=(3, 3)))
    path = save_tokenizer(place / "tokenizer", tokenizer, Preprocessing(size=(4, 4), mean=(0.1,), std=(0.2,)))
    yield Kind("tokenizer", list_files(path), read_tokenizer(path), path)
    write_sums(place / "graph.onnx", [place / "graph.onnx"])
    yield read_sums(place / "graph.onnx")
    if exports:
        yield read_sums(export(place / "native", place / "p.onnx", pictures=True, images=2, log=ignore).path)
        yield read_sums(export(place / "native", place / "p.pt2", "program", images=2, log=ignore).path)
    yield write_ranks(place / "ranks")
    photos = write_photos(place / "photos")
    yield train_run(place / "run", photos)
    yield write_cells(place / "transfer")
    yield from write_study(place / "study")
    yield from write_parts(place, photos)
    yield write_image_index(place / "index", place)
    yield shard(place / "shards", place / "good")
    yield from fill_caches(place, photos)


def ignore(line: str) -> None: ...


def write_models(place: Path, *, exports: bool) -> Iterator[Kind]:
    model = a_model(depth=1)
    model.temperature = 1.5
    native = save_model(place / "native", model, provenance={"data": "dögs"})
    written = [native, save_model(place / "single.safetensors", model)]
    written.append(write_graph(place / "graph.onnx"))
    add_checksum_to_onnx(written[-1])
    if exports:
        written.append(export(native, place / "export.onnx", images=2, log=ignore).path)
    for layout, name in {"timm": "timm", "google": "a.npz", "huggingface": "hf"}.items():
        source = save_model(place / "eps", a_model(depth=1, norm_eps=1e-12, gelu="exact")) if name == "hf" else native
        written.append(convert(source, place / layout / name, layout, force=True).path)
    written.append(convert(native, place / "sidecar" / "b.safetensors", "timm", force=True).path)
    for path in written:
        beside = [path, *path.parent.glob("*.json")] if path.parent != place else [path]
        yield Kind(path.name, list_files(path) if path.is_dir() else beside, read_model(path))


def read_sums(path: Path) -> Kind:
    """An export as software other than vitrail reads it, after `vitrail check`."""
    return Kind(f"check {path.name}", [path, sums_of(path)], lambda log: dict(vitrail.check_export(path)))


def write_photos(folder: Path) -> Path:
    """Small pictures of two classes, two of them broken; those that are not are in ``good`` as well."""
    for number in range(24):
        name = f"{'ab'[number % 2]}/{number:02}.png"
        for path in (folder / name, folder.with_name("good") / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(8, 8, seed=number).save(path)
    for name in ("a/x.png", "b/y.png"):
        (folder / name).write_bytes(b"broken")
    return folder


def train_run(path: Path, photos: Path) -> Kind:
    settings = ("model.name=vit-ti16", CHANGES, "data.batch=8", "save.log_every=1", "save.every=0.000001")
    vitrail.train(photos, steps=3, settings=(*settings, "data.max_bad=0.5"), out=path, quiet=True)
    names = (
        "config.yaml",
        "metrics.jsonl",
        "timing.jsonl",
        "status.json",
        "split.json",
        STAMPS,
        "bad_images.csv",
        RECORDS,
    )
    newest = list_files(checkpoint.list_checkpoints(path / "checkpoints")[-1])
    run = read_run(path)

    def read(log: LogFunction) -> Any:
        return run(log), describe(vitrail.weights.load(path / "model", log=log))

    files = [*(path / name for name in names), *list_files(path / "model"), *newest]
    unread = ("report.html", "card.md", "predictions.csv", "log.txt", ".lock", "plots/*.svg", "checkpoints/*")
    return Kind("run", files, read, path, unread)


def write_ranks(folder: Path) -> Kind:
    """A checkpoint of format 2, as several ranks write it."""
    from vitrail.runs.tensor_shards import write_shards  # torch's distributed checkpoint takes a moment to load

    final, aside = checkpoint.name_folders(folder, 1, evaluated=False)
    checkpoint.begin(aside)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")  # a single process writes here
        write_shards(aside / checkpoint.SHARDS, {"objective/weight": torch.arange(6.0).view(2, 3)}, SINGLE)
    shards = [path.relative_to(aside).as_posix() for path in list_files(aside)]
    digests = {name: checkpoint.digest_file(aside / name) for name in shards}
    checkpoint.publish(aside, final, {"steps": 1}, digests, checkpoint.SHARDED)

    def read(log: LogFunction) -> Any:
        saved = checkpoint.load_newest(folder)
        return {name: tensor.tolist() for name, tensor in saved.tensors["objective"].items()}, saved.state

    return Kind("checkpoint of ranks", list_files(folder), read, folder)


def write_cells(folder: Path) -> Kind:
    """The cells of a transfer; tunings of the machine and the other files of `write_checksummed` are of the same form."""
    folder.mkdir()
    cells = Cells(folder, "transfer")
    cells.begin({"weights": "0"})
    cells.write("a", {"accuracy": 0.5})

    def read(log: LogFunction) -> Any:
        cells.begin({"weights": "0"})
        found = cells.read("a")
        if found is None:
            log("a cell is computed again")
        return (found or {}).get("accuracy")

    return Kind("cells", list_files(folder), read, folder)


def write_study(folder: Path) -> Iterator[Kind]:
    plan = make_plan(make_study(), POOL, device="cpu", request="a", price=free, budget=None)
    folder.mkdir()
    write_plan(folder, plan)
    for trial in list(plan.trials.values())[:4]:
        write_result(folder, fake_result(trial))

    def fail(attempt: int) -> None:
        raise ValueError("failed")

    Attempts(folder / "attempts").run("0" * 64, fail, lambda error, made: None)

    def read(log: LogFunction) -> Any:
        found, earlier = read_plan(folder)
        results = found.read_results(folder)
        if len(results) < 4:
            log("a trial is computed again")
        evaluated = {key: (result.right.tobytes(), replace(result, right=None)) for key, result in results.items()}
        return found.sha256, found.device, found.request, earlier, evaluated

    def read_attempts(log: LogFunction) -> Any:
        tries = Attempts(folder / "attempts").read("0" * 64)
        if not tries.failures:
            log("the attempts are counted anew")
        return tries

    attempts = list_files(folder / "attempts")
    own = [folder / "plan.json", *list_files(folder / "trials")]
    yield Kind("study", own, read, folder, tuple(path.relative_to(folder).as_posix() for path in attempts))
    yield Kind("study attempts", attempts, read_attempts)


def free(trial: Any) -> float:
    return 1.0


def write_parts(place: Path, photos: Path) -> Iterator[Kind]:
    save_model(place / "classifier", shaken())
    for form in ("parquet", "jsonl", "npy"):
        folder = place / f"parts-{form}"
        vitrail.embed(
            place / "classifier", [str(photos)], parts=folder, part_size=13, format=form, quiet=True, log=ignore
        )
        yield Kind(f"parts, {form}", list_files(folder), check_parts(folder), folder)


def check_parts(folder: Path) -> Callable[[LogFunction], Any]:
    def read(log: LogFunction) -> Any:
        found = vitrail.check_parts(folder, quiet=True)
        if not found.sound:
            log(found.to_text())
        return found.to_dict()

    return read


def write_image_index(folder: Path, place: Path) -> Kind:
    vitrail.embed(place / "classifier", str(place / "good"), index=folder, quiet=True, log=ignore)

    def read(log: LogFunction) -> Any:
        found = read_index(folder)
        return found.features.numpy().tobytes(), {**vars(found), "features": None}

    return Kind("image index", list_files(folder), read, folder)


def shard(folder: Path, photos: Path) -> Kind:
    vitrail.shard_data(photos, folder, images=12, quiet=True)

    def read(log: LogFunction) -> Any:
        source = open_data(str(folder)).train
        contents = []
        for row in range(len(source)):
            try:
                contents.append(bytes(source.contents[row]))
            except BadImage as error:
                log(str(error))
        return contents, list(source.keys), source.labels.tolist(), source.classes

    return Kind("shards", list_files(folder), read, folder)


def fill_caches(place: Path, photos: Path) -> Iterator[Kind]:
    """The features and the decoded images that are kept: what is damaged is computed again."""
    cache = FeatureCache(place / "features", "0" * 64)
    images = [bytes([number]) * 16 for number in range(3)]
    first, last = np.arange(6, dtype=np.float32).reshape(2, 3)
    cache.keep(images, {0: first, 1: "broken", 2: last}, ignore)

    def read_features(log: LogFunction) -> Any:
        found = cache.find(images)
        if len(found) < len(images):
            log("features are computed again")
        return [part.tobytes() for part in stack_features(found)], found.get(1)

    yield Kind("cached features", list_files(place / "features"), read_features, place / "features")
    source = open_data(str(place / "good")).train

    def read_decoded(log: LogFunction) -> Any:
        return keep_decoded(source, shared=place / "decoded").images.tobytes()

    read_decoded(ignore)
    yield Kind("decoded images", list_files(place / "decoded"), read_decoded, place / "decoded")
