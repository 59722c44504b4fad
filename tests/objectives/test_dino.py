"""DINO and iBOT: their losses beside lightly's, what is trained and what only follows, views of two sizes, and collapse."""

from __future__ import annotations

import math
import shutil
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.models.conftest import shaken
from tests.models.tiny import TINY
from tests.objectives.test_gradient_cache import assert_same, gradients, seed
from tests.training.test_goals import learn
from vitrail.data.augment.apply import augment
from vitrail.data.augment.crops import crop_boxes
from vitrail.data.augment.policy import POLICIES, LocalViews
from vitrail.data.loader import train_batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.objectives.contrastive import cached_backward
from vitrail.objectives.dino import DINO, IBOT, PrototypeHead, dino_loss, koleo_loss, patch_cross_entropy, sinkhorn
from vitrail.objectives.objective import configure_objective
from vitrail.runs.checkpoint import load_newest
from vitrail.training.inputs import Augmented, ViewInputs
from vitrail.verbs.pretrain import pretrain

KINDS = pytest.mark.parametrize("kind", [DINO, IBOT])
HEAD = {"prototypes": 40, "hidden": 24, "bottleneck": 12}


def make(kind=DINO, config=TINY["vit"], dtype=torch.float64, **changes):
    torch.manual_seed(0)
    return shaken(kind(create_backbone(config), **{**HEAD, "local_views": 3, "freeze_last": 0.0, **changes})).to(dtype)


def inputs_of(objective, count=6, size=(32, 32), channels=3, dtype=torch.float64):
    """The views of images, each some noise away from them, and what the objective draws."""
    generator = torch.Generator().manual_seed(1)
    sizes = [size] * 2 + ([objective.local.size] * objective.local.count if objective.local else [])
    views = [torch.randn(count, channels, *each, generator=generator).to(dtype) for each in sizes]
    return [*views, *objective.draw(ids_of(count), size, seed=0)]


def ids_of(count, first=0):
    return np.stack([np.zeros(count, int), np.arange(first, first + count), np.zeros(count, int)], 1)


def draw_outputs():
    """Of two steps: the teacher's (2, A, B, K) and the student's (2, V, B, K), and of patches both (2, 2, B, n, K)."""
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 2, 6, 40), (2, 5, 6, 40), (2, 2, 6, 3, 40)
    return [torch.randn(size, generator=generator) for size in sizes]


# lightly 1.6.0 on `draw_outputs`: DINOLoss(40, teacher_temp=.04) and IBOTPatchLoss(40), their losses and then the norms of their
# centres, after each of two steps; the head is DINOProjectionHead(12, 16, 8, 20) with the weights of the test
DINO_LOSSES, DINO_CENTRES = (22.6815185546875, 21.577468872070312), (0.20239025354385376, 0.2589585483074188)
IBOT_LOSSES, IBOT_CENTRES = (23.518579483032227, 16.19811248779297), (0.10234615951776505, 0.16559456288814545)
# KoLeoLoss() on the teacher's outputs of the first step, view by view; the `sinkhorn` of SwaVLoss on both views, divided by .5
KOLEO_LOSSES = (-0.2725982964038849, -0.23893363773822784)
SINKHORN_ROW, SINKHORN_SQUARES = (0.00615882827, 0.00545269158, 0.24274945259, 0.01358703896), 1.4156582355499268
HEAD_ROW, HEAD_NORM = (0.11905554, 0.26984936, 0.03074083, -0.41863203), 2.665054454039396


def test_the_loss_of_views_and_the_centre_are_lightlys():
    objective = make(dtype=torch.float32)
    teacher, student, _ = draw_outputs()
    for step in range(2):
        loss, measured = objective._compare(student[step], teacher[step])
        assert loss.item() == pytest.approx(DINO_LOSSES[step], rel=1e-5)
        scalars = objective.summarise(measured)
        assert float(scalars["centre_norm"]) == pytest.approx(DINO_CENTRES[step], rel=1e-5)
    assert float(objective.centre[2]) == pytest.approx(0.03537709, rel=1e-5)


def test_the_loss_of_patches_and_their_centre_are_lightlys():
    objective = make(IBOT, dtype=torch.float32)
    *_, patches = draw_outputs()
    for step, (teacher, student) in enumerate(patches):
        loss = patch_cross_entropy(
            torch.log_softmax(student / 0.1, -1), objective._answer(teacher, objective.patch_centre)
        )
        assert loss.item() == pytest.approx(IBOT_LOSSES[step], rel=1e-5)
        objective._move_centre(objective.patch_centre, teacher.mean((0, 1)))
        assert float(objective.patch_centre.norm()) == pytest.approx(IBOT_CENTRES[step], rel=1e-5)


def test_the_head_is_lightlys():
    generator = torch.Generator().manual_seed(0)
    for size in ((2, 2, 6, 40), (2, 5, 6, 40), (2, 2, 6, 3, 40)):
        torch.randn(size, generator=generator)
    head = PrototypeHead(12, 16, 8, 20)
    shapes = (16, 12), (16,), (16, 16), (16,), (8, 16), (8,), (20, 8)
    for parameter, shape in zip(head.parameters(), shapes, strict=True):
        parameter.data = torch.randn(shape, generator=generator)
    found = head(torch.randn(3, 12, generator=generator)).detach()
    torch.testing.assert_close(found[0, :4], torch.tensor(HEAD_ROW), rtol=1e-5, atol=1e-7)
    assert float(found.norm()) == pytest.approx(HEAD_NORM, rel=1e-5)


def test_koleo_and_sinkhorns_iteration_are_lightlys():
    views = draw_outputs()[0][0]  # (A, B, K)
    for view, loss in zip(views, KOLEO_LOSSES, strict=True):
        assert koleo_loss(view).item() == pytest.approx(loss, rel=1e-5)
    answers = sinkhorn(views / 0.5)
    assert answers[0, 3, :4].tolist() == pytest.approx(SINKHORN_ROW, rel=1e-5)
    assert answers.square().sum().item() == pytest.approx(SINKHORN_SQUARES, rel=1e-5)
    assert torch.isfinite(sinkhorn(views / 1e-3)).all()  # lightly's overflows


def test_koleo_is_that_of_the_nearest_other_direction():
    """At 0, 60 and 120 degrees, of any length, the nearest are 1 apart; at 0, 90 and 120 degrees sqrt(2) and twice 2 sin 15."""
    degrees = torch.tensor([[0.0, 60.0, 120.0], [0.0, 90.0, 120.0]], dtype=torch.float64).deg2rad()
    points = torch.tensor([[1.0], [3.0], [0.5]]) * torch.stack([degrees.cos(), degrees.sin()], -1)
    assert koleo_loss(points[0]).item() == pytest.approx(0, abs=1e-7)
    apart = 2 * math.log(2 * math.sin(math.radians(15))) + math.log(math.sqrt(2))
    assert koleo_loss(points[1]).item() == pytest.approx(-apart / 3, abs=1e-6)
    alike = torch.ones(3, 4, requires_grad=True)
    koleo_loss(alike).backward()
    assert torch.isfinite(alike.grad).all()


@KINDS
def test_the_weight_of_koleo_and_sinkhorns_answers_enter_the_loss(kind):
    plain, spread = make(kind), make(kind, koleo=2.0)
    inputs = inputs_of(plain)
    loss, measured = spread(*inputs)
    whole = torch.cat(inputs[:2])
    if kind is DINO:
        features = spread.encoder.features(whole)
    else:
        features, _ = spread._encode(spread.encoder, whole, torch.cat(inputs[spread.views :]))
    expected = sum(koleo_loss(view) for view in features.chunk(2))
    torch.testing.assert_close(measured["koleo"], expected.detach())
    torch.testing.assert_close(loss, plain(*inputs)[0] + 2 * expected)
    with pytest.raises(ConfigError, match=r"the batch is 1\n.*two or more"):
        spread(*(each[:1] for each in inputs))
    even = make(kind, centring="sinkhorn")
    outputs = torch.randn(2, 30, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
    torch.testing.assert_close(even._answer(outputs, even.centre), sinkhorn(outputs / 0.04))
    even.centre.fill_(torch.nan)  # is not read
    assert torch.isfinite(even(*inputs)[0])


@KINDS
@pytest.mark.parametrize("local_views", [0, 3])
def test_a_batch_in_pieces_has_the_gradient_of_the_whole_where_images_are_compared(kind, local_views):
    objective = make(kind, koleo=0.5, centring="sinkhorn", anchor=2.0, local_views=local_views, freeze_patches=False)
    inputs = inputs_of(objective)
    assert not make(kind).compares_images
    assert objective.compares_images and make(kind, koleo=0.5).compares_images
    assert make(kind, centring="sinkhorn").compares_images
    loss, measured = objective(*inputs)
    loss.backward()
    whole = gradients(objective)
    ours, found = cached_backward(objective, inputs, 4, seed=seed)
    torch.testing.assert_close(ours, loss.detach())
    torch.testing.assert_close(found, measured)
    assert_same(gradients(objective), whole, 1e-7)
    for some in zip(*(each.split(3) for each in inputs)):
        (objective(*some)[0] / 2).backward()
    with pytest.raises(AssertionError):
        assert_same(gradients(objective), whole, 1e-2)


@pytest.mark.parametrize(("local", "pairs"), [(0, 2), (1, 4), (4, 10)])
def test_pairs_are_those_of_different_views_two_and_two_for_each_local_one(local, pairs):
    generator = torch.Generator().manual_seed(2)
    student = torch.randn(2 + local, 3, 7, generator=generator, dtype=torch.float64).log_softmax(-1)
    teacher = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64).softmax(-1)
    terms = [-(teacher[a] * student[b]).sum(-1).mean() for a in range(2) for b in range(2 + local) if a != b]
    assert len(terms) == pairs
    torch.testing.assert_close(dino_loss(student, teacher), sum(terms) / pairs)


@KINDS
def test_uniform_answers_have_the_loss_of_ln_k(kind):
    objective = make(kind)
    with torch.no_grad():
        for name, parameter in objective.named_parameters():
            if "prototypes" in name:
                parameter.copy_(torch.ones_like(parameter))  # all prototypes are one
    loss, measured = objective(*inputs_of(objective))
    assert loss.item() == pytest.approx((1 + (kind is IBOT)) * math.log(40))
    assert float(objective.summarise(measured)["mean_entropy"]) == pytest.approx(math.log(40))


def test_the_loss_is_that_of_the_teachers_answers_to_other_views():
    objective = make()
    inputs = inputs_of(objective)
    objective.centre.copy_(torch.linspace(-0.1, 0.1, 40))
    outputs = [objective.teacher_head(objective.teacher_encoder.features(view)) for view in inputs[:2]]
    answers = [((each - objective.centre) / 0.04).softmax(-1) for each in outputs]
    guesses = [(objective.head(objective.encoder.features(view)) / 0.1).log_softmax(-1) for view in inputs]
    terms = [-(answers[a] * guesses[b]).sum(-1).mean() for a in range(2) for b in range(5) if a != b]
    loss, measured = objective(*inputs)
    torch.testing.assert_close(loss, sum(terms) / 8)
    entropy = torch.stack([torch.special.entr(each).sum(-1).mean() for each in answers]).mean()
    torch.testing.assert_close(measured["row_entropy"], entropy)
    torch.testing.assert_close(measured["kl"], loss - entropy)
    scalars = objective.summarise(measured)
    winners = {int(best) for each in answers for best in each.argmax(1)}
    assert float(scalars["winning"]) == pytest.approx(len(winners) / 40)


def test_hidden_patches_are_not_seen_by_the_student_and_answered_by_the_teacher():
    objective = make(IBOT, local_views=0)
    first, second, *hidden = inputs_of(objective)
    assert [each.sum(1).tolist() for each in hidden] == [[5] * 6] * 2 and not torch.equal(*hidden)  # of 16 patches
    tokens = [objective._encode(objective.teacher_encoder, view)[1] for view in (first, second)]
    unseen = torch.zeros(6, 1, 32, 32, dtype=torch.bool)
    losses = []
    for view, mask, whole in zip((first, second), hidden, tokens):
        unseen = mask.view(6, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
        given = torch.where(unseen, torch.randn_like(view), view)  # whatever is there
        _, guessed = objective._encode(objective.encoder, given, mask)
        answers = (objective.teacher_head(whole[mask]) / 0.04).softmax(-1)
        losses.append(-(answers * (objective.head(guessed[mask]) / 0.1).log_softmax(-1)).sum(-1).mean())
    torch.testing.assert_close(objective(first, second, *hidden)[1]["patch_loss"], sum(losses).detach() / 2)


def test_masks_follow_from_ids_alone_and_differ_between_views_and_images():
    objective = make(IBOT)
    whole, part = objective.draw(ids_of(6), (32, 32), 0), objective.draw(ids_of(2, first=3), (32, 32), 0)
    assert all(torch.equal(one[3:5], other) for one, other in zip(whole, part, strict=True))
    assert len({mask.numpy().tobytes() for masks in whole for mask in masks}) > 6


@pytest.mark.parametrize("kind", [DINO, IBOT])
@pytest.mark.parametrize("share_head", [True, False])
def test_gradients_reach_the_student_only(kind, share_head):
    objective = make(kind, **({} if kind is DINO else {"share_head": share_head}))
    objective(*inputs_of(objective))[0].backward()
    without = {name for name, each in objective.named_parameters() if each.grad is None or not each.grad.any()}
    unread = {
        "encoder.head.weight",
        "encoder.head.bias",
        "encoder.patch_embed.proj.weight",
        "encoder.patch_embed.proj.bias",
    }
    assert without == unread | {name for name, _ in objective.named_parameters() if name.startswith("teacher_")}
    named = {name for layer in objective.layers() for name in layer}
    assert named == {name for name, _ in objective.named_parameters()}


@KINDS
def test_the_teacher_follows_by_the_formula(kind):
    objective = make(kind, momentum=0.9)
    before = {name: each.clone() for name, each in objective.state_dict().items()}
    for share, momentum in ((0.0, 0.9), (0.5, 0.95), (1.0, 1.0)):
        objective.load_state_dict(before)
        objective.after_step(share)
        for name, after in objective.state_dict().items():
            if name.startswith("teacher_"):
                expected = momentum * before[name] + (1 - momentum) * before[name.removeprefix("teacher_")]
                torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12, msg=name)


@KINDS
def test_the_anchor_holds_the_cosines_among_patches(kind):
    """`shaken` gives the anchor other weights than the encoder, so the change is not small."""
    plain, held = make(kind), make(kind, anchor=3.0)
    held.load_state_dict(plain.state_dict() | held.anchor_encoder.state_dict(prefix="anchor_encoder."))
    inputs = inputs_of(plain)
    loss, measured = held(*inputs)
    whole = torch.cat(inputs[:2])
    if kind is DINO:
        tokens = held.encoder.features_and_map(whole)[1].flatten(2).mT
    else:
        tokens = held._encode(held.encoder, whole, torch.cat(inputs[held.views :]))[1]
    start = held.anchor_encoder.features_and_map(whole)[1].flatten(2).mT
    units, references = (each / each.norm(dim=2, keepdim=True) for each in (tokens, start))
    drift = (units @ units.mT - references @ references.mT).square().mean()
    assert drift > 1e-3
    torch.testing.assert_close(measured["drift"].double(), drift.detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(loss.double(), plain(*inputs)[0].double() + 3 * drift, rtol=1e-5, atol=0)
    loss.backward()
    before = {name: weight.clone() for name, weight in held.anchor_encoder.named_parameters()}
    held.after_step(0.5)
    for name, weight in held.anchor_encoder.named_parameters():
        assert weight.grad is None and torch.equal(weight, before[name])


def test_the_teacher_has_no_dropout():
    objective = make(config=replace(TINY["vit"], dropout=0.3, drop_path=0.5))
    image = inputs_of(objective)[0]
    for each in (objective, objective.train(), objective.eval().train()):
        assert each.encoder.training and not each.teacher_encoder.training
        assert torch.equal(each.teacher_encoder.features(image), each.teacher_encoder.features(image))


def test_prototypes_stay_and_the_temperature_rises_at_the_beginning():
    objective = make(freeze_last=0.25, temperature_warmup=0.5, teacher_temperature=0.08)
    weight = objective.head.prototypes.weight
    for share, moves, temperature in ((0.0, False, 0.04), (0.2, False, 0.056), (0.25, True, 0.06), (0.75, True, 0.08)):
        objective.after_step(share)
        objective.zero_grad()
        objective(*inputs_of(objective))[0].backward()
        assert bool(weight.grad.any()) is moves
        outputs = torch.randn(3, 40, dtype=torch.float64)
        torch.testing.assert_close(objective._answer(outputs, objective.centre), (outputs / temperature).softmax(-1))


@KINDS
def test_looking_changes_nothing_and_a_saved_objective_goes_on_alike(kind):
    objective = make(kind)
    inputs = inputs_of(objective)
    before = deepcopy(objective.state_dict())
    loss, measured = objective(*inputs)
    assert all(torch.equal(each, before[name]) for name, each in objective.state_dict().items())
    objective.summarise(measured)
    objective.after_step(0.3)
    assert not torch.equal(before["centre"], objective.centre) and float(objective.share) == pytest.approx(0.3)
    other = make(kind)
    other.load_state_dict(objective.state_dict())
    assert all(torch.equal(*pair) for pair in zip(other.buffers(), objective.buffers(), strict=True))
    assert torch.equal(other(*inputs)[0], objective(*inputs)[0]) and not torch.equal(objective(*inputs)[0], loss)


# on oblong images of one channel or five, in bf16
@pytest.mark.parametrize(
    ("kind", "name", "channels"),
    [
        (DINO, "vit", 1),
        (IBOT, "beit", 5),
        (IBOT, "swin", 1),
        (DINO, "bit", 1),
        *(pytest.param(DINO, name, 5, marks=pytest.mark.slow) for name in ("cait", "pvt v2", "axial resnet")),
        *(pytest.param(IBOT, name, 1, marks=pytest.mark.slow) for name in ("vit, windows", "cait", "axial", "pvt")),
    ],
)
def test_updates_lower_the_loss_of_a_batch(kind, name, channels):
    size = (40, 24) if "windows" in name else (32, 48)
    objective = make(kind, replace(TINY[name], in_channels=channels, image_size=size), torch.float32, momentum=1.0)
    inputs = inputs_of(objective, 4, size, channels, torch.float32)
    trained = torch.optim.AdamW([each for each in objective.parameters() if each.requires_grad], lr=1e-3)
    losses = []
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16, enabled=name != "bit"):
            loss, measured = objective(*inputs)
        assert loss.dtype == torch.float32 and all(torch.isfinite(each).all() for each in (loss, *measured.values()))
        losses.append(loss.item())
        trained.zero_grad()
        loss.backward()
        trained.step()
    assert losses[-1] < losses[0], losses


@pytest.mark.slow
@KINDS
def test_a_compiled_objective_has_the_same_loss(kind):
    objective = make(kind, dtype=torch.float32, freeze_last=0.5)
    inputs = inputs_of(objective, dtype=torch.float32)
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs)[0], objective(*inputs)[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"local_size": 1.0}, "local_size is 1.0"),
        ({"local_views": -1}, "local_views is -1"),
        ({"teacher_temperature": 0}, "teacher_temperature is 0"),
        ({"momentum": 1.5}, "momentum is 1.5"),
        ({"mask_share": 0.0}, "mask_share is 0.0"),
        ({"anchor": -1}, "anchor is -1"),
        ({"koleo": -0.1}, "koleo is -0.1"),
        ({"centring": "mean "}, "centring is 'mean '"),
        ({"mask_ratio": 0.5}, "did you mean 'mask_share'"),
        ({"prototype": 5}, "did you mean 'prototypes'"),
    ],
)
def test_invalid_arguments_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        configure_objective(IBOT, create_backbone(TINY["vit"]), changes)


def test_an_encoder_that_takes_no_local_views_is_refused_with_the_remedy(monkeypatch):
    one_cell = create_backbone(replace(TINY["vit"], image_size=(8, 8)))
    with pytest.raises(ConfigError, match="one cell") as error:
        DINO(one_cell, **HEAD)
    assert "local_views=0" in error.value.remedy
    DINO(one_cell, **HEAD, local_views=0)
    with pytest.raises(ConfigError, match=r"cannot have one head\n.*share_head=False"):
        IBOT(create_backbone(replace(TINY["vit"], pool="cls+gap")), **HEAD)


# views of two sizes


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    names = [f"{number}.png" for number in range(6)]
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 256, (60 + number, 80, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return Source(contents=Files(str(folder), Strings(names)), targets=np.zeros(6, np.int64), classes=("a",))


BATCHES = {"policy": POLICIES["dino"], "batch": 3, "seed": 3, "start": 0, "stop": 2, "size": (32, 48), "views": 5}


@pytest.mark.parametrize("workers", [0, 1])
def test_files_are_cropped_to_the_size_of_each_view(photos, workers):
    batches = list(train_batches(photos, **BATCHES, local=LocalViews(3, (16, 24)), workers=workers))
    plain = list(train_batches(photos, **BATCHES))
    for batch, same in zip(batches, plain, strict=True):
        assert batch.images.shape == (6, 3, 32, 48) and batch.local.shape == (9, 3, 16, 24)
        assert batch.ids.tolist() == same.ids.tolist() and len(batch) == 15
        views = same.images.unflatten(0, (3, 5))
        assert torch.equal(batch.images, views[:, :2].flatten(0, 1))
        areas = np.prod(batch.frames.crops[:, 2:] - batch.frames.crops[:, :2], 1) / batch.frames.pictures.prod(1)
        areas = areas.reshape(3, 5)
        assert areas[:, :2].min() > 0.29 and 0.04 < areas[:, 2:].min() and areas[:, 2:].max() < 0.31


def test_a_bad_file_takes_all_its_views_away(photos, tmp_path):
    root = shutil.copytree(photos.contents.root, tmp_path / "photos")
    (root / "2.png").write_bytes(b"")
    told, spoiled = [], replace(photos, contents=Files(str(root), photos.contents.keys))
    given = {**BATCHES, "local": LocalViews(3, (16, 24)), "bad": lambda key, _: told.append(key)}
    batches = list(train_batches(spoiled, **given))
    assert told == ["2.png"] and sum(map(len, batches)) == 25
    assert sum(len(batch.images) for batch in batches) == 10 and sum(len(batch.local) for batch in batches) == 15


def test_small_views_have_small_areas_and_are_never_solarised():
    policy = POLICIES["dino"]
    views = [np.arange(300)] * 3
    for each, (least, most) in ((policy, (0.3, 1.0)), (policy.local, (0.05, 0.3))):
        areas = crop_boxes(each, 0, *views, height=100, width=120)[:, 2:].prod(1) / 12_000
        assert least - 0.01 < areas.min() < least + 0.1 and most - 0.15 < areas.max() < most + 0.01
    assert (policy.blur_views, policy.local.blur_views) == ((1.0, 0.1), (0.5, 0.5))
    assert (policy.solarise_views, policy.local.solarise_views) == ((0.0, 0.2), (0.0, 0.0))


def test_arrays_are_cropped_to_the_size_of_each_view_by_augmentation():
    objective, digits = make(config=replace(TINY["vit"], in_channels=1)), open_data("digits").train
    preprocessing = Preprocessing.paper((32, 32), channels=1)
    policy = replace(POLICIES["dino"], blur_views=(0.0, 0.0), local_blur=0.0)
    augmented = Augmented(policy=policy, preprocessing=preprocessing, seed=3, cropped=False)
    (batch,) = train_batches(digits, **{**BATCHES, "stop": 1, "size": (32, 32)}, local=objective.local, channels=1)
    assert batch.images.shape == (15, 1, 8, 8) and batch.local is None
    views = ViewInputs(augmented, objective)(batch)
    assert [tuple(view.shape) for view in views] == [(3, 1, 32, 32)] * 2 + [(3, 1, 16, 16)] * 3
    whole, local = batch.images.unflatten(0, (3, 5))[:, 1], batch.images.unflatten(0, (3, 5))[:, 4]
    for number, pixels, how, size in ((1, whole, policy, (32, 32)), (4, local, policy.local, (16, 16))):
        made, _ = augment(pixels, batch.ids[number::5], how, size=size, seed=3, cropped=False)
        assert torch.equal(views[number], preprocessing.normalise(made))


# trainings


@pytest.fixture(scope="module")
def digits():
    found = open_data("digits").train
    return Splits(train=found.subset(np.arange(240)), val=found.subset(np.arange(240, 300)), classes=found.classes)


@pytest.mark.slow
def test_the_teacher_is_saved_and_evaluated(digits, tmp_path):
    run = learn("ibot", digits, tmp_path / "run", "optim.lr=0.01", "optim.ema=0.9")
    state = load_newest(run.folder / "checkpoints").tensors["objective"]
    saved = run.load().backbone.state_dict()
    assert len(saved) > 10 and all(torch.equal(each, state[f"teacher_encoder.{name}"]) for name, each in saved.items())
    assert not torch.equal(state["teacher_encoder.blocks.0.mlp.fc1.weight"], state["encoder.blocks.0.mlp.fc1.weight"])
    assert {"row_entropy", "mean_entropy", "kl", "centre_norm", "winning", "patch_loss"} <= run.history[-1].keys() | {
        name for row in run.history for name in row
    }
    page = run.report.read_text()
    assert page.count("<img") == 8 * 4 and "a small part of the image" in page


@pytest.mark.slow
def test_a_collapse_is_named_during_the_run_and_at_its_end(digits, tmp_path):
    run = learn("dino", digits, tmp_path / "run", "optim.lr=1.0", "optim.clip=null", "compute.precision=fp32", steps=12)
    said = (run.folder / "log.txt").read_text()
    assert said.count("has collapsed") == 2 and "momentum=0.99" in said, said
    assert "has collapsed" in run.report.read_text()


def test_collapses_are_told_by_their_numbers():
    objective, uniform = make(), math.log(40)
    healthy = {"kl": 1.0, "row_entropy": 2.0, "mean_entropy": 3.0}
    assert objective.explain_collapse(healthy, 1.0) is None
    late = objective.explain_collapse({**healthy, "kl": 0.995 * uniform - 2.0}, 0.5)
    assert late is not None and "(uniform)" in late and "ln K is 3.689" in late and "teacher_temperature" in late
    assert objective.explain_collapse({**healthy, "kl": 0.985 * uniform - 2.0}, 0.5) is None
    assert objective.explain_collapse({**healthy, "kl": 0.995 * uniform - 2.0}, 0.05) is None
    one = objective.explain_collapse({**healthy, "mean_entropy": 0.3}, 0.5)
    assert one is not None and "(one prototype)" in one


@pytest.mark.slow
def test_nearest_neighbours_get_better_on_digits(tmp_path):
    changes = (
        "{hidden: 128, bottleneck: 64, prototypes: 1024, teacher_temperature: 0.02, freeze_last: 1.0, local_views: 0}"
    )
    size = "{width: 48, depth: 3, heads: 3, mlp_width: 96, patch_size: [2, 2]}"
    views = ("augment.crop=pad", "augment.flip=0", "augment.jitter_probability=0", "augment.solarise_views=[0, 0]")
    how = {"objective": "dino", "model": "vit-ti16", "steps": 300, "batch": 64, "lr": 1e-3, "quiet": True}
    settings = [f"objective.changes={changes}", f"model.changes={size}", *views, "data.validation=0.3"]
    settings += ["compute.precision=fp32", "compute.threads=1", "save.evaluations=1"]
    run = pretrain("digits", **how, out=tmp_path / "run", settings=settings)
    assert run.figures["knn"] > run.figures["knn_untrained"] + 0.02 and "collapsed" not in run.report.read_text()
    assert run.figures["loss"] < 0.8 * math.log(1024)


def test_a_transform_of_ones_own_makes_no_local_views(digits, tmp_path):
    with pytest.raises(ConfigError, match="local_views=0"):
        learn("dino", digits, tmp_path / "run", transform=lambda picture: torch.zeros(1, 8, 8), size=8)
