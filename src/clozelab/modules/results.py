"""What a fine-tuning run leaves behind: scores.json, every prediction, and the model.

Each file is written beside its place and renamed. Scores keep their scorer's own unit: shares, SQuAD's in percent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clozelab.corpus.files import write_whole
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.folders import read_config_dict
from clozelab.modules.finetuning import FineTuning
from clozelab.modules.model import max_positions, write_model

log = logging.getLogger(__name__)


def write_results(folder: Path, module: FineTuning | Any, task: Mapping[str, Any]) -> dict[str, Any]:
    """Write scores.json and the predictions of the best checkpoint; returns what scores.json holds.

    `task` is put into it as it is: name, title, stand_in_for. A Measurement (modules/measures.py) does as well.
    """
    best = module.require_best()
    scores = {
        **task,
        "metric": module.metric,
        "scores": best.scores,
        "best_step": best.step,
        "total_steps": module.total_steps,
        "selection": "highest metric over the evaluations on the validation split, as in the paper"
        if module.total_steps
        else "none: scored once",
        "evaluations": module.history,
        "num_examples": len(best.predictions),
        "majority_baseline": module.baseline(),
        "collapsed": best.is_collapsed,
    }
    for name, lines in module.result_files(best).items():
        write_whole(folder / name, lines)
    write_whole(folder / "scores.json", [json.dumps(scores, indent=1, ensure_ascii=False)])
    if best.is_collapsed:
        log.warning("collapsed run: the same answer for (nearly) every validation example; never average it in silence")
    log.info("%s: best at step %d of %d: %s", task.get("title"), best.step, module.total_steps, best.scores)
    return scores


def write_test_predictions(folder: Path, files: Mapping[str, Iterable[str]]) -> None:
    """Write what a module's `prediction_files` gives into a folder, test_predictions/ of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        write_whole(folder / name, lines)


def save_model(folder: Path, module: FineTuning, encoder_folder: Path, tokenizer: Tokenizer, **facts: Any) -> None:
    """Write the best checkpoint as a model folder in the Hugging Face layout, label names included.

    What the encoder folder remembers comes along; `facts` (task, head) and what the module predicts by are added to it.
    A BiLSTM head has no class in that layout: its tensors lie below `bilstm.`.
    """
    module.restore_best()
    made = read_config_dict(encoder_folder).get("clozelab", {}) | facts | module.remembered()
    write_model(
        folder,
        module.encoder,
        module.heads(),
        tokenizer,
        labels=getattr(module.validation, "label_names", None) or (),
        is_regression=getattr(module.validation, "is_regression", False),
        max_length=max_positions(encoder_folder),
        extra_config={"clozelab": made},
    )
