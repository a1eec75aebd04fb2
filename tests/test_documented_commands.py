"""Every command of the README, of docs/*.md and of the experiments' pages, to its first step.

A command is composed, checked at the door, its parts are built, and its inputs are looked for. Then
it is stopped: before a corpus is prepared, before a task's examples are encoded, before a model
answers or a machine is measured. Names such as FOLDER, RUN and my/data are stand-ins here.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.covers import marked

from clozelab import cli, hydra_compat
from clozelab.addresses import check_targets
from clozelab.assembly import corpora, evaluation, factory, finetuning, pretraining
from clozelab.checks import gathering
from clozelab.config import Composed
from clozelab.launch.launcher import SweepLauncher
from clozelab.launch.sweep import Sweep
from clozelab.planning import reproduction
from clozelab.planning.steps import Step
from clozelab.planning.sweeps import jobs_by_settings
from clozelab.results.experiment import list_experiments
from clozelab.stages import doctor
from clozelab.text.paths import CONF_DIR

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "experiments").rglob("README.md"))


class Reached(BaseException):
    """A command has come as far as its first step."""


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


# What a page calls by a name of its own.
NAMES = {"$seed": "1", "measure=NAME": "measure=blimp", "scale=S": "scale=demo"}
NAMES |= {"experiments/": f"{ROOT}/experiments/", "path/to/folder": "my_domain"}
EXPERIMENT = "table5_pretraining_tasks"
# Of commands that need what no stand-in is: how they end, in the words of who looked for it.
MISSING = (
    r"no run below",
    r"no run to pack below",
    r"runs/(adhoc/own|rates): (no run|there is no such folder)",
    r"runs/mine/laptop/pretrain/mlm/seed-\* is no run's folder",
    r"no run of 'table[58]",
    r"until=decided needs a stopping rule",
    r"nothing is missing of the runs",
    r"monday\.zip",
    r"in=data/pairs\.csv: there is no such file",
    r"expected: plain text",  # the books that scale=laptop and larger read
    r"how to get them: ",  # a recipe's corpus
    r"RUN is no complete fine-tuning",
    r"RUNS is no folder; give run folders",
    r"no pre-training run with a checkpoint",
    r"RUN has no adapter/",
    r"there is no sbatch here",
    r"--watch needs a terminal",
    r"'(ray|datatrove)', which is not installed",
    r"no model here, expected config\.json",
    r"runs/\S*/encoders?(/step-240)?: no encoder here",
    r"benchmark file not found: (data|FOLDER|/?my)/",
    r"no files of minimal pairs at",
    r"COMMIT",
    r"uncased_L-12_H-768_A-12",
)


# A block of a page, between two lines of three backticks; inside a list both are indented.
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def documented(text: str) -> Iterator[str]:
    """The commands of a page: those of its blocks, and whole ones in its sentences."""
    shells = ("", "bash", "sh", "console")
    blocks = "\n".join(block for language, block in BLOCK.findall(text) if language in shells)
    for line in re.sub(r"\\\n\s*", " ", blocks).splitlines():
        match = re.search(r"(?:^|[ |])(?:-m )?clozelab (\S.*)", line)
        if match and not line.startswith(("git ", "#", "cd ")):
            yield match[1]
    sentences = BLOCK.sub("", text)
    yield from re.findall(r"`clozelab ([a-z-]+ [^`]*=[^`]*)`", sentences)


def all_documented() -> list[tuple[str, str]]:
    commands = []
    for page in PAGES:
        for command in documented(page.read_text(encoding="utf-8")):
            if "..." not in command:
                commands.append((str(page.relative_to(ROOT)), command))
    return list(dict.fromkeys(commands))


def choices_of(word: str) -> list[str]:
    """The files of conf/ that a word such as `corpus=text` or `task@measure.task=mnli` names."""
    key, _, value = word.lstrip("+").partition("=")
    group = key.partition("@")[0]
    if not value or not (CONF_DIR / group).is_dir():
        return []
    return [f"{group}/{choice}" for choice in value.split(",")]


# Keys whose values are names or files of the reader's own: any other is as good.
FREE = ("row", "arm", "experiment", "measure.name", "task.name", "encoder", "encoder_arm")
FREE += ("text", "in", "query", "text_column", "label_column", "out", "runs_dir")
VERBS_OF_STAGES = ("prepare", "pretrain", "finetune", "evaluate")


def parts_of(command: str) -> set[tuple[str, str]]:
    """What can be wrong in a command: its verb with each key, option and word for a value.

    Names, files, folders and numbers are as good as any others; `choices_of` has those of groups,
    and `test_every_name_of_the_pages_is_known` has experiments.
    """
    verb, *words = words_of(command)
    parts = {(verb, "")}
    for word in words:
        key, is_setting, value = word.partition("=")
        is_word = re.fullmatch(r"[a-z_-]+", value) and not choices_of(word)
        if is_word and key not in FREE and not key.endswith((".text_field", ".project")):
            parts.add((verb, word))
        elif is_setting or word.startswith("-") or word in VERBS_OF_STAGES:
            parts.add((verb, re.sub(r"\d+", "N", key)))
        else:
            parts.add((verb, "NAME"))
    return parts


# Files that a page shows whole: its page, how its block begins, and what the commands call it.
BLOCKS = (
    ("claims.md", "# my_domain/paper.yaml", "my_domain/paper.yaml"),
    ("claims.md", "# records/paper.yaml", "records/paper.yaml"),
    ("claims.md", "claims:\n  - {text: masking helps QNLI", "claims.yaml"),
    ("claims.md", "arm,seed,task,score", "scores.csv"),
    ("own-text.md", "title: Is 30 % masking better", "rates.yaml"),
)


def block_of(page: str, beginning: str) -> str:
    """The one block of a page that begins so."""
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    (found,) = [block for _, block in blocks if block.startswith(beginning)]
    return found


def write_model(
    folder: Path, *, size: int = 16, heads: int = 2, layers: int = 2, head: str = "MaskedLM"
) -> None:
    """A tiny BERT with a head, as transformers saves it."""
    import transformers

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the a film to remember not mat sat on who sang ? ada my"
    words += " book it was . good bad yes no maybe"  # of the prompts of conf/task/
    config = transformers.BertConfig(
        vocab_size=len(words.split()),
        hidden_size=size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * size,
    )
    if folder.name == "NLI":
        config.id2label = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
    getattr(transformers, f"BertFor{head}")(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words.split()) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages name: models, texts, tables, the files of SST-2."""
    root = tmp_path_factory.mktemp("documented")
    write_model(root / "bert-folder", layers=6)
    write_model(root / "bert-base", layers=12)
    write_model(root / "TEACHER_RUN_DIR/encoder", size=256, heads=4, layers=4)
    write_model(root / "RUN_DIR/encoder", size=128, layers=4)
    for name in ("RUN", "RUN/model", "NLI"):
        write_model(root / name, head="SequenceClassification")
    write_model(root / "QA", head="QuestionAnswering")
    for name in ("FOLDER", "MODEL", "my-bert", "ROBERTA", "bio", "minilm"):
        (root / name).symlink_to(root / "bert-folder")
    text = "the cat sat on the mat . it was a long day .\n\nthe film was long . who sang ?\n\n"
    texts = ["my/texts/a.txt", "texts/a.txt", "abstracts/a.txt"]
    for name in (*texts, "lines.txt", "reviews.txt", "questions.txt", "queries.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text * 5)
    (root / "dump").mkdir()
    (root / "data").mkdir()
    pandas.DataFrame({"body": [text]}).to_parquet(root / "posts.parquet")
    pandas.DataFrame({"text": [text]}).to_csv(root / "dump/a.csv.xz", index=False)
    mails = {"text": ["a film " * number for number in range(1, 41)], "intent": ["ask", "say"] * 20}
    reviews = {"review": mails["text"], "label": mails["intent"]}
    pandas.DataFrame(reviews).to_csv(root / "reviews.csv", index=False)
    pandas.DataFrame(mails).to_csv(root / "mails.csv", index=False)
    tickets = {"text": mails["text"], "topic": mails["intent"], "urgency": ["now", "later"] * 20}
    pandas.DataFrame(tickets).to_csv(root / "tickets.csv", index=False)
    pandas.DataFrame(mails).to_csv(root / "data" / "intent.csv", index=False)
    (root / "my/task").mkdir()
    for file in ("my/task/intent.yaml", "intent.yaml", "mine.yaml"):
        (root / file).write_text(INTENT)
    pairs = pandas.DataFrame({"premise": ["a film"], "hypothesis": ["the film"]})
    pairs.to_parquet(root / "pairs.parquet")
    pair = json.dumps({"question": "who sang ?", "answer": "ada"}) + "\n"
    for page, beginning, file in BLOCKS:
        (root / file).parent.mkdir(exist_ok=True)
        (root / file).write_text(block_of(page, beginning))
    # What `models=` of docs/tasks.md names.
    for seed in (1, 2):
        model = root / f"runs/adhoc/demo/finetune/mine/pretrain-seed-1/sst2/seed-{seed}/model"
        write_model(model, head="SequenceClassification")
    (root / "words.txt").write_text("cat\n")
    (root / "names.txt").write_text("the mat\n")
    (root / "mypkg.py").write_text(PACKAGE)
    # No row of one split stands in the other.
    for name, noun in (("train", "film"), ("dev", "book")):
        file = root / f"data/glue/SST-2/{name}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("sentence\tlabel\n" + f"a {noun}\t1\nnot a {noun}\t0\n" * 20)
    (root / "data/pairs.jsonl").write_text(pair * 20)
    return root


# The task of docs/own-text.md, of one file.
INTENT = """
defaults: [format/labelled@_here_, _self_]
name: intent
title: Intent
data: {train_file: intent.csv, text_columns: [text], label_column: intent}
"""
# An optimizer of somebody's own takes what conf/optimizer/adamw.yaml gives.
PACKAGE = """
from torch.optim import SGD

def Lamb(
    named_parameters, learning_rate, betas, eps, weight_decay, bias_correction, groups, layer_decay,
    layer_decay_rule,
):
    return SGD([parameter for _, parameter in named_parameters], lr=learning_rate)
"""


def go_to_first_step(composed: Composed) -> None:
    with contextlib.suppress(Reached):
        cli.job(composed)


def launch_first_and_last(
    self: SweepLauncher, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
) -> None:
    """In the place of a launcher's `launch`: its first job and its last, in this process."""
    ends = [job_overrides[0], job_overrides[-1]]
    composer = hydra_compat.JobComposer(self.context.config_loader, self.master)
    for composed in map(composer.compose, ends[: len(job_overrides)]):
        go_to_first_step(composed)
    raise Reached


def reproduce_first_and_last(*arguments: Any, **_: Any) -> None:
    """In the place of a round, or of its list: the first and the last job of each sweep."""
    lists = [argument for argument in arguments if isinstance(argument, list)]
    (steps,) = [each for each in lists if each and isinstance(each[0], Step)]
    for step in steps:
        if not step.is_sweep:
            continue
        for overrides in (step.sweep.jobs[0], step.sweep.jobs[-1]):
            composed = step.sweep.composer.compose(overrides)
            composed.check()
            check_targets(composed.values)
            if step.verb == "pretrain":
                go_to_first_step(composed)
            if step.verb == "finetune":
                finetuning.check_finetuning(composed.config)
    raise Reached


def first_and_last_settings(sweep: Sweep) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """In the place of `jobs_by_settings`: of all settings that a pre-flight looks at, two."""
    jobs_of = jobs_by_settings(sweep)
    titles = list(jobs_of)
    return {title: jobs_of[title] for title in (titles[0], titles[-1])}


@pytest.fixture
def stopped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are given in `place`, and stop at their first step."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("CLOZELAB_CACHE", str(place / "cache"))
    monkeypatch.setattr("sys.stdin", io.StringIO("a film\n"))
    monkeypatch.setattr(pretraining, "prepared_corpus", stop)
    monkeypatch.setattr(corpora, "prepared_corpus", stop)
    monkeypatch.setattr(finetuning, "claim_run", stop)
    monkeypatch.setattr(evaluation, "EvaluationJob", stop)
    monkeypatch.setattr(doctor, "_examine_machine", stop)
    monkeypatch.setattr("clozelab.checks.doctor.examine", stop)
    monkeypatch.setattr(gathering, "jobs_by_settings", first_and_last_settings)
    monkeypatch.setattr("clozelab.planning.sweeps.analyse", stop)
    monkeypatch.setattr("uvicorn.run", stop)
    monkeypatch.setattr("clozelab.modules.exporting.to_onnx", stop)
    monkeypatch.setattr(SweepLauncher, "launch", launch_first_and_last)
    monkeypatch.setattr(reproduction, "run_round", reproduce_first_and_last)
    monkeypatch.setattr(reproduction, "dry_run", reproduce_first_and_last)
    # A machine with as many GPUs as a page speaks of.
    choose = factory.choose_hardware
    here = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"}
    monkeypatch.setattr(factory, "choose_hardware", lambda **asked: choose(**(asked | here)))


def words_of(command: str) -> list[str]:
    for name, stand_in in NAMES.items():
        command = command.replace(name, stand_in)
    words = shlex.split(command, comments=True)
    if ">" in words:
        words = words[: words.index(">")]
    if words[0] in ("plan", "reproduce", "runs", "pack", "register") and "NAME" in words:
        has_inputs = any(word.startswith("inputs.") for word in words)
        words[words.index("NAME")] = "worth_it" if has_inputs else EXPERIMENT
    if words[0] in ("export", "vocabulary"):
        words = [re.sub("^to=.*", "to=new", word) for word in words]
    if words[0] == "evaluate" and "task@measure.task=mnli" in words:
        words[words.index("encoder=FOLDER")] = "encoder=NLI"
    if words[0] == "explain" and any(word.startswith("question=") for word in words):
        words[words.index("RUN")] = "QA"
    return words


@pytest.mark.parametrize(
    ("page", "command"), marked({each: parts_of(each[1]) for each in all_documented()})
)
def test_a_documented_command_comes_to_its_first_step(
    page: str,
    command: str,
    place: Path,
    stopped: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree(place / "new", ignore_errors=True)
    try:
        status = cli.main(words_of(command))
    except Reached:
        return
    output = "".join(capsys.readouterr())
    if status:
        assert status == 1 and "Traceback" not in output, output[-2000:]
        assert any(re.search(end, output) for end in MISSING), output[-2000:]


def test_every_choice_of_the_pages_is_a_file() -> None:
    """Of all commands, so that one whose parts others have is not left with a misspelt choice."""
    named = set()
    for _, command in all_documented():
        for word in words_of(command)[1:]:
            # tokenizer=FOLDER and task=mails.csv are files of somebody's own
            named |= {one for one in choices_of(word) if re.fullmatch(r"[a-z0-9_/-]+", one)}
    assert {"objective/mlm", "task/mnli"} <= named
    own = {"task/intent", "task/mine"}
    assert {one for one in named - own if not (CONF_DIR / f"{one}.yaml").is_file()} == set()


OF_EXPERIMENTS = ("doctor", "pack", "plan", "record", "register", "report", "reproduce", "status")


def test_every_name_of_the_pages_is_known(place: Path) -> None:
    """An experiment, a stage, or a file of somebody's own that a page shows."""
    named = set()
    for _, command in all_documented():
        verb, *words = words_of(command)
        if verb in OF_EXPERIMENTS and words and re.fullmatch(r"[\w.]+", words[0]):
            named.add(words[0])
    assert EXPERIMENT in named
    unknown = named - {*list_experiments(), *VERBS_OF_STAGES}
    assert {name for name in unknown if not (place / name).exists()} == set()


def test_all_but_the_last_two_layers(place: Path, stopped: None, caplog: Any) -> None:
    """What docs/pretraining.md freezes in a BERT of twelve layers."""
    (command,) = [each for page, each in all_documented() if "layer.[0-9]" in each]
    built = []

    def keep(job: Any, *_: Any) -> None:
        built.append(job.module)
        raise Reached

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Reached):
        patch.setattr(finetuning, "claim_run", keep)
        cli.main(words_of(command))
    trained = [name for name, value in built[0].named_parameters() if value.requires_grad]
    layers = {match[1] for name in trained if (match := re.search(r"layer\.(\d+)\.", name))}
    assert layers == {"10", "11"}
    assert not any("embeddings" in name for name in trained)
    assert any(not name.startswith("encoder.") for name in trained), "the head is trained"


def test_the_control() -> None:
    """No end above lets a misspelt value through."""
    page = "```bash\nclozelab pretrain objective=mlmm   # a comment\n```\n`clozelab plan NAME a=b`"
    page = f"```yaml\nname: intent\n```\n{page}\n\n- An item:\n  ```\n  clozelab runs\n  ```\n"
    expected = ["pretrain objective=mlmm   # a comment", "runs", "plan NAME a=b"]
    assert list(documented(page)) == expected
    assert choices_of("objective=mlmm") == ["objective/mlmm"]
    assert not any(re.search(end, "error: there is no objective 'mlmm'") for end in MISSING)
