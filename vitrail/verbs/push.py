"""`vitrail push`: a model on the Hugging Face hub, with its card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.progress import LogFunction, to_stderr
from vitrail.verbs import options
from vitrail.verbs.verb import verb

LIBRARIES = {"huggingface": "transformers", "timm": "timm", "native": "vitrail"}  # in this order by default


@dataclass(frozen=True)
class Pushed:
    """What was uploaded; of a dry run what would be, and ``commit`` is None.

    Args:
        repository: the name that `vitrail.load` and other verbs take, ``hf:owner/name``.
        card: the card that README.md was made from, if the model has one; ``readme`` is the text of README.md.
        files: the bytes of each file by name.
    """

    repository: str
    url: str
    commit: str | None
    private: bool
    layout: str
    card: Path | None
    files: Mapping[str, int]
    readme: str


@verb("layout", "private", "licence", "dry_run")
def push(
    model: options.NetworkModel,
    repository: Annotated[str, "The repository of the hub, hf:owner/name; it is created if it does not exist."],
    *,
    layout: Annotated[
        Literal["huggingface", "timm", "native"] | None,
        "The files: those of transformers, of timm, or vitrail's own; by default the first of these that loses nothing.",
    ] = None,
    private: Annotated[bool, "Create the repository as a private one; by default it is public."] = False,
    licence: Annotated[
        str | None, "The hub's identifier of the licence, such as apache-2.0; by default the card's."
    ] = None,
    message: Annotated[str, "The message of the commit."] = "Upload a model with vitrail",
    dry_run: Annotated[bool, "Upload nothing: show the files and the card, without a token or a network."] = False,
    log: options.Log = to_stderr,
) -> Pushed:
    """Uploads a model and its card to the Hugging Face hub, in one commit.

    The files are converted and verified as by `vitrail convert`. Folders of this machine are named in none of them.

    Raises:
        ConfigError: no repository can have this name, there is no token, or it may not write there.
        CheckpointError: the layout cannot express the model, or the hub cannot be reached.
    """
    from copy import copy
    from tempfile import TemporaryDirectory

    from huggingface_hub.constants import ENDPOINT

    from vitrail.files import replace_file
    from vitrail.reports.cards import publish_card, without_paths
    from vitrail.weights import load
    from vitrail.weights.native import as_task, save
    from vitrail.weights.upload import find_token, parse_repository, upload

    name = parse_repository(repository)
    if not dry_run:
        find_token()
    is_path = isinstance(model, str | Path)
    card, metrics = _find_card(model) if is_path else (None, {})
    task = load(model, log=log) if is_path else as_task(model)
    text = "" if card is None else card.read_text(encoding="utf-8", errors="replace")
    with TemporaryDirectory() as temporary:
        published = copy(task)
        published.provenance = without_paths(task.provenance)
        native = save(published, Path(temporary) / "native", metrics=metrics)
        taken, folder = _convert(native, layout, log)
        readme = publish_card(text, task, name, LIBRARIES[taken], metrics=metrics, licence=licence)
        if "\nlicense: unknown\n" in readme:
            log("warning  the card names no licence: give --licence")
        replace_file(folder / "README.md", readme)
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        commit = None
        if not dry_run:
            commit, private = upload(folder, name, private=private, message=message, log=log)
    return Pushed(repository, f"{ENDPOINT}/{name}", commit, private, taken, card, files, readme)


def _find_card(model: str | Path) -> tuple[Path | None, Mapping[str, Any]]:
    """Returns the card of a model folder, if there is one, and the metrics of its evaluation."""
    from vitrail.weights.folders import CONFIG
    from vitrail.weights.resolve import resolve_model
    from vitrail.weights.tensors import read_json

    resolved = resolve_model(model)
    if resolved.layout != "native folder":
        return None, {}
    places = (resolved.path.parent / "card.md", resolved.path / "README.md")
    return next((card for card in places if card.is_file()), None), read_json(resolved.path / CONFIG)["metrics"]


def _convert(native: Path, layout: str | None, log: LogFunction) -> tuple[str, Path]:
    """Writes a model folder in a layout, by default the first that loses nothing; returns the layout and its folder."""
    from vitrail.verbs.convert.layouts import write_layout

    reasons = []
    for name in [layout] if layout else LIBRARIES:
        said: list[str] = []
        try:
            written = name != "native" and write_layout(native, native.with_name(name), name, log=said.append)
        except (CheckpointError, ConfigError) as error:
            if layout:
                raise
            said, written = ["; ".join([error.what, *error.value.splitlines()])], None
        if said and not layout:
            reasons.append(f"not {name}: {said[0]}")
            continue
        notes = written.notes if written else ()
        for line in [*said, *(f"kept for vitrail alone: {words} by {LIBRARIES[name]}" for words in notes)]:
            log(line)
        log(f"layout   {'; '.join([f'{name}, for {LIBRARIES[name]}', *reasons])}")
        return name, native.with_name(name)
    raise AssertionError("the native layout loses nothing")


def run(model: str, repository: str, /, *, json: options.AsJson = False, **given: Any) -> None:
    from vitrail.verbs.printing import columns, one_line

    pushed = push(model, repository, **given)
    card = None if pushed.card is None else str(pushed.card)
    if json:
        print(one_line({key: value for key, value in asdict(pushed).items() if key != "readme"} | {"card": card}))
        return
    rows = [(name, f"{size:,} B") for name, size in pushed.files.items()]
    rows += [("card", card or "none: README.md says that nothing is known"), ("layout", pushed.layout)]
    rows += [("private" if pushed.private else "public", pushed.url), ("commit", pushed.commit or "none: a dry run")]
    print(columns(rows) + (f"\n\n{pushed.readme}" if pushed.commit is None else ""))
