"""The plan for a cluster: by hand, against what is published of ViT-G, and against what FSDP2 holds and sends."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from tests.training import fake_world
from vitrail.cli import run
from vitrail.errors import ConfigError
from vitrail.training.cluster_plan import DEVICES, Cluster, Workload, compare, estimate, sent_bytes, static_bytes

COUNTS = {"parameters": 1000, "block": 100, "multiply_adds": 10**9, "batch": 64, "images": 6400}
SMALL = Workload(**COUNTS, activations=1e9, state=8, average=True, gathered=4)
CLUSTER = Cluster(device=DEVICES["H100"], count=16, local=8, network=100e9)


def test_memory_and_exchanges_by_hand():
    assert static_bytes(SMALL, 1) == 1000 * (4 + 4 + 8 + 4 + 4)
    assert static_bytes(SMALL, 16) == 1000 * (20 / 16 + 4) + 100 * 12
    assert sent_bytes(SMALL, CLUSTER, "replicate", 3) == (0, 8000 * 15 / 16)  # once an update
    assert sent_bytes(SMALL, CLUSTER, "shard", 3) == (0, 3 * 12000 * 15 / 16)
    assert sent_bytes(SMALL, CLUSTER, "hybrid", 1) == (12000 * 7 / 8, 1000 * 1 / 2)


def test_time_by_hand():
    found = estimate(SMALL, CLUSTER, "replicate", 4, mfu=0.5)
    assert found.compute == pytest.approx(6e9 * 4 / (0.5 * 989e12))
    assert found.exchange == pytest.approx(7500 / (100e9 / 8))
    assert found.images_per_second == pytest.approx(SMALL.batch / found.compute)
    assert found.days == pytest.approx(100 * found.compute / 86400)
    assert found.fits


def test_the_largest_micro_batch_that_fits_is_taken():
    """Of 80 GB, nine tenths: 64 images of 1 GB each, and on one device all of them are in its share."""
    alone = Cluster(device=DEVICES["H100"], count=1, local=1, network=1e9)
    assert [row.micro for row in compare(SMALL, alone)] == [64, 64]
    large = Workload(**{**SMALL.__dict__, "batch": 512})
    assert [(row.micro, row.fits) for row in compare(large, alone)] == [(64, True)] * 2
    huge = Workload(**{**SMALL.__dict__, "parameters": 10**11})
    assert [(row.micro, row.fits) for row in compare(huge, CLUSTER)] == [(1, False)] * 3


@pytest.mark.parametrize(
    ("devices", "network", "remedy"),
    [
        ("64", None, "64xH100"),
        ("64xH10", None, "did you mean 'H100'"),
        ("12xH100", None, "multiple of 8"),
        ("8xH100", "fast", "8x400Gb"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(devices, network, remedy):
    with pytest.raises(ConfigError, match=remedy):
        Cluster.parse(devices, network)


@pytest.mark.slow
def test_the_plan_of_vit_g_has_the_published_rate(capsys):
    """At 30 %, 64 H100 train on 6,570 images a second, as 6 x 481.8 G multiply-adds an image say; NeMo reached 178 images/s of
    ViT-g on one, with 28.9 %.
    """
    asked = ["train", "--dry-run", "--devices", "64xH100", "--network", "8x400Gb", "--batch", "4096", "--json"]
    assert run([*asked, "--model", "vit-gigantic14", "--steps", "244000"]) == 0
    told = capsys.readouterr()
    rows = json.loads(told.out)["plan"]
    assert [row["parallel"] for row in rows] == ["replicate", "hybrid", "shard"]
    assert rows[1]["images_per_second"] == pytest.approx(6568, rel=0.01)
    assert rows[1]["days"] == pytest.approx(2710 / 64 / 24, rel=0.01)
    assert any(line.startswith("choose   --set compute.parallel=hybrid") for line in told.err.splitlines())
    assert run([*asked[:3], "1xH100", "--batch", "256", "--model", "vit-giant14", "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])["plan"][0]
    assert row["images_per_second"] == pytest.approx(178.5 * 0.3 / 0.289, rel=0.05)


def test_a_plan_needs_a_network_and_enough_images(capsys):
    assert run(["train", "--dry-run", "--devices", "8xH100"]) == 2
    assert run(["train", "--dry-run", "--devices", "64xH100", "--model", "vit-ti16", "--batch", "32"]) == 2
    assert "give at least one image for each" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["replicate", "shard", "hybrid"])
def test_the_plan_counts_what_fsdp_holds_and_sends(parallel):
    """In a world of 64 ranks without memory. Shards of a small network are padded by up to a tenth."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(fake_world.measure, (parallel,))
    parameters = found["parameters"]
    work = Workload(**{**SMALL.__dict__, "parameters": parameters, "block": 0, "state": 8})
    shards = {"replicate": 1, "shard": 64, "hybrid": 8}[parallel]
    static = static_bytes(work, shards) - 4 * parameters  # without the copy that is evaluated
    assert 20 * found["local"] == pytest.approx(static, rel=0.1)
    cluster = Cluster(device=DEVICES["H100"], count=64, local=8, network=1e9)
    inside, outside = sent_bytes(work, cluster, parallel, 1)
    sent = {
        name.split()[0].partition("_")[0] + "_" + name.split()[0].split("_")[1]: n for name, n in found["sent"].items()
    }
    around = sent.get("all_gather", 0) + sent.get("reduce_scatter", 0)  # the bytes of a ring over n, times n / (n - 1)
    reduced = 2 * sent.get("all_reduce", 0)
    if parallel == "hybrid":
        assert inside == pytest.approx(around * 7 / 8, rel=0.1)
        assert outside == pytest.approx(reduced * 7 / 8, rel=0.1)
    else:
        assert inside + outside == pytest.approx((around + reduced) * 63 / 64, rel=0.1)
