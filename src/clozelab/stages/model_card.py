"""The card (README.md) of an exported model, in Hugging Face's terms.

What nobody can know stands there to be filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clozelab.modules.model import Model
    from clozelab.runs.record import Record

ABSOLUTE_PATH = re.compile(r"(?<![\w.-])~?/")
"""Where an absolute path begins."""
PIPELINES = {
    "classification": "text-classification",
    "multi_label": "text-classification",
    "regression": "text-classification",
    "tags": "token-classification",
    "choices": "multiple-choice",
    "spans": "question-answering",
}
PHASE = "- {steps:,} steps of {global_batch_size} sequences of {seq_length} tokens"
NOT_RECORDED = "Not recorded: no run of clozelab made this model."


def model_card(model: Model, record: Record | None, name: str, form: str) -> str:
    """The text of a model's card; without a record it tells what the model's folder knows."""
    config = model.encoder.config
    library = "transformers"
    if form == "sentence_transformers":
        library = "sentence-transformers"
    num_parameters = sum(parameter.numel() for parameter in model.encoder.parameters())
    sizes = (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, vocabulary"
        f" {config.vocab_size:,}, {num_parameters:,} parameters in the encoder"
    )
    lines = [
        "---",
        # YAML, which the hub reads
        "license: FILL IN",
        f"library_name: {library}",
        f"pipeline_tag: {_pipeline(model, form)}",
        "---",
        "",
        f"# {name}",
        "",
        f"- Architecture: {model.architecture}; {sizes}",
        f"- Longest sequence: {model.max_length} tokens",
    ]
    if model.labels:
        lines.append(f"- Labels: {', '.join(model.labels)}")
    for title, content in _sections(model, record).items():
        lines += ["", f"## {title}", "", *(content or [NOT_RECORDED])]
    lines += ["", "## License", "", "FILL IN: of the weights, and of the data behind them.", ""]
    return "\n".join(lines)


def _pipeline(model: Model, form: str) -> str:
    """Hugging Face's name of what the model does."""
    # Transformers fills no masks with an XLNet.
    if model.task is None and "lm" in model.heads and not model.tokenizer.cls_is_last:
        if model.encoder.config.is_causal:
            return "text-generation"
        return "fill-mask"
    if form == "sentence_transformers":
        return "sentence-similarity"
    return PIPELINES.get(model.task or "", "feature-extraction")


def _sections(model: Model, record: Record | None) -> dict[str, list[str]]:
    """Title -> lines, none where nothing is recorded."""
    recipe = _pretraining_recipe(model)
    sections = {"Data": [], "Recipe": recipe, "Scores": [], "Cost": []}
    if record is not None:
        sections = {
            "Data": _data(record),
            "Recipe": recipe + _recipe(record),
            "Scores": _scores(record),
            "Cost": _cost(record),
        }
    sections["Limits"] = _limits(model)
    return sections


def _pretraining_recipe(model: Model) -> list[str]:
    """What the model's folder remembers of its encoder's pre-training."""
    provenance = model.config.get("clozelab", {})
    lines = []
    if "arm" in provenance:
        lines.append(f"- Pre-training: arm {provenance['arm']}, seed {provenance['seed']}")
    for phase in provenance.get("phases", ()):
        lines.append(PHASE.format(**phase))
    return lines


def _data(record: Record) -> list[str]:
    lines = []
    corpus = record.config.get("corpus") or {}
    task = record.config.get("task") or {}
    if corpus:
        lines.append(f"- Corpus: {corpus['name']}")
    if task:
        lines.append(f"- Task: {record.title}")
    if task.get("stand_in_for"):
        lines.append(f"- A stand-in for {task['stand_in_for']}, and not that data set")
    if record.synthetic:
        lines.append(f"- Generated text (`{record.synthetic}`), no natural language")
    for key, checksum in record.inputs.items():
        lines.append(f"- Checksum of {key}: `{checksum[:16]}`")
    return lines


def _recipe(record: Record) -> list[str]:
    config = record.config
    lines = []
    optimizer = config.get("optimizer") or {}
    learning_rate = record.learning_rate or optimizer.get("learning_rate")
    if learning_rate:
        lines.append(f"- Learning rate {learning_rate:g}")
    if "epochs" in config:
        lines.append(f"- {config['epochs']:g} epochs, batches of {config['global_batch_size']}")
    if "row" in config:
        lines.append(f"- Seeds: pre-training {record.pretrain_seed}, fine-tuning {record.seed}")
    else:
        lines.append(f"- Seeds: {record.seed}")
    lines.append(f"- Precision: {record.facts.get('precision', 'not recorded')}")
    lines.append(f"- Made with {', '.join(_versions(record))}")
    if record.config_name:
        command = " ".join(["clozelab", *map(without_path, record.words)])
        lines += ["", "```", command, "```"]
    return lines


def _versions(record: Record) -> Iterator[str]:
    for name in ("clozelab", "torch"):
        if name in record.versions:
            yield f"{name} {record.versions[name]}"
    if record.git:
        changes = ""
        if record.git.dirty:
            changes = " with changes"
        yield f"commit {record.git.commit}{changes}"


def without_path(word: str) -> str:
    """A word of a command line without a path on this machine, for a card may be published.

    A path becomes its key in capitals: `encoder=/home/me/bert` is `encoder=ENCODER`.
    """
    # `to=/home/me/x` has its path behind the key, `/home/me/x` alone has none.
    key = ""
    value = word
    if not word.startswith(("/", "~")):
        key, _, value = word.partition("=")
    if not ABSOLUTE_PATH.search(value):
        return word
    if not key:
        return "FOLDER"
    return f"{key}={key.rpartition('.')[2].upper()}"


def _cost(record: Record) -> list[str]:
    machine = record.host.get("gpus") or [str(record.host.get("cpu"))]
    lines = [f"- {record.seconds / 3600:.2f} hours on {', '.join(machine)}"]
    if "tokens" in record.facts:
        lines.append(f"- {record.facts['tokens']:,} tokens")
    if "flops" in record.facts:
        lines.append(f"- {record.facts['flops']:.3g} floating-point operations")
    return lines


def _scores(record: Record) -> list[str]:
    """A table: each score with its unit, and the mean and interval of the seeds beside the run."""
    from clozelab.analysis.statistics import estimate

    # Intervals are over all seeds, not over this model's figure.
    replicates = _replicates(record)
    lines = [
        "| score | this model | all seeds, 95 % interval | most frequent answer |",
        "|---|---|---|---|",
    ]
    for key, value in record.values.items():
        unit = record.scores[key].unit.replace("percent", "%")
        of_seeds = {}
        for run in replicates:
            if key in run.values:
                of_seeds[run.pretrain_seed, run.seed] = run.values[key]
        mean = estimate(of_seeds)
        seeds = "one seed: no interval"
        if mean.low is not None and mean.high is not None:
            seeds = (
                f"{mean.mean:.2f} ({mean.low:.2f} to {mean.high:.2f}), {mean.count} {mean.basis}"
            )
        majority = ""
        if record.scores[key].majority is not None:
            majority = f"{record.scores[key].majority:.2f} {unit}"
        figure = f"{value:.2f} {unit}".rstrip()
        lines.append(f"| {key.removeprefix('validation/')} | {figure} | {seeds} | {majority} |")
    if record.stage == "finetune":
        lines.append("")
        lines.append(
            "The checkpoint was chosen on the very split that is scored, so scores are slightly"
            " optimistic."
        )
    return lines


def _replicates(record: Record) -> list[Record]:
    """The run, and the complete ones of its other seeds that lie beside it.

    Pre-trainings lie in ARM/seed-N, fine-tunings in ROW/pretrain-seed-M/TASK/seed-N.
    """
    from clozelab.runs.record import read_record

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
        if (run.name, run.task) == (record.name, record.task):
            replicates.append(run)
    return replicates


def _limits(model: Model) -> list[str]:
    lines = [f"- Positions beyond {model.max_length} tokens were not trained."]
    if model.encoder.config.num_directions == 2:
        lines.append("- The encoder is two causal ones: each token has its left and its right.")
    elif model.encoder.config.is_causal:
        lines.append("- The encoder is causal: a token sees itself and what stands before it.")
    model_type = str(model.config.get("model_type"))
    has_foreign_head = "bilstm" in model.heads or "feature_mix" in model.heads
    if has_foreign_head or model_type.startswith("clozelab_"):
        lines.append(
            "- `transformers` has no class for it and refuses to load it;"
            " `clozelab.modules.model.read_model(FOLDER)` loads it."
        )
    lines.append(
        "- It was not examined for bias or for safety. Say here what it is not to be used for."
    )
    return lines
