"""Doors to what the tasks read and leave: every kind of task, its batches, its prediction files,
and what runs are known by.

They go through the command line, the files of a run folder, and `clozelab.compose` with the data
module's `train_dataloader` and `val_dataloader`. Batches are digested key by key, so that a key
that is added changes no other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import torch
from safetensors.numpy import load_file, save_file
from tests.reference import doors

import clozelab

FINETUNINGS = {
    "siamese": [
        "task=mnli_siamese",
        "max_train_examples=64",
        "predict_test=true",
        "~task.data.test_files.AX",
    ],
    "siamese_numbers": ["task=stsb_siamese", "predict_test=true"],
    "contrastive": ["task=stsb_simcse"],
    "contrastive_pairs": ["task=stsb_simcse", "task.data.train_columns=[sentence1,sentence2]"],
    "contrastive_triples": [
        "task=stsb_simcse",
        "task.data.train_file={made}/triples.tsv",
        "task.data.train_columns=[sentence1,sentence2,negative]",
    ],
    "pair_held_out": ["task=mrpc", "task.data.validation_file=null"],
    "pair_jsonl": [
        "task=mrpc",
        "task.data.train_file={made}/train.jsonl",
        "task.data.validation_file={made}/dev.parquet",
    ],
    "choices_predicted": [
        "task=swag",
        "epochs=1",
        "predict_test=true",
        "task.data.test_files={SWAG: swag/val.csv}",
    ],
    "spans_predicted": [
        "task=squad_v2",
        "epochs=1",
        "predict_test=true",
        "+task.data.test_files.dev=squad/dev-v2.0.json",
    ],
    "tags_alone": [*doors.TAGS, "task.data.document_context=false"],
    "tags_conllu": [
        "task=pos_ewt",
        "epochs=1",
        "task.data.train_file={made}/train.conllu",
        "task.data.validation_file={made}/dev.conllu",
        "predict_test=true",
        "task.data.test_files={test: '{made}/dev.conllu'}",
    ],
}
"""Name -> what it changes of doors.FINETUNE; all begin from the pre-training `mlm_nsp`. {made} is
where `make_files` has written.
"""
EVALUATIONS = {
    "probe": ["measure=probe_ner_microworld"],
    "probe_of_texts": ["measure=probe", "task@measure.task=sst2"],
    "similarity": ["measure=similarity"],
    "similarity_cls": ["measure=similarity", "pooling=cls"],
}
"""Name -> what it measures of the pre-training `mlm_nsp`."""
EVALUATE = {
    key: value for key, value in doors.RUN.items() if key != "trainer.log_interval_steps"
} | {"row": "reference"}
HELD_OUT = "task.data.validation_file=null"
WINDOWS = ["task.data.long_documents=windows", *doors.SHORT_ROWS]
BATCHES = {
    "single": ["task=sst2"],
    "single of few examples": ["task=sst2", "max_train_examples=20"],
    "single in windows": ["task=sst2", *WINDOWS],
    "single held out": ["task=sst2", HELD_OUT],
    "pair": ["task=mrpc"],
    "pair held out": ["task=mrpc", HELD_OUT, "task.data.validation_fraction=0.3"],
    "pair of three classes": ["task=mnli"],
    "regression": ["task=stsb"],
    "regression held out": ["task=stsb", HELD_OUT],
    "siamese": ["task=mnli_siamese"],
    "siamese numbers": ["task=stsb_siamese"],
    "contrastive": ["task=stsb_simcse"],
    "contrastive pairs": FINETUNINGS["contrastive_pairs"],
    "contrastive triples": FINETUNINGS["contrastive_triples"],
    "spans": ["task=squad_v1"],
    "spans in short windows": [
        "task=squad_v1",
        "task.data.max_seq_length=48",
        "task.data.doc_stride=12",
    ],
    "spans or none": ["task=squad_v2"],
    "spans held out": ["task=squad_v2", HELD_OUT],
    "spans after further ones": ["task=squad_v2", "task.data.train_extra=[squad/train-v1.1.json]"],
    "choices": ["task=swag"],
    "choices held out": ["task=swag", HELD_OUT],
    "choices in folds": [
        "task=swag",
        "task.data.validation_file=swag/train.csv",
        "task.data.folds=4",
        "task.data.held_out_fold=1",
    ],
    "tags": doors.TAGS,
    "tags alone": FINETUNINGS["tags_alone"],
    "tags held out": [*doors.TAGS, HELD_OUT],
    "tags in conllu": FINETUNINGS["tags_conllu"],
    "features": [*doors.FEATURES, "task.data.features=last"],
}
"""Name -> what it changes of doors.FINETUNE."""
FORMATS = ("tsv", "csv", "jsonl", "parquet", "arrow")
TASKS = ("cola", "mnli", "mnli_siamese", "mrpc", "ner_features_microworld", "ner_microworld")
TASKS += ("qnli", "qqp", "rte", "squad_v1", "squad_v2", "sst2", "stsb", "stsb_siamese")
TASKS += ("stsb_simcse", "swag")
"""All in conf/task whose files the world has."""


def finetune(root: Path, name: str) -> Path:
    """Fine-tune FINETUNINGS[name] below `root`, after its pre-training; returns the run folder."""
    return _finetune(root, name, root / "pretrain/mlm_nsp/encoder", FINETUNINGS[name])


def _finetune(root: Path, name: str, encoder: Path, words: Iterable[str]) -> Path:
    settings = doors.FINETUNE | {"encoder": encoder}
    return doors.run_verb("finetune", root, f"finetune/{name}", settings, _with_made(root, words))


def _with_made(root: Path, words: Iterable[str]) -> list[str]:
    made = make_files(root)
    return [word.replace("{made}", str(made)) for word in words]


def evaluation(root: Path, name: str) -> dict[str, Any]:
    """What EVALUATIONS[name] leaves, by how far it is the same on another machine."""
    folder = _evaluate(root, name, root / "pretrain/mlm_nsp/encoder", EVALUATIONS[name])
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    return {
        "everywhere": {key: scores[key] for key in ("metric", "num_examples")},
        "scores": {scores["metric"]: scores["scores"][scores["metric"]]},
        "one_machine": {
            "scores": scores["scores"],
            "predictions": doors.predictions(folder),
        },
    }


def _evaluate(root: Path, name: str, encoder: Path, words: Iterable[str]) -> Path:
    settings = EVALUATE | {"encoder": encoder}
    return doors.run_verb("evaluate", root, f"evaluate/{name}", settings, words)


def make_files(root: Path) -> Path:
    """The world's tables and tags in other formats, and a table of triples; returns the folder."""
    made = root / "made"
    if made.is_dir():
        return made
    made.mkdir()
    for split in ("train", "dev"):
        table = pandas.read_csv(
            root / f"data/glue/MRPC/{split}.tsv", sep="\t", quoting=3, keep_default_na=False
        )
        table.to_csv(made / f"{split}.tsv", sep="\t", index=False, quoting=3)
        table.to_csv(made / f"{split}.csv", index=False)
        table.to_json(made / f"{split}.jsonl", orient="records", lines=True)
        table.to_parquet(made / f"{split}.parquet", index=False)
        arrow = pyarrow.Table.from_pandas(table, preserve_index=False)
        with pyarrow.ipc.new_stream(made / f"{split}.arrow", arrow.schema) as file:
            file.write_table(arrow)
        tagged = (root / f"data/ner/{split}.txt").read_text(encoding="utf-8").split("\n\n")
        sentences = [_conllu(sentence) for sentence in tagged if "-DOCSTART-" not in sentence]
        (made / f"{split}.conllu").write_text("\n".join(filter(None, sentences)), encoding="utf-8")
    pairs = pandas.read_csv(root / "data/glue/STS-B/train.tsv", sep="\t", quoting=3)
    pairs["negative"] = np.roll(pairs["sentence2"], 1)
    pairs.to_csv(made / "triples.tsv", sep="\t", index=False, quoting=3)
    return made


def _conllu(sentence: str) -> str:
    """A sentence's words with the end of their tag (O, PER, LOC ...) as their part of speech."""
    lines = []
    for number, line in enumerate(sentence.splitlines(), start=1):
        word, *_, tag = line.split()
        cells = [str(number), word, "_", tag[-3:], "_", "_", "0", "_", "_", "_"]
        lines.append("\t".join(cells) + "\n")
    return "".join(lines)


def fixed_encoder(root: Path) -> Path:
    """An encoder with the same files on every machine: `mlm_nsp` with weights drawn as integers."""
    folder = root / "fixed"
    if folder.is_dir():
        return folder
    trained = root / "pretrain/mlm_nsp/encoder"
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    del config["clozelab"]
    draw = np.random.Generator(np.random.PCG64(0))
    weights = {}
    for name, tensor in sorted(load_file(trained / "model.safetensors").items()):
        drawn = draw.integers(-128, 128, tensor.shape).astype(np.float32) / 1024
        weights[name] = drawn + float(name.endswith("LayerNorm.weight"))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "vocab.txt").write_bytes((trained / "vocab.txt").read_bytes())
    # The class that reads vocab.txt: without tokenizer.json the folder is as BERT was published.
    tokenizer = json.loads((trained / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer["tokenizer_class"] = "BertTokenizer"
    del tokenizer["model_input_names"]
    text = json.dumps(tokenizer, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return folder


def batches(root: Path) -> dict[str, Any]:
    """Digests of three batches of training and of validation of each kind of task."""
    return {"everywhere": {name: _batches_of(root, words) for name, words in BATCHES.items()}}


def formats(root: Path) -> dict[str, Any]:
    """The same of one pair task's rows, in every format of tables."""
    made = make_files(root)
    found = {}
    for suffix in FORMATS:
        files = [
            f"task.data.train_file={made}/train.{suffix}",
            f"task.data.validation_file={made}/dev.{suffix}",
        ]
        found[suffix] = _batches_of(root, ["task=mrpc", *files])
    return {"everywhere": found}


def _batches_of(root: Path, words: Iterable[str]) -> dict[str, Any]:
    _, data, _ = _composed(root, words)
    data.setup()
    loaders = {"training": data.train_dataloader(), "validation": data.val_dataloader()}
    return {name: _digests(islice(loader, 3)) for name, loader in loaders.items()}


def _composed(root: Path, words: Iterable[str]) -> Any:
    """Lightning's objects of a fine-tuning of the fixed encoder."""
    places = {"data_dir": root / "data", "cache_dir": root / "cache", "run_dir": root / "nowhere"}
    settings = doors.FINETUNE | places | {"encoder": fixed_encoder(root)}
    given = [f"{key}={value}" for key, value in settings.items()]
    return clozelab.compose("finetune", [*given, *_with_made(root, words)])


def _digests(loaded: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Key of the batches -> sha256 of its integers, and of labels that are numbers.

    What an encoder computes is not the same on every machine, and left out.
    """
    found: dict[str, Any] = {}
    for batch in loaded:
        for key, value in sorted(batch.items()):
            array = np.asarray(value) if isinstance(value, torch.Tensor | int | float) else None
            if array is None or (array.dtype.kind == "f" and array.ndim > 1):
                continue
            stored = array.astype("<f8" if array.dtype.kind == "f" else "<i8")
            found.setdefault(key, hashlib.sha256()).update(f"{stored.shape} ".encode())
            found[key].update(stored.tobytes())
    return {key: content.hexdigest()[:16] for key, content in found.items()}


def data_fingerprints(root: Path) -> dict[str, Any]:
    """What each task's data is known by: the files and how they are read, and the sequences."""
    found = {}
    for task in TASKS:
        _, data, _ = _composed(root, _words_of(task))
        found[task] = [data.source_fingerprint, data.fingerprint]
    return {"everywhere": found}


def _words_of(task: str) -> list[str]:
    """The choice of a task; features are of a layer that the encoder has."""
    words = [f"task={task}"]
    if "features" in task:
        words.append("task.data.features=last")
    return words


def run_fingerprints(root: Path) -> dict[str, Any]:
    """What runs of every verb are known by, of one encoder that is the same everywhere."""
    encoder = fixed_encoder(root)
    folders = {}
    for name in ("mlm_nsp", "ltr"):
        folders[f"pretrain {name}"] = doors.pretrain(root, name)
    for task in TASKS:
        words = [*_words_of(task), "epochs=1", "max_train_examples=8"]
        folders[f"finetune {task}"] = _finetune(root, f"fixed/{task}", encoder, words)
    predicted = ["task=mrpc", "epochs=1", "max_train_examples=8", "predict_test=true"]
    folders["finetune mrpc, predicted"] = _finetune(root, "fixed/predicted", encoder, predicted)
    for name, words in EVALUATIONS.items():
        folders[f"evaluate {name}"] = _evaluate(root, f"fixed/{name}", encoder, words)
    found = {}
    for name, folder in folders.items():
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        found[name] = [record["fingerprint"], record["results_version"]]
    return {"everywhere": found}
