"""What is minimised: each objective is a module that owns what it trains."""

from vitrail.objectives.supervised import Supervised as Supervised
