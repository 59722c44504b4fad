"""A training on two and on three ranks is that of one process: to the bit where it is said, else to rounding."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY
from tests.slow import slow_except
from tests.training import on_ranks
from tests.training.ranks import Pool, start_pool
from vitrail.config.compose import compose_run
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError, LostProcessError, LostRankError
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.runs import checkpoint
from vitrail.runs.folder import RunFolder
from vitrail.runs.tensor_shards import list_tensors
from vitrail.runtime import launch
from vitrail.runtime.distributed import SINGLE, Ranks, is_lost_rank, lost_ranks
from vitrail.runtime.launch import CODES, count_devices, is_launched, summarise
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training import step
from vitrail.weights.native import save_model
from vitrail.weights.tokenizers import save_tokenizer

EVERYTHING = (
    *("augment.mixup=0.8", "augment.cutmix=1.0", "augment.flip=0.5", "optim.clip=0.5", "optim.ema=0.9"),
    *("model.changes.dropout=0.1", "model.changes.drop_path=0.2", "schedule.steps=4", "data.batch=12"),
    *("data.balance=true", "objective.class_weights={'0': 3}"),
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Pool:
    with start_pool(tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """97 training images and 31 others, of three channels, in arrays that every rank can open."""
    random = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data")
    images, labels = random.integers(0, 256, (128, 32, 32, 3), dtype=np.uint8), np.arange(128) % 4
    np.savez(folder / "images.npz", x_train=images[:97], y_train=labels[:97], x_val=images[97:], y_val=labels[97:])
    return folder / "images.npz"


def metrics(out: Path) -> bytes:
    return (out / "metrics.jsonl").read_bytes()


def column(out: Path, name: str) -> list[float]:
    return [record[name] for record in RunFolder(out).metrics() if name in record]


@pytest.mark.slow
def test_exact_ranks_write_the_bytes_of_one_process(pool, data, tmp_path):
    """Dropout, drop path, mixup, CutMix, balance, weights of classes, clipping, averaged weights, evaluation."""
    given = on_ranks.settings("vit", *EVERYTHING, "augment.mix_each=batch", "compute.exact=true", "data.micro_batch=4")
    on_ranks.alone(tmp_path / "one", given, data=data)
    assert pool(3, on_ranks.run, tmp_path / "all", given, "supervised", data) == [""] * 3
    assert metrics(tmp_path / "all") == metrics(tmp_path / "one")
    assert on_ranks.difference(tmp_path / "one", tmp_path / "all") == 0


@pytest.mark.parametrize(
    ("network", "world", "parallel"),
    [("vit", 3, "shard"), pytest.param("bit", 2, "replicate", marks=pytest.mark.slow)],
)
def test_ranks_train_as_one_process(pool, data, tmp_path, network, world, parallel):
    """A batch that cannot be divided evenly, in more than one micro-step a rank."""
    given = on_ranks.settings(network, "schedule.steps=3", "data.batch=14", "augment.mixup=0.8", "optim.clip=1.0")
    given = (*given, "optim.layer_decay=0.7")
    if network == "bit":  # the gradient of a standardised kernel has directions of rounding alone: Adam scales them up
        given = (*given, "optim.name=sgd")
    on_ranks.alone(tmp_path / "one", given, data=data)
    spread = (*given, f"compute.parallel={parallel}", "data.micro_batch=2")
    assert pool(world, on_ranks.run, tmp_path / "all", spread, "supervised", data) == [""] * world
    assert column(tmp_path / "all", "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-5)
    assert column(tmp_path / "all", "val_nll") == pytest.approx(column(tmp_path / "one", "val_nll"), rel=1e-5)
    assert on_ranks.difference(tmp_path / "one", tmp_path / "all") < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["shard", "replicate"])
def test_ranks_train_adapters_as_one_process(pool, data, tmp_path, parallel):
    """Frozen and trained parameters lie in the same block."""
    backbone = create_classifier(TINY["vit"], classes=[str(label) for label in range(4)])
    save_model(tmp_path / "base.safetensors", backbone)
    given = (
        f"model.init={tmp_path / 'base.safetensors'}",
        "model.adapters.rank=2",
        "schedule.steps=3",
        "data.batch=14",
    )
    given = (*given, *on_ranks.PLAIN, "optim.lr=0.01", "optim.ema=0.5")
    assert on_ranks.alone(tmp_path / "one", given, data=data) == ""
    spread = (*given, f"compute.parallel={parallel}", "data.micro_batch=2")
    assert pool(2, on_ranks.run, tmp_path / "all", spread, "supervised", data) == [""] * 2
    assert column(tmp_path / "all", "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-5)
    assert on_ranks.difference(tmp_path / "one", tmp_path / "all") < 1e-4


@pytest.mark.parametrize(
    ("objective", "world"),
    [
        ("mae", 3),
        pytest.param("moco", 3, marks=pytest.mark.slow),
        pytest.param("simclr", 2, marks=pytest.mark.slow),
        pytest.param("ibot", 2, marks=pytest.mark.slow),
        pytest.param("dino", 3, marks=pytest.mark.slow),
    ],
)
def test_ranks_learn_without_labels_as_one_process(pool, data, tmp_path, objective, world):
    """Contrastive objectives compare the images of all ranks."""
    changes = {"moco": "{hidden: 24, out: 12}", "simclr": "{hidden: 24, out: 12}"}
    changes["ibot"] = "{prototypes: 20, hidden: 24, bottleneck: 12, local_views: 2, anchor: 1}"
    changes["dino"] = "{prototypes: 20, hidden: 24, bottleneck: 12, local_views: 2, koleo: 0.1, centring: sinkhorn}"
    given = on_ranks.settings("vit", "schedule.steps=3", "data.batch=14", "optim.clip=1.0")
    given = (*given, f"objective.changes={changes.get(objective, '{}')}")
    on_ranks.alone(tmp_path / "one", given, objective=objective, data=data)
    assert pool(world, on_ranks.run, tmp_path / "all", given, objective, data) == [""] * world
    assert column(tmp_path / "all", "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-5)
    assert column(tmp_path / "all", "effective_rank") == pytest.approx(
        column(tmp_path / "one", "effective_rank"), rel=1e-3
    )
    assert on_ranks.difference(tmp_path / "one", tmp_path / "all") < 1e-3


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Path:
    """Models that a training reads: a tokenizer of 16 codes and a teacher of 4 classes."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("others")
    tokenizer = Tokenizer(TokenizerConfig(patch_size=(8, 8), width=12, levels=(4, 4)))
    save_tokenizer(folder / "tokenizer", tokenizer, Preprocessing(size=(32, 32)))
    save_model(folder / "teacher", create_classifier(TINY["vit"], classes=[str(label) for label in range(4)]))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "parallel"),
    [("beit", "shard"), ("tokenizer", "replicate"), ("distillation", "shard"), ("distil", "shard")],
)
def test_ranks_learn_from_other_models_as_one_process(pool, data, others, tmp_path, objective, parallel):
    changes = "model.changes={patch_size: [8, 8], width: 12, depth: 1, levels: [4, 4]}"
    given = ("model.size=[32, 32]", changes, *on_ranks.PLAIN) if objective == "tokenizer" else on_ranks.settings("vit")
    read = {"beit": "tokenizer", "distillation": "teacher", "distil": "teacher"}.get(objective)
    given = (*given, "schedule.steps=3", "data.batch=14", *([f"objective.{read}={others / read}"] if read else []))
    name = objective.replace("distillation", "supervised")
    assert on_ranks.alone(tmp_path / "one", given, objective=name, data=data) == ""
    spread = (*given, f"compute.parallel={parallel}")
    assert pool(3, on_ranks.run, tmp_path / "all", spread, name, data) == [""] * 3
    assert column(tmp_path / "all", "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-5)
    assert on_ranks.difference(tmp_path / "one", tmp_path / "all") < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "parallel"), [("bf16", "replicate"), ("bf16-weights", "shard")])
def test_ranks_train_in_bf16(pool, data, tmp_path, precision, parallel):
    """Micro-batches of other sizes round otherwise, by about one part in 256."""
    given = on_ranks.settings("vit", "schedule.steps=3", "data.batch=12", f"compute.precision={precision}")
    on_ranks.alone(tmp_path / "one", given, data=data)
    assert (
        pool(3, on_ranks.run, tmp_path / "all", (*given, f"compute.parallel={parallel}"), "supervised", data)
        == [""] * 3
    )
    assert column(tmp_path / "all", "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-2)
    assert on_ranks.weight_difference(tmp_path / "one", tmp_path / "all") < 2e-2


@pytest.mark.slow
def test_the_end_callback_gets_the_whole_model_on_every_rank(pool, data, tmp_path):
    given = on_ranks.settings("vit", "schedule.steps=3", "data.batch=12", "optim.ema=0.5", "data.limit=60")
    alone = on_ranks.evaluate_at_the_end(SINGLE, tmp_path / "one", given, data)
    both = pool(2, on_ranks.evaluate_at_the_end, tmp_path / "two", (*given, "compute.parallel=shard"), data)
    assert both[0] == both[1] == pytest.approx(alone, rel=1e-4)
    assert set(alone) == {"val", "train"}


@pytest.mark.slow
def test_a_run_resumes_at_another_number_of_ranks(pool, data, tmp_path):
    """One, three, two sharded and one rank, a step each, against one process; metrics as if nothing had happened."""
    kept = "optim.ema=0.9", "save.best=true", "save.evaluations=4"
    given = on_ranks.settings("vit", "data.batch=12", *kept, "schedule.kind=constant", "schedule.warmup=0")
    on_ranks.alone(tmp_path / "one", (*given, "schedule.steps=4"), data=data)
    out = tmp_path / "all"
    for steps, world, parallel in ((1, 1, ""), (2, 3, "replicate"), (3, 2, "shard"), (4, 1, "")):
        more = (*given, f"schedule.steps={steps}", *([f"compute.parallel={parallel}"] if parallel else []))
        if world == 1:
            assert on_ranks.alone(out, more, data=data) == ""
        else:
            assert pool(world, on_ranks.run, out, more, "supervised", data) == [""] * world
            assert RunFolder(out).read_config().compute.parallel == parallel
            newest = checkpoint.list_checkpoints(out / "checkpoints")[-1] / checkpoint.SHARDS
            written = sum(path.stat().st_size for path in newest.iterdir())
            held = sum(math.prod(shape) * kind.itemsize for shape, kind in list_tensors(newest).values())
            assert held < written < 1.5 * held, "what several ranks hold is written by one of them"
    assert column(out, "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-5)
    assert on_ranks.difference(tmp_path / "one", out) < 1e-4


@pytest.mark.slow
def test_a_run_resumed_at_the_same_number_of_ranks_has_the_same_bits(pool, data, tmp_path):
    given = on_ranks.settings("vit", *EVERYTHING, "compute.parallel=shard", "save.best=true")
    pool(3, on_ranks.run, tmp_path / "whole", given, "supervised", data)
    stopped = pool(3, on_ranks.run_with, "term", 1, 2, tmp_path / "parts", given, data)
    assert [words.partition(":")[0] for words in stopped] == ["Preempted False", "Preempted True", "Preempted True"]
    assert pool(3, on_ranks.run, tmp_path / "parts", given, "supervised", data) == [""] * 3
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert on_ranks.difference(tmp_path / "whole", tmp_path / "parts") == 0


@pytest.mark.slow
@pytest.mark.parametrize("world", slow_except([1, 2], {1}))
def test_checkpoints_are_written_while_the_training_continues(pool, data, tmp_path, world):
    """And they hold the moment at which they were begun."""
    given = on_ranks.settings("vit", *EVERYTHING, "save.every=0.000001", "save.keep=9")
    slowly = on_ranks.run_with_slow_disk
    if world == 1:
        assert slowly(SINGLE, tmp_path / "run", given, data) == ""
    else:
        assert pool(world, slowly, tmp_path / "run", given, data) == [""] * world
    written = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [checkpoint.step_of(path) for path in written] == [0, 1, 2, 3, 4, 4]
    assert not list(written[0].parent.glob(".writing-*"))
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for path in written[3:]:
        shutil.rmtree(tmp_path / "again" / "checkpoints" / path.name)
    (tmp_path / "again" / "status.json").unlink()
    if world == 1:
        assert on_ranks.alone(tmp_path / "again", given, data=data) == ""
    else:
        assert pool(world, on_ranks.run, tmp_path / "again", given, "supervised", data) == [""] * world
    assert on_ranks.difference(tmp_path / "run", tmp_path / "again") == 0


@pytest.mark.slow
def test_a_damaged_part_of_one_rank_is_refused_by_all(pool, data, tmp_path):
    given = on_ranks.settings("vit", *EVERYTHING, "save.every=0.000001")
    assert pool(3, on_ranks.run, tmp_path / "whole", given, "supervised", data) == [""] * 3
    pool(3, on_ranks.run_with, "term", 0, 2, tmp_path / "parts", given, data)
    newest = checkpoint.list_checkpoints(tmp_path / "parts" / "checkpoints")[-1]
    part = sorted((newest / checkpoint.SHARDS).iterdir())[1]
    content = bytearray(part.read_bytes())
    content[-5] ^= 4
    part.write_bytes(content)
    assert pool(3, on_ranks.run, tmp_path / "parts", given, "supervised", data) == [""] * 3
    assert f"{part.name} does not match its SHA-256" in (tmp_path / "parts" / "log.txt").read_text()
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert on_ranks.difference(tmp_path / "whole", tmp_path / "parts") == 0


@pytest.mark.parametrize(
    ("fault", "rank", "kind"),
    [
        ("nan", 2, "DivergedError"),
        pytest.param("full", 1, "DiskError", marks=pytest.mark.slow),
        pytest.param("term", 2, "Preempted", marks=pytest.mark.slow),
    ],
)
def test_an_error_of_one_rank_ends_all_ranks_at_the_same_step(pool, data, tmp_path, fault, rank, kind):
    """The first rank reports it, and the state that was saved is whole."""
    given = on_ranks.settings("vit", "schedule.steps=5", "data.batch=12")
    ended = pool(3, on_ranks.run_with, fault, rank, 2, tmp_path, given, data)
    assert [words.partition(":")[0] for words in ended] == [f"{kind} False", f"{kind} True", f"{kind} True"]
    assert len(set(words.partition(":")[2] for words in ended)) == 1
    if fault == "nan":
        named = json.loads((tmp_path / "diverged.json").read_text())
        assert (named["step"], len(named["keys"])) == (2, 12)
    if fault == "term":
        assert RunFolder(tmp_path).status()["state"] == "preempted"
    assert on_ranks.alone(tmp_path, given, data=data) == ""


def test_ranks_that_have_other_images_are_refused_before_the_first_step(pool, tmp_path):
    given = on_ranks.settings("vit", "schedule.steps=2", "data.batch=12")
    answers = pool(2, on_ranks.run_differently, tmp_path / "run", given)
    assert answers[0].startswith("ConfigError False: the ranks of this training differ in their images")
    assert "rank 1" in answers[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("images", "world"), [(97, 2), (15, 3)])
def test_an_evaluation_has_every_image_once_and_the_figures_of_one_process(pool, images, world):
    """Of ten batches, and of two, so that a rank of three has none."""
    assert pool(world, on_ranks.evaluate, images) == [on_ranks.evaluate(on_ranks.SINGLE, images)] * world


def test_an_evaluation_that_one_rank_cannot_finish_ends_for_all(pool):
    """After as many questions whether to stop, which are exchanges, as one that is finished has."""
    assert pool(3, on_ranks.evaluate_failing, 97) == [("rank 1: the store does not answer", 4)] * 3


@pytest.mark.parametrize(("images", "on_bad", "world"), [(47, "skip", 2), (17, "skip", 3), (47, "stop", 3)])
def test_ranks_collect_the_features_and_the_error_of_one_process(pool, tmp_path, images, on_bad, world):
    """Of four batches and of two, with bad images."""
    folder = on_ranks.write_photographs(tmp_path, images=images, bad={3, 15})
    alone = on_ranks.collect_keeping(on_ranks.SINGLE, folder, on_bad)
    assert isinstance(alone, str) == (on_bad == "stop")
    assert pool(world, on_ranks.collect_keeping, folder, on_bad) == [alone] * world


@pytest.mark.slow
def test_every_bad_image_is_counted_once_and_named_by_its_path(pool, tmp_path):
    folder = on_ranks.write_photographs(tmp_path / "photos", images=40, bad={3, 4, 5, 17, 30})
    given = on_ranks.settings("vit", "schedule.epochs=2", "data.batch=8", "data.max_bad=0.5", "augment.mixup=0.8")
    assert pool(3, on_ranks.run, tmp_path / "all", given, "supervised", folder) == [""] * 3
    on_ranks.alone(tmp_path / "one", given, data=folder)
    rows = [(tmp_path / name / "bad_images.csv").read_text().splitlines() for name in ("all", "one")]
    assert sorted(rows[0]) == sorted(rows[1])
    assert column(tmp_path / "all", "images") == column(tmp_path / "one", "images")


@pytest.mark.parametrize(("batch", "world"), [(8, 3), (7, 7), (12, 1), (5, 2)])
def test_the_shares_of_the_ranks_make_up_the_batch(batch, world):
    rows = [row for rank in range(world) for row in range(batch)[Ranks(rank, world).share(batch)]]
    assert rows == list(range(batch))
    sizes = {len(range(batch)[Ranks(rank, world).share(batch)]) for rank in range(world)}
    assert max(sizes) - min(sizes) <= 1


def test_a_rank_without_memory_names_the_micro_batch_to_set(monkeypatch):
    """It cannot begin the batch again, as one process would: the others are in the middle of an exchange."""

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(step, "_backward", fail)
    run, _ = compose_run(flags={"data": {"source": "digits", "batch": 48, "micro_batch": 48}})
    training = SimpleNamespace(run=run, ranks=Ranks(0, 2))
    with pytest.raises(ConfigError, match=r"micro-batches of 24 images.*\n.*data\.micro_batch=12"):
        step.backward(training, (torch.zeros(24, 1),))  # type: ignore[bad-argument-type]


def test_a_lost_rank_is_told_from_a_fault():
    with pytest.raises(LostRankError, match=r"did not answer in time \(Connection closed by peer"), lost_ranks():
        raise RuntimeError("[/src/pair.cc:537] Connection closed by peer [127.0.0.1]:7577. This is typically caused")
    with pytest.raises(RuntimeError, match="shapes"), lost_ranks():
        raise RuntimeError("the shapes of a and b differ")
    assert not is_lost_rank(RuntimeError("out of memory"))


@pytest.mark.parametrize(
    ("codes", "asked", "code"),
    [
        ([0, 0], 0, 0),
        ([7, 3, 7], 0, 3),  # one had an error of its own, and the others lost it
        ([7, 7], 0, 7),
        ([75, 75], 0, 75),
        ([75, 7], 15, 7),  # one was killed before the state was saved
        ([0, 0], 15, 75),
        ([130, 130], 2, 130),
        ([5, 5, 5], 0, 5),
    ],
)
def test_the_exit_codes_of_all_ranks_make_one(codes, asked, code):
    assert summarise(codes, asked) == code


@pytest.mark.parametrize(
    ("codes", "restarts", "code"), [([7, 7, 0], 3, 0), ([7, 7, 7], 2, 7), ([7, 6], 3, 6), ([7], 0, 7), ([75], 3, 75)]
)
def test_only_lost_processes_are_started_again_and_no_more_often_than_asked(monkeypatch, codes, restarts, code):
    left = iter(codes)
    for name in ("OMP_NUM_THREADS", launch.LAUNCHER):  # which are set for the ranks
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(launch, "count_devices", lambda devices: 2)
    monkeypatch.setattr(launch, "_launch_once", lambda count, arguments: next(left))
    assert launch.launch("2", ["train"], restarts=restarts) == code
    assert not list(left)
    assert LostRankError.code == LostProcessError.code == 7  # a rank and a data worker


@pytest.mark.slow
@pytest.mark.parametrize(("network", "parallel"), [("vit", "replicate"), ("bit", "shard")])
def test_the_work_of_muon_is_shared(pool, data, tmp_path, network, parallel):
    """Of stacks of matrices each rank works on a part; fewer matrices of a shape than ranks are among them."""
    given = on_ranks.settings(network, "schedule.steps=3", "data.batch=14", "optim.name=muon", "optim.lr=0.01")
    on_ranks.alone(tmp_path / "one", given, data=data)
    spread = (*given, f"compute.parallel={parallel}")
    assert pool(3, on_ranks.run, tmp_path / "all", spread, "supervised", data) == [""] * 3
    assert column(tmp_path / "all", "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-5)
    assert on_ranks.difference(tmp_path / "one", tmp_path / "all") < 1e-3


@pytest.mark.slow
def test_replicating_by_public_functions_alone_gives_the_same(pool, data, tmp_path):
    given = on_ranks.settings("vit", "schedule.steps=3", "data.batch=12", "compute.parallel=replicate")
    assert pool(3, on_ranks.run, tmp_path / "one", given, "supervised", data) == [""] * 3
    assert pool(3, on_ranks.run_in_another_torch, tmp_path / "other", given, data) == [""] * 3
    assert column(tmp_path / "other", "loss") == pytest.approx(column(tmp_path / "one", "loss"), rel=1e-6)
    assert on_ranks.difference(tmp_path / "one", tmp_path / "other") < 1e-5


@pytest.mark.parametrize(("left", "world", "launched"), [("codes", "1", True), ("", "2", True), ("", "1", False)])
def test_a_process_knows_that_it_was_launched(monkeypatch, left, world, launched):
    """Also the only one of ``--devices 1``, which would launch itself again."""
    monkeypatch.setenv("WORLD_SIZE", world)
    if left:
        monkeypatch.setenv(CODES, left)
    assert is_launched() == launched


@pytest.mark.parametrize(
    ("devices", "remedy"), [("two", "give a number such as 2, or all"), ("0", "or all"), ("all", "has no GPU")]
)
def test_devices_that_are_not_there_are_refused(devices, remedy):
    with pytest.raises(ConfigError, match=remedy):
        count_devices(devices)
