"""ImageNet's classes: names that people can read, unique in a model, and found by WordNet id as well."""

import csv
import re

import numpy as np
import pytest

from vitrail.data.imagenet import find_imagenet, index_classes
from vitrail.data.sources.labels import from_texts, join_labels
from vitrail.errors import DataError

OUTPUTS = {1_000: "ImageNet-1k", 21_841: "ImageNet-21k", 21_843: "ImageNet-21k"}


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_every_output_has_an_id_and_a_name_of_its_own_whatever_the_capitals(outputs):
    known = find_imagenet(outputs)
    assert known.name == OUTPUTS[outputs]
    assert len(known.ids) == len(known.names) == outputs
    assert list(known.ids) == sorted(set(known.ids))
    assert all(re.fullmatch(r"n\d{8}", each) for each in known.ids)
    assert len({name.casefold() for name in known.names}) == outputs
    assert all(name == name.strip() and name.isprintable() and "_" not in name for name in known.names)


def test_the_two_classes_that_only_google_has_shift_the_outputs_after_them():
    fall, google = find_imagenet(21_841), find_imagenet(21_843)
    assert set(google.ids) - set(fall.ids) == {"n03931044", "n09859684"}
    assert find_imagenet(999) is None and find_imagenet(0) is None


def test_names_that_two_classes_share_are_told_apart_by_what_they_are():
    names = dict(zip(find_imagenet(1_000).ids, find_imagenet(1_000).names))
    assert names["n02128385"] == "leopard"
    assert (names["n02012849"], names["n03126707"]) == ("crane (wading bird)", "crane (lifting device)")
    assert (names["n03710637"], names["n03710721"]) == ("maillot (tights)", "maillot (swimsuit)")
    assert (names["n02113186"], names["n02963159"]) == ("Cardigan (corgi)", "cardigan (sweater)")
    assert sum("(" in name for name in names.values()) == 6
    more = dict(zip(find_imagenet(21_843).ids, find_imagenet(21_843).names))
    assert (more["n01558993"], more["n01562265"]) == ("robin (American robin)", "robin (redbreast)")
    assert (more["n01872401"], more["n01872772"]) == ("echidna (n01872401)", "echidna (n01872772)")


def test_the_names_are_the_first_words_of_the_published_list(real_data):
    with open(real_data / "imagenet_val" / "classes.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    known = find_imagenet(1_000)
    assert list(known.ids) == [row["wnid"] for row in rows]
    assert [name.partition(" (")[0] for name in known.names] == [row["name"].partition(",")[0] for row in rows]
    index = index_classes([f"{row['name']} ({row['index']})" for row in rows])
    assert (index["n02128385"], index["leopard"], index["leopard, Panthera pardus (288)"]) == (288, 288, 288)


@pytest.mark.parametrize("label", ["n02128385", "leopard", "288"])
@pytest.mark.parametrize("kind", ["ids", "names"])
def test_data_labelled_in_any_of_three_ways_fit_a_model_of_imagenet(label, kind):
    classes = getattr(find_imagenet(1_000), kind)
    joined, targets = join_labels({"val": from_texts([label, "n01440764"])}, classes)
    assert joined == classes
    assert targets["val"].tolist() == [288, 0]
    several = join_labels({"val": from_texts([label, f"{label};n01440764"])}, classes)[1]["val"]
    assert several.shape == (2, 1_000)
    assert [np.flatnonzero(row).tolist() for row in several] == [[288], [0, 288]]


def test_other_classes_are_found_by_their_names_alone():
    classes = [f"class {number}" for number in range(1_000)]
    assert index_classes(classes) == {name: number for number, name in enumerate(classes)}
    with pytest.raises(DataError, match="a class not among the 1000 given classes"):
        join_labels({"val": from_texts(["n02128385"])}, classes)
