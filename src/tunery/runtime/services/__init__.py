"""What runs inside workers, by their roles; each class lives in a process of its own, and is called by its name."""

from tunery.runtime.services.builder import Builder, Checked, Pick
from tunery.runtime.services.checker import Checker
from tunery.runtime.services.importer import CompiledBlob, Importer, Specimen
from tunery.runtime.services.measurer import MeasurerHost, Peak
from tunery.runtime.services.proposer import Block, Featurizer, Prediction, Proposal, ProposerHost
from tunery.runtime.services.trainer import LabelledRow, Trainer

__all__ = [
    "Block", "Builder", "Checked", "Checker", "CompiledBlob", "Featurizer", "Importer", "LabelledRow", "MeasurerHost",
    "Peak", "Pick", "Prediction", "Proposal", "ProposerHost", "Specimen", "Trainer",
]  # fmt: skip
