"""`clozelab export`: a run's model, or anybody's, in a folder that other programs load."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from clozelab.files.atomic import refuse_to_replace
from clozelab.models.locate import ADAPTER, find_model, is_adapter
from clozelab.runs.find import find_record, is_unfinished
from clozelab.runs.record import Record, read_record
from clozelab.terminal import SWITCH, ParsedArgs, verb
from clozelab.text.plain import read_json

FORMATS = ("transformers", "onnx", "sentence_transformers", "peft")
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


def export_model(
    name: str, to: Path | None, values: Mapping[str, str], files: Mapping[str, str | bytes]
) -> Path:
    """Write one model by the verb's `values`, with what order_files made; returns its folder."""
    path = Path(name)
    form = values.get("format", FORMATS[0])
    if form == "peft":
        return copy_adapter(path, required(to))
    if is_adapter(path):
        return merge_adapter(path, required(to), values)
    if "base" in values:
        raise ValueError(f"base= is for a folder of peft's, and {name} is none: leave it out")
    record = find_record(path)
    is_checkpoint = values.get("checkpoint") == "true" or is_unfinished(path, record)
    if is_checkpoint and ("dtype" in values or values.get("batch_order") == "true"):
        raise ValueError(
            f"dtype and batch_order are for finished runs; {name} would be read off a checkpoint"
        )
    # A finished model is read. A run on its way is written out from its newest checkpoint,
    # which is all that is asked for where the form is transformers' own.
    if is_checkpoint:
        from clozelab.assembly.recorded import export_checkpoint  # torch: a mistake need not wait

        if form == "transformers":
            return export_checkpoint(path.resolve(), to)
        source = export_checkpoint(path.resolve(), None)
    else:
        source = find_model(name, from_hub=values.get("hub") == "true")
    return write_model_of(source, required(to), record, values, files)


def write_model_of(
    source: Path,
    to: Path,
    record: Record | None,
    values: Mapping[str, str],
    files: Mapping[str, str | bytes],
) -> Path:
    """Write the model of a folder as the verb's `values` say; returns where it is."""
    from clozelab.modules.exporting import model_to_export, write
    from clozelab.modules.model import read_model
    from clozelab.report.model_card import model_card

    form = values.get("format", FORMATS[0])
    has_head = values.get("head") != "false" and form != "sentence_transformers"
    pooling = values.get("pooling", "auto")
    dtype = values.get("dtype", "float32")
    model = model_to_export(read_model(source), has_head=has_head, form=form)
    files = {**files, "README.md": model_card(model, record, to.name, form, dtype)}
    write(to, model, files, form=form, pooling=pooling, has_head=has_head, dtype=dtype)
    return to.resolve()


def required(to: Path | None) -> Path:
    """The folder that was given; ValueError for none."""
    if to is None:
        raise ValueError("export: say where the model goes, to=FOLDER")
    return to


def copy_adapter(run: Path, to: Path) -> Path:
    """Copy what a run with adaptation=lora has trained; returns where it is."""
    adapter = run / "adapter"
    if not is_adapter(adapter):
        raise ValueError(
            f"{run} has no adapter/: format=peft is for a complete run with adaptation=lora"
        )
    shutil.copytree(adapter, to)
    return to.resolve()


def merge_adapter(adapter: Path, to: Path, values: Mapping[str, str]) -> Path:
    """Merge a folder of peft's into its base, and write that model; returns where it is."""
    from clozelab.modules.exporting import write_merged

    with tempfile.TemporaryDirectory() as temporary:
        base = values.get("base") or str(read_json(adapter / ADAPTER)["base_model_name_or_path"])
        merged = write_merged(adapter, find_model(base), Path(temporary))
        return write_model_of(merged, to, None, values, {})


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
