"""The verbs for Python are those of the command line: the same names, options, types and defaults, checked alike."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.looked_at import picture, shaken
from vitrail.cli import build_app, run
from vitrail.errors import ConfigError
from vitrail.models.known import KNOWN
from vitrail.verbs.verb import fits, options_of
from vitrail.weights.native import save_model

OTHER_NAMES = {
    "models": "list_models",
    "settings": "list_settings",
    "check": "check_export",
    **{f"data {verb}": f"{verb}_data" for verb in ("check", "shard", "index")},
    "check-parts": "check_parts",
    "weights get": "get_weights",
    **{f"study {verb}": f"{verb}_study" for verb in ("work", "report", "pack", "add", "write")},
}
OF_THE_TERMINAL = {
    "json",
    "per_class",
    "devices",
    "restarts",
    "network",
}  # how results are printed, how ranks are started
OF_PYTHON = {"log", "transform", "command", "ranks", "settings", "callbacks", "metrics"}  # what no shell can say


def silent(line: str) -> None: ...


def commands() -> dict[str, Callable[..., Any]]:
    app = build_app()
    verbs = {name: app[name] for name in app if not name.startswith("-")}
    groups = {"data": verbs.pop("data"), "weights": verbs.pop("weights"), "study": verbs["study"]}
    verbs |= {f"{of} {name}": each[name] for of, each in groups.items() for name in each if not name.startswith("-")}
    return {name: verb.default_command for name, verb in verbs.items()}


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}


def test_a_verb_of_the_command_line_is_a_public_function_with_the_same_options_and_defaults() -> None:
    for verb, command in commands().items():
        name = OTHER_NAMES.get(verb, verb)
        assert name in vitrail.__all__
        ours = options(getattr(vitrail, name))
        only_shell = {
            *OF_THE_TERMINAL,
            *(["config"] if verb == "serve" else []),
        }  # a program has no use for a file of arguments
        shell = {option: parameter for option, parameter in options(command).items() if option not in only_shell}
        arguments = inspect.signature(command).parameters.keys() - options(command).keys()
        assert ours.keys() - OF_PYTHON - arguments == shell.keys(), verb
        for option, parameter in shell.items():
            assert parameter.default == ours[option].default, (verb, option)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert vitrail.__version__ == metadata.version("vitrail")
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == vitrail.__version__


def test_no_help_text_is_repeated() -> None:
    documented = inspect.getdoc(vitrail.predict)
    assert documented is not None
    assert "top: Number of labels per image." in documented
    assert (
        documented.splitlines()[0]
        == "Predicts what images show, in the order of the inputs: labels, objects, or the class of every pixel."
    )


def test_a_wrong_option_is_refused_with_the_value_and_the_remedy() -> None:
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"tpo": 3}, "there is no option 'tpo'", "did you mean 'top'"),
        ({"top": "3"}, "top is '3'", "give a whole number"),
        ({"fast": 1}, "fast is 1", "True or False"),
        ({"precision": "bf61"}, "precision is 'bf61'", "did you mean 'bf16'"),
        ({"mean": ["a"]}, "mean is ['a']", "each a number"),
        ({"zzz": True}, "there is no option 'zzz'", "choose one of"),
    ]
    for given, what, remedy in wrong:
        with pytest.raises(ConfigError) as refused:
            vitrail.predict("nowhere", "nothing.png", **given)
        assert what in refused.value.what, given
        assert remedy in refused.value.remedy, given


def test_missing_required_options_raise() -> None:
    with pytest.raises(ConfigError, match="the option 'out' is not given"):
        vitrail.inspect("nowhere")
    with pytest.raises(ConfigError, match="given twice"):
        vitrail.train("digits", set=["optim.lr=1"], settings=["optim.lr=2"])


def test_values_are_checked_by_the_types_of_the_table() -> None:
    flags = options_of(vitrail.train)
    values: list[tuple[str, Any, bool]] = [
        ("steps", np.int64(3), True),
        ("steps", True, False),
        ("steps", 3.5, False),
        ("epochs", 3, True),
        ("size", (48, 64), True),
        ("size", "48x64", True),
        ("size", 48.5, False),
        ("init", Path("a"), True),
        ("init", None, True),
        ("set", "optim.lr=1", False),
    ]
    assert not [(name, value) for name, value, holds in values if fits(value, flags[name].type) is not holds]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    save_model(folder / "model", shaken())
    for name in ("a", "b"):
        picture(30, 40, seed=ord(name)).save(folder / f"{name}.png")
    return folder


def test_predictions_are_an_iterator_or_a_table(place: Path, tmp_path: Path) -> None:
    files = sorted(place.glob("*.png"))
    answers = list(vitrail.predict(place / "model", files, top=2, quiet=True, log=silent))
    assert [Path(answer.key).name for answer in answers] == ["a.png", "b.png"]
    table = vitrail.predict(place / "model", files, top=2, out=tmp_path / "table.jsonl", quiet=True, log=silent)
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert [row["label"] for row in rows] == [answer.label for answer in answers]


def test_options_of_reading_are_those_of_the_command_line(place: Path) -> None:
    def features(**options: Any) -> np.ndarray:
        ((_, values),) = vitrail.embed(place / "model", place / "a.png", quiet=True, log=silent, **options)
        return values

    usual = features()
    assert not np.allclose(usual, features(mean=(0.1, 0.1, 0.1)))
    assert np.array_equal(features(mean="0.1,0.1,0.1", std="0.5,0.5,0.5"), features(mean=(0.1,) * 3, std=(0.5,) * 3))
    assert np.array_equal(features(crop="16x16"), features(crop=16))


@pytest.mark.slow
def test_a_training_takes_the_same_settings_by_both_names(tmp_path: Path) -> None:
    for name in ("set", "settings"):
        plan = vitrail.train("digits", steps=1, batch=8, dry_run=True, **{name: ["optim.lr=0.125"]})
        assert "lr: 0.125" in plan
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_switch_that_is_off_leaves_the_file_of_settings_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("model: {head_only: true}\n")
    save_model(tmp_path / "model", shaken())
    options: dict[str, Any] = {"init": tmp_path / "model", "steps": 1, "batch": 8, "dry_run": True}
    assert "head_only: true" in vitrail.train("digits", config=tmp_path / "settings.yaml", **options)
    assert "head_only" not in vitrail.train("digits", **options)  # off by default


def test_the_old_name_of_export_is_still_there() -> None:
    assert vitrail.export_model is vitrail.export


def test_models_are_listed_with_what_is_known_of_them() -> None:
    facts = vitrail.list_models("vit-ti16", size=96)["vit-ti16"]
    assert (facts.image_size, facts.cost.tokens, facts.published.top1) == ((96, 96), 37, 78.22)
    everything = vitrail.list_models(size=96)
    assert everything.keys() == KNOWN.keys()
    assert everything["vit-s14"].cost is None


def test_a_data_set_is_checked(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), (name == "ant" and "red") or "blue").save(tmp_path / name / "1.png")
    assert vitrail.check_data(tmp_path).images == 2
    assert vitrail.doctor()["self-check"] == "passed"
