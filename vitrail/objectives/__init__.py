"""The training objectives: each is a module that owns everything it trains, and whose forward pass gives the loss to minimise.

The loss of a task's outputs and targets is `Task.loss`, which `Supervised` wraps. A goal (`vitrail.training.goals`) creates the
objective of a run from its settings, and determines the data, the evaluation and the files that are written.
"""

from vitrail.errors import ConfigError
from vitrail.objectives.contrastive import ContrastiveObjective as ContrastiveObjective
from vitrail.objectives.contrastive import MoCo as MoCo
from vitrail.objectives.contrastive import SimCLR as SimCLR
from vitrail.objectives.contrastive import cached_backward as cached_backward
from vitrail.objectives.dino import DINO as DINO
from vitrail.objectives.dino import IBOT as IBOT
from vitrail.objectives.features import FeatureDistillation as FeatureDistillation
from vitrail.objectives.mae import MAE as MAE
from vitrail.objectives.masking import MaskedCodes as MaskedCodes
from vitrail.objectives.masking import MaskedPatch as MaskedPatch
from vitrail.objectives.objective import Objective as Objective
from vitrail.objectives.supervised import Distillation as Distillation
from vitrail.objectives.supervised import Supervised as Supervised
from vitrail.objectives.tokenizer import Reconstruction as Reconstruction
from vitrail.plugins import OBJECTIVES as OWN_OBJECTIVES
from vitrail.plugins import find_own, register

# those that need no labels, by name
OBJECTIVES: dict[str, type[Objective]] = {
    "masked-patch": MaskedPatch,
    "mae": MAE,
    "beit": MaskedCodes,
    "moco": MoCo,
    "simclr": SimCLR,
    "dino": DINO,
    "ibot": IBOT,
    "distil": FeatureDistillation,
    "tokenizer": Reconstruction,
}


def find_objective(name: str) -> type[Objective]:
    """Returns the objective of that name, which needs no labels. Raises `ConfigError` with the nearest names."""
    return OBJECTIVES[name] if name in OBJECTIVES else find_own("objective", name, OWN_OBJECTIVES, OBJECTIVES)


def register_objective(name: str, kind: type[Objective]) -> None:
    """Registers an objective of your own, which ``pretrain(objective=name)`` or ``--objective name`` then uses.

    Args:
        name: of the objective in the settings of a run. Settings that the user leaves open are those of the recipe
            ``masked-patch``.
        kind: a class derived from `Objective`; ``objective.changes`` are further arguments of its constructor.

    Raises:
        ConfigError: an objective of vitrail has the name, or ``kind`` is not derived from `Objective`.
    """
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise ConfigError(
            f"the objective {name!r} is {kind!r:.80}", "give a class derived from vitrail.objectives.Objective"
        )
    register("objective", name, kind, OWN_OBJECTIVES, ("supervised", *OBJECTIVES))
