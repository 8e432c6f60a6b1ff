"""Predicting candidates' relative speed.

dataset     rows and latencies in groups of one task; splits: what is held out, without a leak
boosted     the trees; automl: the search for the best recipe; rival: the field's own model (Ansor's)
evaluation  metrics per operator kind and device, and the gate
registry    versions on disk, and which of them is used; cards: what is said of each
gaussian    a surrogate for the search of one task
columns     rows of features, and the names of their columns
"""

from tunery.costmodels._base import CostModel
from tunery.costmodels.boosted import BoostedModel, Recipe
from tunery.costmodels.columns import FeatureRows, Layout, device_columns, with_task
from tunery.costmodels.dataset import Dataset, Group, Table
from tunery.costmodels.loading import fits, for_device, load_cost_model

__all__ = [
    "BoostedModel", "CostModel", "Dataset", "FeatureRows", "Group", "Layout", "Recipe", "Table", "device_columns",
    "fits", "for_device", "load_cost_model", "with_task",
]  # fmt: skip
