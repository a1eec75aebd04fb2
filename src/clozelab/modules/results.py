"""What a fine-tuning run leaves behind: scores.json, every prediction, and the model where it is asked for.

Each file is written beside its place and renamed. Scores keep their scorer's own unit: shares, SQuAD's in percent. At
the end: what fine-tuning needs to know of an encoder folder before it loads the weights.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clozelab.corpus.files import write_whole
from clozelab.corpus.tokenizers import Tokenizer, read_tokenizer
from clozelab.models.folders import read_config, read_config_dict, save_encoder_folder, verify_checksums
from clozelab.modules.finetuning import FineTuning

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
    """Write what a module's `prediction_files` gives below test_predictions/."""
    (folder / "test_predictions").mkdir(exist_ok=True)
    for name, lines in files.items():
        write_whole(folder / "test_predictions" / name, lines)


def save_model(folder: Path, module: FineTuning, encoder_folder: Path, tokenizer: Tokenizer, **facts: Any) -> None:
    """Write the best checkpoint as a model folder in the Hugging Face layout, label names included.

    What the encoder folder remembers comes along, `facts` (task, head) are added to it. A BiLSTM head has no class in
    that layout: its tensors lie below `bilstm.`.
    """
    module.restore_best()
    is_regression = getattr(module.validation, "is_regression", False)
    extra: dict[str, Any] = {"problem_type": "regression"} if is_regression else {}
    if names := ["LABEL_0"] if is_regression else getattr(module.validation, "label_names", None):
        extra |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    extra["clozelab"] = read_config_dict(encoder_folder).get("clozelab", {}) | facts
    files = tokenizer.files()
    save_encoder_folder(folder, module.encoder, heads=module.heads(), tokenizer_files=files, extra_config=extra)


MAX_PADDED_ENTRIES = 127  # some folders pad the embedding matrix to a multiple of up to 128 beyond the vocabulary


def open_tokenizer(folder: Path, token_types: str = "auto") -> Tokenizer:
    """The folder's tokenizer, of as many token types as asked for.

    ValueError when it is not the one that the encoder was made with.
    """
    tokenizer = read_tokenizer(folder).with_token_types(token_types)
    if type(tokenizer).has_token_types and not tokenizer.has_token_types:
        log.info(
            "%s: both texts of a pair have token type 0 (never trained with a second one, or token_types=one)", folder
        )
    rows, entries = read_config(folder).vocab_size, tokenizer.vocab_size
    made_with = read_config_dict(folder).get("clozelab", {}).get("tokenizer_fingerprint")
    if entries > rows or rows - entries > MAX_PADDED_ENTRIES:
        raise ValueError(
            f"{folder}: the encoder has embeddings for {rows} ids and its tokenizer files hold {entries}: "
            "they do not belong together; put back the vocab.txt and tokenizer files it was trained with"
        )
    if made_with is not None and made_with != tokenizer.fingerprint:
        raise ValueError(
            f"{folder}: the tokenizer files are not those the encoder was trained with (their fingerprint is "
            f"{tokenizer.fingerprint[:12]}, config.json says {made_with[:12]}); put the right ones back"
        )
    if entries < rows:
        log.info("%s: %d embeddings behind the vocabulary of %d are padding", folder, rows - entries, entries)
    verify_checksums(folder)  # fresh weights never read the weights file, which checks them otherwise
    return tokenizer


def max_positions(folder: Path) -> int:
    """The longest sequence that the encoder was trained on or, where that is not recorded, has positions for."""
    positions = read_config(folder).max_position_embeddings
    trained = max(read_config_dict(folder).get("clozelab", {}).get("trained_seq_lengths", [positions]))
    if trained < positions:
        said = "%s: trained on sequences of up to %d tokens (of %d positions), longer ones are cut"
        log.info(said, folder, trained, positions)
    return min(positions, trained)
