"""What a finished model says: of texts or its task's files (`clozelab predict`), and packed for a
server (`submit`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from clozelab.corpus.lines import whole_characters
from clozelab.corpus.rows import Row, RowFile, open_rows
from clozelab.datamodules.columns import (
    choose_columns,
    is_enough,
    named_roles,
    refuse_unread,
    roles_of,
    say_on_command_line,
)
from clozelab.datamodules.texts import Unreadable, UnreadableText, read_cells
from clozelab.metrics.glue import TEST_SETS, placeholder, write_submission
from clozelab.modules.answers import Unanswered, summary_of
from clozelab.stages.outputs import ARRAYS, print_answers, write_answers
from clozelab.terminal import Words, verb

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor

HELP = """clozelab predict MODEL text=TEXT [pair=TEXT]
clozelab predict MODEL question=TEXT text=PASSAGE
clozelab predict MODEL input=FILE|- [text=COLUMN[,COLUMN]] [output=FILE]
clozelab predict RUN --test
clozelab predict RUN test=FILE [output=FOLDER]

MODEL is a run, a folder in the Hugging Face layout or, with hub=true, NAME@COMMIT of the hub. A fine-tuned
model does its task; of others a text with the mask token is filled, and do= says what else.

  do=ACT         fill, classify, answer, tag, next (does the second text follow?), embed, score, states, attention
  input=FILE     .csv, .tsv, .jsonl, .parquet: a row is a text, answers come beside the given columns. Any other file:
                 a text a line, or two between a tab (pairs; a question and its passage). - is what is piped in.
                 Objects (.jsonl, or any file that begins with one) have text, and pair or question; words for a
                 tagger; passages for several. format= says what a name does not: lines, jsonl, csv, tsv, parquet
  text=COLUMN    with input=: the column of the texts, or two between a comma. Without it they are found by name
                 pair= and question= beside it are one text for every row
  output=FILE    .csv, .tsv, .parquet, .jsonl, or one line of text each; embeddings also as .npy;
                 states and attention maps as .npz: text_1, text_2, ... in their order
  --json         print JSON lines: the object that was read, and its prediction
  errors=raise   end at the first text that cannot be read. Else (mark) its answer says why, and they are counted
  empty=skip     leave out what is empty. Else embed gives the vector of an empty text; other acts mark it
  top_k=N        of masks (5) and answers (1)
  pooling=KIND   of embeddings: mean, cls, last4 (as the model was trained for it, else mean); layer=N: not the last
  stride=N       classify and embed longer texts in windows N tokens apart
  label_names=   other names of the model's labels: 'label_names={LABEL_0: negative, LABEL_1: positive}'
  precision=     auto (bf16 where the processor multiplies it), 32-true;  device=auto, cpu, cuda

  --test         predict the task's test files with a complete fine-tuning, as predict_test=true would have
  test=FILE      predict this file, laid out as the task's own; output= is a folder, RUN/test_predictions by itself"""
SUBMIT_HELP = """clozelab submit glue RUNS... [out=FILE] [--placeholders]

Packs the test predictions of fine-tuning runs (predict_test=true) into a GLUE submission. RUNS are run folders, or
folders above them; of several runs on one test set the best on its validation split is taken.

  out=FILE          where the zip goes (glue_submission.zip)
  --placeholders    fill test sets that no run has predicted with one constant answer

What the server would turn away is refused, and nothing is written then."""
TEXTS = ("text", "pair", "question")
CONSTANTS = ("pair", "question")  # which the command line may say for every row of a file
# acts whose objects may differ in their keys: words or text, passages or text
ROLES_BY_ROW = ("answer", "tag")
ACTS = ("fill", "classify", "answer", "tag", "next", "score", "embed", "states", "attention")
METHODS = {
    "fill": "fill_mask",
    "next": "next_sentence",
    "states": "hidden_states",
    "answer": "answer_all",
}
METHODS |= {"embed": "embed_each"}
"""Act -> the predictor's method, where that is called otherwise."""
OF_TASK = {"classification": "classify", "multi_label": "classify", "regression": "classify"}
OF_TASK |= {"tags": "tag", "spans": "answer", "embedding": "embed"}
ARRAY_ACTS = ("embed", "states", "attention")
TEXTS_AT_ONCE = 2048
SETTINGS = ("top_k", "layer", "stride", "pooling")
OPTIONS = {
    "fill": ("top_k",),
    "answer": ("top_k",),
    "classify": ("stride",),
    "embed": ("pooling", "layer", "stride"),
}
PLACES = ("text", "pair", "question", "input", "format", "output", "test")
PLACED = ("device", "precision", "hub", "label_names")
READING = {"errors": ("mark", "raise"), "empty": ("keep", "skip")}
"""Key -> its choices, the usual one first."""
KEYS = (*PLACES, "do", *PLACED, *READING, *SETTINGS)


@verb("predict", HELP, names=(1, 1), keys=KEYS, flags=("json", "test"))
def main(said: Words) -> int:
    """Print or write what the model says; returns the exit status."""
    values, place = said.values, Path(said.names[0])
    if "test" in said.flags or "test" in values:
        names = label_names_of(values)
        for path in predict_task(place, values.get("test"), values.get("output"), names):
            print(path)
        return 0
    if "input" not in values and "text" not in values:
        raise ValueError(
            "predict needs one of text=TEXT and input=FILE (- for what is piped in); see --help"
        )
    act = values.get("do")
    if act not in (None, *ACTS):
        raise ValueError(f"do={act}: choose one of {', '.join(ACTS)}")
    errors = choice_of("errors", values)
    skips_empty = choice_of("empty", values) == "skip"
    if "input" in values:
        file = open_rows(values["input"], values.get("format", "auto"))
    else:
        file = said_row(values)
    out = checked_output(values.get("output"))
    predictor = predictor_of(said)
    if act is None:
        act = OF_TASK.get(predictor.model.task or "", "fill")
    if "question" in values and act != "answer":
        raise ValueError(f"question= is nothing for do={act}")
    if out is not None and act not in ARRAYS.get(out.suffix, (act,)):
        able = ", ".join(ARRAYS[out.suffix])
        raise ValueError(
            f"output={out}: only do={able} gives what a {out.suffix} file holds; take .jsonl",
        )
    options = options_of(act, values)
    if "input" in values:
        roles = roles_of_file(file, act, values)
        say_what_is_read(file, roles, values)
    else:
        roles, errors = roles_said(file, act), "raise"  # of one text there are no others to answer
    rows = rows_of(file, roles, act, values, skips_empty=skips_empty)
    answered = counted(predictions(predictor, act, rows, options, roles=roles, errors=errors))
    if act == "embed":
        column = "embedding"
    else:
        column = act
    if out is not None:
        write_answers(out, file, answered, column)
    else:
        print_answers(file, answered, column, is_json="json" in said.flags or act in ARRAY_ACTS)
    return 0


def say_what_is_read(file: RowFile, roles: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Which columns were taken by their names, where the command line names none and they are
    called otherwise."""
    if "text" not in values and set(roles) != set(roles.values()):
        print(f"{file.name}: {say_on_command_line(list(roles.values()))}", file=sys.stderr)


def predictor_of(said: Words) -> Predictor:
    """The model that is said; in a terminal it shows how far it is."""
    # these take seconds, which --help and wrong words need not wait
    from rich.console import Console
    from rich.progress import track

    from clozelab.modules.predictor import load

    where: Any = {key: said.values[key] for key in ("device", "precision") if key in said.values}
    names = label_names_of(said.values)
    predictor = load(
        said.names[0],
        hub=said.values.get("hub") == "true",
        label_names=names,
        **where,
    )
    predictor.warns = False  # counted at the end, over all batches
    if sys.stderr.isatty() and {"input", "in"} & said.values.keys():
        predictor.progress = partial(
            track, description="reading", console=Console(stderr=True), transient=True
        )
    return predictor


def label_names_of(values: Mapping[str, str]) -> dict[str, str]:
    """`label_names={NEGATIVE: 0, POSITIVE: 1}` as it is meant: names, whatever they look like."""
    text = values.get("label_names")
    if text is None:
        return {}
    try:
        names = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        names = None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(
            f"label_names={text}: write '{{MODEL_NAME: NAME, ...}}', a name of each label to be"
            " renamed"
        )
    return names


def choice_of(key: str, values: Mapping[str, Any]) -> str:
    """One of READING; ValueError for a wrong one."""
    known = READING[key]
    chosen = values.get(key, known[0])
    if chosen not in known:
        raise ValueError(f"{key}={chosen}: choose one of {', '.join(known)}")
    return str(chosen)


def options_of(act: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What an act takes of the SETTINGS that are said; ValueError for what is nothing for it."""
    options: dict[str, Any] = {}
    for key in (key for key in SETTINGS if key in values):
        value = str(values[key])
        if key not in OPTIONS.get(act, ()) or (
            key != "pooling" and not value.lstrip("-").isdecimal()
        ):
            raise ValueError(f"{key}={value} is nothing for do={act}, or no whole number")
        options[key] = value if key == "pooling" else int(value)
    return options


def checked_output(name: str | None) -> Path | None:
    """Where answers go; ValueError where no file can stand."""
    if name is None:
        return None
    out = Path(name)
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"output={out}: give a file, in a folder that is there")
    return out


def said_row(values: Mapping[str, str]) -> RowFile:
    """The one text of a command line, as a file of one row."""
    # A terminal's bytes that are not UTF-8 come as halves of characters.
    record = {key: whole_characters(values[key]) for key in TEXTS if key in values}
    return RowFile("text=", "jsonl", list(record), _rows=lambda: iter([Row("text", record)]))


def roles_said(file: RowFile, act: str) -> dict[str, str]:
    """What the words of a command line are read as; ValueError where one is missing or nothing for
    the act."""
    roles = {role: role for role in named_roles(file.columns, act)}
    for key in file.columns:
        if key not in roles:
            raise ValueError(
                f"{key}= is nothing for do={act}, which reads {', '.join(roles_of(act))}",
            )
    if not is_enough(roles, act):
        needs = "pair= beside text="
        if act == "answer":
            needs = "question= beside text=, its passage"
        raise ValueError(f"do={act} needs {needs}")
    return roles


def roles_of_file(file: RowFile, act: str, values: Mapping[str, str]) -> dict[str, str]:
    """Role -> column of a file, or -> key of the command line that says it for every row.

    ValueError where a column is missing, where none is named and none can be told to be the text,
    and where a key would hide a column."""
    constants = {key: values[key] for key in CONSTANTS if key in values}
    for key, value in constants.items():
        if key in file.columns:
            raise ValueError(
                f"{file.name} has {key!r}, which {key}= would replace: leave one of them out",
            )
        if file.is_table and value in file.columns:
            raise ValueError(
                f"{key}={value} would be that very text for every row, and {file.name} has a column"
                f" {value!r}: say text=FIRST,{value} for the texts of two columns"
            )
        if key not in roles_of(act):
            raise ValueError(f"{key}= is nothing for do={act}")
    if "text" not in values:
        return choose_columns([*file.columns, *constants], act, where=file.name)
    named = named_columns(values["text"], file.columns)
    roles = choose_columns(file.columns, act, named=named, where=file.name)
    for key in constants:
        if key in roles:
            raise ValueError(
                f"{key}= and text={values['text']} are {len(named) + 1} texts: name one column",
            )
        roles[key] = key
    return roles


def rows_of(
    file: RowFile,
    roles: Mapping[str, str],
    act: str,
    values: Mapping[str, str],
    *,
    skips_empty: bool = False,
) -> Iterator[Row]:
    """A file's rows, each with what the command line says for all; `skips_empty` leaves out those
    without text."""
    constants = {key: values[key] for key in CONSTANTS if key in values}
    has_own_keys = file.form == "jsonl" and "text" not in values
    for row in file.rows():
        record = {**row.record, **constants}
        problem = row.problem
        if problem is None and skips_empty and is_empty(record, roles):
            continue
        if problem is None and has_own_keys:
            problem = _unread_key(record, roles, act)
        yield Row(row.place, record, problem, row.number)


def named_columns(text: str, columns: Sequence[str]) -> list[str]:
    """`text=premise,hypothesis`: two columns, where none has the whole of it as its name."""
    if text in columns:
        return [text]
    return text.split(",")


def is_empty(record: Mapping[str, Any], roles: Mapping[str, str]) -> bool:
    """Whether nothing stands in any column that is read."""
    for column in roles.values():
        value = record.get(column)
        is_blank = value is None or value != value or (isinstance(value, str) and not value.strip())
        if not is_blank:
            return False
    return True


def _unread_key(record: Mapping[str, Any], roles: Mapping[str, str], act: str) -> str | None:
    """What is wrong with an object that has a text under a key that nothing reads; the first one's
    keys count."""
    if act not in ROLES_BY_ROW and "pair" in record and "pair" not in roles:
        return "has 'pair', which the first object has not"
    try:
        refuse_unread(record, roles, act, "it")
    except ValueError as error:
        return str(error).removeprefix("it ")
    return None


def counted(answered: Iterator[tuple[Row, Any]]) -> Iterator[tuple[Row, Any]]:
    """The same; says on stderr at the end how many rows were not answered, and why. ValueError
    where none was."""
    total = 0
    problems: list[tuple[str, str]] = []
    for row, answer in answered:
        total += 1
        if isinstance(answer, Unanswered):
            problems.append((row.place, answer.error))
        yield row, answer
    if not total:
        raise ValueError("there is no row to read, or all of them are empty")
    if len(problems) == total:
        place, reason = problems[0]
        others = ""
        if total > 1:
            others = f" (and none of the other {total - 1:,} can be answered)"
        raise ValueError(f"{place} {reason}{others}")
    if problems:
        print(summary_of(problems, total), file=sys.stderr)


def predictions(
    predictor: Predictor,
    act: str,
    rows: Iterable[Row],
    options: dict[str, Any],
    *,
    roles: Mapping[str, str] | None = None,
    errors: str = "mark",
) -> Iterator[tuple[Row, Any]]:
    """(row, what the model says of it) in order; a stretch of rows is held at a time.

    A row that cannot be read has `Unanswered`; with errors="raise" it is a ValueError that names
    its place. `roles`: role -> column; None: by each row's own keys."""
    left = iter(rows)
    while some := [*islice(left, TEXTS_AT_ONCE)]:
        yield from zip(some, _answers_of(predictor, act, some, options, roles, errors), strict=True)


def _answers_of(
    predictor: Predictor,
    act: str,
    rows: Sequence[Row],
    options: dict[str, Any],
    roles: Mapping[str, str] | None,
    errors: str,
) -> list[Any]:
    """An answer, or `Unanswered`, for each of some rows."""
    answers: list[Any] = []
    readable: list[tuple[int, Any]] = []  # (place among the rows, text)
    for number, row in enumerate(rows):
        item = _text_of(row, act, roles)
        if not isinstance(item, Unreadable):
            answers.append(None)
            readable.append((number, item))
        elif errors == "raise":
            raise ValueError(f"{row.place} {item.reason}")
        else:
            answers.append(Unanswered(item.reason))
    if not readable:
        return answers
    method: Callable[..., Any] = getattr(predictor, METHODS.get(act, act))
    try:
        found = method([item for _, item in readable], errors=errors, **options)
    except UnreadableText as error:
        number, _ = readable[error.number - 1]
        raise ValueError(f"{rows[number].place} {error.reason}") from error
    for (number, _), answer in zip(readable, found, strict=True):
        answers[number] = answer
    return answers


def _text_of(row: Row, act: str, roles: Mapping[str, str] | None) -> Any:
    """The text of a row, or `Unreadable`."""
    if row.problem is not None:
        return Unreadable(row.problem)
    if roles is None or (act in ROLES_BY_ROW and set(roles) == set(roles.values())):
        roles = {role: role for role in named_roles(row.record, act)}
    return read_cells(row.record, roles, act)


def predict_task(
    run: Path, file: str | None, output: str | None, label_names: Mapping[str, str] | None = None
) -> list[Path]:
    """Predict a task's test files (or one `file` like them) with a complete run's model, and
    nothing trained again.

    `label_names`: the task's names of classes -> what the predictions call them."""
    from clozelab.runs.record import read_record

    record, file = read_record(run) if run.is_dir() else None, file and str(Path(file).resolve())
    if (
        record is None
        or record.stage != "finetune"
        or not record.is_complete
        or not record.config_name
    ):
        raise ValueError(
            f"{run} is no complete fine-tuning of a command line; only that knows its task's"
            " format. Any other model reads a file as input=FILE, with text=COLUMN"
        )
    if not (run / "model" / "config.json").is_file():
        raise ValueError(
            f"{run} kept no model (keep_model=false, or gc took it), so it cannot predict"
        )
    if file and not Path(file).is_file():
        raise ValueError(f"test={file}: there is no such file")
    from clozelab.models import folders
    from clozelab.modules.finetuning import Evaluation, write_test_predictions
    from clozelab.modules.model import renamed_labels
    from clozelab.runs.find import is_record_of
    from clozelab.runs.fingerprint import encoder_fingerprint
    from clozelab.stages import building, finetune
    from clozelab.training.trainer import build_trainer

    folder, scored = (run / "model").resolve(), (run / "scores.json").resolve()
    out = Path(output or run / "test_predictions").resolve()
    with building.said_again(record) as cfg:
        if not is_record_of(record, stage="finetune", config=cfg):
            raise ValueError(
                f"{run}: its command says another configuration now than when it was trained"
            )
        cfg.initialisation = "pretrained"
        hardware = replace(
            building.hardware_of(cfg.trainer), devices=1, num_nodes=1, strategy="auto"
        )
        hardware = replace(hardware, precision=record.facts.get("precision", hardware.precision))
        data = finetune.build_data(cfg, folder, encoder_fingerprint(folder), hardware)
        if data.source_fingerprint != record.inputs["task_files"]:
            raise ValueError(
                f"{run} was trained on other task files than are here now, so labels may be others"
            )
        if file and output is None and Path(file).stem in data.test_files:
            raise ValueError(f"test={file} is called as the task's own test set: say output=FOLDER")
        data.test_files = {Path(file).stem: file} if file else data.test_files
        data.require_test_files()
        data.setup()
        module = finetune.build_module(cfg, folders.load_encoder(folder), data)
        for kind, head in module.heads().items():
            folders.load_head(folder, kind, head)
        scores = json.loads(scored.read_text(encoding="utf-8"))["scores"]
        if label_names:
            split: Any = module.validation
            names = renamed_labels(getattr(split, "label_names", ()), label_names, run)
            module.validation = replace(split, label_names=names)
        # where the threshold of 2.0 stands
        module.best = Evaluation(0, scores, [], is_collapsed=False)
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
            "submit knows one benchmark: `clozelab submit glue RUNS...`, not"
            f" {said.names[:1] or 'nothing'}"
        )
    out = Path(said.values.get("out", "glue_submission.zip"))
    best: dict[str, Candidate] = {}
    for name, found in find_predictions([*map(Path, said.names[1:])]).items():
        # A model trained on a stand-in is scored on another validation set: only where there is no
        # other.
        own = [one for one in found if one.stand_in_for is None] or found
        if len({(one.metric, one.task) for one in own}) > 1:
            runs = ", ".join(f"{one.run} ({one.task}, {one.metric})" for one in own)
            raise ValueError(
                f"{name}: nobody can say which is best of {runs}; give only the run that you mean"
            )
        best[name] = max(own, key=lambda one: one.score)
    missing = [name for name in TEST_SETS if name not in best]
    if missing and "placeholders" not in said.flags:
        raise ValueError(
            f"no predictions for {', '.join(missing)}: fine-tune those tasks with"
            " predict_test=true, or add --placeholders to fill them with one constant answer"
            " (their scores then mean nothing)"
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

    ValueError: a folder does not exist, none holds predictions, or a run has no score beside
    them."""
    found: dict[str, list[Candidate]] = {}
    for folder in runs:
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is no folder; give run folders of `clozelab finetune ..."
                " predict_test=true`"
            )
        for path in sorted(
            path for path in folder.rglob("test_predictions/*.tsv") if path.stem in TEST_SETS
        ):
            run = path.parents[1]
            try:
                saved = json.loads((run / "scores.json").read_text(encoding="utf-8"))
                metric, task, stand_in = (
                    str(saved["metric"]),
                    str(saved["name"]),
                    saved.get("stand_in_for"),
                )
                candidate = Candidate(
                    path, run, metric, float(saved["scores"][metric]), stand_in, task
                )
            except (OSError, ValueError, KeyError) as error:
                raise ValueError(
                    f"{run}: no readable scores.json beside its predictions ({error})"
                ) from error
            found.setdefault(path.stem, []).append(candidate)
    if not found:
        named = ", ".join(map(str, runs)) or "(no folder given)"
        raise ValueError(f"no test predictions in {named}; fine-tune with predict_test=true first")
    return found
