"""The verbs of the command line, and what their help says.

A help text is read from files, in half a second, with nothing heavy imported.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from clozelab.text.formatting import fitted
from clozelab.text.paths import CONF_DIR, CONFIG_DIR_OPTIONS

HYDRA_VERBS = {
    "prepare": "text to vocabulary and token shards",
    "pretrain": "one encoder from a corpus (-m: a sweep)",
    "finetune": "one encoder on one task, scored and kept (-m: a sweep)",
    "evaluate": "an encoder or a model, measured without training (-m: a sweep)",
}
MAKE_VERBS = {
    "reproduce": "a whole experiment, from text to a judged table",
    "plan": "jobs, hours, disk and detectable differences, before any run",
    "doctor": "what is wrong with a machine or an experiment, before training",
    "inspect": "a corpus: lengths, documents, instances as a model reads them",
}
JUDGE_VERBS = {
    "report": "an experiment from its runs: table, verdicts, plots",
    "judge": "claims against a CSV of scores that were made anywhere",
    "register": "claims, arms and seeds, frozen with a date before the first run",
    "curves": "is a pre-training's loss usual? its band of published runs",
    "compare": "what differs between two runs, and what they score",
    "record": "is a row the best yet for one text, budget and kind of machine?",
    "verify": "part of a run trained again and compared; a pack checked",
}
USE_VERBS = {
    "predict": "masks, classes, answers, tags, embeddings, scores of texts",
    "search": "the lines of a file that are most like a text",
    "export": "a model for transformers, ONNX or sentence-transformers",
    "explain": "which tokens an answer rests on, as a page or a picture",
    "serve": "a model behind an HTTP endpoint of this machine",
    "vocabulary": "more words, or another tokenizer, for a model",
    "submit": "the submission zip of a benchmark",
}
UPKEEP_VERBS = {
    "list": "experiments, architectures, corpora",
    "status": "what runs now, how far it is, what failed and why",
    "runs": "every run folder: status, score, time",
    "pack": "runs in one small file",
    "pool": "the runs of several packs in one table",
    "track": "the missing metrics of a run, sent to a tracker",
    "gc": "files that could be deleted: checkpoints, leftovers, cache",
    "completion": "a script for Tab in bash and zsh: verbs, groups, keys",
}
VERBS_OF_EXPERIMENTS = (
    "reproduce",
    "register",
    "report",
    "doctor",
    "plan",
    "pack",
    "submit",
)
"""Those that open an experiment by its name, which may have inputs."""
PLAIN_VERBS = MAKE_VERBS | JUDGE_VERBS | USE_VERBS | UPKEEP_VERBS
"""Those that compose no configuration; each is `main` in the module of its name in stages/."""
HEADINGS = {
    "Make": HYDRA_VERBS | MAKE_VERBS,
    "Judge": JUDGE_VERBS,
    "Use a model": USE_VERBS,
    "Look after runs": UPKEEP_VERBS,
}
"""Of the help: the verbs that a newcomer needs stand first."""
HYDRA_HELP = {
    "prepare": (
        """\
Cleans and splits text, learns or takes a vocabulary, and writes token shards
into the cache; what is there already is not made again. The other verbs
prepare the corpus they need by themselves. A killed preparation goes on where
it was.

  --dry-run             says how much text there is, and what time and disk it
                        would take; nothing is written
  corpus.steps=[clean]  what becomes of documents first (docs/corpora.md)
  corpus.workers=N      processes at work; one a core without it

  clozelab prepare corpus=microworld   # the embedded world, and its tasks
  clozelab prepare scale=own text=FOLDER   # your own text: folder, file or glob"""
    ),
    "pretrain": (
        """\
Trains one encoder on a prepared corpus and leaves it in RUN_DIR/encoder, in the
Hugging Face layout. The same command goes on with a run that was stopped, and
skips one that is complete.

  clozelab pretrain scale=demo objective=mlm seed=2
  clozelab pretrain scale=own text=FOLDER   # your own: folder, file or glob
  clozelab pretrain -m objective=mlm,ltr seed=1,2   # a sweep"""
    ),
    "finetune": (
        """\
Fine-tunes one encoder on one task, and keeps its official scores and every
prediction (scores.json, predictions.*).

  clozelab finetune encoder=FOLDER row=NAME task=mrpc
  clozelab finetune -m encoder=FOLDER row=NAME task=mrpc,rte seed=1,2"""
    ),
    "evaluate": (
        """\
Measures one encoder, or one fine-tuned model, without training it, and keeps
scores and predictions.

  clozelab evaluate encoder=FOLDER row=NAME measure=blimp   # minimal pairs
  clozelab evaluate encoder=FOLDER row=NAME measure=held_out_text text=PATH
  clozelab evaluate -m encoder_arm=mlm,ltr measure=blimp,held_out_text"""
    ),
}
DEFAULT_KEYS = {
    "prepare": (
        "corpus.validation_fraction tokenizer.vocab_size"
        " tokenizer.lowercase tokenizer.vocab_file max_unknown_share data_dir cache_dir"
    ),
    "pretrain": (
        "arm seed encoder steps_factor optimizer.learning_rate tokenizer.vocab_size stop_after_step"
        " keep_encoders trainer.precision trainer.devices trainer.max_time reuse data_dir cache_dir"
        " runs_dir"
    ),
    "finetune": (
        "encoder row seed pretrain_seed head learning_rate epochs global_batch_size"
        " max_train_examples keep_model predict_test hub trainer.precision trainer.max_time reuse"
        " data_dir cache_dir runs_dir"
    ),
    "evaluate": (
        "encoder row encoder_arm pretrain_seed seed initialisation pooling encoder_fraction"
        " trainer.precision reuse data_dir cache_dir runs_dir"
    ),
}
"""Those that people set; what each means, its comment in conf/ says."""
HELP = """clozelab: BERT-style encoders, from raw text to a judged table

  clozelab VERB [name=value ...]
{verbs}

  clozelab VERB --help           what the verb takes
  clozelab VERB --cfg job        the composed configuration
  clozelab VERB -m key=a,b ...   a sweep, of the first four verbs
  clozelab --version
  CLOZELAB_DEBUG=1 clozelab ...  where an error was raised

Examples:
  clozelab reproduce table5_pretraining_tasks scale=demo
  clozelab pretrain objective=mlm seed=2
  clozelab finetune encoder=FOLDER row=NAME task=mrpc"""
HELP_COLUMNS = 79
NAME_COLUMNS = 21  # of a group or key, beside what it means


def help_of_all() -> str:
    """Return what `clozelab --help` prints."""
    lines = []
    for heading, verbs in HEADINGS.items():
        lines += ["", f"{heading}:"]
        lines += [f"  {verb:<13} {text}" for verb, text in verbs.items()]
    return fitted(HELP.format(verbs="\n".join(lines)))


def help_of(verb: str, argv: Sequence[str]) -> str:
    """Return what `clozelab VERB --help` prints; empty where nothing says it."""
    if verb in HYDRA_VERBS:
        return _hydra_help(verb, argv)
    if verb in PLAIN_VERBS:
        return fitted(_plain_help(verb))
    return ""


def _plain_help(verb: str) -> str:
    """Return the text constant of the verb's module that begins with its name."""
    file = Path(__file__).parent / "stages" / f"{verb}.py"
    # Read, not imported: a stage may import torch, which takes seconds.
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            text = statement.value.value
            if isinstance(text, str) and text.split()[:2] == ["clozelab", verb]:
                return text
    return ""


def _hydra_help(verb: str, argv: Sequence[str]) -> str:
    """Return the groups with their choices, and the usual keys with their meaning.

    The user's own choices, in a `--config-dir`, are among them.
    """
    folders = [CONF_DIR, *_config_dirs(argv)]
    default_choices = _default_choices(verb)
    lines = textwrap.wrap(f"clozelab {verb}: {HYDRA_VERBS[verb]}", HELP_COLUMNS)
    lines += ["", HYDRA_HELP[verb], "", "Groups (NAME=CHOICE; [] what is usual):"]
    for group, choices in groups_of(verb, folders).items():
        usual = default_choices.get(group)
        marked = [f"[{choice}]" if choice == usual else choice for choice in choices]
        if group == "corpus":
            marked.append("[the scale's]")
        lines += _name_and_text(group, " ".join(marked))
    lines += ["", "Keys that people set (NAME=VALUE):"]
    for key in DEFAULT_KEYS[verb].split():
        lines += _name_and_text(key, meaning(key, verb, default_choices))
    lines += ["", f"Every key: clozelab {verb} --cfg job (with every choice: --help-all)"]
    return "\n".join(lines)


def _config_dirs(argv: Sequence[str]) -> Iterator[Path]:
    """The folders of `--config-dir FOLDER` and `--config-dir=FOLDER`, also abbreviated."""
    for index, word in enumerate(argv):
        option, _, folder = word.partition("=")
        if option in CONFIG_DIR_OPTIONS:
            # the next word; "" behind the last one
            following = "".join(argv[index + 1 : index + 2])
            yield Path(folder or following)


def _default_choices(verb: str) -> dict[str, str]:
    """Group -> its choice, as the verb's defaults list says."""
    import yaml  # type: ignore[import-untyped]

    config = yaml.safe_load((CONF_DIR / f"{verb}.yaml").read_text(encoding="utf-8"))
    # A defaults list: ["pretrain_schema", {"scale": "demo"}, "_self_"].
    choices: dict[str, str] = {}
    for entry in config["defaults"]:
        if isinstance(entry, dict):
            choices |= entry
    if verb != "prepare":
        choices |= {"hydra/launcher": "processes", "hydra/sweeper": "grid"}
    return choices


def groups_of(verb: str, folders: Sequence[Path] = (CONF_DIR,)) -> dict[str, list[str]]:
    """Group of a verb -> its choices in these folders; objective/input is a group of its own."""
    groups = {}
    for group, default in _default_choices(verb).items():
        names = {group}
        for folder in folders:
            names |= {f"{group}/{file.parent.name}" for file in folder.glob(f"{group}/*/*.yaml")}
        for name in sorted(names):
            groups[name] = _choices_in(folders, name, default)
    return groups


def _choices_in(folders: Iterable[Path], group: str, default: str) -> list[str]:
    """The choices of a group, sorted."""
    stems = set()
    for folder in folders:
        stems |= {file.stem for file in folder.glob(f"{group}/*.yaml")}
    # corpus/scale_demo.yaml is what a scale takes by itself: nobody chooses it.
    return sorted(stem for stem in stems if stem == default or not stem.startswith("scale_"))


def _name_and_text(name: str, text: str) -> list[str]:
    """A name and what it means, in 80 columns."""
    return textwrap.wrap(
        text,
        HELP_COLUMNS,
        initial_indent=f"  {name:<{NAME_COLUMNS}} ",
        subsequent_indent=" " * (NAME_COLUMNS + 3),
    )


def meaning(key: str, verb: str, default_choices: Mapping[str, str]) -> str:
    """Return the comment above a key in conf/, and the key's usual value.

    The key is in its group's usual file, the verb's or paths.yaml.
    """
    group, _, name = key.rpartition(".")
    files = [f"{verb}.yaml", "paths.yaml"]
    if group == "corpus":
        files = ["corpus/microworld.yaml"]
    elif group:
        files = [f"{group}/{default_choices.get(group)}.yaml"]
    for file in files:
        text = (CONF_DIR / file).read_text(encoding="utf-8")
        # Lines that begin with "#", then "NAME: VALUE".
        match = re.search(rf"((?:^#.*\n)+)^{name}: (.*)", text, re.MULTILINE)
        if match is None:
            continue
        comment, value = match.groups()
        sentence = " ".join(line.lstrip("# ") for line in comment.splitlines()).removesuffix(".")
        # A value that tells nothing by itself is left out.
        if value in ("null", "auto", "[]") or "$" in value:
            return sentence
        return f"{sentence} [{value}]"
    return ""
