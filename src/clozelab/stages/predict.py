"""What a finished model says: of texts or its task's files (`clozelab predict`), and packed for a server (`submit`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clozelab.corpus.files import whole_file, write_whole
from clozelab.metrics.glue import TEST_SETS, placeholder, write_submission
from clozelab.terminal import Words, verb

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor

HELP = """clozelab predict MODEL text=TEXT [pair=TEXT]
clozelab predict MODEL question=TEXT text=PASSAGE
clozelab predict MODEL input=FILE|- [output=FILE]
clozelab predict RUN --test
clozelab predict RUN test=FILE [output=FOLDER]

MODEL is a run, a folder in the Hugging Face layout or, with hub=true, NAME@COMMIT of the hub. A fine-tuned
model does its task; of others a text with the mask token is filled, and do= says what else.

  do=ACT         fill, classify, answer, tag, next (does the second text follow?), embed, score, states
  input=FILE     a text a line, or two between a tab (pairs; a question and its passage). .jsonl: an object a line with
                 text, and pair or question; words for a tagger; passages for several. - is what is piped in
  output=FILE    .jsonl, or one line of text each; embeddings also as .npy or .parquet
  --json         print JSON lines: what was read, and `prediction`
  top_k=N        of masks (5) and answers (1)
  pooling=KIND   of embeddings: mean, cls, last4; layer=N takes another layer than the last
  stride=N       classify and embed longer texts in windows N tokens apart
  precision=     auto (bf16 where the processor multiplies it), 32-true;  device=auto, cpu, cuda

  --test         predict the task's test files with a complete fine-tuning, as predict_test=true would have
  test=FILE      predict this file, laid out as the task's own; output= is a folder, RUN/test_predictions by itself"""
SUBMIT_HELP = """clozelab submit glue RUNS... [out=FILE] [--placeholders]

Packs the test predictions of fine-tuning runs (predict_test=true) into a GLUE submission. RUNS are run folders, or
folders above them; of several runs on one test set the best on its validation split is taken.

  out=FILE          where the zip goes (glue_submission.zip)
  --placeholders    fill test sets that no run has predicted with one constant answer

What the server would turn away is refused, and nothing is written then."""
ACTS = ("fill", "classify", "answer", "tag", "next", "embed", "score", "states")
OF_TASK = {"classification": "classify", "regression": "classify", "tags": "tag", "spans": "answer"}
TEXTS_AT_ONCE = 2048
SETTINGS = ("top_k", "layer", "stride", "pooling")
OPTIONS = {"fill": ("top_k",), "answer": ("top_k",), "classify": ("stride",), "embed": ("pooling", "layer", "stride")}
PLACES = ("text", "pair", "question", "input", "output", "test")
KEYS = (*PLACES, "do", "device", "precision", "hub", *SETTINGS)


@verb("predict", HELP, names=(1, 1), keys=KEYS, flags=("json", "test"))
def main(said: Words) -> int:
    """Print or write what the model says; returns the exit status."""
    values, place = said.values, Path(said.names[0])
    if "test" in said.flags or "test" in values:
        for path in predict_task(place, values.get("test"), values.get("output")):
            print(path)
        return 0
    if ("input" in values) == ("text" in values):
        raise ValueError("predict needs one of text=TEXT and input=FILE (- for what is piped in); see --help")
    if (act := values.get("do")) not in (None, *ACTS):
        raise ValueError(f"do={act}: choose one of {', '.join(ACTS)}")
    own: dict[str, Any] = {key: values[key] for key in ("text", "pair", "question") if key in values}
    records: Iterator[dict[str, Any]] = read_records(values["input"]) if "input" in values else iter([own])
    first = next(records, None)
    if first is None:
        raise ValueError(f"{values['input']} has no line to read")
    from rich.console import Console  # these take seconds, which --help and wrong words need not wait
    from rich.progress import track

    from clozelab.modules.predictor import load

    where: Any = {key: values[key] for key in ("device", "precision") if key in values}
    predictor = load(said.names[0], hub=values.get("hub") == "true", **where)
    act = act or OF_TASK.get(predictor.model.task or "", "fill")
    options: dict[str, Any] = {}
    for key in (key for key in SETTINGS if key in values):
        if key not in OPTIONS.get(act, ()) or (key != "pooling" and not values[key].lstrip("-").isdecimal()):
            raise ValueError(f"{key}={values[key]} is nothing for do={act}, or no whole number")
        options[key] = values[key] if key == "pooling" else int(values[key])
    if sys.stderr.isatty() and "input" in values:
        predictor.progress = partial(track, description=act, console=Console(stderr=True), transient=True)
    found = predictions(predictor, act, chain([first], records), options)
    out = Path(values["output"]) if "output" in values else None
    if out is not None and out.suffix in (".npy", ".parquet"):
        write_table(out, [vector for _, vector in found] if act == "embed" else None)
        return 0
    as_json = "json" in said.flags or act in ("embed", "states") or (out is not None and out.suffix == ".jsonl")
    # Apart from the record, whose own label or text would be lost.
    said_of = (({**record, "prediction": plain(one)}, one) for record, one in found)
    lines = (json.dumps(whole, ensure_ascii=False) if as_json else shown(one) for whole, one in said_of)
    if out is not None:
        write_whole(out, lines)
        return 0
    for line in lines:
        print(line, flush=True)
    return 0


def read_records(name: str) -> Iterator[dict[str, Any]]:
    """The lines of a file, or of what is piped in, as objects; ValueError names a line that is none."""
    if name != "-" and not Path(name).is_file():
        raise ValueError(f"input={name}: there is no such file")
    with sys.stdin if name == "-" else Path(name).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            first, _, second = line.rstrip("\r\n").partition("\t")
            record: Any = {"text": first, "pair": second} if second else {"text": first}
            if name.endswith(".jsonl"):
                with suppress(ValueError):
                    record = None
                    record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError(f"{name}:{number} is no JSON object")
            yield record


def predictions(
    predictor: Predictor, act: str, records: Iterator[dict[str, Any]], options: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], Any]]:
    """(record, what the model says of it) in order; a stretch of records is held at a time."""

    def texts(some: Sequence[dict[str, Any]]) -> list[Any]:
        if act == "answer":  # in lines of text the question stands first
            asked = [
                (one["question"], one.get("text")) if "question" in one else (one["text"], one["pair"]) for one in some
            ]
            return [(question, one.get("passages", [text])) for one, (question, text) in zip(some, asked, strict=True)]
        if act == "tag":
            return [one.get("words") or one["text"] for one in some]
        return [(one["text"], one["pair"]) if "pair" in one else one["text"] for one in some]

    names = {"fill": "fill_mask", "next": "next_sentence", "states": "hidden_states", "answer": "answer_all"}
    act_on: Callable[..., Any] = getattr(predictor, names.get(act, act))
    done = 0
    while some := [*islice(records, TEXTS_AT_ONCE)]:
        try:
            found = act_on(texts(some), **options)
        except KeyError as error:
            raise ValueError(f"do={act} needs {error} of every text, and one has {', '.join(some[0])} alone") from None
        except ValueError as error:
            raise ValueError(f"{error} (counted from line {done + 1} on)" if done else error) from error
        yield from zip(some, found, strict=True)
        done += len(some)


def plain(one: Any) -> dict[str, Any]:
    return {"values": one.tolist()} if hasattr(one, "tolist") else one.to_dict()


def shown(one: Any) -> str:
    """A result as a line of text, its parts between tabs."""
    said = one.to_dict()
    if "masks" in said:
        return "\t".join(" ".join(f"{t['token']} {t['probability']:.4f}" for t in mask) for mask in said["masks"])
    if "words" in said:
        return " ".join(f"{one['text']}/{one['label']}" for one in said["entities"] or said["words"])
    kept = [value for key, value in said.items() if key in ("label", "text", "value", "log_probability")]
    return "\t".join(map(str, [*kept, *([f"{said['probability']:.4f}"] if "probability" in said else [])]))


def write_table(path: Path, vectors: Sequence[Any] | None) -> None:
    """Embeddings [N, H] as one array, or as a table with a column `embedding`."""
    if vectors is None:
        raise ValueError(f"output={path}: only do=embed gives what a {path.suffix} file holds; take .jsonl")
    import numpy as np
    import pandas

    with whole_file(path) as file:
        if path.suffix == ".npy":
            np.save(file, np.stack(vectors))
        else:
            pandas.DataFrame({"embedding": [*vectors]}).to_parquet(file)


def predict_task(run: Path, file: str | None, output: str | None) -> list[Path]:
    """Predict a task's test files (or one `file` like them) with a complete run's model, and nothing trained again."""
    from clozelab.runs.record import read_record

    record, file = read_record(run) if run.is_dir() else None, file and str(Path(file).resolve())
    if record is None or record.stage != "finetune" or not record.is_complete or not record.config_name:
        raise ValueError(f"{run} is no complete fine-tuning of a command line; only that knows its task's format")
    if not (run / "model" / "config.json").is_file():
        raise ValueError(f"{run} kept no model (keep_model=false, or gc took it), so it cannot predict")
    if file and not Path(file).is_file():
        raise ValueError(f"test={file}: there is no such file")
    from clozelab.models import folders
    from clozelab.modules.finetuning import Evaluation, write_test_predictions
    from clozelab.runs.fingerprint import encoder_fingerprint
    from clozelab.stages import building, finetune
    from clozelab.training.trainer import build_trainer

    folder, scored = (run / "model").resolve(), (run / "scores.json").resolve()
    out = Path(output or run / "test_predictions").resolve()
    with building.said_again(record) as cfg:
        cfg.initialisation = "pretrained"
        hardware = replace(building.hardware_of(cfg.trainer), devices=1, num_nodes=1, strategy="auto")
        hardware = replace(hardware, precision=record.facts.get("precision", hardware.precision))
        data = finetune.build_data(cfg, folder, encoder_fingerprint(folder), hardware)
        data.test_files = {Path(file).stem: file} if file else data.test_files
        data.require_test_files()
        data.setup()
        module = finetune.build_module(cfg, folders.load_encoder(folder), data)
        for kind, head in module.heads().items():
            folders.load_head(folder, kind, head)
        scores = json.loads(scored.read_text(encoding="utf-8"))["scores"]
        module.best = Evaluation(0, scores, [], is_collapsed=False)  # where the threshold of 2.0 stands
        once: Any = {"max_steps": 1, "validation_interval_steps": None, "log_interval_steps": 1}
        trainer = build_trainer(hardware, callbacks=[], loggers=[], folder=out.parent, **once)
        for name, (sequences, split) in data.load_test().items():
            parts: Any = trainer.predict(module, dataloaders=data.evaluation_loader(sequences))
            write_test_predictions(out, module.prediction_files(name, split, parts))
    return sorted(out.iterdir())


class Candidate(NamedTuple):
    """One run's predictions for one test set."""

    path: Path
    run: Path
    metric: str
    score: float
    stand_in_for: str | None
    task: str


@verb("submit", SUBMIT_HELP, names=(0, None), keys=("out",), flags=("placeholders",))
def submit(said: Words) -> int:
    """Write a submission; returns the exit status."""
    if said.names[:1] != ["glue"]:
        raise ValueError(
            f"submit knows one benchmark: `clozelab submit glue RUNS...`, not {said.names[:1] or 'nothing'}"
        )
    out = Path(said.values.get("out", "glue_submission.zip"))
    best: dict[str, Candidate] = {}
    for name, found in find_predictions([*map(Path, said.names[1:])]).items():
        # A model trained on a stand-in is scored on another validation set: only where there is no other.
        own = [one for one in found if one.stand_in_for is None] or found
        if len({(one.metric, one.task) for one in own}) > 1:
            runs = ", ".join(f"{one.run} ({one.task}, {one.metric})" for one in own)
            raise ValueError(f"{name}: nobody can say which is best of {runs}; give only the run that you mean")
        best[name] = max(own, key=lambda one: one.score)
    missing = [name for name in TEST_SETS if name not in best]
    if missing and "placeholders" not in said.flags:
        raise ValueError(
            f"no predictions for {', '.join(missing)}: fine-tune those tasks with predict_test=true, or add "
            "--placeholders to fill them with one constant answer (their scores then mean nothing)"
        )
    contents = {name: one.path.read_bytes() for name, one in best.items()}
    write_submission(out, contents | {name: placeholder(name).encode() for name in missing})
    for name in TEST_SETS:
        if name in missing:
            print(f"  {name:<8} placeholder: one constant answer")
        else:
            one = best[name]
            note = f"  (trained on a stand-in for {one.stand_in_for})" if one.stand_in_for else ""
            print(f"  {name:<8} {one.metric} {one.score:.4f}  {one.run}{note}")
    print(f"Submission: {out.resolve()}")
    return 0


def find_predictions(runs: Sequence[Path]) -> dict[str, list[Candidate]]:
    """Test set -> the predictions for it in or below the given folders.

    ValueError: a folder does not exist, none holds predictions, or a run has no score beside them.
    """
    found: dict[str, list[Candidate]] = {}
    for folder in runs:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; give run folders of `clozelab finetune ... predict_test=true`")
        for path in sorted(path for path in folder.rglob("test_predictions/*.tsv") if path.stem in TEST_SETS):
            run = path.parents[1]
            try:
                saved = json.loads((run / "scores.json").read_text(encoding="utf-8"))
                metric, task, stand_in = str(saved["metric"]), str(saved["name"]), saved.get("stand_in_for")
                candidate = Candidate(path, run, metric, float(saved["scores"][metric]), stand_in, task)
            except (OSError, ValueError, KeyError) as error:
                raise ValueError(f"{run}: no readable scores.json beside its predictions ({error})") from error
            found.setdefault(path.stem, []).append(candidate)
    if not found:
        named = ", ".join(map(str, runs)) or "(no folder given)"
        raise ValueError(f"no test predictions in {named}; fine-tune with predict_test=true first")
    return found
