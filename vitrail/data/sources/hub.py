"""Data sets of the Hugging Face hub, ``hf:datasets/owner/name``: the files of one that are data, downloaded once.

Nothing of a repository is run. Its README states configurations; what was downloaded of one is a folder like any other.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import Any

from vitrail.data.sources.splits import SPLITS
from vitrail.errors import ConfigError, DataError
from vitrail.files import ensure_folder, read_checksummed, write_checksummed
from vitrail.hub import REMOTE, REPOSITORY, REVISION, check_hashes, explain_failures, make_silent_bar
from vitrail.images.decode import EXTENSIONS
from vitrail.text import large, listing, plural, printable
from vitrail.untrusted.yaml_documents import YamlError, parse_yaml

NAME = re.compile(rf"{REMOTE}datasets/{REPOSITORY}(?:/(?P<config>[\w-][\w. +-]*))?{REVISION}", re.ASCII)
CARD = "README.md"
BESIDE = {CARD, ".gitattributes", "dataset_infos.json", "LICENSE.txt", "requirements.txt"}
DATA = {".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".npz", ".npy", ".tar", *(f".{each}" for each in EXTENSIONS)}
ANNOTATIONS = {".json", ".xml", ".txt", ".yaml", ".yml"}
CONVERTED = "add @refs/convert/parquet, the hub's own conversion to Parquet, if it has made one"


def fetch_data(data: str) -> tuple[Path, str]:
    """Downloads the data of a repository, or of one configuration, unless they are in the cache of the hub.

    Returns their folder there, and the begin of a layout: the commit and what was left out. What is in the cache is taken as it
    is, without a request.

    Args:
        data: ``hf:datasets/owner/name``, also with ``/configuration`` or ``@revision`` behind it.

    Raises:
        ConfigError: an invalid name, or a repository, revision or configuration that does not exist or that is gated.
        DataError: no data that are read, damaged data, or data that are not in the cache while the hub cannot be reached.
    """
    matched = NAME.fullmatch(data)
    if matched is None or ".." in data:
        remedy = "give hf:datasets/owner/name, with /configuration or @revision behind it where needed"
        raise ConfigError(f"{data[:200]!r} is not the name of a data set on the hub", remedy)
    from huggingface_hub import snapshot_download  # takes a while

    instead = f"run `vitrail data check {data}` on a machine with a network, and copy its cache of the hub"
    with explain_failures(data, DataError, instead):
        folder, sizes = _list_files(matched["name"], matched["revision"])
        card = _read_card(folder / CARD)
        patterns, note = choose_files(data, matched["config"], [*sizes], card)
        wanted = _match(patterns, sizes)
        if missing := [path for path in wanted if not (folder / path).exists()]:
            much = f"{plural(len(missing), 'file')}, {large(sum(map(sizes.__getitem__, missing)), 'B')}"
            terms = f", licence {printable(card['license'])}" if card.get("license") else ""
            print(f"download {data}, {much}{terms}, once, into {folder}", file=sys.stderr, flush=True)
            snapshot_download(matched["name"], repo_type="dataset", revision=folder.name, allow_patterns=patterns)
            check_hashes((folder / path for path in missing), DataError)
    inside = os.path.commonpath([os.path.dirname(path) for path in wanted])
    return folder / inside, f"{data.partition('@')[0]}@{folder.name}{note}: "


def _list_files(name: str, revision: str | None) -> tuple[Path, dict[str, int]]:
    """The folder of a commit in the cache, and the bytes of each file of the repository, a list of which is kept beside it."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    which: dict[str, Any] = {"repo_type": "dataset", "revision": revision, "allow_patterns": [CARD, ".gitattributes"]}
    with suppress(LocalEntryNotFoundError):
        folder = Path(snapshot_download(name, local_files_only=True, **which))
        if known := read_checksummed(folder.parent.parent / "vitrail" / f"{folder.name}.json"):
            return folder, known["files"]
    folder = Path(snapshot_download(name, tqdm_class=make_silent_bar(), **which))
    entries = HfApi().list_repo_tree(name, recursive=True, revision=folder.name, repo_type="dataset")
    sizes = {entry.path: entry.size for entry in entries if hasattr(entry, "size")}  # folders have none
    kept = folder.parent.parent / "vitrail"
    ensure_folder(kept)
    write_checksummed(kept / f"{folder.name}.json", {"files": sizes})
    return folder, sizes


def _read_card(path: Path) -> Mapping[str, Any]:
    """The fields at the head of a README."""
    text = path.read_text("utf-8-sig", "replace") if path.exists() else ""
    head = re.match(r"---[ \t]*\n(.*?)^---", text, re.DOTALL | re.MULTILINE)
    try:
        fields = parse_yaml(head[1], as_text=True) if head else {}
    except (YamlError, AttributeError, TypeError, ValueError) as error:  # of tags such as !!timestamp, too
        raise DataError(f"the fields of {path} cannot be read: {printable(error, 200)}", CONVERTED) from error
    return fields if isinstance(fields, dict) else {}


def choose_files(data: str, config: str | None, names: Sequence[str], card: Mapping[str, Any]) -> tuple[list[str], str]:
    """Returns patterns of the files of a configuration, or of a repository that states none, and a note on those left out.

    Raises `ConfigError` for a configuration that does not exist, or where one has to be named, and `DataError` for files that
    would not be read as the README means them.
    """
    configs, default = _list_configs(names, card)
    if not configs and config is None:
        return _choose_all(data, names)
    wanted = config or default
    if wanted not in configs:
        place = data.partition("@")[0].removesuffix(f"/{config}")
        names = [*map(printable, configs)]
        remedy = f"name one of them, as {place}/{names[0]}" if names else f"leave out /{config}"
        raise ConfigError(f"{data} has {plural(len(configs), 'configuration')}: {listing(names)}", remedy)
    found = [(split, pattern, _match([pattern], names)) for split, pattern in configs[wanted]]
    used = [each for each in found if each[0] in ("", *SPLITS)]
    files = {path: SPLITS.get(split) or _name_split(path) or "train" for split, _, paths in used for path in paths}
    # the folder is read by the names in it, and may also have files that others have downloaded
    unnamed = not any(map(_name_split, files)) and {*files.values()} == {"train"}
    inside, kinds = os.path.commonpath([*map(os.path.dirname, files)] or [""]), {*map(_get_kind, files)}
    beside = [path for path in names if path.startswith(inside and f"{inside}/") and _get_kind(path) in kinds]
    others = [path for path in beside if path not in files and (unnamed or _is_image(path) or _name_split(path))]
    wrong = [path for path, split in files.items() if not unnamed and _name_split(path) != split]
    if not files or others or wrong:
        why = f"{others[0]} is among them" if others else f"{wrong[0]} has another split" if wrong else "there are none"
        what = f"the files of {wanted} in {data} cannot be opened as the README means: {why}"
        raise DataError(printable(what, 300), CONVERTED)
    unread = [(split, paths) for split, _, paths in found if split not in ("", *SPLITS) and paths]
    left = [f"{printable(split)} ({plural(len(paths), 'file')})" for split, paths in unread]
    return [pattern for _, pattern, _ in used], f", without {', '.join(left)}" if left else ""


def _list_configs(names: Sequence[str], card: Mapping[str, Any]) -> tuple[dict[str, list[tuple[str, str]]], str | None]:
    """The split and the pattern of the files of each configuration, as a README or the hub's conversion has them; the default."""
    stated = [each for each in card.get("configs") or () if isinstance(each, dict)]
    configs: dict[str, list[tuple[str, str]]] = {}
    for each in stated:
        folder = f"{each['data_dir']}/" if each.get("data_dir") else ""
        patterns = _list_patterns(each.get("data_files", ["*"] if folder else None))
        # a * of ours matches "/", too
        plain = ((split, pattern.removeprefix("./").replace("**/", "*")) for split, pattern in patterns)
        if prefixed := [(split, folder + pattern) for split, pattern in plain]:
            configs[str(each.get("config_name"))] = prefixed
    converted = [re.fullmatch("([^/]+)/([^/]+)/[0-9]+[.]parquet", path) for path in names if path not in BESIDE]
    if not configs and all(converted):
        for config, split in sorted({matched.groups() for matched in converted if matched}):
            configs.setdefault(config, []).append((split, f"{config}/{split}/*"))
    default = [str(each.get("config_name")) for each in stated if each.get("default") == "true"]
    default += ["default"] if "default" in configs else configs if len(configs) == 1 else []
    return configs, next(iter(default), None)


def _list_patterns(files: Any, split: str = "") -> Iterator[tuple[str, str]]:
    """The patterns that ``data_files`` states, each with its split; "" where names decide it."""
    if isinstance(files, str):
        yield split.lower(), files
    elif isinstance(files, list):
        for each in files:
            yield from _list_patterns(each, split)
    elif isinstance(files, dict):
        by_split = {str(files.get("split", split)): files["path"]} if "path" in files else files
        for name, each in by_split.items():
            yield from _list_patterns(each, str(name))


def _choose_all(data: str, names: Sequence[str]) -> tuple[list[str], str]:
    kinds = Counter(_get_kind(path) for path in names if path not in BESIDE)
    left = ", ".join(
        f"{count:,} {printable(kind)}" for kind, count in sorted(kinds.items()) if kind not in DATA | ANNOTATIONS
    )
    if not DATA & kinds.keys():
        what = f"{data} has no images, tables or .tar; other archives are not opened, and scripts are not run"
        raise DataError(what, CONVERTED, value=f"it has {left or 'no files'}")
    kept = [path for path in names if path not in BESIDE and _get_kind(path) in DATA | ANNOTATIONS]
    return sorted({f"*{PurePosixPath(path).suffix}" for path in kept}), f", without {left}" if left else ""


def _get_kind(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _is_image(path: str) -> bool:
    return _get_kind(path).removeprefix(".") in EXTENSIONS


def _match(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    matches = re.compile("|".join(map(translate, patterns))).match
    return [path for path in names if matches(path) and path not in BESIDE]


def _name_split(path: str) -> str:
    """The split that a folder of a path names, or the first word of the name of a table."""
    *words, file = path.lower().split("/")
    words += [] if _is_image(path) else re.split("[-_.]", file)[:1]
    return next((SPLITS[word] for word in words if word in SPLITS), "")
