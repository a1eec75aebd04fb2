"""A model in a folder that other programs load, with its card.

torch is imported by what needs it: a mistake in the arguments need not wait for it.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from clozelab.files.public import HUB_NAME
from clozelab.models.locate import ADAPTER, find_model, is_adapter
from clozelab.runs.find import find_record, is_unfinished
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Record
from clozelab.text.plain import read_json

log = logging.getLogger(__name__)
FORMATS = ("transformers", "onnx", "sentence_transformers", "peft")


def export_model(name: str, to: Path | None, values: Mapping[str, str]) -> Path:
    """Write one model by the verb's `values`; returns its folder."""
    path = Path(name)
    form = values.get("format", FORMATS[0])
    if form == "peft":
        return copy_adapter(path, required(to))
    if is_adapter(path):
        return merge_adapter(path, required(to), values)
    record = find_record(path)
    is_checkpoint = values.get("checkpoint") == "true" or is_unfinished(path, record)
    if is_checkpoint and "dtype" in values:
        raise ValueError(f"dtype is for finished runs; {name} would be read off a checkpoint")
    # A finished model is read. A run on its way is written out from its newest checkpoint,
    # which is all that is asked for where the form is transformers' own.
    if is_checkpoint:
        from clozelab.assembly.recorded import export_checkpoint  # torch: a mistake need not wait

        if form == "transformers":
            return export_checkpoint(path.resolve(), to)
        source = export_checkpoint(path.resolve(), None)
    else:
        source = find_model(name, from_hub=values.get("hub") == "true")
    if "base" in values:
        raise ValueError(f"base= is for a folder of peft's, and {name} is none: leave it out")
    # A folder may be called so, too.
    origin = name if HUB_NAME.fullmatch(name) and not path.exists() else None
    return write_model_of(source, required(to), record, values, origin)


def write_model_of(
    source: Path,
    to: Path,
    record: Record | None,
    values: Mapping[str, str],
    origin: str | None = None,
) -> Path:
    """Write the model of a folder as the verb's `values` say; returns where it is.

    `origin`: NAME@COMMIT of one that was fetched from the hub.
    """
    from clozelab.modules.exporting import model_to_export, write
    from clozelab.modules.model import read_model
    from clozelab.report.model_card import model_card

    form = values.get("format", FORMATS[0])
    has_head = values.get("head") != "false" and form != "sentence_transformers"
    pooling = values.get("pooling", "auto")
    dtype = values.get("dtype", "float32")
    model = model_to_export(read_model(source), has_head=has_head, form=form)
    card = model_card(model, record, to.name, form, dtype, origin)
    write(to, model, card, form=form, pooling=pooling, has_head=has_head, dtype=dtype)
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
            f"{run} has no adapter/: format=peft is for a complete run with adaptation=lora, whose"
            " log.txt says so where peft cannot have its update"
        )
    shutil.copytree(adapter, to)
    return to.resolve()


def merge_adapter(adapter: Path, to: Path, values: Mapping[str, str]) -> Path:
    """Merge a folder of peft's into its base, and write that model; returns where it is."""
    from clozelab.models.peft_folders import read_about
    from clozelab.modules.exporting import write_merged

    of_peft = read_json(adapter / ADAPTER)
    base = find_model(values.get("base", str(of_peft["base_model_name_or_path"])))
    about = read_about(adapter)
    expected = about.get("base_fingerprint")
    # Whoever names a base may take another one.
    if "base" not in values and expected and encoder_fingerprint(base) != expected:
        raise ValueError(
            f"{base} is not the model that {adapter} was trained on, though it has its name: say"
            " which one is, base=FOLDER"
        )
    if of_peft.get("task_type") == "SEQ_CLS" and not about.get("config"):
        log.warning(
            "%s does not record the names of its classes, nor whether several may be right: write"
            " id2label, and problem_type of several, into config.json of %s",
            adapter,
            to,
        )
    with tempfile.TemporaryDirectory() as temporary:
        has_head = values.get("head") != "false"
        merged = write_merged(adapter, base, Path(temporary), has_head=has_head)
        return write_model_of(merged, to, None, values)
