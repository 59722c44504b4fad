"""The training objectives: each is a module that owns everything it trains, and whose forward pass gives the loss to minimise.

The loss of a task's outputs and targets is `Task.loss`, which `Supervised` wraps. A goal (`vitrail.training.goals`) creates the
objective of a run from its settings, and determines the data, the evaluation and the files that are written.
"""

from vitrail.objectives.contrastive import ContrastiveObjective as ContrastiveObjective
from vitrail.objectives.contrastive import MoCo as MoCo
from vitrail.objectives.contrastive import SimCLR as SimCLR
from vitrail.objectives.contrastive import cached_backward as cached_backward
from vitrail.objectives.mae import MAE as MAE
from vitrail.objectives.masking import MaskedCodes as MaskedCodes
from vitrail.objectives.masking import MaskedPatch as MaskedPatch
from vitrail.objectives.objective import Objective as Objective
from vitrail.objectives.supervised import Distillation as Distillation
from vitrail.objectives.supervised import Supervised as Supervised
from vitrail.objectives.tokenizer import Reconstruction as Reconstruction

# those that need no labels, by name
OBJECTIVES: dict[str, type[Objective]] = {
    "masked-patch": MaskedPatch,
    "mae": MAE,
    "beit": MaskedCodes,
    "moco": MoCo,
    "simclr": SimCLR,
    "tokenizer": Reconstruction,
}
