"""The contract of a cost model, and reading one back."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from tunery.costmodels.columns import FeatureRows


class CostModel(ABC):
    """Predicts how fast candidates are, relative to others of their task.

    Rows hold a dialect's features and the task's columns (`with_task`). A model takes the columns that it knows by
    name; those of the device, where rows have none, as it was told by `for_device`. All methods raise UsageError where
    the rows are of another layout.
    """

    @abstractmethod
    def predict(self, rows: FeatureRows) -> npt.NDArray[np.float64]:
        """Return one score per row; higher is faster, comparable within one task only."""

    def uncertainty(self, rows: FeatureRows) -> npt.NDArray[np.float64]:
        """Return how far each score may be off (one standard deviation); zero where the model cannot tell."""
        return np.zeros(len(rows))

    def build_cost(self, rows: FeatureRows) -> npt.NDArray[np.float64]:
        """Return the expected logarithm of the seconds each candidate takes to build; all equal where not known."""
        return np.zeros(len(rows))

    @abstractmethod
    def dumps(self) -> str:
        """Return the model as JSON text."""
