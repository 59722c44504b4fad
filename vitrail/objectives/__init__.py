"""What is minimised: each objective is a module that owns what it trains."""

from vitrail.objectives.beit import MaskedCodes as MaskedCodes
from vitrail.objectives.masked_patch import MaskedPatch as MaskedPatch
from vitrail.objectives.supervised import Supervised as Supervised
