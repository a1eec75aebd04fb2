"""`clozelab export`: a run's model, or anybody's, in a folder that other programs load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clozelab.files.atomic import refuse_to_replace
from clozelab.report.model_export import FORMATS, export_model
from clozelab.runs.record import read_record
from clozelab.terminal import SWITCH, ParsedArgs, verb

CHOICES = {
    "format": FORMATS,
    "pooling": ("auto", "mean", "cls"),
    "dtype": ("float32", "float16", "bfloat16"),
    "batch_order": SWITCH,
    "head": SWITCH,
    "checkpoint": SWITCH,
    "hub": SWITCH,
}
HELP = """\
clozelab export MODEL ... [to=FOLDER]
        [format=transformers|onnx|sentence_transformers|peft] [head=false]
        [dtype=float16] [batch_order=true] [base=ENCODER]

Writes a model for use elsewhere: config.json, model.safetensors, the
tokenizer's files, and a card (README.md) with data, recipe, seeds, scores, cost
and limits. MODEL is a run's folder, a folder in the Hugging Face layout, one of
Google's BERT (TensorFlow), a file of weights beside its config.json or, with
hub=true, NAME@COMMIT on the hub. Of several runs each has a folder of its own
in to=FOLDER: ARM-seed-1 and so on.

  to=FOLDER                     where it goes
  format=transformers           the class of transformers that has the model's
                                head; head=false: the encoder alone
  format=onnx                   the same, and onnx/model.onnx for any batch and
                                length (pip install 'clozelab[export]')
  format=sentence_transformers  the encoder, and pooling=mean or pooling=cls of
                                its last layer (as it was trained, else mean)
  format=peft                   of a run with adaptation=lora: what was trained
                                alone, for PeftModel.from_pretrained
  base=ENCODER                  MODEL is a folder of peft's: merged into this
                                model (without base=, into the one it names)
  dtype=float16                 weights of half the size, for a release; or
                                bfloat16
  batch_order=true              and batch_order.safetensors: which instances each
                                step of the pre-training read
  checkpoint=true               the encoder as the run's newest checkpoint has
                                it, by itself and without a card, into
                                RUN/encoders/step-N unless to= says otherwise;
                                of a run without an encoder/ always

`hf upload NAME FOLDER --private` (of huggingface_hub) puts it on the hub.

  clozelab export runs/adhoc/demo/pretrain/mlm/seed-1 to=my-bert
  clozelab export runs/adhoc/demo/pretrain/mlm/seed-* to=release dtype=float16
  clozelab export uncased_L-12_H-768_A-12 to=bert-base  # Google's: vocab.txt,
                                                        bert_config.json,
                                                        bert_model.ckpt.*"""


@verb("export", HELP, names=(1, None), keys=("to", "base"), choices=CHOICES)
def main(args: ParsedArgs) -> int:
    """Write the folder, or one of each model, and print where it is; returns the exit status."""
    to = None
    if "to" in args.values:
        to = Path(args.values["to"])
        refuse_to_replace(to)
    if "dtype" in args.values and args.values.get("format") == "onnx":
        raise ValueError("dtype and format=onnx do not go together: onnx/model.onnx is in float32")
    folders: dict[str, Path | None] = {args.names[0]: to}
    if len(args.names) > 1:
        folders = {**folders_below(to, args.names)}
    # Whatever is wrong with one of them is said before the first is written.
    files = {name: order_files(name, args.values) for name in folders}
    for name, folder in folders.items():
        print(export_model(name, folder, args.values, files[name]))
    return 0


def folders_below(to: Path | None, names: Sequence[str]) -> dict[str, Path]:
    """The folder of each of several runs: `pretrain/mlm/seed-1` goes to `TO/mlm-seed-1`.

    ValueError for anything but complete pre-training runs.
    """
    if to is None:
        raise ValueError("export: say where the models go, to=FOLDER")
    folders = {}
    for name in names:
        record = read_record(Path(name))
        if record is None or record.stage != "pretrain" or not record.is_complete:
            raise ValueError(
                f"{name} is no complete pre-training run: several models are exported at once"
                " where all are"
            )
        folders[name] = to / f"{record.name}-seed-{record.seed}"
    if len(set(folders.values())) < len(names):
        raise ValueError("two of the runs are of one arm and seed: export them one by one")
    return folders


def order_files(name: str, values: Mapping[str, str]) -> dict[str, bytes]:
    """The file of a run's batches where it is asked for.

    ValueError where no whole pre-training run has made the model.
    """
    if values.get("batch_order") != "true":
        return {}
    from clozelab.assembly.recorded import FILE, batch_order

    record = read_record(Path(name))
    if record is None:
        raise ValueError(f"{name} is no run's folder: only a run has the order of its batches")
    return {FILE: batch_order(record)}
