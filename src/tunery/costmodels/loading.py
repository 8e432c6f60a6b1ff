"""Reading cost models back, and fitting them to a device."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.costmodels._base import CostModel
from tunery.costmodels.boosted import BoostedModel, trimmed


def for_device(text: str, columns: npt.NDArray[np.float32]) -> str:
    """Trees that were grown for vectors of another width are left out; else the trees are not read, which takes
    longer."""
    data, device = json.loads(text), [float(value) for value in columns]
    if not fits(data, device[0]):
        data = trimmed(data)
    return json.dumps(data | {"device": device})


def fits(model: Mapping[str, Any], vector_bits: float) -> bool:
    growth = model.get("growth")
    return not growth or bool(growth["vector_bits"] == vector_bits)


@lru_cache(maxsize=2)
def load_cost_model(text: str) -> CostModel:
    """Read a model written by `dumps`, once for all who ask: it takes 0.1 s. Data only: nothing in it is executed."""

    try:
        data = json.loads(text)
        if data["family"] == "boosted":
            return BoostedModel.from_data(data)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"this is not a cost model ({error}); train one anew") from error
    raise UsageError(f"unknown cost model family {data['family']!r}; it was written by a newer tunery")
