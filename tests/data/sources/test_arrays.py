"""Arrays in memory and in files, the built-in digits, and a user's own Dataset, which is only read."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset

from vitrail.data.sources.open import open_data
from vitrail.errors import DataError
from vitrail.images.decode import BadImage

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3)).astype(np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def test_bytes_and_labels_in_memory():
    source = open_data((IMAGES, LABELS), validation=0).train
    assert source.kind == "arrays"
    assert source.classes == ("0", "1", "2")
    assert source.keys[2] == "array#2"
    np.testing.assert_array_equal(source.images, IMAGES)
    np.testing.assert_array_equal(source.read(4).content, IMAGES[4])
    assert source.read(4).target == 1
    np.testing.assert_array_equal(source.subset([5, 0]).images, IMAGES[[5, 0]])


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_any_number_of_channels(channels):
    images = np.random.default_rng(0).random((3, 4, 5, channels))
    source = open_data((images, [0, 1, 1]), validation=0).train
    assert source.images.dtype == np.float32
    np.testing.assert_allclose(source.images, images, rtol=1e-6)


def test_grey_gets_its_axis():
    assert open_data((IMAGES[..., 0], LABELS), validation=0).train.read(0).content.shape == (4, 5, 1)


def test_tensors_have_their_channels_first():
    source = open_data((torch.from_numpy(IMAGES).permute(0, 3, 1, 2), torch.from_numpy(LABELS)), validation=0).train
    np.testing.assert_array_equal(source.images, IMAGES)


def test_names_as_labels():
    source = open_data((IMAGES, np.array(["b", "a", "c", "b", "a", "c"])), validation=0).train
    assert source.classes == ("a", "b", "c")
    assert source.targets.tolist() == [1, 0, 2, 1, 0, 2]


def test_a_matrix_of_labels_is_several_an_image():
    matrix = np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [1, 1]])
    source = open_data((IMAGES, matrix), validation=0).train
    assert source.multi_label
    np.testing.assert_array_equal(source.targets, matrix)
    np.testing.assert_array_equal(source.read(1).target, [1, 1])


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES.astype(np.complex64), LABELS, "type complex64"),
        (IMAGES[0, :, :, 0], LABELS, "shape"),
        (IMAGES[:0], LABELS[:0], "shape"),
        (IMAGES.astype(np.float32), LABELS, r"values from \S+ to \d+"),
        (np.full((2, 2, 2), np.nan), [0, 1], "values from nan"),
        (IMAGES, LABELS[:4], "6 images and 4 labels"),
        (IMAGES, LABELS - 1, "contain -1"),
        (IMAGES, LABELS + 0.5, "type float64"),
        (IMAGES, np.full((6, 2), 2), "contain 2"),
        (IMAGES, np.zeros((6, 2, 2)), "shape"),
    ],
)
def test_what_is_wrong_is_named(images, labels, words):
    with pytest.raises(DataError, match=words) as error:
        open_data((images, labels))
    assert error.value.remedy


def test_a_dict_of_splits_joined_by_name():
    data = {"train": (IMAGES, np.array(list("abcabc"))), "valid": (IMAGES[:2], np.array(["c", "a"]))}
    splits = open_data(data)
    assert splits.val.targets.tolist() == [2, 0]
    assert splits.val.keys[1] == "valid#1"
    assert splits.layout == "train: arrays, valid: arrays"


def test_an_npz_by_its_plain_names(tmp_path):
    np.savez(tmp_path / "x.npz", images=IMAGES, labels=LABELS[:, None], classes=["cat", "ant", "bee"])
    source = open_data(tmp_path / "x.npz", validation=0).train
    assert source.classes == ("cat", "ant", "bee")
    assert source.targets.tolist() == LABELS.tolist()
    assert source.keys[0] == "x.npz#0"


@pytest.mark.parametrize(
    "names",
    [("train_images", "train_labels", "test_images", "test_labels"), ("x_train", "y_train", "x_test", "y_test")],
)
def test_an_npz_that_holds_splits(tmp_path, names):
    np.savez(tmp_path / "x.npz", **dict(zip(names, (IMAGES, LABELS, IMAGES[:2], LABELS[1:3]))))
    splits = open_data(tmp_path / "x.npz", validation=0)
    assert splits.test.targets.tolist() == [1, 2]
    assert splits.test.keys[1] == "x.npz/test#1"


def test_an_npy_with_its_labels_beside_it(tmp_path):
    np.save(tmp_path / "train_images.npy", IMAGES)
    assert not open_data(tmp_path / "train_images.npy", validation=0, labelled=False).train.labelled
    np.save(tmp_path / "train_labels.npy", LABELS)
    assert open_data(tmp_path / "train_images.npy", validation=0).train.targets.tolist() == LABELS.tolist()


def test_a_pickle_in_an_array_file_is_never_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.save(tmp_path / "x.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    (tmp_path / "y.npy").write_bytes(pickle.dumps(Trap()))
    np.savez(tmp_path / "z.npz", images=np.array([Trap()], dtype=object))
    for name in ("x.npy", "y.npy", "z.npz"):
        with pytest.raises(DataError, match="cannot be read as arrays"):
            open_data(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_an_npz_without_images_names_what_it_has(tmp_path):
    np.savez(tmp_path / "x.npz", pictures=IMAGES)
    with pytest.raises(DataError, match="has only the arrays 'pictures'"):
        open_data(tmp_path / "x.npz")


def test_the_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    splits = open_data("digits")
    digits = load_digits()
    assert splits.classes == tuple("0123456789")
    assert len(splits.train) + len(splits.val) == 1797
    for part in (splits.train, splits.val):
        rows = [int(key.removeprefix("digits#")) for key in part.keys]
        np.testing.assert_array_equal(part.targets, digits.target[rows])
        assert part.images.dtype == np.uint8
        assert np.abs(part.images[..., 0] / 255 * 16 - digits.images[rows]).max() < 0.04


class Own:
    """A Dataset in torch's manner that refuses to be written to."""

    def __init__(self, items, **attributes):
        self.__dict__.update(items=items, **attributes)
        self.__dict__["read"] = []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.read.append(index)
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]

    def __setattr__(self, name, value):
        raise AssertionError(f"{name} was written to the user's dataset")


PICTURES = [(Image.fromarray(image), int(label)) for image, label in zip(IMAGES, LABELS)]


def test_a_users_dataset_of_pictures():
    dataset = Own(PICTURES, classes=["ant", "bee", "cat"])
    splits = open_data(dataset, validation=0)
    assert splits.layout == "a dataset (Own)"
    assert splits.classes == ("ant", "bee", "cat")
    assert splits.train.kind == "files"
    assert splits.train.keys[3] == "dataset#3"
    item = splits.train.subset([4, 3]).read(1)
    np.testing.assert_array_equal(item.content, IMAGES[3])
    assert item.target == 0


def test_a_dataset_that_knows_its_targets_is_not_read_for_them():
    dataset = Own(PICTURES, targets=LABELS.tolist())
    assert open_data(dataset, validation=0).train.targets.tolist() == LABELS.tolist()
    assert not dataset.read


def test_parts_of_a_dataset_keep_its_classes():
    dataset = Own(PICTURES, targets=torch.from_numpy(LABELS), classes=["ant", "bee", "cat"])
    splits = open_data({"train": Subset(dataset, [0, 1, 2, 4]), "val": Subset(Subset(dataset, [5, 3]), [1, 0])})
    assert splits.classes == ("ant", "bee", "cat")
    assert splits.val.targets.tolist() == [0, 2]
    np.testing.assert_array_equal(splits.val.read(0).content, IMAGES[3])
    assert dataset.read == [3]


def test_torchs_own_dataset_of_tensors():
    dataset = TensorDataset(torch.from_numpy(IMAGES).permute(0, 3, 1, 2), torch.from_numpy(LABELS))
    source = open_data(dataset, validation=0).train
    assert source.targets.tolist() == LABELS.tolist()
    np.testing.assert_array_equal(source.read(2).content, IMAGES[2])


def test_a_dataset_of_images_alone_is_unlabelled():
    dataset = Own([picture for picture, _ in PICTURES])
    assert not open_data(dataset, validation=0, labelled=False).train.labelled


def test_an_item_that_cannot_be_had_is_a_bad_image():
    dataset = Own([*PICTURES[:2], OSError("broken file"), (np.full((2, 2, 3), -1.0), 0)], targets=[0, 1, 0, 0])
    source = open_data(dataset, validation=0).train
    with pytest.raises(BadImage, match="OSError: broken file"):
        source.read(2)
    with pytest.raises(BadImage, match="before normalisation"):
        source.read(3)


def test_grey_pictures_are_given_in_the_channels_asked_for():
    dataset = Own([(Image.fromarray(IMAGES[0]), 0), (Image.fromarray(IMAGES[1, :, :, 0]), 1)])
    assert open_data(dataset, validation=0).train.read(1).content.shape == (4, 5, 3)
    assert open_data(dataset, validation=0, channels=1).train.read(0).content.shape == (4, 5, 1)
