"""What is minimised: each objective is a module that owns what it trains."""

from vitrail.objectives.comparing import Comparing as Comparing
from vitrail.objectives.contrastive import MoCo as MoCo
from vitrail.objectives.contrastive import SimCLR as SimCLR
from vitrail.objectives.supervised import Supervised as Supervised
