"""Predicting candidates' relative speed.

columns, dataset   rows of features and their names; latencies in groups of one task
boosted            the trees; warm: a model that goes on learning; gaussian: a surrogate for the search of one task
registry           versions on disk, what is said of each, and which of them is used
training           the search for the best recipe, what is held out, and the gate
"""

from tunery.costmodels._base import CostModel
from tunery.costmodels.boosted import BoostedModel, Recipe, fits, for_device, load_cost_model
from tunery.costmodels.columns import FeatureRows, Layout, device_columns, with_task
from tunery.costmodels.dataset import Dataset, Group, Table

__all__ = [
    "BoostedModel", "CostModel", "Dataset", "FeatureRows", "Group", "Layout", "Recipe", "Table", "device_columns",
    "fits", "for_device", "load_cost_model", "with_task",
]  # fmt: skip
