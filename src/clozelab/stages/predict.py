"""`clozelab predict`: what a finished model says of texts, or of its task's files."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from claims.text.phrases import count_noun
from clozelab.datamodules.columns import describe_for_command_line
from clozelab.datamodules.texts import ERRORS
from clozelab.modules import answering
from clozelab.modules.answer_files import check_array_file, print_answers, write_answers
from clozelab.modules.model_tasks import meaning_of
from clozelab.readers.rows import open_rows
from clozelab.terminal import SWITCH, ParsedArgs, verb

HELP = """\
clozelab predict MODEL text=TEXT [pair=TEXT]
clozelab predict MODEL question=TEXT text=PASSAGE
clozelab predict MODEL input=FILE|- [text=COLUMN[,COLUMN]] [output=FILE]
clozelab predict RUN --test
clozelab predict RUN test=FILE [output=FOLDER]

MODEL is a run, a folder in the Hugging Face layout or, with hub=true,
NAME@COMMIT of the hub. A fine-tuned model does its task; of others a text with
the mask token is filled, and do= says what else.

  do=ACT         fill, classify, answer, tag, next (does the second text
                 follow?), embed, score, states, attention
  input=FILE     .csv, .tsv, .jsonl, .parquet: a row is a text, answers come
                 beside the given columns. Another file: a text a line, or two
                 between a tab (pairs; a question and its passage). - is what is
                 piped in. Objects (.jsonl, or any file that begins with one)
                 have text, and pair or question; words for a tagger; passages
                 for several. format= says what a name does not: lines, jsonl,
                 csv, tsv, parquet
  text=COLUMN    with input=: the column of the texts, or two between a comma.
                 Without it they are those that the run was trained on, or are
                 found by name; pair= and question= beside
                 it are one text for every row
  output=FILE    .csv, .tsv, .parquet, .jsonl, or one line of text each;
                 embeddings also as .npy; states and attention maps as .npz:
                 text_1, text_2, ... in their order
  --json         print JSON lines: the object that was read, and its prediction
  errors=raise   end at the first text that cannot be read. Else (mark) its
                 answer says why, and they are counted
  empty=skip     leave out what is empty. Else embed gives the vector of an
                 empty text; other acts mark it
  top_k=N        of masks (5) and answers (1)
  pooling=KIND   of embeddings: mean, cls, last4 (as the model was trained for
                 it, else mean); layer=N: not the last; prompt=query|document:
                 the model's, before each text; size=N: the first N numbers
  stride=N       classify and embed longer texts in windows N tokens apart
  label_names=   other names of the model's labels: 'label_names={LABEL_0:
                 negative, LABEL_1: positive}'
  precision=     auto (bf16 where the processor multiplies it),
                 32-true;  device=auto, cpu, cuda

  --test         predict the task's test files with a complete fine-tuning, as
                 predict_test=true would have
  test=FILE      predict this file, laid out as the task's own; output= is a
                 folder, RUN/test_predictions by itself"""
INPUT_KEYS = (*answering.TEXT_KEYS, "input", "format", "output", "test")
CHOICES = {"do": answering.ACTS, "errors": ERRORS, "empty": ("keep", "skip"), "hub": SWITCH}
ARRAY_ACTS = ("embed", "states", "attention")


@verb(
    "predict",
    HELP,
    names=(1, 1),
    keys=(*INPUT_KEYS, *answering.MODEL_KEYS, *answering.OPTION_KEYS),
    choices=CHOICES,
    flags=("json", "test"),
)
def main(args: ParsedArgs) -> int:
    """Print or write what the model says; returns the exit status."""
    values = args.values
    if "test" in args.flags or "test" in values:
        from clozelab.assembly.prediction import predict_task  # torch: a mistake need not wait

        label_names = answering.parse_label_names(values)
        run = Path(args.names[0])
        for path in predict_task(run, values.get("test"), values.get("output"), label_names):
            print(path)
        return 0
    if "input" not in values and "text" not in values:
        raise ValueError(
            "predict needs one of text=TEXT and input=FILE (- for what is piped in); see --help"
        )
    predict_texts(args)
    return 0


def predict_texts(args: ParsedArgs) -> None:
    """Answer the one text of the command line, or each row of a file."""
    values = args.values
    is_file = "input" in values
    if is_file:
        file = open_rows(values["input"], values.get("format", "auto"))
    else:
        file = answering.row_of_command_line(values)
    out = _output_file(values)
    predictor = answering.load_predictor(args.names[0], values)
    # Only the model knows what it does where nobody says it.
    act = values.get("do")
    if act is None:
        act = meaning_of(predictor.model.task).act
    if out is not None:
        check_array_file(out, act)
    options = answering.parse_options(act, values)
    if is_file:
        if act == "tag" and "format" not in values:
            answering.refuse_tagged(file)
        errors = values.get("errors", "mark")
        roles = answering.roles_of_file(file, act, values, predictor.trained_columns)
        # Neither the columns' names nor the user say which of them are texts.
        if "text" not in values and set(roles) != set(roles.values()):
            described = describe_for_command_line(list(roles.values()))
            print(f"{file.name}: {described}", file=sys.stderr)
    else:
        errors = "raise"  # there are no other texts to answer
        roles = answering.roles_of_command_line(file, act)
    skips_empty = values.get("empty") == "skip"
    rows = answering.rows_of(file, roles, act, values, skips_empty=skips_empty)
    answers = answering.answer_rows(predictor, act, rows, options, roles=roles, errors=errors)
    counts = Counter[str]()
    counted = answering.count_rows(answers, counts)
    # What the column of a table is called, where an answer is an array.
    array_name = {"embed": "embedding"}.get(act, act)
    if out is not None:
        write_answers(out, file, counted, array_name)
        print(f"{count_noun(counts['row'], 'row')}: {out}")
    else:
        is_json = "json" in args.flags or act in ARRAY_ACTS
        print_answers(file, counted, array_name, is_json=is_json)


def _output_file(values: Mapping[str, str]) -> Path | None:
    """What output= names; ValueError where that is the file that is read. None without it."""
    if "output" not in values:
        return None
    out = answering.parse_output("output", values["output"])
    source = values.get("input", "-")
    if out.exists() and source != "-" and out.samefile(source):
        raise ValueError(f"output={out} is the input: its answers would replace it")
    return out
