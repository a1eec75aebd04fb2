"""`clozelab export`: a run's model, or anybody's, in a folder that other programs load.

The encoder of an unfinished pre-training comes from its checkpoint, which holds whole weights
whatever the strategy: FSDP gathers its shards to save it. So one process on a CPU is enough, on any
machine that has the run's corpus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.files.origin import RUN_FILE
from clozelab.models.locate import find_model
from clozelab.runs.record import Record, read_record
from clozelab.terminal import SWITCH, ParsedArgs, verb
from clozelab.text.plain import JsonObject

if TYPE_CHECKING:
    from clozelab.modules.model import Model

FORMATS = ("transformers", "onnx", "sentence_transformers")
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
        [format=transformers|onnx|sentence_transformers] [head=false]
        [dtype=float16] [batch_order=true]

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


@verb("export", HELP, names=(1, None), keys=("to",), choices=CHOICES)
def main(args: ParsedArgs) -> int:
    """Write the folder, or one of each model, and print where it is; returns the exit status."""
    to = None
    if "to" in args.values:
        to = Path(args.values["to"])
        refuse_to_replace(to)
    check_choices(args.values)
    folders: dict[str, Path | None] = {args.names[0]: to}
    if len(args.names) > 1:
        folders = {**folders_below(to, args.names)}
    # Whatever is wrong with one of them is said before the first is written.
    files = {name: order_files(name, args.values) for name in folders}
    for name, folder in folders.items():
        print(export_model(name, folder, args.values, files[name]))
    return 0


def check_choices(values: Mapping[str, str]) -> None:
    """ValueError for choices that do not go together."""
    if "dtype" in values and values.get("format") == "onnx":
        raise ValueError("dtype and format=onnx do not go together: onnx/model.onnx is in float32")


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
    name: str, to: Path | None, values: Mapping[str, str], files: Mapping[str, bytes]
) -> Path:
    """Write one model by the verb's `values`, with what order_files made; returns its folder."""
    path = Path(name)
    form = values.get("format", FORMATS[0])
    record = find_record(path)
    is_checkpoint = values.get("checkpoint") == "true" or is_unfinished(path, record)
    if is_checkpoint and ("dtype" in values or values.get("batch_order") == "true"):
        raise ValueError(
            f"dtype and batch_order are for finished runs; {name} would be read off a checkpoint"
        )
    # A finished model is read. A run on its way is written out from its newest checkpoint,
    # which is all that is asked for where the form is transformers' own.
    if not is_checkpoint:
        source = find_model(name, from_hub=values.get("hub") == "true")
    elif form != "transformers":
        source = export_checkpoint(path.resolve(), None)
    else:
        return export_checkpoint(path.resolve(), to)
    if to is None:
        raise ValueError("export: say where the model goes, to=FOLDER")
    # torch takes seconds, which --help and a wrong name need not wait
    from clozelab.modules.model import read_model

    has_head = values.get("head") != "false" and form != "sentence_transformers"
    pooling = values.get("pooling", "auto")
    dtype = values.get("dtype", "float32")
    model = read_model(source)
    write(to, model, record, files, form=form, pooling=pooling, has_head=has_head, dtype=dtype)
    return to.resolve()


def order_files(name: str, values: Mapping[str, str]) -> dict[str, bytes]:
    """The file of a run's batches where it is asked for.

    ValueError where no whole pre-training run has made the model.
    """
    if values.get("batch_order") != "true":
        return {}
    from clozelab.stages.batch_order import FILE, batch_order

    record = read_record(Path(name))
    if record is None:
        raise ValueError(f"{name} is no run's folder: only that knows the order of its batches")
    return {FILE: batch_order(record)}


def find_record(path: Path) -> Record | None:
    """The record of the run that a model's path is, or lies in (RUN/encoder)."""
    # RUN, or RUN/encoder and RUN/model.
    for folder in (path, path.parent):
        if folder.is_dir():
            record = read_record(folder)
            if record is not None:
                return record
    return None


def is_unfinished(path: Path, record: Record | None) -> bool:
    """Whether a path is a pre-training run without an encoder's folder."""
    if record is None or record.stage != "pretrain":
        return False
    return not (record.folder / "encoder").is_dir() and (path / RUN_FILE).is_file()


def refuse_to_replace(to: Path) -> None:
    """ValueError for a file, or a folder that holds anything: what it holds would be gone."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"{to} is there; remove it, or give to= another name")


def write(
    to: Path,
    model: Model,
    record: Record | None,
    further_files: Mapping[str, bytes],
    *,
    form: str,
    pooling: str,
    has_head: bool,
    dtype: str,
) -> None:
    """Write a model's folder in one of FORMATS; `further_files` go along, name -> content."""
    from clozelab.modules.model import PROBLEM_TYPES, has_pooler, write_model
    from clozelab.modules.onnx import to_onnx
    from clozelab.modules.sentence_folders import activation_keys, files_beside
    from clozelab.stages.model_card import model_card

    provenance = model.provenance
    extra_config: JsonObject = {"clozelab": provenance, **activation_keys(model.folder)}
    if has_head:
        require_trained_heads(model)
        if "task" in provenance:
            extra_config["finetuning_task"] = provenance["task"]
    else:
        model = without_heads(model)
    # Name in the folder -> content, of what is no weight, configuration or tokenizer.
    files: dict[str, str | bytes] = {"README.md": model_card(model, record, to.name, form, dtype)}
    files |= further_files
    if form == "onnx":
        files["onnx/model.onnx"] = to_onnx(model)
    if form == "sentence_transformers":
        files |= sentence_transformers_files(model, pooling)
    else:
        files |= files_beside(model.folder)
    heads = dict(model.heads)
    problem_type = PROBLEM_TYPES.get(model.task or "")
    with_pooler = has_pooler(model)
    write_model(
        to,
        model.encoder,
        heads,
        model.tokenizer,
        labels=model.labels,
        problem_type=problem_type,
        max_length=model.max_length,
        with_pooler=with_pooler,
        extra_config=extra_config,
        extra_files=files,
        dtype=dtype,
    )


def require_trained_heads(model: Model) -> None:
    """ValueError for a head that has no weights, or is not ours; a pooler may lack them."""
    from clozelab.models.folders import refuse_foreign

    if model.task:
        refuse_foreign(model.foreign, model.folder)
    for kind in model.untrained:
        if kind != "pooler":
            raise ValueError(
                f"{model.folder} has no weights for its {kind} head, so a program would make them"
                " up: train it (clozelab finetune), or say head=false"
            )


def without_heads(model: Model) -> Model:
    """The encoder alone, as a model of its own architecture."""
    from torch import nn

    from clozelab.models.registry import family_for
    from clozelab.modules.model import has_pooler

    config = model.encoder.config
    # Not every model has trained a pooler: a masked one without a pair objective has not.
    untrained: tuple[str, ...] = ("pooler",)
    if has_pooler(model):
        untrained = ()
    return replace(
        model,
        heads=nn.ModuleDict(),
        task=None,
        labels=(),
        architecture=family_for(config).architecture((), config.is_causal),
        untrained=untrained,
    )


def sentence_transformers_files(model: Model, pooling: str) -> dict[str, str]:
    """What that library reads beside the encoder; `auto` is as the model's vectors are made."""
    from clozelab.modules.model import sentence_vectors
    from clozelab.modules.sentence_folders import SentenceVectors, sentence_files

    vectors = SentenceVectors(pooling)
    if pooling == "auto":
        vectors = sentence_vectors(model.folder)
    files = sentence_files(vectors, model.encoder.config, model.max_length)
    if not files:
        raise ValueError(
            "pooling=cls: sentence-transformers reads the first token: a causal encoder's sees only"
            " itself, and an XLNet's text ends with [CLS]; choose mean"
        )
    return files


def export_checkpoint(run: Path, to: Path | None) -> Path:
    """Write the encoder of a run's newest checkpoint; returns its folder.

    That is RUN/encoders/step-N unless `to` is given. ValueError where the run has no checkpoint of
    its own.
    """
    from clozelab.stages import factory, pretrain
    from clozelab.training.callbacks import SameConfig
    from clozelab.training.checkpoints import load_file, newest_whole
    from clozelab.training.trainer import Hardware

    record = read_record(run)
    checkpoint_path = newest_whole(run / "checkpoints", put_aside=False)
    if record is None or record.stage != "pretrain" or checkpoint_path is None:
        raise ValueError(
            f"{run} is no pre-training run with a checkpoint; a complete one has its encoder/"
            " already"
        )
    checkpoint = load_file(checkpoint_path)
    if checkpoint[SameConfig.KEY] != record.fingerprint:
        raise ValueError(f"{checkpoint_path} is of another run than the run.json above it")
    with factory.recompose_config(record) as composed:
        cfg = composed.config
        objectives = pretrain.build_objectives(cfg)
        corpus = pretrain.recorded_corpus(cfg, record)
        # Whatever it was trained on, this process only loads and writes.
        hardware = Hardware("cpu", 1, 1, "auto", "32-true")
        module = pretrain.build_module(cfg, hardware, corpus, objectives, total_steps=1)
        tokenizer = pretrain.encoder_tokenizer(cfg, corpus, objectives)
    module.load_state_dict(checkpoint["state_dict"])
    step = int(checkpoint["global_step"])
    folder = run / "encoders" / f"step-{step}"
    if to is not None:
        folder = to.resolve()
    provenance = pretrain.encoder_provenance(cfg, record, corpus, step=step)
    module.save_encoder(folder, tokenizer.files(), provenance, cfg.encoder_dtype)
    return folder
