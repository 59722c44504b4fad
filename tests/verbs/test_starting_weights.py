"""What a training starts from where it is not told: public weights for photographs, nothing for other images."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.each_row import each_row
from tests.looked_at import picture
from tests.weights.hub_cache import fill_cache, use_cache
from tests.weights.hub_mirror import COMMIT
from vitrail.cli import run

REPOSITORY = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
GATED = "facebook/dinov3-vits16-pretrain-lvd1689m"
ORIGIN = f"hf:{REPOSITORY}@{COMMIT}"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photographs, icons, a table of the photographs, and a cache of the hub."""
    monkeypatch.chdir(tmp_path)
    use_cache(tmp_path / "hub", monkeypatch)
    rows = ["path,label"]
    for folder, side in (("photos", 80), ("icons", 40)):
        for number in range(12):
            path = Path(folder, "ab"[number % 2], f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(side, side + 8, number).save(path)
            rows += [f"{path},{path.parent.name}"] if folder == "photos" else []
    Path("photos.csv").write_text("\n".join(rows))
    return tmp_path


def train(data: str, *options: str, out: str = "run") -> int:
    short = ["--steps", "1", "--size", "32", "--batch", "4", "--set", "compute.tune=false"]
    return run(["train", data, *short, *options, "--out", out])


def init_of(folder: str = "run") -> str | None:
    return yaml.safe_load(Path(folder, "config.yaml").read_text())["model"]["init"]


@pytest.mark.slow
@each_row("data", ["photos", "photos.csv"])
def test_photographs_are_fine_tuned_from_public_weights(desk, capsys, data):
    fill_cache(desk / "hub", REPOSITORY)
    assert train(data, out=data.replace(".", "-")) == 0
    log = capsys.readouterr().err
    assert f"init     vit-ti16, Apache-2.0: hf:{REPOSITORY}; --init none trains from scratch" in log
    assert "recipe   finetune" in log
    assert init_of(data.replace(".", "-")) == ORIGIN
    assert f"@{COMMIT}): Apache-2.0." in Path(data.replace(".", "-"), "card.md").read_text()


def test_the_card_says_licence_and_gating_of_the_public_weights_that_a_run_began_from(desk):
    fill_cache(desk / "hub", GATED)
    assert train("icons", "--init", f"hf:{GATED}", "--quiet") == 0
    assert Path("run/card.md").read_text().rstrip().endswith(f"@{COMMIT}): DINOv3 License, gated.")


@each_row(
    "options",
    [
        ["--init", "none"],
        ["--model", "vit-ti16"],
        ["--recipe", "small-data"],
        ["--set", "model.changes.depth=1"],
        ["--set", "model.init=none"],
    ],
    quick=[["--init", "none"], ["--recipe", "small-data"]],
)
def test_a_user_who_says_how_to_begin_begins_so(desk, options):
    fill_cache(desk / "hub", REPOSITORY)
    small = [] if "model.changes.depth=1" in options else ["--set", "model.changes.depth=1"]
    out = "".join(options).strip("-").replace(".", "-")
    assert train("photos", *options, *small, "--quiet", out=out) == 0
    assert init_of(out) is None


@pytest.mark.slow
def test_small_pictures_are_trained_from_scratch_without_a_word(desk, capsys):
    fill_cache(desk / "hub", REPOSITORY)
    assert train("icons") == 0
    assert "init " not in capsys.readouterr().err
    assert init_of() is None


def test_auto_takes_them_for_small_pictures_too(desk):
    fill_cache(desk / "hub", REPOSITORY)
    assert train("icons", "--init", "auto", "--quiet") == 0
    assert init_of() == ORIGIN


@pytest.mark.slow
def test_without_a_network_the_log_says_what_is_lost_and_how_to_get_it(desk, capsys):
    assert train("photos") == 0
    log = capsys.readouterr().err
    assert "HF_HUB_OFFLINE is set" in log
    assert "training from scratch: " in log
    assert "vitrail weights get vit-ti16 --out vit-ti16.safetensors" in log
    assert init_of() is None
    fill_cache(desk / "hub", REPOSITORY)
    assert train("photos") == 0  # the same run, not another one from the weights that are there now
    assert init_of() is None


def test_weights_that_were_asked_for_and_cannot_be_had_are_an_error(desk, capsys):
    assert train("photos", "--init", "auto") == 4
    assert "is not in the local cache of the hub" in capsys.readouterr().err
    assert not Path("run").exists()
