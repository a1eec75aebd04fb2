"""The planner against counting by hand, against built models, and (slow machines allowing) against
a real timing.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.objectives.test_permuted import MASKING
from tests.planning.workers import OF_THIS_MACHINE, Worker
from tests.screens import Screens, refuses, shows

from clozelab.assembly.corpora import prepared_corpus
from clozelab.assembly.encoders import build_objectives
from clozelab.assembly.passes import MOST_PASSES
from clozelab.assembly.pretraining import make_data
from clozelab.corpus.instances import FullSentences
from clozelab.launch.overrides import check_overrides
from clozelab.launch.sweep import compose, phase_objectives
from clozelab.models.cost import parameter_count
from clozelab.models.encoder import Encoder
from clozelab.modules.pretraining import PretrainingModel
from clozelab.objectives.objective import Objective
from clozelab.objectives.permuted import PermutedLanguageModel
from clozelab.planning.arms import MOMENTS, Arm, synthetic_corpus
from clozelab.planning.budget import parse_budget
from clozelab.planning.cost import Costing, Pool, TaskFiles, affordable, divide, with_speeds
from clozelab.planning.shapes import FLOAT_BYTES, RECORD_BYTES, Request, Speed, TaskPlace
from clozelab.planning.speeds import measured_speeds
from clozelab.planning.steps import make_steps
from clozelab.planning.sweeps import Corpora, analyse, read_preview
from clozelab.planning.tables import warnings
from clozelab.planning.tasks import NBEST_BYTES, NO_SAMPLES, PREDICTION_BYTES, Sample
from clozelab.planning.timing import pretraining_ticks
from clozelab.results.experiment import find_experiment
from clozelab.runs.time_left import makespan
from clozelab.stages.plan import main
from clozelab.tasks.preview import Preview
from clozelab.training import runtime
from clozelab.training.trainer import choose_hardware

FOLDER = find_experiment("table5_pretraining_tasks")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> list[Arm]:
    return arms_of("demo", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    """mlm_nsp at the paper's scale."""
    return next(
        arm for arm in arms_of("paper", tmp_path_factory.mktemp("cache")) if arm.name == "mlm_nsp"
    )


def arms_of(scale: str, root: Path) -> list[Arm]:
    words = [f"scale={scale}", f"cache_dir={root}/cache", f"data_dir={root}/data"]
    steps = [step for step in make_steps(FOLDER, words) if step.verb == "pretrain"]
    return list(analyse(steps, Corpora(strict=False)).arms)


def test_parameters_are_those_of_built_models(demo: list[Arm]) -> None:
    for arm in demo:
        torch.manual_seed(0)
        encoder = Encoder(arm.config)
        assert arm.parameters == sum(value.numel() for value in encoder.parameters())
        hidden, vocab = 128, 2048
        token_head = hidden * hidden + hidden + 2 * hidden + vocab
        pair_head = 2 * hidden + 2 if arm.name == "mlm_nsp" else 0
        assert arm.trained_parameters == arm.parameters + token_head + pair_head


def test_an_adapted_arm_has_moments_of_what_is_trained(demo: list[Arm]) -> None:
    arm = next(arm for arm in demo if arm.name == "mlm")
    lora = {"_target_": "clozelab.models.adaptation.LoRA", "rank": 4}
    adapted = replace(arm, settings=replace(arm.settings, adaptation=lora))
    hidden, head = 128, arm.trained_parameters - arm.parameters
    # Query and value of each layer have two matrices of 4 rows.
    updates = arm.config.num_hidden_layers * 2 * 2 * 4 * hidden
    assert adapted.trained_parameters == head + updates
    weights = arm.checkpoint_bytes // (1 + MOMENTS)
    assert adapted.checkpoint_bytes == weights + 4 * MOMENTS * (head + updates)
    # Frozen matrices have no gradient; below the lowest trained layer nothing has.
    frozen = replace(arm, settings=replace(arm.settings, freeze=["embeddings", "0"]))
    assert frozen.flops < arm.flops > adapted.flops


def test_tokens_and_flops_by_hand(demo: list[Arm]) -> None:
    arm = next(arm for arm in demo if arm.name == "mlm")
    assert arm.steps == 2400 and arm.tokens == 2200 * 16 * 64 + 200 * 16 * 96
    # 15 % of what is not [CLS] or [SEP]: 9 of 64 slots, 14 of 96.
    head, phases = 2 * 128**2 + 2 * 128 * 2048, ((64, 9), (96, 14))
    per_token = [
        3 * (2 * (24 * 128**2 + 4 * s * 128) + predicted / s * head) for s, predicted in phases
    ]
    assert arm.flops == pytest.approx(2200 * 1024 * per_token[0] + 200 * 1536 * per_token[1])
    ltr = next(arm for arm in demo if arm.name == "ltr")
    assert ltr.flops > arm.flops and ltr.tokens == arm.tokens


def test_tokens_of_a_prepared_corpus_are_those_of_its_instances(demo: list[Arm]) -> None:
    """Whole sentences leave an instance partly empty: counted over all of them, not full ones."""
    corpus = synthetic_corpus(2048)
    token = next(arm for arm in demo if arm.name == "mlm").objective.token
    arm = replace(
        demo[1],
        corpus=replace(corpus, folder=Path("prepared")),
        objectives=(),
        objective=Objective(input=FullSentences(), token=token, pair=None),
    )
    instances = arm.objective.input.bind(corpus.train, corpus.ids, 64)
    lengths = arm.objective.arrays(instances, 3, 0, np.arange(len(instances)))["lengths"]
    assert arm.phase_tokens[0] == pytest.approx(2200 * 16 * lengths.mean(), rel=0.02)
    # Special tokens are no text, of which an epoch has all.
    text = corpus.train.num_tokens / len(instances)
    assert arm.readings[0].tokens == pytest.approx(2200 * 16 * text, rel=0.02)
    read = sum(reading.tokens for reading in arm.readings)
    assert arm.passes == pytest.approx(read / corpus.train.num_tokens)
    assert (
        arm.phase_tokens[0] < 0.95 * 2200 * 16 * 64
        and arm.flops < 0.96 * replace(arm, corpus=corpus).flops
    )


def test_queries_are_no_tokens_of_the_text(demo: list[Arm]) -> None:
    """They lengthen a row, and FLOPs a token of text count them: not twice."""
    masked = next(arm for arm in demo if arm.name == "mlm")
    corpus = replace(masked.corpus, folder=Path("prepared"))
    tokens = []
    for token in (
        masked.objective.token,
        PermutedLanguageModel(**MASKING, sees_every_position=True),
    ):
        objective = Objective(input=FullSentences(), token=token, pair=None)
        arm = replace(masked, corpus=corpus, objectives=(), objective=objective)
        tokens.append(arm.tokens)
    assert tokens[0] == tokens[1] > 0


def test_the_papers_recipe_costs_what_is_published(paper: Arm) -> None:
    assert paper.flops == pytest.approx(2.38e19, rel=0.002)


def test_the_released_recipe_predicts_more(paper: Arm, tmp_path: Path) -> None:
    """Of all tokens instead of the text's, in every phase; a plan's figure for an instance is that
    of its arrays.
    """
    ours = next(arm for arm in arms_of("gpu30", tmp_path) if arm.name == "mlm_nsp")
    for arm, expected in ((paper, [19 / 128, 77 / 512]), (ours, [9 / 64, 19 / 128, 76 / 512])):
        assert [
            arm.objective.token.predicted_share(phase["seq_length"]) for phase in arm.phases
        ] == expected
        length = arm.phases[0]["seq_length"]
        instances = arm.corpus.instances(arm.objective, length)
        found = arm.objective.arrays(instances, 1, 0, np.arange(min(200, len(instances))))
        full = np.flatnonzero(found["lengths"] == length)
        counts = np.bincount(
            found["prediction_positions"] // length, minlength=len(found["lengths"])
        )
        assert len(full) > 20 and (counts[full] == expected[0] * length).all()


def timed(arm: Arm, *speeds: float) -> Arm:
    return replace(arm, speeds=[Speed(one) for one in speeds])


def test_time_of_a_run_by_hand(demo: list[Arm]) -> None:
    arm = timed(demo[1], 10_000.0, 5_000.0)
    training = 2200 * 1024 / 10_000 + 200 * 1536 / 5_000
    validation = 12 * 512 * 64 / 3 * training / arm.tokens
    assert replace(arm, start=7.0).seconds == pytest.approx(7.0 + training + validation)
    assert demo[1].seconds is None


def test_wall_time_of_a_pool() -> None:
    assert makespan([3.0, 3.0, 3.0], 2) == 6.0
    assert makespan([1.0, 5.0, 1.0, 1.0], 2) == 5.0
    assert makespan([], 2) == 0.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90min", 5400), ("1h30min", 5400), ("1.5 h", 5400), ("45s", 45)],
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("matched_by", ["steps", "tokens", "flops", "time"])
def test_a_budget_is_spent_and_matched(demo: list[Arm], matched_by: str) -> None:
    shapes = [
        replace(timed(arm, speed, speed), start=2.5)
        for arm, speed in zip(demo, (50_000.0, 60_000.0, 24_000.0), strict=True)
    ]
    found = divide(shapes, 7200.0, 1, matched_by)
    counts = [arm.count for arm in shapes]
    assert (counts * found.seconds).sum() == pytest.approx(7200.0)
    for at_once in (2, 4, 100):  # whole jobs: of six runs the last two go on alone
        shares = divide(shapes, 7200.0, at_once, matched_by)
        assert makespan(shares.seconds.repeat(counts), at_once) == pytest.approx(7200.0)
    matched = found["seconds" if matched_by == "time" else matched_by]
    assert list(matched) == pytest.approx([matched[0]] * 3)
    # What an arm has to say of the scale's 2,400 steps, also where it says something already.
    assert list(2400 * found.steps_factor) == pytest.approx(list(found.steps))
    shorter = [replace(arm, settings=replace(arm.settings, steps_factor=0.5)) for arm in shapes]
    again = divide(shorter, 7200.0, 1, matched_by)
    assert list(again.steps_factor) == pytest.approx(list(found.factor / 2))
    if matched_by == "time":
        assert found.tokens[1] > found.tokens[2]
    with pytest.raises(ValueError, match="no speed"):
        affordable(Costing(demo, [], {}), 7200.0, [matched_by])
    with pytest.raises(ValueError, match="starting the runs alone"):
        divide(shapes, 15.0, 1, matched_by)


def test_what_comes_after_pre_training_is_paid_for_first(
    demo: list[Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [replace(timed(arm, 50_000.0, 50_000.0), start=2.5) for arm in demo]
    costing = Costing(shapes, [], {"pretrain": Pool(6, 2, 1, 1, 1)})
    seconds = {"finetune": 1000.0, "evaluate": 500.0}
    monkeypatch.setattr(Costing, "wall", lambda _, verb: seconds[verb])
    share = affordable(costing, 7200.0, ["time"])["time"]
    counts = [arm.count for arm in shapes]
    assert (counts * share.seconds).sum() == pytest.approx(7200.0 - 1500.0)


def test_an_arm_that_goes_on_has_seen_what_its_encoder_has(demo: list[Arm], tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "vocab_size": 100, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"} | sizes))
    assert demo[0].longest == 96
    settings = replace(demo[0].settings, encoder=str(tmp_path))
    assert replace(demo[0], settings=settings).longest == 512
    assert replace(demo[0], settings=replace(settings, fresh_weights=True)).longest == 96


def test_a_budget_buys_no_more_passes_than_a_text_is_good_for(demo: list[Arm]) -> None:
    """What a plan recommends it does not warn of; it says that the text is too small."""
    shapes = []
    for arm in demo:
        prepared = replace(arm.corpus, folder=Path("prepared"))
        shapes.append(replace(timed(arm, 1e9, 1e9), corpus=prepared, start=2.5))
    shares = {"time": divide(shapes, 7200.0, 1, "time")}
    for arm, tokens in zip(shapes, shares["time"].tokens, strict=True):
        read = sum(reading.tokens for reading in arm.readings)
        text = tokens * read / arm.tokens
        assert text <= MOST_PASSES * arm.corpus.train.num_tokens
    assert max(shares["time"].seconds) < 7200.0 / 3
    told = warnings(Costing(shapes, [], {}), shares)
    assert any("its text is too small for this budget" in line for line in told)
    assert not any(" passes over" in line and "by heart" in line for line in told)


def test_what_task_files_hold() -> None:
    aligned = Preview({"first": ["abcd", "abcdefgh"], "second": ["ab", "ab"]}, None, 2)
    assert Sample.from_preview(aligned) == Sample(2, 1.0, 8.0, 2.0)
    questions = Preview({"question": ["who?", "why?"], "passage": ["x" * 96]}, None, 2)
    assert Sample.from_preview(questions) == Sample(2, 1.0, 100.0, 2.0)
    choices = Preview({"context": ["a b c"], "ending": ["d", "e", "f", "g"]}, None, 1)
    assert Sample.from_preview(choices) == Sample(1, 4.0, 6.0, 4.0), (
        "each ending is an input of its own"
    )


def test_files_that_are_not_there(tmp_path: Path) -> None:
    step = next(
        step
        for step in make_steps(FOLDER, ["scale=demo", f"data_dir={tmp_path}"])
        if step.verb == "finetune"
    )
    place = TaskPlace.of_finetuning(step.sweep.config(step.sweep.jobs[0]))
    assert (
        TaskFiles(read_preview).of(place)
        == TaskFiles(read_preview).of(place._replace(hub=True))
        == NO_SAMPLES
    )


def test_a_task_file_that_is_refused_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Worker(monkeypatch)
    file = tmp_path / "notes.csv"
    file.write_text("text,label\n" + "a note,0\nanother,\n" * 9)
    words = ["finetune", "encoder=minilm", "scale=demo", f"task={file}", "--no-measure"]
    assert main([*words, f"runs_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "not found" not in out
    shows(out, "the lengths of notes are guesses:", "notes.csv:3: label is empty (9 rows")


def question(**what: Any) -> Request:
    return Request(what, "a shape", 100.0, 1e9)


def test_a_shape_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    settings: dict[str, Any] = {"at_once": 2, "threads": 1}
    one, two = question(a=1), question(a=2)
    assert measured_speeds([one], tmp_path, **settings, measure=False) == [None]
    said: list[str] = []
    first = measured_speeds([one, two, one], tmp_path, **settings, measure=True, say=said.append)
    assert len(worker.asked) == 2 and first[0] == first[2] == Speed(50_000.0)
    assert said == ["timing 1 of 2: a shape", "timing 2 of 2: a shape"]
    assert measured_speeds([two], tmp_path, **settings, measure=True) == first[:1]
    assert len(worker.asked) == 2
    measured_speeds([two], tmp_path, at_once=1, threads=2, measure=True)
    assert len(worker.asked) == 3, "another number of jobs side by side is another speed"


def test_costs_of_the_demo(
    tmp_path: Path, folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Worker(monkeypatch)
    steps = make_steps(FOLDER, ["scale=demo", *folders, "finetune.task=mrpc,squad_v1"])
    found = with_speeds(analyse(steps, Corpora(strict=False)), tmp_path, measure=True)
    assert ([pool.num_jobs for pool in found.pools.values()], found.num_seeds) == ([6, 48], 2)
    # Six equal runs, two at a time: three in a row,
    # but for the heads that they save.
    assert found.wall("pretrain") == pytest.approx(3 * (found.arms[0].seconds or 0.0), rel=1e-3)
    assert sum(job.count for job in found.tasks) == 48 and not any(
        job.samples.train for job in found.tasks
    )
    assert found.disk_usage(tmp_path, ()).run_bytes > 2 * sum(
        arm.checkpoint_bytes for arm in found.arms
    )
    kept = 5  # encoders on the way, beside the last one
    assert all(
        arm.result_bytes == (3 + (kept + 1) / (1 + MOMENTS)) * arm.checkpoint_bytes
        for arm in found.arms
    )
    validation = Sample(1000, 1.0, 50.0, 10.0)
    # A word has at least a token: at most so many marks are reached.
    for marks, more in (("babylm", 2), ([1e3, 2e3, 3e3], 3)):
        arm = found.arms[0]
        settings = replace(arm.settings, keep_encoders_at_words=marks)
        with_marks = replace(arm, settings=settings)
        vars(with_marks)["phase_tokens"] = [2_500_000]
        encoders = more * FLOAT_BYTES * arm.kept_parameters
        assert with_marks.result_bytes == arm.result_bytes + encoders
    tuned = []
    for job in found.tasks:
        tuned.append(replace(job, samples=job.samples._replace(validation=validation)))
    # which every fine-tuning keeps
    models = {job.task: FLOAT_BYTES * parameter_count(job.encoder) for job in tuned}
    sizes = {job.task: (job.result_bytes - RECORD_BYTES - models[job.task]) / 1000 for job in tuned}
    assert sizes == {
        task: NBEST_BYTES if task.startswith("squad") else PREDICTION_BYTES for task in sizes
    }
    assert any(task.startswith("squad") for task in sizes)


def test_verb(
    folders: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    screen: Screens,
) -> None:
    worker = Worker(monkeypatch)
    words = ["table5_pretraining_tasks", "scale=demo", *folders]
    words += ["finetune.task=mrpc", "finetune.row=mlm,ltr_bilstm"]
    assert main([*words, "--no-measure", "pretrain.steps_factor=0.25"]) == 0 and not worker.asked
    screen(capsys.readouterr().out, hide=OF_THIS_MACHINE)
    assert main([*words, "budget=20min"]) == 0
    shows(
        capsys.readouterr().out,
        "mlm_nsp 2 741,248 760,322 2,400 2.56 M 2.8e+06 7.18e+12 50 k 55 s",
        "mrpc bilstm 4 1,800 226 48 ? 4.33e+11 50 k 4 s",
        "all runs: 5.39e+13 FLOPs",
        "power: how often one of 3 claims is decided where true differences are 2 points",
        "2 5 2.56 M 3.4 min 6%",
        "12 4 2.56 M 19.6 min 87% ########## <- chosen",
        "13 2 2.56 M 19.5 min 77%",
        "finetune.seed=1,2,3,4 seeds=1,2,3,4,5,6,7,8,9,10,11,12",
        "smallest detectable difference: 11.5 points between two rows",
    )
    assert main([*words, "budget=20min", "matched_by=time"]) == 0
    shows(
        capsys.readouterr().out,
        "mlm_nsp 17,564 (7.32 x) 18.7 M 5.25e+13 6.6 min 7.32",
        "ltr 17,564 (7.32 x) 18.7 M 7.94e+13 6.6 min 7.32",
    )
    assert main(["pretrain", "scale=demo", *folders, "objective=mlm", "budget=20min"]) == 0
    shows(
        capsys.readouterr().out,
        "pre-training: 1 job, 1 at a time with 1 thread: about 59 s",
        "mlm 53,300 (22.21 x) 56.9 M 1.59e+14 20.0 min 22.2",
        "objective=mlm steps_factor=22.2",
    )


def write_sentences(path: Path) -> None:
    """75 documents of five short sentences."""
    documents = [f"Word w{number} stands beside the word x{number}.\n" * 5 for number in range(75)]
    path.write_text("\n".join(documents))


@pytest.mark.parametrize("passes", [3, 60])
def test_a_budget_in_words_is_held_against_the_text(
    passes: int,
    tmp_path: Path,
    folders: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """How often a text is read is about the recommended command, not the scale's own steps."""
    Worker(monkeypatch)
    write_sentences(tmp_path / "text.txt")
    words = ["scale=own", f"text={tmp_path}/text.txt", "tokenizer=whitespace", *folders]
    text = prepared_corpus(compose("prepare", words).config).train.num_tokens  # a token a word
    budget = f"budget={passes * text}words"
    assert main(["pretrain", *words, "objective=mlm", budget]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    name, told, *_ = last.split()
    assert name == "mlm:" and "passes over" in last
    assert float(told) == pytest.approx(passes, rel=0.05)  # steps are whole
    assert ("by heart" in last) == (passes > MOST_PASSES)


@pytest.mark.parametrize(
    "phases",
    [
        ["phases=[{seq_length:32,steps:40,global_batch_size:8,micro_batch_size:8}]"],
        ["phases.0.steps=40", "phases.1.steps=10"],
        ["steps_factor=0.02"],
        ["steps_factor=0.0007"],  # whose steps are rounded to 2 and 1
    ],
)
def test_the_command_of_a_budget_reads_so_many_words(
    phases: list[str],
    tmp_path: Path,
    folders: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where phases say steps, which no steps_factor would change."""
    Worker(monkeypatch)
    write_sentences(tmp_path / "text.txt")
    words = ["scale=demo", f"text={tmp_path}/text.txt", *folders]
    prepared_corpus(compose("prepare", words).config)
    words += [*phases, "objective=mlm", "objective/input=full_sentences"]
    assert main(["pretrain", *words, "budget=40000words"]) == 0
    out = capsys.readouterr().out
    command = shlex.split(out[out.rindex("run: ") :].partition("\n")[0])
    assert command[1:3] == ["clozelab", "pretrain"]
    composed = compose("pretrain", command[3:])
    check_overrides(composed)
    cfg: Any = composed.config
    data = make_data(cfg, prepared_corpus(cfg), build_objectives(phase_objectives(cfg)))
    assert data.words_by_step()[-1] == pytest.approx(40_000, rel=0.03)


def test_a_busy_machine_is_told_beside_the_time(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Worker(monkeypatch, is_busy=True)
    assert main(["pretrain", "scale=demo", "objective=mlm", *folders]) == 0
    out = capsys.readouterr().out
    assert out.index("together about") < out.index("the machine was busy") < out.index("FLOPs")
    assert out.count("the machine was busy") == 1


def test_the_worker_compiles_what_a_run_compiles(
    demo: list[Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(
        PretrainingModel, "compile_parts", lambda model, *, whole: compiled.append(whole)
    )
    request = next(demo[0].requests())
    asked = request.question | {"seconds": 0.1, "ticks": 2, "steps_a_tick": 1}
    assert asked["hardware"]["compile"] == "auto"
    for choice, expected in (("auto", []), ("true", [False]), ("whole", [False, True])):
        monkeypatch.setattr(runtime, "has_cpp_compiler", lambda: True)
        hardware = choose_hardware(**asked["hardware"] | {"compile": choice})
        assert len(pretraining_ticks(asked, hardware)) >= 2
        assert compiled == expected, "on the CPU `auto` compiles nothing"


@pytest.mark.parametrize(
    "setting",
    ["epochs: 30", "freeze: embeddings", "optimizer: sgd", "task.data.max_seq_length: 32"],
)
def test_rows_with_settings_of_their_own_cost_their_own(
    setting: str, tmp_path: Path, folders: list[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/paper.yaml").write_text(
        "columns: [mrpc]\narms: {mlm: {objective: mlm}}\nrows: [{row: mlm, arm: mlm}, {row: again,"
        f" arm: mlm}}, {{row: own, arm: mlm, set: {{{setting}}}}}]\n"
    )
    steps = make_steps(tmp_path / "mine", ["scale=demo", *folders])
    usual, own = analyse(steps, Corpora(strict=False)).tasks
    assert usual.count == 2 * own.count and all("row=own" in words for words in own.jobs)


def test_a_value_that_no_run_could_have_is_refused_before_anything_runs(tmp_path: Path) -> None:
    said = {
        "title": "t",
        "columns": ["mrpc"],
        "arms": {"a": {}},
        "rows": [{"row": "a", "arm": "a", "set": {"head": "bilstn"}}],
    }
    (tmp_path / "paper.yaml").write_text(json.dumps(said))
    with refuses("head is 'bilstn': choose one of linear, bilstm; did you mean"):
        main([str(tmp_path), "scale=demo", "--no-measure"])


def test_what_is_equal_for_every_arm_is_said_once(demo: list[Arm]) -> None:
    arms = [replace(arm, corpus=replace(arm.corpus, folder=Path("prepared"))) for arm in demo]
    read = [line for line in warnings(Costing(arms, [], {}), {}) if "passes over" in line]
    assert len(read) == 1 and read[0].startswith("every arm: ")
    (line,) = [
        line
        for line in warnings(Costing([demo[0], *arms[1:]], [], {}), {})
        if "passes over" in line
    ]
    assert line.startswith(f"{arms[1].name} and {arms[2].name}: ")


def test_made_up_text_has_the_entries_of_the_given_vocabulary(tmp_path: Path) -> None:
    """Else ids lay beyond a small encoder's embeddings, and a large vocabulary cost too little."""
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(entries) + "\n")
    words = [f"tokenizer.vocab_file={file}", "corpus=text", "corpus.sources.0.path=nowhere"]
    config = compose("pretrain", [*words, f"data_dir={tmp_path}"]).config
    assert Corpora(strict=False)(config).train.vocab_size == len(entries)
    learnt = compose("pretrain", [*words[1:], f"data_dir={tmp_path}"]).config
    assert Corpora(strict=False)(learnt).train.vocab_size == learnt.tokenizer.vocab_size
