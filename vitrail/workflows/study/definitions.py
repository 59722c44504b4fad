"""The built-in studies: the claims of the ViT paper (Dosovitskiy et al. 2021) at sizes that a machine can afford; and studies as
files of YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vitrail.config.parse import plain, read_yaml
from vitrail.errors import ConfigError, nearest
from vitrail.evaluation.claim import Claim
from vitrail.evaluation.paper_claims import CLAIMS
from vitrail.workflows.study.rates import Rates
from vitrail.workflows.study.study import COMMON, LIMIT, STEPS, Experiment, Pool, Study, parse_study


def _claims(*experiments: Experiment) -> tuple[Claim, ...]:
    """The claims of the paper that these experiments can tell about; those that need no cells are always asked."""
    names = {experiment.name for experiment in experiments}
    return tuple(claim for claim in CLAIMS.values() if not claim.experiment or claim.experiment in names)


def _vit(width: int, depth: int, patch: int, heads: int, *, name: str = "vit-ti16", **changes: Any) -> dict[str, Any]:
    """A ViT as in the paper, with the exact GELU, as the settings of an arm."""
    shape = {"patch_size": [patch, patch], "width": width, "depth": depth, "heads": heads, "mlp_width": 4 * width}
    return {"model.name": name, "model.changes": {**shape, "gelu": "exact", **changes}}


def _bit(*depths: int, **changes: Any) -> dict[str, Any]:
    return {"model.name": "bit-r50x1", "model.changes": {"depths": list(depths), **changes}}


def _steps(arm: dict[str, Any], steps: int) -> dict[str, Any]:
    return {**arm, STEPS: steps}


GAP = {"pool": "gap", "prefix": []}
ROOT = {"stem": [], "stem_width": 32}  # of a hybrid: BiT's root alone


def _paper_xs() -> Study:
    """CIFAR-10 or as many images of 32 pixels: 48 MFLOP an image and arm, 65,536 images a cell; an hour of two cores."""
    vit = _vit(96, 4, 8, 3)
    sizes = {LIMIT: (500, 4_000, None)}
    experiments = (
        Experiment(name="families", arms={"vit": vit, "bit": _bit(1)}, factors=sizes, measure=("shifts",)),
        Experiment(name="again", arms={"base": vit}, factors={LIMIT: (None,)}, first_seed=3),
        Experiment(name="pooling", arms={"cls": vit, "gap": _vit(96, 4, 8, 3, **GAP)}),
        Experiment(
            name="patches",
            arms={
                "patch-16": _vit(96, 4, 16, 3),
                "patch-8": vit,
                "patch-4": _vit(96, 4, 4, 3),
                "patch-4-equal-compute": _steps(_vit(96, 4, 4, 3), 128),
            },
        ),
        Experiment(
            name="shape",
            arms={"shallow-wide": _vit(136, 2, 8, 4), "base": vit, "deep-narrow": _vit(64, 9, 8, 2)},
            measure=("heads", "positions"),
        ),
        Experiment(name="hybrids", arms={"hybrid": _vit(96, 4, 8, 3, **ROOT), "vit": vit}, measure=("heads",)),
        # a CNN whose maps keep the resolution of so small images, and a ViT of its compute: 119 and 113 MFLOP
        Experiment(
            name="families-small-stem",
            arms={"vit": _vit(64, 5, 4, 2), "bit": _bit(1, stem="small", stem_width=32)},
            factors={LIMIT: (500, None)},
        ),
    )
    # BiT's optimum lies at 16e-3 or above (record of 2026-11-24, whose grid ended at 4e-3)
    wide = tuple(replace(experiment, rates=Rates(grid=(1e-3, 2e-3, 4e-3, 8e-3))) for experiment in experiments)
    return Study(name="vit-paper", pool=Pool(), base={STEPS: 512}, experiments=wide, claims=_claims(*wide))


def _digits() -> Study:
    """The built-in digits, 8 x 8 pixels: a minute of two cores, to see a study from its beginning to its page."""
    vit = _vit(64, 4, 2, 2)
    experiments = (
        Experiment(name="patches", arms={"patch-4": _vit(64, 4, 4, 2), "patch-2": vit}, rates=Rates(grid=(2e-3, 4e-3))),
    )
    return Study(
        name="digits",
        pool=Pool(source="digits", validation=150),
        base={STEPS: 160, "augment.flip": 0.0},
        experiments=experiments,
        claims=_claims(*experiments),
    )


def _paper_m() -> Study:
    """Tiny-ImageNet at 32 pixels: 0.5 to 2.2 GFLOP an image and arm, 0.6 million images a cell; for a GPU."""
    rates = Rates(grid=(5e-4, 1e-3, 2e-3, 4e-3))
    small, large = _vit(128, 6, 4, 2), _vit(192, 12, 4, 3)
    bit = _bit(3, 4, 6, 3)
    sizes = {LIMIT: (1_000, 3_000, 10_000, 30_000, None)}
    lengths = {STEPS: (586, 2_344, 5_860)}
    experiments = (
        Experiment(name="families", arms={"vit": small, "bit": bit}, factors=sizes, rates=rates, measure=("shifts",)),
        Experiment(name="again", arms={"base": small}, factors={LIMIT: (None,)}, first_seed=3, rates=rates),
        Experiment(name="sizes", arms={"small": small, "large": large}, factors=sizes, rates=rates),
        Experiment(
            name="positions",
            arms={
                "none": _vit(128, 6, 4, 2, positions="none"),
                "1d": small,
                "2d": _vit(128, 6, 4, 2, positions="learned2d"),
                "relative": _vit(128, 6, 4, 2, positions="relative"),
            },
            seeds=5,
            rates=rates,
        ),
        Experiment(
            name="shape",
            arms={
                "base": small,
                # 502, 507 and 490 MFLOP an image
                "shallow-wide": _vit(184, 3, 4, 2),
                "deep-narrow": _vit(88, 12, 4, 2),
                "depth-3": _vit(128, 3, 4, 2),
                "depth-12": _vit(128, 12, 4, 2),
                "width-64": _vit(64, 6, 4, 1),
                "width-256": _vit(256, 6, 4, 4),
                "mlp-1024": _vit(128, 6, 4, 2, mlp_width=1024),
                "patch-8": _vit(128, 6, 8, 2),
                "patch-2": _vit(128, 6, 2, 2),
            },
            rates=rates,
            measure=("heads", "positions"),
        ),
        Experiment(name="pooling", arms={"cls": small, "gap": _vit(128, 6, 4, 2, **GAP)}, rates=rates),
        Experiment(
            name="compute",
            arms={
                **{"vit-s": _vit(64, 6, 4, 1), "vit-m": small, "vit-l": large},
                **{"bit-s": _bit(2, 2, 2), "bit-m": bit, "bit-l": _bit(2, 2, 2, width_factor=2)},
                **{"hybrid-s": _vit(64, 6, 4, 1, **ROOT), "hybrid-m": _vit(128, 6, 4, 2, **ROOT)},
                **{"hybrid-l": _vit(192, 12, 4, 3, **ROOT)},
            },
            factors=lengths,
            seeds=2,
            rates=rates,
        ),
        Experiment(
            name="regularisation",
            arms={
                "plain": small,
                "decay": {**small, "optim.weight_decay": 0.3},
                "dropout": _vit(128, 6, 4, 2, dropout=0.1),
                "drop-path": _vit(128, 6, 4, 2, drop_path=0.1),
                "smoothing": {**small, "augment.smoothing": 0.1},
            },
            factors={LIMIT: (1_000, None)},
            rates=rates,
        ),
        Experiment(name="axial", arms={"axial": _vit(128, 6, 4, 2, name="axial-b16"), "vit": small}, rates=rates),
        Experiment(
            name="hybrids",
            arms={"hybrid": _vit(128, 6, 4, 2, **ROOT), "vit": small},
            rates=rates,
            measure=("heads",),
        ),
    )
    base = {
        STEPS: 2_344,
        "data.batch": 256,
        "data.micro_batch": 256,
        "compute.device": "cuda",
        "compute.precision": "bf16",
    }
    return Study(name="vit-paper-m", pool=Pool(), base=base, experiments=experiments, claims=_claims(*experiments))


STUDIES = {"vit-paper": _paper_xs, "digits": _digits, "vit-paper-m": _paper_m}


def find_study(name: str) -> Study:
    """The built-in study of this name. Raises `ConfigError` with the nearest ones."""
    if name not in STUDIES:
        raise ConfigError(f"there is no study {name!r}", nearest(name, STUDIES))
    return STUDIES[name]()


def read_study(path: Path) -> Study:
    """Reads a study from YAML, where a claim is a name of `CLAIMS` or a claim of its own. Raises `ConfigError`."""
    return name_claims(read_yaml(path))


def name_claims(tree: Mapping[str, Any]) -> Study:
    """The study in a tree whose claims may be names. Raises `ConfigError`, for an unknown claim with the nearest ones."""
    claims = []
    for claim in tree.get("claims") or ():
        if isinstance(claim, str) and claim not in CLAIMS:
            raise ConfigError(f"there is no claim {claim!r}", nearest(claim, CLAIMS))
        claims.append(CLAIMS[claim] if isinstance(claim, str) else claim)
    return parse_study({**tree, "claims": claims})


def format_study(study: Study) -> str:
    """The study as YAML, with the settings that all studies share written out; built-in claims are names."""
    tree = plain(replace(study, base={**COMMON, **study.base}, claims=()))
    tree["claims"] = [claim.name if CLAIMS.get(claim.name) == claim else plain(claim) for claim in study.claims]
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
