"""Predicting candidates' relative speed."""

from tunery.costmodels._base import CostModel, load_cost_model
from tunery.costmodels.boosted import BoostedModel, Dataset
from tunery.costmodels.registry import pretrained

__all__ = ["BoostedModel", "CostModel", "Dataset", "load_cost_model", "pretrained"]
