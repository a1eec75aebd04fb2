"""What reproducing an experiment consists of, and which override goes to which stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clozelab.launch import sweep
from clozelab.launch.jobs import planned_jobs
from clozelab.planning.next_seed import stages_with_seeds
from clozelab.planning.steps import make_steps
from clozelab.text.paths import EXPERIMENTS_DIR

TABLE5 = EXPERIMENTS_DIR / "table5_pretraining_tasks"


def test_steps_and_overrides() -> None:
    words = [
        "scale=laptop",
        "data_dir=D",
        "trainer=gpu",
        "pretrain.seed=7,8",
        "finetune.task=mrpc",
        "prepare.tokenizer.lowercase=false",
    ]
    prepare, pretrain, finetune = make_steps(TABLE5, words)
    assert prepare.words()[:3] == ["prepare", "corpus=scale_laptop", "scale=laptop"]
    assert {"tokenizer.lowercase=false", "trainer=gpu"} & {*prepare.overrides} == {
        "tokenizer.lowercase=false"
    }
    assert pretrain.overrides == ("scale=laptop", "data_dir=D", "trainer=gpu", "seed=7,8")
    assert finetune.overrides == ("scale=laptop", "data_dir=D", "trainer=gpu", "task=mrpc")
    assert pretrain.words()[:6] == [
        "pretrain",
        "--config-dir",
        str(TABLE5),
        "--config-name",
        "sweep_pretrain",
        "-m",
    ]


def test_fine_tuning_or_measures_are_left_out() -> None:
    folder = EXPERIMENTS_DIR / "table8_masking"
    said = {
        "": ["finetune", "evaluate"],
        "evaluate=none": ["finetune"],
        "finetune=none": ["evaluate"],
    }
    for word, after in said.items():
        assert [step.verb for step in make_steps(folder, word.split())] == [
            "prepare",
            "pretrain",
            *after,
        ]


def test_one_word_chooses_the_seeds_of_every_stage() -> None:
    *_, pretrain, finetune, evaluate = make_steps(
        EXPERIMENTS_DIR / "table8_masking", ["seeds=4,5", "finetune.seed=1"]
    )
    assert pretrain.overrides == ("seed=4,5",)
    assert finetune.overrides == ("pretrain_seed=4,5", "seed=1")
    assert evaluate.overrides == ("pretrain_seed=4,5",)
    (given,) = make_steps(EXPERIMENTS_DIR / "table4_swag", ["encoder=/x", "seeds=2"])
    assert given.overrides == ("row=given", "encoder=/x", "pretrain_seed=2")


def test_rows_of_measures() -> None:
    """Whether other words are for other stages, and whether there is fine-tuning or not."""
    for name, row, words in (
        ("table8_masking", "row=random", ["steps_factor=0.5"]),
        ("table8_masking", "evaluate.measured=random", ["finetune=none"]),
        ("zero_shot", "row=random", []),
    ):
        steps = make_steps(EXPERIMENTS_DIR / name, [*words, row])
        assert steps[-1].verb == "evaluate" and steps[-1].overrides == ("measured=random",), name
        assert not any("row" in word for word in (*steps[0].overrides, *steps[1].overrides))


def write_borrower(folder: Path) -> None:
    """An experiment whose row `given` is measured with the head of the arm `head`."""
    paper = {
        "columns": ["mrpc", {"name": "BLiMP", "from": "evaluate", "task": "blimp"}],
        "arms": {"further": {"steps_factor": 0.5}, "head": {}},
        "rows": [{"row": "further", "arm": "further"}, {"row": "given", "arm": None}],
    }
    (folder / "measured").mkdir()
    (folder / "paper.yaml").write_text(json.dumps(paper))
    (folder / "measured/given.yaml").write_text(
        "# @package _global_\nrow: given\nencoder_arm: head\ninitialisation: pretrained\n"
    )


@pytest.mark.parametrize(
    ("words", "arms"),
    [
        (["pretrain.arm=further"], "arm=further,head"),
        (["pretrain.arm=head,further", "row=given"], "arm=head,further"),
        (["pretrain.arm=further", "row=further"], "arm=further"),
        (["pretrain.arm=further", "evaluate.measured=further,given"], "arm=further,head"),
        (["pretrain.arm=further", "evaluate=none"], "arm=further"),
    ],
)
def test_the_arm_whose_head_a_measure_needs_comes_along(
    tmp_path: Path, words: list[str], arms: str
) -> None:
    """A given encoder is measured with the head of an arm that is none of its row's."""
    write_borrower(tmp_path)
    steps = {step.verb: step for step in make_steps(tmp_path, words)}
    assert arms in steps["pretrain"].overrides


@pytest.mark.parametrize(
    ("words", "arms", "verbs"),
    [
        (["seeds=4"], "arm=further,head", ["finetune", "evaluate"]),
        (["pretrain.seed=4", "finetune.pretrain_seed=4"], "arm=further", ["finetune"]),
        (
            ["pretrain.seed=4", "evaluate.pretrain_seed=4", "evaluate.measured=given"],
            "arm=further,head",
            ["evaluate"],
        ),
    ],
)
def test_a_seed_more_of_fine_tunings_trains_no_head(
    tmp_path: Path, words: list[str], arms: str, verbs: list[str]
) -> None:
    """An arm that only measures read was trained, and none was measured with it."""
    write_borrower(tmp_path)
    overrides = [*words, "pretrain.arm=further", "evaluate.measure=blimp"]
    steps = make_steps(tmp_path, overrides, stages_with_seeds(words))
    assert [step.verb for step in steps] == ["prepare", "pretrain", *verbs]
    assert arms in steps[1].overrides


def test_lists_of_values_that_only_a_sweeper_knows() -> None:
    """They go to the stages that have the key, untried."""
    _, pretrain, finetune = make_steps(
        TABLE5, ["task=glob(m*)", "finetune.learning_rate=interval(1e-5,1e-4)"]
    )
    assert pretrain.overrides == ()
    assert finetune.overrides == ("task=glob(m*)", "learning_rate=interval(1e-5,1e-4)")


def test_later_overrides_see_the_first_choice_of_a_list() -> None:
    step = make_steps(TABLE5, ["finetune.task=squad_v1,mrpc", "finetune.task.data.doc_stride=64"])[
        -1
    ]
    assert step.overrides == ("task=squad_v1,mrpc", "task.data.doc_stride=64")


def test_corpus_follows_the_users_choice() -> None:
    assert "corpus=text" in make_steps(TABLE5, ["corpus=text"])[0].overrides


def test_prepare_gets_the_corpus_and_the_tokenizer_that_the_sweep_reads(tmp_path: Path) -> None:
    posts = {"name": "posts", "path": ["a b.csv", "c.csv"], "text_field": "body", "format": "csv"}
    dataset = {"name": "web", "dataset": "a/b", "revision": "f" * 40, "weight": 0.5}
    said = {
        "title": "t",
        "columns": [{"name": "L", "from": "pretrain", "metric": "validation/loss"}],
        "arms": {"a": {"objective": "mlm"}, "b": {"objective": "ltr"}},
        "sweeps": {
            "pretrain": {
                "corpus": "scale_own",
                "corpus.sources": [posts, dataset],
                "corpus.steps": ["clean", {"near_duplicates": {"threshold": 0.7}}],
                "corpus.validation_fraction": 0.2,
                "tokenizer": "byte_bpe",
                "tokenizer.vocab_size": 900,
            }
        },
        "claims": [],
    }
    (tmp_path / "paper.yaml").write_text(json.dumps(said))
    words = ["scale=own", "prepare.corpus.workers=1"]
    prepare, pretrain = make_steps(tmp_path, words)
    sources = "{name:posts,format:csv,text_field:body,path:['a b.csv',c.csv]},"
    sources += f"{{name:web,dataset:a/b,revision:{'f' * 40},weight:0.5}}"
    assert prepare.overrides == (
        "corpus=scale_own",
        "tokenizer=byte_bpe",
        f"corpus.sources=[{sources}]",
        "corpus.validation_fraction=0.2",
        "corpus.steps=[clean,{near_duplicates:{threshold:0.7}}]",
        "tokenizer.vocab_size=900",
        "scale=own",
        "corpus.workers=1",
    )
    composed = sweep.compose("prepare", prepare.overrides)
    for group in ("corpus", "tokenizer"):
        expected = pretrain.sweep.master.get(group)
        assert composed.get(group) | {"workers": None} == expected | {"workers": None}
    (user, *_) = make_steps(tmp_path, [*words, "prepare.corpus.validation_fraction=0.1"])
    assert "corpus.validation_fraction=0.2" not in user.overrides
    # A setting of one source left out all sources, and the scale's own text was looked for.
    field = "corpus.sources.0.text_field=text"
    prepare, pretrain = make_steps(tmp_path, [*words, field])
    assert prepare.overrides[-1] == field
    composed = sweep.compose("prepare", prepare.overrides)
    assert composed.get("corpus")["sources"] == pretrain.sweep.master.get("corpus")["sources"]


@pytest.mark.parametrize(
    "name", ["table4_swag", pytest.param("table7_feature_based_ner", marks=pytest.mark.slow)]
)
def test_a_given_encoder_needs_no_pretraining(name: str) -> None:
    folder = EXPERIMENTS_DIR / name
    (step,) = make_steps(folder, ["encoder=/x", "scale=laptop", "runs_dir=R"])
    assert (step.verb, step.overrides[0]) == ("finetune", "row=given")
    jobs = list(
        planned_jobs(sweep.Sweep(step.config_name, [*step.overrides, "seed=1"], folder=folder))
    )
    assert all(
        job.run_dir.startswith(f"R/{name}/laptop/finetune/given/pretrain-seed-1/") for job in jobs
    )
    assert len({job.run_dir for job in jobs}) == len(jobs)
    (large,) = make_steps(folder, ["row=large", "encoder=/x"])
    assert large.overrides == ("row=large", "encoder=/x")
    assert [one.verb for one in make_steps(folder, [])] == ["prepare", "pretrain", "finetune"]


def test_a_row_of_a_given_encoder_composes() -> None:
    folder = EXPERIMENTS_DIR / "table2_squad_v1"
    words = ["row=large_extra", "encoder=/x", "finetune.task.data.train_extra=[FILE]"]
    (step,) = make_steps(folder, words)
    assert list(planned_jobs(sweep.Sweep(step.config_name, step.overrides, folder=folder)))


def test_given_encoder_is_fine_tuned_by_the_papers_protocol() -> None:
    words = ["row=given", "encoder=/x", "scale=laptop", "task=rte", "seed=1", "runs_dir=R"]
    jobs = list(
        planned_jobs(sweep.Sweep("sweep_finetune", words, folder=EXPERIMENTS_DIR / "table1_glue"))
    )
    assert [job.run_dir.split("/")[-2] for job in jobs] == [
        "rate-5e-05",
        "rate-4e-05",
        "rate-3e-05",
        "rate-2e-05",
    ]
    composed = sweep.compose("sweep_finetune", words, folder=EXPERIMENTS_DIR / "table1_glue").config
    assert (composed.epochs, composed.max_train_examples, composed.encoder) == (3, None, "/x")


def test_keys_of_hydra_go_to_every_stage_beside_keys_that_one_stage_lacks() -> None:
    words = ["scale=laptop", "hydra.launcher.jobs_at_once=2", "model.hidden_size=64"]
    _, pretrain, finetune = make_steps(TABLE5, words)
    assert pretrain.overrides == tuple(words)
    assert finetune.overrides == tuple(words[:2])
