"""Folders as people keep images in them: a folder for each class, with or without train / val / test above, or none.

Nothing depends on the order in which the file system lists names. A million files are scanned in seconds: no file is
opened or asked for its length, except one whose name has no extension at all.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrail.data.decode import looks_like_image
from vitrail.data.sources.contents import Files, Strings, read_head
from vitrail.data.sources.labels import SPLIT_ORDER, SPLITS, Labels, RawSplit, in_order
from vitrail.errors import DataError

EXTENSIONS = frozenset({"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff"})
MANIFESTS = (".csv", ".tsv", ".jsonl", ".parquet")


@dataclass
class Scan:
    """One walk over a data set: what else lay there, and which folders links may not enter a second time."""

    others: Counter[str] = field(default_factory=Counter)  # files that are no images, by extension
    entered: set[tuple[int, int]] = field(default_factory=set)

    def listing(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of the folders and of the images right in a folder, each sorted. Raises `DataError`."""
        folders, images = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith((".", "__MACOSX")):
                        continue
                    if entry.is_dir():
                        folders.append(entry.name)
                    elif is_image(entry):
                        images.append(entry.name)
                    else:
                        self.others["." + entry.name.rpartition(".")[2].lower() if "." in entry.name else "none"] += 1
        except OSError as error:
            fact = f"the folder {folder} cannot be read: {error.strerror}"
            raise DataError(fact, "check its permissions") from error
        return sorted(folders), sorted(images)

    def enter(self, folder: str) -> bool:
        """Notes a folder; False where it was entered before, so that a link to a folder above ends there."""
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in self.entered:
            return False
        self.entered.add(identity)
        return True

    def below(self, root: str, inside: str) -> list[str]:
        """The paths, relative to ``root``, of all images in the folder ``inside`` it and in those below, sorted."""
        found, waiting = [], [inside]
        while waiting:
            folder = waiting.pop()
            folders, images = self.listing(os.path.join(root, folder))
            before = f"{folder}/" if folder else ""
            found += [before + name for name in images]
            waiting += [each for name in folders if self.enter(os.path.join(root, each := before + name))]
        return sorted(found)

    def words(self) -> str:
        """What was passed over, for the line that says what was found."""
        if not self.others:
            return ""
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.others.items()))
        return f"; {self.others.total():,} other file{'s' if self.others.total() > 1 else ''} not used ({kinds})"


def is_image(entry: os.DirEntry[str]) -> bool:
    """By its extension; a name without one, by its first bytes."""
    if "." in entry.name:
        return entry.name.rpartition(".")[2].lower() in EXTENSIONS
    return looks_like_image(read_head(entry.path, 16))


def found_in_folder(root: Path, *, labelled: bool) -> tuple[str, dict[str, RawSplit]] | None:
    """What a folder of images holds: words for it, and its splits; None where it holds no image.

    Raises:
        DataError: split folders beside class folders, two folders for one split, or a training folder without images.
    """
    scan = Scan()
    scan.enter(str(root))
    folders, _ = scan.listing(str(root))
    named = [name for name in folders if name.lower() in SPLITS]
    others = [name for name in folders if name not in named and named and _any_image(root / name)]
    split_above = [name for name in named if any(_any_image(path) for path in _folders(root / name))]
    if named and not others:
        return _found_in_splits(root, named, scan, labelled)
    if split_above:
        fact = f"{root} holds split folders ({', '.join(split_above)}) and beside them {', '.join(map(repr, others))}"
        raise DataError(fact, f"move {others[0]!r} elsewhere, or into the split folders as a class")
    scan.others.clear()
    found = _found_in_classes(root, "", scan, labelled)
    if found is None:
        return None
    part, note = found
    _check_not_a_manifests_folder(root, part, labelled)
    words = "class folders" if part.labels else "an unlabelled folder of images"
    return f"{words}{note}{scan.words()}", {"train": part}


def _found_in_splits(
    root: Path, named: list[str], scan: Scan, labelled: bool
) -> tuple[str, dict[str, RawSplit]] | None:
    splits: dict[str, RawSplit] = {}
    notes = ""
    for name in named:
        scan.enter(str(root / name))
    for name in sorted(named, key=lambda name: (SPLIT_ORDER.index(SPLITS[name.lower()]), name)):
        split = SPLITS[name.lower()]
        if split in splits:
            twice = [each for each in named if SPLITS[each.lower()] == split]
            raise DataError(f"{root} has more than one {split} folder: {', '.join(twice)}", "keep one of them")
        found = _found_in_classes(root, name, scan, labelled)
        if found is None:
            notes += f"; {name} is empty"
            continue
        splits[split], note = found
        notes += note
    if not splits:
        return None
    if "train" in map(SPLITS.get, map(str.lower, named)) and "train" not in splits:
        raise DataError(f"the training folder of {root} holds no images", "see `vitrail data check` for what is read")
    kind = "class folders" if any(part.labels for part in splits.values()) else "unlabelled folders"
    return f"{kind} in {', '.join(splits)}{notes}{scan.words()}", splits


def _found_in_classes(root: Path, inside: str, scan: Scan, labelled: bool) -> tuple[RawSplit, str] | None:
    """The images of one split: labelled by the folders in the folder ``inside`` the root, where there are any."""
    folders, images = scan.listing(str(root / inside))
    before = f"{inside}/" if inside else ""
    names = in_order(folders)
    for name in names:
        scan.enter(str(root / inside / name))
    paths = [Strings(scan.below(str(root), before + name)) for name in names]  # one for each folder
    beside = [before + name for name in images]
    # where labels are not needed nothing that lies here is left out, and what lies beside class folders has no class
    if any(map(len, paths)) and (labelled or not beside):
        values = np.repeat(np.arange(len(names)), [len(each) for each in paths])
        note = f"; {len(beside):,} images beside the class folders not used" if beside else ""
        return RawSplit(Files(str(root), Strings.join(paths)), Labels(names, values)), note
    flat = Strings(sorted([*beside, *(path for each in paths for path in each)]))
    return (RawSplit(Files(str(root), flat)), "") if len(flat) else None


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _any_image(folder: Path) -> bool:
    """Whether there is an image in a folder or below; looks no further than the first."""
    for _, _, names in os.walk(folder):
        if any(name.rpartition(".")[2].lower() in EXTENSIONS for name in names if not name.startswith(".")):
            return True
    return False


def _check_not_a_manifests_folder(root: Path, part: RawSplit, labelled: bool) -> None:
    if not labelled or part.labels is None or len(part.labels.names) > 1:
        return
    manifests = sorted(path.name for path in root.iterdir() if path.suffix.lower() in MANIFESTS)
    if manifests:
        fact = f"{root} holds one folder of images, {part.labels.names[0]!r}, and {', '.join(manifests)}"
        choice = next((name for name in manifests if name.startswith(("labels", "metadata", "train"))), manifests[0])
        raise DataError(fact, f"give the file that names the labels: {root / choice}")


def data_files(root: Path) -> tuple[str, dict[str, list[Path]]] | None:
    """Files of one kind that hold the splits of a data set, e.g. train-00000-of-00002.parquet, test.csv, val/0.parquet.

    Returns:
        their extension, and the files of each split; one set without a split's name is taken as "train".
    """
    for folder in (root, root / "data"):
        for suffix in (".parquet", ".npz", ".csv", ".tsv", ".jsonl"):
            files = [path for path in sorted(folder.glob(f"*{suffix}")) if not path.name.startswith(".")]
            files += [path for path in sorted(folder.glob(f"*/*{suffix}")) if path.parent.name.lower() in SPLITS]
            splits: dict[str, list[Path]] = {}
            for path in files:
                if split := _split_of(path):
                    splits.setdefault(split, []).append(path)
            if splits:
                return suffix, {split: splits[split] for split in SPLIT_ORDER if split in splits}
            if files and (suffix == ".parquet" or len(files) == 1):
                return suffix, {"train": files}
    return None


def _split_of(path: Path) -> str | None:
    if (above := path.parent.name.lower()) in SPLITS:
        return SPLITS[above]
    word = path.stem.lower()
    for mark in "-_.":
        word = word.partition(mark)[0]
    return SPLITS.get(word)
