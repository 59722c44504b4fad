"""What is minimised: each objective is a module that owns what it trains."""

from vitrail.objectives.mae import MAE as MAE
from vitrail.objectives.objective import Objective as Objective
from vitrail.objectives.supervised import Supervised as Supervised
from vitrail.objectives.tokenizer import Reconstruction as Reconstruction
