"""A classifier is a module like any other: whatever PyTorch does to modules can be done to it, and it predicts afterwards."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.looked_at import picture, shaken
from tests.models.tiny import QUICK, SHALLOW, TINY
from vitrail.errors import DataError
from vitrail.tasks.classification.classifier import Classifier, create_classifier

PICTURES = [picture(30 + 4 * number, 40, seed=number) for number in range(8)]
TARGETS = torch.arange(8) % 2


def small(**changes: Any) -> Classifier:
    return create_classifier(TINY["vit"], classes=["ant", "bee"], **changes)


class Photographs(Dataset):
    """A user's own dataset, with the model's transform."""

    def __init__(self, transform: Callable[[Any], Tensor]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return len(PICTURES)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(PICTURES[index]), int(TARGETS[index])


def test_a_plain_training_loop_learns_and_train_and_eval_switch_dropout():
    torch.manual_seed(0)
    model = small(dropout=0.1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(Photographs(model.transform), batch_size=4, shuffle=True)
    losses = []
    for _ in range(10):
        for images, targets in loader:
            loss = F.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert np.mean(losses[-4:]) < 0.3 < 0.6 < losses[0]
    images = model.preprocess(PICTURES)
    assert not torch.equal(model(images), model(images))
    assert torch.equal(model.eval()(images), model(images))
    assert [answer.label for answer in model.predict(PICTURES)] == ["ant", "bee"] * 4


def test_the_transform_is_what_predict_sees_bit_for_bit_and_holds_no_model():
    model = shaken()
    batch = next(iter(DataLoader(Photographs(model.transform), batch_size=8)))[0]
    assert torch.equal(batch, model.preprocess(PICTURES))
    (outputs,) = model(batch[:1]).detach()
    assert model.predict(PICTURES[0])[0].score == pytest.approx(float(outputs.softmax(0).max()), abs=1e-6)
    sent = pickle.dumps(model.transform)  # to the workers of a loader
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent)(PICTURES[0]), batch[0])
    with pytest.raises(DataError, match="the picture cannot be used: it is a float"):
        model.transform(3.5)


def save_and_load(model: Classifier) -> Classifier:
    file = BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": save_and_load,
}


@pytest.mark.parametrize(("name", "way"), list(zip(QUICK, itertools.cycle(COPIES))))
def test_a_copy_answers_alike_and_shares_nothing(way, name):
    model = shaken(TINY[name])
    expected = model.predict(PICTURES)
    again = COPIES[way](model)
    assert again.predict(PICTURES) == expected
    assert (again.classes, again.preprocessing, again.config) == (model.classes, model.preprocessing, model.config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert again.predict(PICTURES) == expected


@pytest.mark.parametrize(
    ("name", "dtype"), list(zip(QUICK, itertools.cycle([torch.float16, torch.bfloat16, torch.float64]))), ids=str
)
def test_predict_works_in_every_floating_type(dtype, name):
    model = create_classifier(TINY[name], classes=5)
    with torch.no_grad():
        model.backbone.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    exact = model.predict(PICTURES, top=5)
    model = model.to("cpu").to(dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    for rough, answer in zip(model.predict(PICTURES, top=5), exact, strict=True):
        assert dict(rough.top) == pytest.approx(dict(answer.top), abs=0.05)


def test_a_state_dict_and_a_vector_of_parameters_go_into_another_model():
    model = shaken()
    other, third = (create_classifier(TINY["vit"], classes=model.classes) for _ in range(2))
    other.load_state_dict(model.state_dict(), strict=True)
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()), third.parameters())
    expected = model.predict(PICTURES)
    assert other.predict(PICTURES) == third.predict(PICTURES) == expected
    with pytest.raises(RuntimeError, match="size mismatch for backbone"):
        small().load_state_dict(model.state_dict())


# What a faster way computes than by calling the layer; hook the module around it.
BYPASSED = {
    "vit": {"patch_embed.proj", "blocks.2.attn.qkv", "fc_norm"},
    "swin": {"patch_embed.proj"},
    "cait": {"patch_embed.proj", *(f"blocks.{block}.attn.proj_{side}" for block in (0, 1) for side in "lw")},
    "bit": set(),
    "pvt": {"patch_embed.proj", "stages.1.downsample.proj", "stages.2.downsample.proj"},
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", QUICK)
def test_hooks_fire_on_every_part_of_the_network_but_a_few_projections(name, training):
    model = shaken(TINY[name]).train(training)
    modules = {
        part: module for part, module in model.backbone.named_modules() if type(module).forward != nn.Module.forward
    }
    modules = {
        part: module for part, module in modules.items() if not isinstance(module, nn.ModuleList | nn.ModuleDict)
    }
    fired: set[str] = set()
    for part, module in modules.items():
        module.register_forward_hook(lambda module, given, found, part=part: fired.add(part))
    with torch.set_grad_enabled(training):
        model(model.preprocess(PICTURES[0]))
    assert modules.keys() - fired == BYPASSED[name]


def test_a_compiled_classifier_gives_the_same_logits_and_predicts():
    torch.compiler.reset()
    model = shaken(SHALLOW["vit"])
    images = model.preprocess(PICTURES)
    compiled = torch.compile(model, fullgraph=True, backend="eager")  # the backbones are compiled in their own tests
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))
    assert compiled.predict(PICTURES) == model.predict(PICTURES)


@pytest.mark.parametrize("name", QUICK)
def test_data_parallel_calls_the_module_and_its_replicas_compute_the_same(name, monkeypatch):
    model = shaken(TINY[name])
    images = model.preprocess(PICTURES)
    wrapped = nn.DataParallel(model)
    assert torch.equal(wrapped(images), model(images))
    assert wrapped.state_dict().keys() == {f"module.{part}" for part in model.state_dict()}
    # without two GPUs only the copying between them is replaced: a replica has plain tensors and no parameters
    replicating = import_module("torch.nn.parallel.replicate")
    broadcast = lambda tensors, devices, detach=False: [[tensor * 1 for tensor in tensors] for _ in devices]  # noqa: E731
    monkeypatch.setattr(replicating, "_broadcast_coalesced_reshape", broadcast)
    first, second = replicating.replicate(model, [0, 1])
    assert not list(first.parameters())
    assert torch.equal(
        torch.cat([first(images[:4]), second(images[4:])]), torch.cat([model(images[:4]), model(images[4:])])
    )


def train_in_parallel(rank: int, folder: str) -> None:
    """One of two processes: its half of the pictures, and the gradient that both agree on."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model = shaken()
    parallel = nn.parallel.DistributedDataParallel(model)
    half = slice(4 * rank, 4 * rank + 4)
    F.cross_entropy(parallel(model.preprocess(PICTURES[half])), TARGETS[half]).backward()
    torch.save({name: each.grad for name, each in model.named_parameters()}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_the_whole_batch(tmp_path: Path):
    torch.multiprocessing.spawn(train_in_parallel, (str(tmp_path),), nprocs=2)
    model = shaken()
    F.cross_entropy(model(model.preprocess(PICTURES)), TARGETS).backward()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad)
