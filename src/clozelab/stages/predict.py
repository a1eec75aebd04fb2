"""What a finished model says: of texts or its task's files (`clozelab predict`), and packed for a server (`submit`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clozelab.corpus.files import JSONL_SUFFIXES, whole_file, write_whole
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

  do=ACT         fill, classify, answer, tag, next (does the second text follow?), embed, score, states, attention
  input=FILE     a text a line, or two between a tab (pairs; a question and its passage). - is what is piped in. Where
                 the first line is a JSON object, all are: text, and pair or question; words for a tagger; passages
                 for several. pair= and question= beside it are of every line
  output=FILE    .jsonl, or one line of text each; embeddings also as .npy or .parquet;
                 states and attention maps as .npz: text_1, text_2, ... in their order
  --json         print JSON lines: the object that was read, and its prediction
  top_k=N        of masks (5) and answers (1)
  pooling=KIND   of embeddings: mean, cls, last4 (as the model was trained for it, else mean); layer=N: not the last
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
TEXTS, LISTS = ("text", "pair", "question"), ("words", "passages")
SINGLE = ("fill", "tag", "score")  # which take no pair
ARRAYS = ("embed", "states", "attention")
ACTS = ("fill", "classify", "answer", "tag", "next", "score", *ARRAYS)
OF_TASK = {"classification": "classify", "regression": "classify", "tags": "tag", "spans": "answer"}
OF_TASK |= {"embedding": "embed"}
TEXTS_AT_ONCE = 2048
SETTINGS = ("top_k", "layer", "stride", "pooling")
OPTIONS = {"fill": ("top_k",), "answer": ("top_k",), "classify": ("stride",), "embed": ("pooling", "layer", "stride")}
PLACES = ("text", "pair", "question", "input", "output", "test")
PLACED = ("device", "precision", "hub")
KEYS = (*PLACES, "do", *PLACED, *SETTINGS)


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
    own: dict[str, Any] = {key: values[key] for key in TEXTS if key in values}
    read = read_records(values["input"]) if "input" in values else iter([own])
    records: Iterator[dict[str, Any]] = ({**one, **own} for one in read)
    first = next(records, None)
    if first is None:
        raise ValueError(f"{values['input']} has no line to read")
    out = Path(values["output"]) if "output" in values else None
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"output={out}: give a file, in a folder that is there")
    predictor = predictor_of(said)
    act = act or OF_TASK.get(predictor.model.task or "", "fill")
    if "question" in values and act != "answer":
        raise ValueError(f"question= is nothing for do={act}")
    found = predictions(predictor, act, chain([first], records), options_of(act, values))
    if out is not None and out.suffix in (".npy", ".parquet", ".npz"):
        if act not in (able := ARRAYS if out.suffix == ".npz" else ("embed",)):
            raise ValueError(
                f"output={out}: only do={', '.join(able)} gives what a {out.suffix} file holds; take .jsonl"
            )
        write_table(out, [array for _, array in found])
        return 0
    as_json = "json" in said.flags or act in ARRAYS or (out is not None and out.suffix == ".jsonl")
    lines = (shown(one, record if as_json else None) for record, one in found)
    if out is not None:
        write_whole(out, lines)
        return 0
    for line in lines:
        print(line, flush=True)
    return 0


def predictor_of(said: Words) -> Predictor:
    """The model that is said; in a terminal it shows how far it is."""
    from rich.console import Console  # these take seconds, which --help and wrong words need not wait
    from rich.progress import track

    from clozelab.modules.predictor import load

    where: Any = {key: said.values[key] for key in ("device", "precision") if key in said.values}
    predictor = load(said.names[0], hub=said.values.get("hub") == "true", **where)
    if sys.stderr.isatty() and {"input", "in"} & said.values.keys():
        predictor.progress = partial(track, description="reading", console=Console(stderr=True), transient=True)
    return predictor


def options_of(act: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What an act takes of the SETTINGS that are said; ValueError for what is nothing for it."""
    options: dict[str, Any] = {}
    for key in (key for key in SETTINGS if key in values):
        value = str(values[key])
        if key not in OPTIONS.get(act, ()) or (key != "pooling" and not value.lstrip("-").isdecimal()):
            raise ValueError(f"{key}={value} is nothing for do={act}, or no whole number")
        options[key] = value if key == "pooling" else int(value)
    return options


def read_records(name: str) -> Iterator[dict[str, Any]]:
    """The lines of a file, or of what is piped in, as objects; ValueError names a line that is none."""
    if name != "-" and not Path(name).is_file():
        raise ValueError(f"input={name}: there is no such file")
    is_json = name.endswith(JSONL_SUFFIXES)
    try:
        with sys.stdin if name == "-" else Path(name).open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                is_json = is_json or (number == 1 and _object(line) is not None)
                yield _record(f"{name}:{number}", line, is_json)
    except UnicodeDecodeError as error:
        raise ValueError(f"input={name} is not UTF-8 text: {error}") from error


def _record(place: str, line: str, is_json: bool) -> dict[str, Any]:
    columns = line.rstrip("\r\n").split("\t")
    if not is_json and len(columns) > 2:
        raise ValueError(f"{place} has {len(columns)} columns: a line is one text, or two between a tab")
    record = _object(line) if is_json else dict(zip(("text", "pair"), columns, strict=False))
    if record is None:
        raise ValueError(f"{place} is no JSON object")
    return checked(place, record)


def checked(place: str, record: dict[str, Any]) -> dict[str, Any]:
    """The record; ValueError where it has no text where one belongs."""
    for key in (key for key in (*TEXTS, *LISTS) if key in record):
        texts = record[key] if key in LISTS else [record[key]]
        if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
            raise ValueError(f"{place}: {key} is {record[key]!r}, no {'list of texts' if key in LISTS else 'text'}")
    return record


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def predictions(
    predictor: Predictor, act: str, records: Iterator[dict[str, Any]], options: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], Any]]:
    """(record, what the model says of it) in order; a stretch of records is held at a time."""

    def asked(number: int, one: dict[str, Any]) -> Any:
        try:
            if act == "answer":  # in lines of text the question stands first
                question, passage = ("question", "text") if "question" in one else ("text", "pair")
                return one[question], one["passages"] if "passages" in one else [one[passage]]
            if act in SINGLE and "pair" in one:
                raise ValueError(f"do={act} takes single texts, and text {number} is a pair (a tab, or pair=)")
            if act == "tag" and "words" in one:
                return one["words"]
            return (one["text"], one["pair"]) if "pair" in one else one["text"]
        except KeyError as error:
            has = ", ".join(one) or "nothing"
            raise ValueError(f"do={act} needs {error} of every text, and text {number} has {has} alone") from None

    names = {"fill": "fill_mask", "next": "next_sentence", "states": "hidden_states", "answer": "answer_all"}
    act_on: Callable[..., Any] = getattr(predictor, names.get(act, act))
    done = 0
    while some := [*islice(records, TEXTS_AT_ONCE)]:
        given = [asked(number, one) for number, one in enumerate(some, done + 1)]
        try:
            found = act_on(given, **options)
        except ValueError as error:
            raise ValueError(f"{error} (counted from line {done + 1} on)" if done else error) from error
        yield from zip(some, found, strict=True)
        done += len(some)


def plain(one: Any) -> Any:
    """A result as JSON holds it."""
    return one.tolist() if hasattr(one, "tolist") else one.to_dict()


def shown(one: Any, record: dict[str, Any] | None) -> str:
    """A result as one line: its parts between tabs or, with the record that it is of, a JSON object of both."""
    said = plain(one)
    if record is not None:
        return json.dumps(record | {"prediction": said}, ensure_ascii=False)
    if "masks" in said:
        return "\t".join(" ".join(f"{t['token']} {t['probability']:.4f}" for t in mask) for mask in said["masks"])
    if "words" in said:
        parts = [" ".join(f"{one['text']}/{one['label']}" for one in said["entities"] or said["words"])]
    else:
        parts = [str(value) for key, value in said.items() if key in ("label", "text", "value", "log_probability")]
        parts += [f"{said['probability']:.4f}"] if "probability" in said else []
    return "\t".join(" ".join(part.split()) for part in parts)


def write_table(path: Path, vectors: Sequence[Any]) -> None:
    """Embeddings [N, H] as one array, or as a table with a column `embedding`; of .npz each array as text_1, ..."""
    import numpy as np
    import pandas

    with whole_file(path) as file:
        if path.suffix == ".npy":
            np.save(file, np.stack(vectors))
        elif path.suffix == ".npz":
            np.savez(file, **{f"text_{number}": array for number, array in enumerate(vectors, 1)})
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
    from clozelab.runs.find import is_record_of
    from clozelab.runs.fingerprint import encoder_fingerprint
    from clozelab.stages import building, finetune
    from clozelab.training.trainer import build_trainer

    folder, scored = (run / "model").resolve(), (run / "scores.json").resolve()
    out = Path(output or run / "test_predictions").resolve()
    with building.said_again(record) as cfg:
        if not is_record_of(record, stage="finetune", config=cfg):
            raise ValueError(f"{run}: its command says another configuration now than when it was trained")
        cfg.initialisation = "pretrained"
        hardware = replace(building.hardware_of(cfg.trainer), devices=1, num_nodes=1, strategy="auto")
        hardware = replace(hardware, precision=record.facts.get("precision", hardware.precision))
        data = finetune.build_data(cfg, folder, encoder_fingerprint(folder), hardware)
        if data.source_fingerprint != record.inputs["task_files"]:
            raise ValueError(f"{run} was trained on other task files than are here now, so labels may be others")
        if file and output is None and Path(file).stem in data.test_files:
            raise ValueError(f"test={file} is called as the task's own test set: say output=FOLDER")
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
        written: list[Path] = []
        for name, (sequences, split) in data.load_test().items():
            parts: Any = trainer.predict(module, dataloaders=data.evaluation_loader(sequences))
            write_test_predictions(out, files := module.prediction_files(name, split, parts))
            written += [out / one for one in files]
    return sorted(written)


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

    ValueError: a folder does not exist, none holds predictions, or a run has no score beside them."""
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
