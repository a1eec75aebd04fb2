"""The verb on a small generated world: what it composes and reads, and its exit status."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.screens import shows

from clozelab.assembly.corpora import prepared_corpus
from clozelab.assembly.heads import has_word_head
from clozelab.checks import gathering
from clozelab.checks.gathering import gather_sweep
from clozelab.checks.subject import ERROR, WARNING, Subject
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.launch.sweep import Sweep, compose
from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.models.registry import family_for, family_of
from clozelab.modules.model import write_model
from clozelab.planning import reproduction
from clozelab.planning.shapes import Request, Speed
from clozelab.planning.steps import Step
from clozelab.stages import reproduce
from clozelab.stages.doctor import main as doctor
from clozelab.text.paths import EXPERIMENTS_DIR

EXPERIMENT = EXPERIMENTS_DIR / "table5_pretraining_tasks"
WORLD = [
    "corpus.generator.num_documents=400",
    "corpus.generator.train_examples=100",
    "corpus.generator.validation_examples=40",
    "corpus.generator.entropy_documents=2",
]
"""Of the generator: what is written decides the corpus folder, not how it was asked for."""
ONE_SEED = ["pretrain.seed=1", "finetune.pretrain_seed=1", "finetune.seed=1"]
ONE_ROW = "finetune.row=mlm"
"""Where the others do not matter: composing a job takes a third of a second."""
SMALL = [*ONE_SEED, ONE_ROW, "finetune.task=mrpc"]
"""One fine-tuning of each arm."""


def for_stages(words: Sequence[str]) -> list[str]:
    """Words of the corpus, said to the two stages that have them.

    A word that a stage refuses has all others tried one by one, which planning/test_steps.py is
    about.
    """
    said = []
    for word in words:
        if word.startswith(("corpus.generator.", "tokenizer.")):
            said += [f"prepare.{word}", f"pretrain.{word}"]
        else:
            said.append(word)
    return said


def gather(folder: Path, words: Sequence[str]) -> Subject:
    return gathering.gather(folder, for_stages(words))


def gather_stage(verb: str, folder: Path | None, config_name: str, words: list[str]) -> Subject:
    return gather_sweep(Step(verb, config_name, folder, tuple(words)))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("doctor")
    return [
        f"data_dir={root}/data",
        f"cache_dir={root}/cache",
        f"runs_dir={root}/runs",
        "tokenizer.vocab_size=1000",
        *WORLD,
    ]


def test_before_anything_is_there(places: list[str]) -> None:
    subject = gather(EXPERIMENT, ["scale=demo", *places, ONE_ROW, "finetune.task=mrpc"])
    assert [arm.name for arm in subject.arms] == ["mlm_nsp", "mlm", "ltr"]
    assert [arm.count for arm in subject.arms] == [2, 2, 2]
    assert [arm.config.is_causal for arm in subject.arms] == [False, False, True]
    assert subject.refusals == [] and subject.tasks == []
    assert list(subject.unprepared) == ["microworld", "task mrpc"]
    assert not Path(places[0].partition("=")[2]).exists(), "looking writes nothing"


def test_the_pre_flight_of_a_prepared_world(
    places: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = compose("prepare", ["scale=demo", *places]).config
    prepared_corpus(cfg)
    tasks = ["finetune.task=mrpc,squad_v1,stsb", "finetune.row=mlm,ltr", *ONE_SEED]
    gathered: list[Subject] = []
    look = gathering.gather
    with monkeypatch.context() as patch:  # what the verb looks at
        patch.setattr(
            "clozelab.checks.gathering.gather",
            lambda *given: gathered.append(look(*given)) or gathered[0],
        )
        assert doctor([str(EXPERIMENT), "scale=demo", *for_stages(places), *tasks]) == 0
    (subject,) = gathered
    assert [task.name for task in subject.tasks] == ["mrpc", "squad_v1", "stsb"]
    assert all(task.trained_length == 96 for task in subject.tasks)
    assert logging.getLogger("clozelab").isEnabledFor(logging.WARNING), (
        "silent for the pre-flight only"
    )
    text = capsys.readouterr().out
    shows(text, "Pre-flight of table5_pretraining_tasks (demo)", "the pre-flight took ")
    assert ERROR not in text
    assert "masks are those of the recipe" not in text, "what is well is counted"
    # The training file of one task now knows one label only.
    path = Path(places[0].partition("=")[2]) / "glue" / "MRPC" / "train.tsv"
    before = path.read_text(encoding="utf-8")
    try:
        head, *rows = before.splitlines()
        rows = ["1" + row[1:] for row in rows]
        path.write_text("\n".join([head, *rows, ""]), encoding="utf-8")
        one_arm = ["pretrain.arm=mlm", *SMALL]
        assert doctor([str(EXPERIMENT), "scale=demo", *for_stages(places), *one_arm]) == 1
        shows(
            capsys.readouterr().out,
            "labels error mrpc: the training file has a single label 0 0 %, 1 100 %",
        )
    finally:
        path.write_text(before, encoding="utf-8")


def test_sizes_of_jobs_are_by_speeds_that_are_known(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def speeds(
        requests: Sequence[Request], *_: Any, measure: bool, **__: Any
    ) -> list[Speed | None]:
        asked.append(measure)
        return [Speed(20_000.0)] * len(requests)

    monkeypatch.setattr("clozelab.launch.process_launcher.usable_cores", lambda: 2)
    monkeypatch.setattr("clozelab.planning.cost.measured_speeds", speeds)
    gather(EXPERIMENT, ["scale=demo", *places, *SMALL])
    assert asked == [False, False], "the pre-flight times nothing"


def test_wrong_settings_are_refusals(places: list[str]) -> None:
    word = "pretrain.model.max_position_embeddings=80"
    subject = gather(EXPERIMENT, ["scale=demo", *places, *SMALL, word])
    # Alone, without the corpus that the other tests prepare, the task is refused, too.
    (what, reason), *_ = subject.refusals
    assert what == "pre-training arm=mlm_nsp and 2 more" and not subject.arms
    shows(reason, "phases.1.seq_length is 96, but the model has 80 positions: shorten it")


def own_text(places: list[str], folder: Path) -> list[str]:
    """The words of a text of one's own, and of its place."""
    (folder / "one.txt").write_text("A sentence.\n\nAnother one.\n")
    return [*places[1:4], f"data_dir={folder}", "corpus=text", "corpus.sources.0.path=one.txt"]


def test_missing_task_files_are_said_before_pretraining(places: list[str], tmp_path: Path) -> None:
    words = ["scale=demo", *own_text(places, tmp_path)]
    words += ["pretrain.arm=mlm", ONE_ROW, *ONE_SEED, "finetune.task=mrpc,squad_v1"]
    mrpc, squad = [one for one in gather(EXPERIMENT, words).refusals if one[0].startswith("task")]
    assert mrpc[1].endswith("to go without it: task=squad_v1")
    shows(mrpc[1], "expected layout: data_dir/glue/MRPC/train.tsv (data_dir is")
    for name in ("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "squad/train-v1.1.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    subject = gather(EXPERIMENT, [*words[:-1], "finetune.task=squad_v1"])
    (squad,) = [one for one in subject.refusals if one[0].startswith("task")]
    assert squad[0] == "task squad_v1"
    shows(squad[1], "expected layout: data_dir/squad/dev-v1.1.json (data_dir is")


def test_a_measure_that_no_column_would_find_is_said(places: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\narms: {mlm: {objective: mlm}}\n"
        "columns: [{name: Tags, from: evaluate, task: probe, metric: validation/accuracy}]\n"
    )
    (what, reason), *_ = gather(tmp_path / "mine.yaml", ["scale=demo", *places]).refusals
    assert what.startswith("evaluation")
    shows(reason, "no column would find this measure, which is named probe_pos_ewt: give")


HALF = """
title: Mine
arms: {mlm: {objective: mlm}}
rows: [{row: whole, arm: mlm}, {row: half, arm: mlm, set: {encoder_fraction: 0.5}}]
columns: [mrpc]
"""


def test_an_encoder_that_no_arm_keeps_is_said_before_pretraining(
    places: list[str], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    refusals = {}
    for keeps in ("", "sweeps: {pretrain: {keep_encoders: [0.25, 0.5]}}\n"):
        mine.write_text(HALF + keeps)
        subject = gather(mine, ["scale=demo", *places, *ONE_SEED])
        refusals[keeps] = [one for one in subject.refusals if "row=half" in one[0]]
    (refusal,), none = refusals.values()
    assert none == []
    shows(refusal[1], "encoder_fraction=0.5: the arm mlm keeps no encoder there; say keep_encoders")


MEASURED = """
title: Mine
arms: {mlm: {objective: mlm}}
columns:
  - {name: Pairs, from: evaluate, task: blimp, metric: validation/accuracy}
  - {name: Tags, from: evaluate, task: probe_pos_ewt, metric: validation/accuracy}
  - {name: Bits, from: evaluate, task: held_out_text, metric: validation/bits_per_character}
"""


def test_missing_files_of_a_measure_are_said_before_pretraining(
    places: list[str], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MEASURED)
    words = ["scale=own", *own_text(places, tmp_path)]
    pairs, tags = gather(mine, words).refusals
    assert pairs[0] == "evaluation measured=mlm measure=blimp and 1 more"
    shows(pairs[1], "(data_dir, or measure.data.files, is wrong) how to get them")
    shows(tags[1], "expected layout: data_dir/pos/en_ewt-ud-train.conllu.zst (data_dir is")
    assert not gather(mine, [*words, "evaluate=none"]).refusals
    (tmp_path / "blimp").mkdir()
    (tmp_path / "blimp" / "a.jsonl").write_text("")
    assert [reason for _, reason in gather(mine, words).refusals] == [tags[1]]
    # Those of a generated world come with its corpus.
    words = ["scale=dials", f"data_dir={tmp_path / 'none'}", *places[1:4], "finetune=none"]
    subject = gather(Path("experiments/two_sides"), words)
    assert subject.refusals == [] and "measure dials_minimal_pairs" in subject.unprepared


def test_every_rows_settings_are_looked_at(places: list[str], tmp_path: Path) -> None:
    """Not only those of the first row of each task: what is wrong with another would show after
    pre-training.
    """
    folder = tmp_path / "mine"
    shutil.copytree(EXPERIMENT, folder)
    for row, old, new in (
        ("ltr", "set: {head: linear}", "set: {head: liner}"),
        ("random", "head: linear", "initialisation: randm"),
    ):
        path = folder / "paper.yaml"
        before, start, rest = path.read_text().partition(f"{{row: {row},")
        assert old in rest.splitlines()[0]
        path.write_text(before + start + rest.replace(old, new, 1))
    words = ["scale=demo", *places, *ONE_SEED, "pretrain.arm=mlm"]
    words += ["finetune.task=mrpc,sst2", "finetune.row=mlm,ltr,random"]
    refusals = gather(folder, words).refusals
    of_ltr, of_random = [what for what, _ in refusals]
    assert of_ltr == "fine-tuning row=ltr task=mrpc and 1 more"
    assert of_random == "fine-tuning row=random task=mrpc and 1 more"
    shows(refusals[0][1], "head is 'liner': choose one of linear, bilstm; did you mean 'linear'?")
    shows(refusals[1][1], "initialisation is 'randm': choose one of pretrained, random; did you")
    sound = [*words[:-2], "finetune.task=mrpc", "finetune.row=random"]
    assert gather(EXPERIMENT, sound).refusals == []
    table7 = tmp_path / "features"
    shutil.copytree(EXPERIMENTS_DIR / "table7_feature_based_ner", table7)
    path = table7 / "paper.yaml"
    path.write_text(path.read_text().replace("features: last}", "features: lastt}"))
    words = ["scale=demo", *places, *ONE_SEED, "finetune.row=mlm_nsp,last"]
    ((what, reason),) = gather(table7, words).refusals
    shows(what, "fine-tuning row=last")
    shows(reason, "features=lastt: choose one of embeddings, second_to_last, last")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["measure=retrieval", "measure.data.folder=nope"], "nope/corpus.jsonl is missing"),
        (
            ["measure=held_out_text", "measure.data.sources=[{name: a, path: nofile.txt}]"],
            "source a: no text files at",
        ),
        (
            ["measure=held_out_text", "measure.data.sources=[{name: a, path: posts.csv}]"],
            "posts.csv does not say which column is the text",
        ),
        (["measure=held_out_text", "encoder=nowhere"], "nowhere: no encoder here"),
        (
            ["measure=labelled_pos_ewt", "models=[nowhere,elsewhere]", "combine=weights"],
            "nowhere: no encoder here",
        ),
    ],
)
def test_an_evaluation_without_its_files_or_model_is_refused(
    places: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "config.json").write_text("{}")
    Path("posts.csv").write_text("id,title,body\n" + "1,one of these,another of these\n" * 9)
    words = ["scale=demo", *places[:3], f"encoder={encoder}", "row=x", *words]
    refusals = gather_stage("evaluate", None, "evaluate", words).refusals
    assert len(refusals) == 1
    shows(refusals[0][1], reason)


@pytest.mark.parametrize("verb", ["finetune", "evaluate"])
@pytest.mark.parametrize(
    ("word", "has_head", "reason"),
    [
        ("words.1=y", True, None),
        ("words.1=splendid", True, "'splendid' of the class '1' is [UNK] in this encoder's"),
        ("words.1=x", True, "two of x, x are one token of this encoder's vocabulary"),
        (f"template='{'x ' * 60}{{text}} [MASK]'", True, "and a text would have no place"),
        ("words.1=y", False, "has no trained lm head, which"),
    ],
)
def test_a_prompt_that_an_encoder_cannot_answer_is_refused(
    places: list[str],
    tmp_path: Path,
    tiny_config: Any,
    verb: str,
    word: str,
    reason: str | None,
    *,
    has_head: bool,
) -> None:
    letters = WordPieceTokenizer([*SPECIAL_TOKENS, "x", "y"], lowercase=True)
    config = tiny_config(vocab_size=letters.vocab_size, max_position_embeddings=48)
    encoder = Encoder(config)
    heads = {"lm": family_for(config).head("lm", encoder)} if has_head else {}
    write_model(tmp_path / "encoder", encoder, heads, letters)
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nx\t0\ny\t1\nx x\t0\ny y\t1\n")
    words = [f"data_dir={tmp_path}", *places[1:3], "row=x", f"encoder={tmp_path / 'encoder'}"]
    place = "task"
    words.append("task=sst2_prompt")
    if verb == "evaluate":
        place = "measure.task"
        words[-1] = "measure=zero_shot"
    else:
        words.append("task.data.train_file=dev.tsv")
    for setting in ("validation_file=dev.tsv", "words.0=x", "words.1=y", word):
        words.append(f"{place}.data.{setting}")
    refusals = gather_stage(verb, None, verb, words).refusals
    assert len(refusals) == (reason is not None)
    if reason is not None:
        shows(refusals[0][1], reason)


def test_a_head_of_words_is_known_by_its_familys_names(tmp_path: Path, tiny_config: Any) -> None:
    family = family_of("ultrabert")
    encoder = Encoder(tiny_config(model_type="ultrabert", **family.parts))
    letters = WordPieceTokenizer([*SPECIAL_TOKENS, "x", "y"], lowercase=True)
    write_model(tmp_path / "whole", encoder, {"lm": family.head("lm", encoder)}, letters)
    write_model(tmp_path / "bare", encoder, {}, letters)
    assert has_word_head(tmp_path / "whole")
    assert not has_word_head(tmp_path / "bare")


def test_each_file_of_a_sweep_over_a_tasks_own_keys_is_looked_at(
    places: list[str], tmp_path: Path, tiny_config: Any
) -> None:
    letters = WordPieceTokenizer([*SPECIAL_TOKENS, "x", "y"], lowercase=True)
    encoder = Encoder(tiny_config(vocab_size=letters.vocab_size))
    write_model(tmp_path / "encoder", encoder, {}, letters)
    rows = "".join(f"{'x ' * number},0\n{'y ' * number},1\n" for number in range(1, 30))
    (tmp_path / "tr.csv").write_text(f"text,label\n{rows}")
    words = [f"data_dir={tmp_path}", *places[1:3], "row=x", f"task={tmp_path / 'tr.csv'}"]
    ((_, reason),) = gather_stage(
        "finetune", None, "finetune", [*words, "encoder=nowhere", "task.data.max_seq_length=8,9"]
    ).refusals
    assert "to go without it" not in reason, "there is no other task"
    words += [f"encoder={tmp_path / 'encoder'}", "task.data.train_file=tr.csv,nofile.csv"]
    subject = gather_stage("finetune", None, "finetune", words)
    assert [task.name for task in subject.tasks] == ["tr"]
    ((what, reason),) = subject.refusals
    shows(what, "task tr")
    shows(reason, "nofile.csv", "not found")


def test_another_generated_world_is_not_taken_for_the_one_asked_for(places: list[str]) -> None:
    cfg = compose("prepare", ["scale=demo", *places]).config
    prepared_corpus(cfg)
    ((_, reason),) = gather_stage(
        "pretrain", None, "pretrain", ["scale=demo", *places, "corpus.generator.world_seed=7"]
    ).refusals
    shows(reason, "holds another generated world (world_seed 1 -> 7): choose another")
    assert gather_stage("pretrain", None, "pretrain", ["scale=demo", *places]).refusals == []


def test_one_stages_sweep_and_single_run(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["scale=demo", *places]
    subject = gather_stage(
        "pretrain", None, "pretrain", [*words, "objective=mlm,ltr", "seed=1,2,3"]
    )
    assert subject.name == "pre-training (demo)" and not subject.tasks and not subject.refusals
    assert [(arm.config.is_causal, arm.count) for arm in subject.arms] == [(False, 3), (True, 3)]
    subject = gather_stage("pretrain", EXPERIMENT, "sweep_pretrain", words)
    assert subject.name == "table5_pretraining_tasks, pre-training (demo)"
    assert [arm.name for arm in subject.arms] == ["mlm_nsp", "mlm", "ltr"]
    own_choices = gather_stage("pretrain", tmp_path, "pretrain", ["scale=demo", *places, "seed=1"])
    assert own_choices.name == "pre-training (demo)", "a folder of choices is no experiment"
    given = ["task=mrpc", "encoder=nowhere,elsewhere", "row=x", "seed=1,2"]
    subject = gather_stage("finetune", None, "finetune", ["scale=demo", *places[:3], *given])
    assert not subject.arms
    assert [what for what, _ in subject.refusals] == ["task mrpc"] * 2, "each encoder is opened"
    assert doctor(["pretrain", "-m", *words, "objective=mlm", "schedule.warmup_fraction=1.0"]) == 1
    assert "warmup_fraction is 1.0: it must be in" in capsys.readouterr().out
    named = ["--config-dir", str(EXPERIMENT), "--config-name=sweep_pretrain"]
    assert doctor(["pretrain", *named, *words, "arm=ltr", "seed=1"]) == 0
    shows(capsys.readouterr().out, "Pre-flight of table5_pretraining_tasks, pre-training (demo)")


def test_jobs_of_a_cluster_need_no_accelerator_here(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["scale=demo", *places, "trainer=gpu", "seed=1,2"]
    here = gather_stage("pretrain", None, "pretrain", words)
    assert not here.arms and here.refusals[0][0].endswith("trainer=gpu")
    shows(
        here.refusals[0][1], "this trainer needs a CUDA device for each of trainer.devices=1, and"
    )
    there = gather_stage("pretrain", None, "pretrain", [*words, "hydra/launcher=slurm"])
    assert not there.refusals and [arm.count for arm in there.arms] == [2]
    (found,) = there.noticed
    assert (found.check, found.level) == ("machine", WARNING)
    shows(found.what, "not to be had here: this trainer needs a CUDA device for each of")


def test_a_lost_encoder_is_no_fault_of_the_task(
    places: list[str], tmp_path: Path, tiny_config: Any
) -> None:
    cfg = compose("prepare", ["scale=demo", *places]).config
    tokenizer = prepared_corpus(cfg).tokenizer
    words = ["scale=demo", *places[:2], f"runs_dir={tmp_path}/runs", "task=mrpc", "row=mlm,ltr"]
    sweep = Sweep("sweep_finetune", words, folder=EXPERIMENT)
    there = next(Path(sweep.settings(job)["encoder"]) for job in sweep.jobs if "row=ltr" in job)
    encoder = Encoder(tiny_config(vocab_size=tokenizer.vocab_size))
    save_encoder_folder(
        there, encoder, heads={}, tokenizer_files=tokenizer.files(), extra_config={}
    )
    subject = gather_stage("finetune", EXPERIMENT, "sweep_finetune", words)
    assert [task.name for task in subject.tasks] == ["mrpc"] and not subject.refusals
    (found,) = subject.noticed
    assert (found.check, found.level) == ("encoder", WARNING)
    assert found.figure.startswith("6 of 8 jobs,")
    weights = (there / "model.safetensors").stat().st_size
    assert subject.disk.used_bytes == 0, "encoders are another stage's"
    assert 4 * weights < subject.disk.run_bytes < 5 * weights, (
        "every job of the row that can run saves a model"
    )
    shutil.rmtree(there)
    ((_, reason),) = gather_stage("finetune", EXPERIMENT, "sweep_finetune", words).refusals
    shows(reason, "no encoder here (config.json is missing); pre-train it first, or give")


def test_the_hub_is_not_asked(places: list[str]) -> None:
    words = ["data_dir=nowhere", *SMALL, "pretrain.arm=mlm", "finetune.hub=true"]
    subject = gather(EXPERIMENT, ["scale=demo", *places, *words])
    assert not subject.refusals and not subject.tasks
    (found,) = subject.noticed
    assert found.what == "mrpc: its files come from the hub and are not looked at"


@pytest.mark.parametrize(
    ("statuses", "option", "ran"),
    [
        ({"doctor": 1}, [], ["prepare", "plan", "doctor"]),
        ({"doctor": 1}, ["--skip-doctor"], ["prepare", "plan", "pretrain"]),
        pytest.param({}, [], ["prepare", "plan", "doctor", "pretrain"], marks=pytest.mark.slow),
        pytest.param({"plan": 2}, [], ["prepare", "plan"], marks=pytest.mark.slow),
    ],
)
def test_reproduce_stops_at_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    places: list[str],
    statuses: dict[str, int],
    option: list[str],
    ran: list[str],
) -> None:
    verbs: list[str] = []
    ends = {"pretrain": 130} | statuses  # as far as this test goes

    def run(words: list[str], **_: object) -> int:
        verbs.append(words[0])
        if words[0] == "doctor":
            assert words[1] == str(EXPERIMENT) and "scale=demo" in words
        if words[0] == "plan":
            assert words[1] == str(EXPERIMENT) and words[-1] == "--brief"
        return ends.get(words[0], 0)

    monkeypatch.setattr(reproduction, "run_verb", run)
    words = [str(EXPERIMENT), "scale=demo", *for_stages(places), *SMALL, *option]
    assert reproduce.main(words) == ends[ran[-1]]
    assert verbs == ran
    assert ("--skip-doctor" in capsys.readouterr().out) == (ran[-1] == "doctor")
