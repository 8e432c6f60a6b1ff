"""What runs inside workers, by their roles; each class lives in a process of its own, and is called by its name."""

from tunery.runtime.services.builder import Builder, CheckedBody, Checker, MeasurerHost, Peak, Pick
from tunery.runtime.services.importer import CompiledBlob, Importer, Specimen
from tunery.runtime.services.proposer import Block, Featurizer, LabelledRow, Prediction, Proposal, ProposerHost, Trainer

__all__ = [
    "Block", "Builder", "CheckedBody", "Checker", "CompiledBlob", "Featurizer", "Importer", "LabelledRow",
    "MeasurerHost", "Peak", "Pick", "Prediction", "Proposal", "ProposerHost", "Specimen", "Trainer",
]  # fmt: skip
