"""The card (README.md) of an exported model, in Hugging Face's terms.

What nobody can know stands there to be filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clozelab.modules.model_tasks import meaning_of
from clozelab.runs.record import Record, read_record
from clozelab.text.plain import PlainDict

if TYPE_CHECKING:
    from clozelab.modules.model import Model


ABSOLUTE_PATH = re.compile(r"(?<![\w.-])~?/")
"""Where an absolute path begins."""
NOT_RECORDED = "Not recorded: no run of clozelab made this model."


def model_card(
    model: Model,
    record: Record | None,
    name: str,
    form: str,
    dtype: str,
    origin: str | None,
) -> str:
    """The text of a model's card; without a record it tells what the model's folder knows.

    `origin`: where on the hub it came from.
    """
    from clozelab.report.page import templates

    library = "transformers"
    if form == "sentence_transformers":
        library = "sentence-transformers"
    context: PlainDict = {"name": name, "model": model, "record": record}
    context |= {"library": library, "pipeline": _pipeline(model, form)}
    context["encoder"] = model.encoder.config
    context["num_parameters"] = sum(weight.numel() for weight in model.encoder.parameters())
    context["provenance"] = model.provenance
    has_pooler = any(True for _ in model.encoder.pooler.parameters())
    context["lacks_pooler"] = has_pooler and "pooler" in model.untrained
    context["is_cut"] = model.task not in ("spans", "tags", "word_regression")
    context["dtype"] = dtype
    context["origin"] = origin
    # Of these transformers has no class.
    has_foreign_head = "bilstm" in model.heads or "feature_mix" in model.heads
    is_foreign_type = str(model.config.get("model_type")).startswith("clozelab_")
    context["is_foreign"] = has_foreign_head or is_foreign_type
    context["not_recorded"] = NOT_RECORDED
    if record is not None:
        context |= _describe_run(record)
    return templates().get_template("model_card.md.j2").render(context) + "\n"


def _pipeline(model: Model, form: str) -> str | None:
    """Hugging Face's name of what the model does, if it has one."""
    # Transformers fills no masks with an XLNet.
    if model.task is None and "lm" in model.heads and not model.tokenizer.cls_is_last:
        if model.encoder.config.is_causal:
            return "text-generation"
        return "fill-mask"
    if form == "sentence_transformers":
        return "sentence-similarity"
    return meaning_of(model.task).pipeline


def _describe_run(record: Record) -> PlainDict:
    """What the card's template needs of a run besides its record."""
    config = record.config
    optimizer = config.get("optimizer") or {}
    command = ""
    if record.config_name:
        command = " ".join(["clozelab", *map(without_path, record.argv)])
    return {
        "config": config,
        "learning_rate": record.learning_rate or optimizer.get("learning_rate"),
        "versions": list(_versions(record)),
        "command": command,
        "scores": list(_scores(record)),
    }


def _versions(record: Record) -> Iterator[str]:
    for name in ("clozelab", "torch"):
        if name in record.versions:
            yield f"{name} {record.versions[name]}"
    if record.git:
        changes = ""
        if record.git.dirty:
            changes = " with changes"
        yield f"commit {record.git.commit}{changes}"


def without_path(argument: str) -> str:
    """An argument of a command line without a path on this machine, for a card may be published.

    A path becomes its key in capitals: `encoder=/home/me/bert` is `encoder=ENCODER`.
    """
    # `to=/home/me/x` has its path behind the key, `/home/me/x` alone has none.
    key = ""
    value = argument
    if not argument.startswith(("/", "~")):
        key, _, value = argument.partition("=")
    if not ABSOLUTE_PATH.search(value):
        return argument
    if not key:
        return "FOLDER"
    return f"{key}={key.rpartition('.')[2].upper()}"


def _scores(record: Record) -> Iterator[dict[str, str]]:
    """Each score with its unit, and the mean and interval of the seeds beside the run."""
    from claims.analysis.statistics import estimate
    from clozelab.results.adhoc import have_one_given_encoder

    # Intervals are over all seeds, not over this model's figure.
    replicates = _replicates(record)
    for key, value in record.values.items():
        unit = record.scores[key].unit.replace("percent", "%")
        of_seeds = {}
        for run in replicates:
            if key in run.values:
                of_seeds[run.pretrain_seed, run.seed] = run.values[key]
        mean = estimate(of_seeds, of_one_encoder=have_one_given_encoder(replicates))
        seeds = "one seed: no interval"
        if mean.low is not None and mean.high is not None:
            seeds = (
                f"{mean.mean:.2f} ({mean.low:.2f} to {mean.high:.2f}), {mean.count} {mean.basis}"
            )
        majority = ""
        if record.scores[key].majority is not None:
            majority = f"{record.scores[key].majority:.2f} {unit}"
        yield {
            "name": record.score_name(key),
            "figure": f"{value:.2f} {unit}".rstrip(),
            "seeds": seeds,
            "majority": majority,
        }


def _replicates(record: Record) -> list[Record]:
    """The run, and the complete ones of its other seeds that lie beside it, of equal settings.

    Pre-trainings lie in ARM/seed-N, fine-tunings in ROW/pretrain-seed-M/TASK/seed-N.
    """
    from clozelab.results.evidence import settings

    folder = record.folder.resolve()
    paths = folder.parent.glob("seed-*")
    if record.stage == "finetune":
        # ROW/pretrain-seed-1/TASK/seed-2: seeds stand at two levels.
        # min: a run's folder may lie less deep, with run_dir=.
        above = folder.parents[min(2, len(folder.parents) - 1)]
        paths = above.glob(f"pretrain-seed-*/{folder.parent.name}/seed-*")
    replicates = [record]
    for path in paths:
        run = read_record(path)
        if run is None or not run.is_complete:
            continue
        is_alike = (run.name, run.task) == (record.name, record.task)
        if is_alike and settings(run) == settings(record):
            replicates.append(run)
    return replicates
