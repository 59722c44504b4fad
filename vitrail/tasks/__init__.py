"""What an answer is: the head, its losses, how it is decoded and how good it is."""

from vitrail.tasks.classification import Classifier as Classifier
from vitrail.tasks.classification import Prediction as Prediction
from vitrail.tasks.classification import create_model as create_model
