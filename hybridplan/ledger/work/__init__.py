"""What a step computes, counted: the features that a step's time is linear in."""

from hybridplan.ledger.work.features import FEATURES, Counts
from hybridplan.ledger.work.model import WorkModel, work_model
from hybridplan.ledger.work.step import Chunk, StepWork

__all__ = ["FEATURES", "Chunk", "Counts", "StepWork", "WorkModel", "work_model"]
