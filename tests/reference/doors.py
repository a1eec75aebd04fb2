"""With task_doors.py the only file of the frozen reference that knows the project: its verbs, its
settings, its files and its judging.

A refactor that renames a setting, a file or a function changes it here, and nothing else in this
folder.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from claims.analysis import verdicts
from clozelab.cli import main
from clozelab.results.experiment import load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import Runs
from clozelab.runs.record import Record, Score

WORLD = {
    "corpus": "microworld",
    "corpus.generator.num_documents": 24,
    "corpus.generator.train_examples": 128,
    "corpus.generator.validation_examples": 40,
    "corpus.generator.entropy_documents": 0,
    "tokenizer.vocab_size": 500,
    # of its text: the three documents that 0.2 of the hashes were
    "corpus.validation_fraction": 0.14,
}
RUN = {
    "trainer.precision": "32-true",
    "trainer.threads": 1,
    "trainer.compile": "false",
    "trainer.progress_bar": "false",
    "trainer.log_interval_steps": 1,
}
PRETRAIN = RUN | {
    "model.num_hidden_layers": 2,
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
    "model.max_position_embeddings": 128,
    "model.initializer_range": 0.1,
    "phases": (
        "[{seq_length: 32, steps: 18, global_batch_size: 8, micro_batch_size: 8},"
        " {seq_length: 64, steps: 12, global_batch_size: 6, micro_batch_size: 4}]"
    ),
    "position_growth": "tile",
    "keep_encoders": "[0.6]",
    "optimizer.learning_rate": 0.002,
    "validation.interval_steps": 15,
    "validation.instances": 20,
    "validation.seq_length": 32,
}
FINETUNE = RUN | {
    "row": "reference",
    "learning_rate": 0.01,
    "epochs": 2,
    "global_batch_size": 8,
    "evaluations_per_epoch": 1,
}
PRETRAININGS = {
    "mlm_nsp": ["objective=mlm_nsp"],
    "mlm": ["objective=mlm"],
    "ltr": ["objective=ltr"],
    "mlm_full_sentences": ["objective=mlm", "objective/input=full_sentences"],
    "ltr_full_sentences": ["objective=ltr", "objective/input=full_sentences"],
    "mlm_nsp_one_static_mask": ["objective=mlm_nsp", "objective.dupe_factor=1"],
    "mlm_nsp_bf16": ["objective=mlm_nsp", "trainer.precision=bf16-mixed"],
}
"""Name -> what it changes of PRETRAIN. There are so few documents that they are gone through
several times.
"""
TAGS = ["task=ner_microworld", "epochs=3"]
FEATURES = [
    "task=ner_features_microworld",
    "task.module.bilstm_hidden_size=16",
    "epochs=3",
    "learning_rate=0.04",
]
BILSTM = ["head=bilstm", "task.module.bilstm_hidden_size=16"]
SHORT_ROWS = ["task.data.max_seq_length=12", "task.data.window_stride=4"]
FINETUNINGS = {
    "single": ("mlm_nsp", ["task=sst2"]),
    "single_random": ("mlm_nsp", ["task=sst2", "initialisation=random"]),
    "single_windows": ("mlm_nsp", ["task=sst2", "task.data.long_documents=windows", *SHORT_ROWS]),
    "pair": ("mlm_nsp", ["task=mrpc", "predict_test=true"]),
    "pair_bilstm": ("mlm_nsp", ["task=mrpc", *BILSTM]),
    "pair_three_labels": ("mlm_nsp", ["task=mnli"]),
    "regression": ("mlm_nsp", ["task=stsb"]),
    "spans": ("mlm_nsp", ["task=squad_v1"]),
    "spans_random": ("mlm_nsp", ["task=squad_v1", "initialisation=random"]),
    "spans_causal": ("ltr", ["task=squad_v1"]),
    "spans_causal_bilstm": ("ltr", ["task=squad_v1", *BILSTM]),
    "spans_or_none": ("mlm_nsp", ["task=squad_v2"]),
    "choices": ("mlm_nsp", ["task=swag"]),
    "tags": ("mlm_nsp", [*TAGS, "predict_test=true", "task.data.test_files={test: ner/test.txt}"]),
    "tags_bilstm": ("mlm_nsp", [*TAGS, *BILSTM]),
    "features": ("mlm_nsp", [*FEATURES, "task.data.features=weighted_sum_all"]),
    "features_of_one_layer": ("mlm_nsp", [*FEATURES, "task.data.features=second_to_last"]),
    "features_random": (
        "mlm_nsp",
        [*FEATURES, "task.data.features=weighted_sum_all", "initialisation=random"],
    ),
}
"""Name -> (the pre-training that it begins from, what it changes of FINETUNE)."""
NOT_COMPARED = ("train/tokens_per_second", "train/mfu")


def pretrain(root: Path, name: str) -> Path:
    """Pre-train PRETRAININGS[name] below `root`, beside the world; returns the run folder."""
    return run_verb("pretrain", root, f"pretrain/{name}", WORLD | PRETRAIN, PRETRAININGS[name])


def finetune(root: Path, name: str) -> Path:
    """Fine-tune FINETUNINGS[name] below `root`, after its pre-training; returns the run folder."""
    encoder, words = FINETUNINGS[name]
    begin = {"encoder": root / "pretrain" / encoder / "encoder"}
    return run_verb("finetune", root, f"finetune/{name}", FINETUNE | begin, words)


def run_verb(
    verb: str, root: Path, name: str, settings: Mapping[str, Any], words: Iterable[str]
) -> Path:
    """Run a verb below `root`; returns the run folder, which is root/name."""
    places = {"data_dir": root / "data", "cache_dir": root / "cache", "run_dir": root / name}
    status = main([verb, *(f"{key}={value}" for key, value in (settings | places).items()), *words])
    if status != 0:
        raise RuntimeError(
            f"clozelab {verb} of {name} ended with status {status}; its message is above"
        )
    return root / name


def world(root: Path) -> dict[str, Any]:
    """sha256 of the world's files; the fitted baselines are equal on one machine only."""
    files = {
        path.relative_to(root / "data").as_posix(): path
        for path in sorted((root / "data").rglob("*.*"))
    }
    sums = {
        name: _sha(path.read_bytes()) for name, path in files.items() if name != "generated.json"
    }
    fitted = {name: sums.pop(name) for name in [*sums] if name.endswith("baselines.json")}
    return {"everywhere": sums, "one_machine": fitted}


def pretraining(folder: Path) -> dict[str, Any]:
    """What a pre-training run leaves, by how far it is the same on another machine."""
    values = _metrics(folder)
    return {
        "everywhere": {
            "train/learning_rate": values.pop("train/learning_rate"),
            "train/tokens": values.pop("train/tokens"),
            "vocabulary": _sha((folder / "encoder/vocab.txt").read_bytes()),
        },
        "losses": {
            key: values.pop(key) for key in [*values] if key.partition("/")[2].endswith("loss")
        },
        "norms": {"train/gradient_norm": values.pop("train/gradient_norm")},
        "one_machine": (
            values
            | {
                "encoder": _weights(folder / "encoder"),
                "encoder at step 18": _weights(folder / "encoders/step-18"),
            }
        ),
    }


def finetuning(folder: Path) -> dict[str, Any]:
    """What a fine-tuning run leaves, by how far it is the same on another machine."""
    values, scores = (
        _metrics(folder),
        json.loads((folder / "scores.json").read_text(encoding="utf-8")),
    )
    metric, steps = scores["metric"], [one["step"] for one in scores["evaluations"]]
    found = {
        "scores": scores["scores"],
        "best_step": scores["best_step"],
        "evaluations": scores["evaluations"],
    }
    return {
        "everywhere": {
            "train/learning_rate": values.pop("train/learning_rate"),
            "train/tokens": values.pop("train/tokens"),
            "evaluated after": steps,
            **{key: scores[key] for key in ("metric", "num_examples", "majority_baseline")},
        },
        "losses": {"train/loss": values.pop("train/loss")},
        "scores": {metric: [one[metric] for one in scores["evaluations"]]},
        "one_machine": (
            values
            | found
            | {"collapsed": scores["collapsed"], "baselines": scores["baselines"]}
            | {"model": _weights(folder / "model"), "predictions": predictions(folder)}
        ),
    }


def _metrics(folder: Path) -> dict[str, list[float]]:
    """Key of metrics.csv -> its values; `train/tokens` are those of each logged loss."""
    found: dict[str, list[float]] = {"train/tokens": []}
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["key"] not in NOT_COMPARED:
                found.setdefault(line["key"], []).append(float(line["value"]))
            if line["key"] == "train/loss":
                found["train/tokens"].append(int(line["tokens"]))
    return found


def _weights(folder: Path) -> str:
    """sha256 over the tensors by name, whatever else the file holds."""
    found = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        found.update(
            f"{name} {tensor.dtype} {tensor.shape} ".encode()
            + np.ascontiguousarray(tensor).tobytes()
        )
    return found.hexdigest()


def predictions(folder: Path) -> dict[str, str]:
    """sha256 of every column of predictions: a column added later changes no other."""
    found = {}
    for path in sorted(folder.glob("*predictions*.json*")) + sorted(folder.glob("null_odds.json")):
        if path.suffix == ".json":
            found[path.name] = _sha(json.dumps(json.loads(path.read_bytes())).encode())
            continue
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for key in rows[0]:
            found[f"{path.name}: {key}"] = _sha(json.dumps([row[key] for row in rows]).encode())
    for path in sorted(folder.glob("test_predictions/*")):
        found[f"test_predictions/{path.name}"] = _sha(path.read_bytes())
    return found


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _record(place: Path, stage: str, names: dict[str, Any], facts: Mapping[str, Any]) -> Record:
    return Record(
        status="complete",
        stage=stage,
        scale="",
        fingerprint="",
        results_version=0,
        config=names,
        inputs={},
        watched={},
        started="",
        facts=dict(facts),
        folder=place,
    )


def judge(
    experiment: Path,
    pretrainings: Iterable[Mapping[str, Any]],
    finetunings: Iterable[Mapping[str, Any]],
    *,
    claims: Iterable[str],
) -> list[dict[str, Any]]:
    """The project's judgement of every claim of an experiment on runs that are known from a
    results.csv alone.

    Args:
        experiment: folder with a paper.yaml.
        pretrainings: complete runs: arm, seed, facts (key -> number).
        finetunings: complete runs: row, task, stand_in_for, synthetic, pretrain_seed, seed,
        learning_rate, metric
            (the headline's), scores (key -> percent), majority, collapsed.
        claims: texts of those to be judged, in their order then; none was primary.

    Returns:
        One entry a claim and data set; numbers in points, None where there is none.
    """
    root = Path("nowhere")
    # How rows were made is not in the file; no settings at all bar nothing.
    paper = load_experiment(experiment)
    known = {one.text: one.model_copy(update={"primary": False}) for one in paper.claims}
    judged = type(paper.claims)(known[text] for text in claims if text in known)
    paper = paper.model_copy(update={"matched_by": "none", "claims": judged})
    records = []
    for one in pretrainings:
        place = root / "pretrain" / one["arm"] / str(one["seed"])
        names = {"arm": one["arm"], "seed": one["seed"]}
        records.append(_record(place, "pretrain", names, one["facts"]))
    for one in finetunings:
        place = root.joinpath(*(str(one[key]) for key in ("row", "task", "pretrain_seed", "seed")))
        names = {key: one[key] for key in ("row", "pretrain_seed", "seed", "learning_rate")}
        facts = {key: one[key] for key in ("stand_in_for", "synthetic", "collapsed")}
        record = _record(place, "finetune", names | {"task": {"name": one["task"]}}, facts)
        record.metric = one["metric"]
        for key, value in one["scores"].items():
            record.scores[key] = Score(unit="percent", higher_is_better=True, value=value)
        record.scores[one["metric"]].majority = one["majority"]
        records.append(record)
    table = build_table(paper, Runs(root, records))
    return [
        {
            "id": one.claim.id,
            "data": one.column.key if one.column else None,
            "verdict": str(one.verdict),
            "difference": one.difference.mean if one.difference else None,
            "interval": [one.difference.low, one.difference.high] if one.difference else None,
            "p": one.p_value,
            "corrected": one.corrected_p,
            "decisive_seeds": one.decisive_seeds,
        }
        for one in verdicts.judge(table)
    ]
