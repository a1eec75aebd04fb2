"""clozelab: BERT as an experiment platform. Importing this package imports nothing heavy: names come when asked for.

docs/python.md shows how: pre-train, fine-tune and use a model in ten lines each.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clozelab.api import evaluate, finetune, finetuning, make_report, prepare, pretrain
    from clozelab.datamodules.corpus import CorpusDataModule
    from clozelab.datamodules.finetuning import FinetuningDataModule
    from clozelab.modules.finetuning import FineTuning
    from clozelab.modules.predictor import Predictor, load
    from clozelab.modules.pretraining import PretrainingModule

__all__ = [
    "CorpusDataModule", "FineTuning", "FinetuningDataModule", "Predictor", "PretrainingModule",
    "evaluate", "finetune", "finetuning", "load", "make_report", "prepare", "pretrain",
]  # fmt: skip
_PLACES = {
    "CorpusDataModule": "datamodules.corpus",
    "FinetuningDataModule": "datamodules.finetuning",
    "FineTuning": "modules.finetuning",
    "PretrainingModule": "modules.pretraining",
    "Predictor": "modules.predictor",
    "load": "modules.predictor",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'clozelab' has no attribute {name!r}")
    return getattr(import_module(f"clozelab.{_PLACES.get(name, 'api')}"), name)
