"""Images as arrays (n, H, W, C): in memory, in .npy and .npz files, the built-in digits, and user-defined Datasets."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.contents import Arrays, Strings, UserDataset
from vitrail.data.sources.labels import Labels, RawData, RawSplit, format_label, from_numbers, from_texts
from vitrail.data.sources.manifests import choose_columns
from vitrail.errors import DataError
from vitrail.untrusted.archives import check_expansion, read_array, read_array_member
from vitrail.untrusted.limits import DATA_EXPANSION, DATA_SPARED_BYTES

BUILT_IN = ("digits",)

# split -> names of its images and labels in an .npz: plain names, those of MedMNIST, those of Keras
NPZ_NAMES = {
    "train": (("images", "labels"), ("x", "y"), ("train_images", "train_labels"), ("x_train", "y_train")),
    "val": (("val_images", "val_labels"), ("x_val", "y_val")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}


def read_arrays(images: Any, labels: Any = None, *, names: Sequence[str] | None = None, where: str) -> RawSplit:
    """Images, uint8 or floats in [0, 1], and labels in memory; ``where`` names them in messages and keys.

    Images are (n, H, W, C) or (n, H, W), of torch (n, C, H, W) or (n, H, W); labels are numbers of classes with these ``names``
    or names (n,), or zeros and ones (n, K). Raises `DataError` for a wrong shape or type, values outside [0, 1], or different
    numbers of images and labels.
    """
    array = _check_images(images, where)
    keys = Strings(f"{where}#{row}" for row in range(len(array)))
    return RawSplit(Arrays(array, keys), None if labels is None else _convert_labels(labels, len(array), names, where))


def _check_images(images: Any, where: str) -> np.ndarray:
    tensor = hasattr(images, "detach")
    array = images.detach().cpu().numpy() if tensor else np.asarray(images)
    if tensor and array.ndim == 4:
        array = array.transpose(0, 2, 3, 1)
    array = array[..., None] if array.ndim == 3 else array
    if array.ndim != 4 or 0 in array.shape or array.dtype.kind not in "uif":
        fact = f"the images of {where} have shape {array.shape} and type {array.dtype}"
        raise DataError(
            fact, "give arrays of shape (n, H, W, C) or (n, H, W), whole numbers to 255 or floats in [0, 1]"
        )
    _, rows, columns, channels = array.shape
    # few rows, and many channels or as many as columns, can only be meant as (n, C, H, W)
    if 2 * rows <= min(columns, channels) and (columns == channels or (rows <= 4 and channels > 16)):
        fact = f"the images of {where} have shape {array.shape}, with the channels first"
        raise DataError(fact, "give (n, H, W, C), e.g. images.transpose(0, 2, 3, 1)")
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind in "ui" and 1 < high <= 255 and low >= 0:  # 8 bits in a wider type
        return array.astype(np.uint8)
    if not (low >= 0 and high <= 1 + 1e-6):  # false for NaN as well
        raise DataError(f"the images of {where} have values from {low:g} to {high:g}", "scale them to floats in [0, 1]")
    return np.ascontiguousarray(array, np.float32)


def _convert_labels(labels: Any, images: int, names: Sequence[str] | None, where: str) -> Labels | None:
    values = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
    if len(values) != images:
        raise DataError(f"{where} has {images:,} images and {len(values):,} labels", "give one label per image")
    if values.dtype.kind in "US":
        texts = (label.decode() if isinstance(label, bytes) else label for label in values.tolist())
        return from_texts(list(map(format_label, texts)))
    return from_numbers(values, names, where=where)


def read_npy(path: Path) -> RawData:
    """Images of an .npy file. Labels are read from the file with "labels" instead of "images" in its name, if it exists."""
    images = _load(path)
    beside = path.with_name(path.name.replace("images", "labels"))
    labels = _load(beside) if beside != path and beside.exists() else None
    return f"an array, {path.name}", {"train": read_arrays(images, labels, where=path.name)}


def read_npz(path: Path) -> RawData:
    """The splits of an .npz file, by the names in `NPZ_NAMES`; `classes` has the class names."""
    arrays = _load(path)
    names = [str(name) for name in arrays["classes"]] if "classes" in arrays else None
    splits = {}
    for split, pairs in NPZ_NAMES.items():
        if pair := next((pair for pair in pairs if pair[0] in arrays), None):
            images, labels = pair
            where = path.name if images in ("images", "x") else f"{path.name}/{split}"
            splits[split] = read_arrays(arrays[images], arrays.get(labels), names=names, where=where)
    if not splits:
        raise DataError(f"{path} has only the arrays {', '.join(map(repr, arrays))}", "name them 'images' and 'labels'")
    return f"arrays, {path.name}", splits


def _load(path: Path) -> Any:
    """An array, or a dict of arrays. Pickles in the file are never read. Raises `DataError`."""
    try:
        size = path.stat().st_size
        if not zipfile.is_zipfile(path):
            with open(path, "rb") as file:
                return read_array(file, size)
        with zipfile.ZipFile(path) as archive:
            check_expansion(archive, size, DATA_EXPANSION, spared=DATA_SPARED_BYTES)
            members = archive.infolist()
            return {member.filename.removesuffix(".npy"): read_array_member(archive, member) for member in members}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        what = f"{path} cannot be read as arrays: {error}"
        raise DataError(what, "write it again with numpy.save or savez") from error


def read_digits() -> RawData:
    """The 1,797 scanned digits of scikit-learn: 8 x 8 grey, "0" to "9"; levels 0..16 become 0..255."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    names = [str(number) for number in digits.target_names]
    return "the built-in digits", {"train": read_arrays(images, digits.target, names=names, where="digits")}


def read_dataset(dataset: Any, *, channels: int, where: str, named: Mapping[str, str]) -> RawSplit:
    """Reads a user-defined Dataset, whose items are (image, label) or images; Pillow images get so many ``channels``.

    Labels come from its attribute `targets` if it has one, as torchvision's datasets do; otherwise every item is read once.
    A Dataset of Hugging Face has columns instead: images, labels and their names come from those that are called so, or
    ``named``.
    Raises `DataError` if it is empty, or its labels are not numbers, names, or rows of zeros and ones.
    """
    if not len(dataset):
        raise DataError("the dataset is empty", "give a dataset with at least one item")
    image = None
    if hasattr(dataset, "column_names"):
        chosen = choose_columns(dataset.column_names, source=where, labelled=False, named=named)
        image, label = chosen["path"], chosen["label"]
        labels = None if label is None else np.asarray(dataset[label])
        classes = getattr(dataset.features[label], "names", None) if label is not None else None
    else:
        whole, rows = dataset, slice(None)
        while hasattr(whole, "dataset") and hasattr(whole, "indices"):  # a torch Subset, e.g. from random_split
            whole, rows = whole.dataset, np.asarray(whole.indices, np.int64)[rows]
        labels, classes = getattr(whole, "targets", None), getattr(whole, "classes", None)
        labels = _read_item_labels(dataset) if labels is None else np.asarray(labels)[rows]
    names = None if classes is None else list(map(str, classes))
    keys = Strings(f"{where}#{row}" for row in range(len(dataset)))
    contents = UserDataset(dataset, np.arange(len(dataset)), keys, channels, image)
    return RawSplit(contents, None if labels is None else _convert_labels(labels, len(dataset), names, where))


def _read_item_labels(dataset: Any) -> np.ndarray | None:
    items = (dataset[row] for row in range(len(dataset)))
    labels = [item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None for item in items]
    if any(label is None for label in labels):
        return None
    return np.array([label.detach().cpu().numpy() if hasattr(label, "detach") else label for label in labels])
