"""The contract of a cost model, and reading one back."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt


class CostModel(ABC):
    """Predicts how fast candidates are, relative to others of their task.

    Rows hold a dialect's features and the task's columns (`with_task`). A model that knows the device's columns too
    takes them as it was told by `for_device`; one that does not leaves them out of a dataset's rows.
    """

    @abstractmethod
    def predict(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return one score per row; higher is faster, comparable within one task only."""

    def uncertainty(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return how far each score may be off (one standard deviation); zero where the model cannot tell."""
        return np.zeros(len(features))

    def build_cost(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the expected logarithm of the seconds each candidate takes to build; all equal where not known."""
        return np.zeros(len(features))

    @abstractmethod
    def dumps(self) -> str:
        """Return the model as JSON text."""
