"""`clozelab export`: a run's model, or anybody's, in a folder that other programs load, with a card
of its making.

The encoder of an unfinished pre-training comes from its checkpoint, which holds whole weights
whatever the strategy: FSDP gathers its shards to save it. So one process on a CPU is enough, on any
machine that has the run's corpus.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.corpus.files import file_sha256
from clozelab.terminal import Words, verb

if TYPE_CHECKING:
    from clozelab.modules.model import Model
    from clozelab.runs.record import Record

FORMATS = ("transformers", "onnx", "sentence_transformers")
SWITCHES = ("head", "checkpoint", "hub", "yes")
HELP = """clozelab export MODEL [to=FOLDER] [format=transformers|onnx|sentence_transformers] [head=false] [push=NAME]

Writes a model for use elsewhere: config.json, model.safetensors, the tokenizer's files, and a card (README.md) with
data, recipe, seeds, scores, cost and limits. MODEL is a run's folder, a folder in the Hugging Face layout, one of
Google's BERT (TensorFlow), a file of weights beside its config.json or, with hub=true, NAME@COMMIT on the hub.

  to=FOLDER                     where it goes
  format=transformers           the class of transformers that has the model's head; head=false: the encoder alone
  format=onnx                   the same, and onnx/model.onnx for any batch and length (pip install 'clozelab[export]')
  format=sentence_transformers  the encoder, and pooling=mean or pooling=cls of its last layer (as it was
                                trained, else mean)
  checkpoint=true               the encoder as the run's newest checkpoint has it, by itself and without a card, into
                                RUN/encoders/step-N unless to= says otherwise; of a run without an encoder/ always
  push=NAME [yes=true]          says what would go to the hub; yes=true uploads it, as a private repository

  clozelab export runs/adhoc/demo/pretrain/mlm/seed-1 to=my-bert
  clozelab export uncased_L-12_H-768_A-12 to=bert-base  # Google's: vocab.txt, bert_config.json, bert_model.ckpt.*"""
PLACE = re.compile(r"(?<![\w.-])~?/")  # an absolute path begins
PIPELINES = {
    "classification": "text-classification",
    "multi_label": "text-classification",
    "regression": "text-classification",
    "tags": "token-classification",
    "choices": "multiple-choice",
    "spans": "question-answering",
}


@verb(
    "export",
    HELP,
    names=(1, 1),
    keys=("to", "format", "head", "checkpoint", "hub", "pooling", "push", "yes"),
)
def main(said: Words) -> int:
    """Write the folder and print where it is."""
    form, pooling = said.values.get("format", FORMATS[0]), said.values.get("pooling", "auto")
    for key, value, known in (
        ("format", form, FORMATS),
        ("pooling", pooling, ("auto", "mean", "cls")),
        *((key, said.values.get(key, "false"), ("true", "false")) for key in SWITCHES),
    ):
        if value not in known:
            raise ValueError(f"export: {key}={value}; choose {', '.join(known)}")
    # torch takes seconds, which --help need not wait
    from clozelab.modules.model import find_model, read_model
    from clozelab.runs.record import read_record

    name, to = said.names[0], said.values.get("to")
    if to is not None:
        refuse_to_replace(Path(to))
    places = (Path(name), Path(name).parent)  # RUN, or RUN/encoder
    record = next(
        (found for place in places if place.is_dir() and (found := read_record(place))), None
    )
    is_stopped = (
        record is not None
        and record.stage == "pretrain"
        and not (record.folder / "encoder").is_dir()
    )
    if said.values.get("checkpoint") == "true" or (is_stopped and Path(name, "run.json").is_file()):
        source = unfinished(
            Path(name).resolve(), Path(to) if to and form == "transformers" else None
        )
        if form == "transformers" and "push" not in said.values:
            print(source)
            return 0
    else:
        source = find_model(name, from_hub=said.values.get("hub") == "true")
    if to is None:
        raise ValueError("export: say where the model goes, to=FOLDER")
    model = read_model(source)
    has_head = said.values.get("head") != "false" and form != "sentence_transformers"
    write(Path(to), model, record, form=form, pooling=pooling, has_head=has_head)
    print(Path(to).resolve())
    if "push" in said.values:
        push(Path(to), said.values["push"], is_meant=said.values.get("yes") == "true")
    return 0


def refuse_to_replace(to: Path) -> None:
    """ValueError for a place that holds anything but an earlier export as it was written: it would
    be gone.
    """
    if to.is_dir():
        listed = to / "checksums.json"
        written = (
            json.loads(listed.read_bytes()) | {listed.name: file_sha256(listed)}
            if listed.is_file()
            else {}
        )
        found = {
            path.relative_to(to).as_posix(): path for path in to.rglob("*") if not path.is_dir()
        }
        others = [name for name, path in found.items() if written.get(name) != file_sha256(path)]
        if others or (to.resolve().parent / "run.json").is_file():
            held = (
                f"{others[0]} is no export's, or was changed" if others else "it is a part of a run"
            )
            raise ValueError(
                f"export: {to} is there, and is no model's folder that may go ({held}); give"
                " another name"
            )
    elif to.exists():
        raise ValueError(f"export: {to} is a file; give to= another name")


def write(
    to: Path, model: Model, record: Record | None, *, form: str, pooling: str, has_head: bool
) -> None:
    """A model's folder in one of FORMATS."""
    from torch import nn

    from clozelab.modules.model import has_pooler, trained_pooling, write_model
    from clozelab.modules.onnx import to_onnx

    made = model.config.get("clozelab", {})
    extra: dict[str, Any] = {"clozelab": made} | (
        {"finetuning_task": made["task"]} if "task" in made else {}
    )
    if has_head and (lacking := [kind for kind in model.untrained if kind != "pooler"]):
        raise ValueError(
            f"{model.folder} has no weights for its {lacking[0]} head, so a program would make them"
            " up: train it (clozelab finetune), or say head=false"
        )
    if not has_head:
        alone = model.encoder.config.family.architecture((), model.encoder.config.is_causal)
        # which no head of a masked model, say, has trained
        lacks = () if has_pooler(model) else ("pooler",)
        model = replace(
            model, heads=nn.ModuleDict(), task=None, labels=(), architecture=alone, untrained=lacks
        )
        extra.pop("finetuning_task", None)
    files: dict[str, str | bytes] = {"README.md": card(model, record, to.name, form)}
    files |= {"onnx/model.onnx": to_onnx(model)} if form == "onnx" else {}
    pooling = trained_pooling(model.folder) if pooling == "auto" else pooling
    files |= sentence_transformers_files(model, pooling) if form == "sentence_transformers" else {}
    about: Any = {
        "labels": model.labels,
        "is_regression": model.task == "regression",
        "max_length": model.max_length,
    }
    about["is_multi_label"] = model.task == "multi_label"
    about |= {"with_pooler": has_pooler(model), "extra_config": extra, "extra_files": files}
    write_model(to, model.encoder, dict(model.heads), model.tokenizer, **about)


def sentence_transformers_files(model: Model, pooling: str) -> dict[str, str]:
    """What that library reads beside the encoder: the encoder's states, then one vector of them."""
    if model.encoder.config.is_causal and pooling == "cls":
        raise ValueError(
            "pooling=cls: the first token of a causal encoder sees only itself; choose mean"
        )
    package = "sentence_transformers.models"
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"}]
    modules += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"}]
    pooled: dict[str, Any] = {"word_embedding_dimension": model.encoder.config.hidden_size}
    pooled |= {
        f"pooling_mode_{mode}": mode.startswith(pooling)
        for mode in ("cls_token", "mean_tokens", "max_tokens")
    }
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": pooled,
        "config_sentence_transformers.json": {},
    }
    files["sentence_bert_config.json"] = {
        "max_seq_length": model.max_length,
        "do_lower_case": False,
    }
    return {name: json.dumps(content, indent=2) + "\n" for name, content in files.items()}


def push(folder: Path, name: str, *, is_meant: bool) -> None:
    """Upload a folder to the hub, or say what that would be."""
    if not is_meant:
        print(
            f"would create the private repository {name} on the Hugging Face hub and upload"
            " (yes=true does it):"
        )
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            print(f"  {path.relative_to(folder)}  {path.stat().st_size:,} bytes")
        return
    import huggingface_hub

    try:
        hub = huggingface_hub.HfApi()
        hub.create_repo(name, private=True, exist_ok=True)
        print(
            hub.upload_folder(
                repo_id=name, folder_path=folder, commit_message="Upload a model of clozelab"
            )
        )
    except (
        Exception
    ) as problem:  # a foreign library's, of many kinds: no network, no token, no such name
        first = str(problem).partition("\n")[0]
        raise ValueError(
            f"{name} cannot be pushed: {first}; the folder {folder} is whole"
        ) from problem


# The card


def card(model: Model, record: Record | None, name: str, form: str) -> str:
    """README.md of the folder, in Hugging Face's terms; what nobody can know stands there to be
    filled in.
    """
    config, made = model.encoder.config, model.config.get("clozelab", {})
    library = "sentence-transformers" if form == FORMATS[2] else "transformers"
    pipeline = (
        "sentence-similarity"
        if form == FORMATS[2]
        else PIPELINES.get(model.task or "", "feature-extraction")
    )
    if model.task is None and "lm" in model.heads:
        pipeline = "text-generation" if config.is_causal else "fill-mask"
    sizes = (
        f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, vocabulary"
        f" {config.vocab_size:,}"
    )
    number = sum(parameter.numel() for parameter in model.encoder.parameters())
    phase = "- {steps:,} steps of {global_batch_size} sequences of {seq_length} tokens"
    pretraining = (
        [f"- Pre-training: arm {made['arm']}, seed {made['seed']}"] if "arm" in made else []
    )
    known = (
        {"Data": [], "Recipe": [], "Scores": [], "Cost": []}
        if record is None
        else _recorded(record)
    )
    known["Recipe"] = [
        *pretraining,
        *(phase.format(**one) for one in made.get("phases", ())),
        *known["Recipe"],
    ]
    lines = [
        "---",
        "license: FILL IN",
        f"library_name: {library}",
        f"pipeline_tag: {pipeline}",
        "---",
        "",
        f"# {name}",
    ]
    lines += [
        "",
        f"- Architecture: {model.architecture}; {sizes}, {number:,} parameters in the encoder",
    ]
    lines += [f"- Longest sequence: {model.max_length} tokens"]
    lines += [f"- Labels: {', '.join(model.labels)}"] if model.labels else []
    for title, content in {**known, "Limits": _limits(model)}.items():
        lines += [
            "",
            f"## {title}",
            "",
            *(content or ["Not recorded: no run of clozelab made this model."]),
        ]
    return "\n".join(
        [*lines, "", "## License", "", "FILL IN: of the weights, and of the data behind them.", ""]
    )


def _recorded(record: Record) -> dict[str, list[str]]:
    """What a run's record says of its model, by the card's titles."""
    config, facts, host = record.config, record.facts, record.host
    corpus, task = config.get("corpus") or {}, config.get("task") or {}
    data = [f"- Corpus: {corpus['name']}"] if corpus else []
    data += [f"- Task: {record.title}"] if task else []
    data += (
        [f"- A stand-in for {task['stand_in_for']}, and not that data set"]
        if task.get("stand_in_for")
        else []
    )
    data += (
        [f"- Generated text (`{record.synthetic}`), no natural language"]
        if record.synthetic
        else []
    )
    data += [f"- Checksum of {key}: `{value[:16]}`" for key, value in record.inputs.items()]
    seeds = (
        f"pre-training {record.pretrain_seed}, fine-tuning {record.seed}"
        if "row" in config
        else record.seed
    )
    rate = record.learning_rate or (config.get("optimizer") or {}).get("learning_rate")
    recipe = [f"- Learning rate {rate:g}"] if rate else []
    recipe += (
        [f"- {config['epochs']:g} epochs, batches of {config['global_batch_size']}"]
        if "epochs" in config
        else []
    )
    recipe += [f"- Seeds: {seeds}", f"- Precision: {facts.get('precision', 'not recorded')}"]
    made_with = [
        f"{name} {record.versions[name]}"
        for name in ("clozelab", "torch")
        if name in record.versions
    ]
    made_with += (
        [f"commit {record.git.commit}{' with changes' if record.git.dirty else ''}"]
        if record.git
        else []
    )
    recipe += [f"- Made with {', '.join(made_with)}"]
    said = " ".join(["clozelab", *map(without_path, record.words)])
    recipe += ["", "```", said, "```"] if record.config_name else []
    cost = [
        (
            f"- {record.seconds / 3600:.2f} hours on"
            f" {', '.join(host.get('gpus') or [str(host.get('cpu'))])}"
        )
    ]
    cost += [f"- {facts['tokens']:,} tokens"] if "tokens" in facts else []
    cost += [f"- {facts['flops']:.3g} floating-point operations"] if "flops" in facts else []
    return {"Data": data, "Recipe": recipe, "Scores": _scores(record), "Cost": cost}


def without_path(word: str) -> str:
    """A word of a command line; a place on this machine is its key in capitals, for a card may be
    published.
    """
    key, _, value = ("", "", word) if word[:1] in "/~" else word.partition("=")
    return (
        f"{key}={key.rpartition('.')[2].upper()}".lstrip("=") or "FOLDER"
        if PLACE.search(value)
        else word
    )


def _scores(record: Record) -> list[str]:
    """Each figure with its unit, and the mean and interval of the seeds that lie beside it."""
    from clozelab.metrics.statistics import estimate
    from clozelab.runs.record import read_record

    folder, is_finetuning = record.folder.resolve(), record.stage == "finetune"
    above = folder.parents[min(2, len(folder.parents) - 1)] if is_finetuning else folder.parent
    beside = above.glob(
        f"pretrain-seed-*/{folder.parent.name}/seed-*" if is_finetuning else "seed-*"
    )
    found = [one for one in map(read_record, beside) if one is not None and one.is_complete]
    same = [record, *(one for one in found if (one.name, one.task) == (record.name, record.task))]
    lines = [
        "| score | this model | all seeds, 95 % interval | most frequent answer |",
        "|---|---|---|---|",
    ]
    for key, value in record.values.items():
        majority, unit = (
            record.scores[key].majority,
            record.scores[key].unit.replace("percent", "%"),
        )
        cell = estimate(
            {(one.pretrain_seed, one.seed): one.values[key] for one in same if key in one.values}
        )
        seeds = "one seed: no interval"
        if cell.low is not None and cell.high is not None:
            seeds = (
                f"{cell.mean:.2f} ({cell.low:.2f} to {cell.high:.2f}), {cell.count} {cell.basis}"
            )
        usual = "" if majority is None else f"{majority:.2f} {unit}"
        lines.append(
            f"| {key.removeprefix('validation/')} | {f'{value:.2f} {unit}'.rstrip()} | {seeds} |"
            f" {usual} |"
        )
    selected = (
        "The checkpoint was chosen on the very split that is scored, so scores are slightly"
        " optimistic."
    )
    return [*lines, *(["", selected] if is_finetuning else [])]


def _limits(model: Model) -> list[str]:
    lines = [f"- Positions beyond {model.max_length} tokens were not trained."]
    if model.encoder.config.is_causal:
        lines.append("- The encoder is causal: a token sees itself and what stands before it.")
    if {"bilstm", "feature_mix"} & {*model.heads} or str(model.config.get("model_type")).startswith(
        "clozelab_"
    ):
        loader = "`clozelab.modules.model.read_model(FOLDER)` loads it"
        lines.append(f"- `transformers` has no class for it and refuses to load it; {loader}.")
    return [
        *lines,
        "- It was not examined for bias or for safety. Say here what it is not to be used for.",
    ]


# An unfinished run


def unfinished(run: Path, to: Path | None) -> Path:
    """Writes the encoder of a run's checkpoint, and says where; ValueError where the run has none
    of its own.
    """
    from omegaconf import OmegaConf

    from clozelab.runs.record import read_record
    from clozelab.stages import factory
    from clozelab.stages.prepare import prepared_corpus
    from clozelab.training.callbacks import SameConfig
    from clozelab.training.checkpoints import load_file, newest_whole
    from clozelab.training.trainer import Hardware

    record, checkpoint = read_record(run), newest_whole(run / "checkpoints", put_aside=False)
    if record is None or record.stage != "pretrain" or checkpoint is None:
        raise ValueError(
            f"{run} is no pre-training run with a checkpoint; a complete one has its encoder/"
            " already"
        )
    saved = load_file(checkpoint)
    if saved[SameConfig.KEY] != record.fingerprint:
        raise ValueError(f"{checkpoint} is of another run than the run.json above it")
    with factory.recompose_config(record) as cfg:
        plain: Any = OmegaConf.to_container(cfg, resolve=True)
        objectives, corpus = factory.build_objectives(plain), prepared_corpus(cfg)
        if corpus.fingerprint != record.inputs.get("corpus"):
            raise ValueError(
                f"{run} was trained on another corpus than is here now; put its text and settings"
                " back"
            )
        machine = Hardware("cpu", 1, 1, "auto", "32-true")
        module = factory.build_pretraining_module(cfg, machine, corpus, objectives, total_steps=1)
        tokenizer = factory.encoder_tokenizer(cfg, corpus, objectives)
    module.load_state_dict(saved["state_dict"])
    step = int(saved["global_step"])
    folder = to.resolve() if to else run / "encoders" / f"step-{step}"
    module.save_encoder(
        folder, tokenizer.files(), factory.encoder_provenance(plain, record, corpus, step=step)
    )
    return folder
