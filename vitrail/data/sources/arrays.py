"""Images that are arrays already: in memory, in .npy and .npz files, the built-in digits, and the user's own Dataset.

Axes: n images, H, W, C, K classes.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.contents import Arrays, Strings, UserDataset
from vitrail.data.sources.labels import Labels, RawSplit, from_numbers, from_texts, text_of
from vitrail.errors import DataError

BUILT_IN = ("digits",)

# split -> the names that its images and labels go by in an .npz: plain, as MedMNIST, and as Keras has them
NPZ_NAMES = {
    "train": (("images", "labels"), ("x", "y"), ("train_images", "train_labels"), ("x_train", "y_train")),
    "val": (("val_images", "val_labels"), ("x_val", "y_val")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}


def found_in_arrays(images: Any, labels: Any = None, *, names: Sequence[str] | None = None, where: str) -> RawSplit:
    """Images and their labels in memory.

    Args:
        images: uint8, or floats in [0, 1]: (n, H, W, C) or (n, H, W); a torch tensor is (n, C, H, W) or (n, H, W).
        labels: whole numbers (n,), zeros and ones (n, K), or names (n,).
        names: of the classes, in the order of the numbers.
        where: what messages and keys call the data.

    Raises:
        DataError: another shape or type, values outside [0, 1], or another number of labels than of images.
    """
    array = _images(images, where)
    keys = Strings(f"{where}#{row}" for row in range(len(array)))
    return RawSplit(Arrays(array, keys), None if labels is None else _labels(labels, len(array), names, where))


def _images(images: Any, where: str) -> np.ndarray:
    tensor = hasattr(images, "detach")
    array = images.detach().cpu().numpy() if tensor else np.asarray(images)
    if tensor and array.ndim == 4:
        array = array.transpose(0, 2, 3, 1)
    array = array[..., None] if array.ndim == 3 else array
    if array.ndim != 4 or 0 in array.shape or not (array.dtype == np.uint8 or array.dtype.kind == "f"):
        fact = f"the images of {where} have shape {array.shape} and type {array.dtype}"
        raise DataError(fact, "give (n, H, W, C) or (n, H, W), uint8 or floats in [0, 1]")
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1 + 1e-6):  # false for NaN as well
        raise DataError(f"the images of {where} have values from {low:g} to {high:g}", "scale them into [0, 1]")
    return np.ascontiguousarray(array, np.float32)


def _labels(labels: Any, images: int, names: Sequence[str] | None, where: str) -> Labels | None:
    values = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
    if len(values) != images:
        raise DataError(f"{where} has {images:,} images and {len(values):,} labels", "give one label for each image")
    if values.dtype.kind in "US":
        return from_texts([text_of(each.decode() if isinstance(each, bytes) else each) for each in values.tolist()])
    return from_numbers(values, names, where=where)


def found_in_npy(path: Path) -> tuple[str, dict[str, RawSplit]]:
    """Images of an .npy file; labels from the one beside it whose name has "labels" for "images", where it is."""
    images = _load(path)
    beside = path.with_name(path.name.replace("images", "labels"))
    labels = _load(beside) if beside != path and beside.exists() else None
    return f"an array, {path.name}", {"train": found_in_arrays(images, labels, where=path.name)}


def found_in_npz(path: Path) -> tuple[str, dict[str, RawSplit]]:
    """The splits of an .npz file, by the names of `NPZ_NAMES`; `classes` names the classes."""
    arrays = _load(path)
    names = [str(each) for each in arrays["classes"]] if "classes" in arrays else None
    splits = {}
    for split, pairs in NPZ_NAMES.items():
        for images, labels in pairs:
            if images in arrays:
                where = path.name if images in ("images", "x") else f"{path.name}/{split}"
                splits[split] = found_in_arrays(arrays[images], arrays.get(labels), names=names, where=where)
                break
    if not splits:
        raise DataError(f"{path} has the arrays {', '.join(map(repr, arrays))}", "name them 'images' and 'labels'")
    return f"arrays, {path.name}", splits


def _load(path: Path) -> Any:
    """An array, or a dict of arrays; a pickle in the file is never read. Raises `DataError`."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as arrays: {error}", "write it again with numpy.save or savez"
        ) from error


def found_digits() -> tuple[str, dict[str, RawSplit]]:
    """The 1,797 scanned digits that scikit-learn carries: 8 x 8 grey, "0" to "9"; levels 0..16 become 0..255."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    names = [str(number) for number in digits.target_names]
    return "the built-in digits", {"train": found_in_arrays(images, digits.target, names=names, where="digits")}


def is_dataset(data: Any) -> bool:
    """Whether something is a Dataset in torch's manner: it has a length and gives items by number."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def found_in_dataset(dataset: Any, *, channels: int, where: str) -> RawSplit:
    """The user's own Dataset, whose items are (image, label), or images.

    Labels come from its `targets` where it has them, as torchvision's do; else every item is read once for its label.

    Args:
        channels: what Pillow images in it become.

    Raises:
        DataError: it is empty, or its labels are no numbers, names, or rows of zeros and ones.
    """
    if not len(dataset):
        raise DataError("the dataset is empty", "give one with at least one item")
    labels, names = _dataset_labels(dataset), _dataset_classes(dataset)
    keys = Strings(f"{where}#{row}" for row in range(len(dataset)))
    contents = UserDataset(dataset, np.arange(len(dataset)), keys, channels)
    return RawSplit(contents, None if labels is None else _labels(labels, len(dataset), names, where))


def _dataset_labels(dataset: Any) -> Any:
    if (stated := _dataset_targets(dataset)) is not None:
        return stated
    items = (dataset[row] for row in range(len(dataset)))
    labels = [item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None for item in items]
    if any(label is None for label in labels):
        return None
    return np.array([label.detach().cpu().numpy() if hasattr(label, "detach") else label for label in labels])


def _dataset_targets(dataset: Any) -> np.ndarray | None:
    if _is_subset(dataset):
        whole = _dataset_targets(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, np.int64)]
    targets = getattr(dataset, "targets", None)
    return None if targets is None else np.asarray(targets)


def _dataset_classes(dataset: Any) -> list[str] | None:
    if _is_subset(dataset):
        return _dataset_classes(dataset.dataset)
    names = getattr(dataset, "classes", None)
    return None if names is None else [str(name) for name in names]


def _is_subset(dataset: Any) -> bool:
    """Whether this is torch's Subset: some items of another dataset, e.g. from random_split."""
    return hasattr(dataset, "dataset") and hasattr(dataset, "indices")
