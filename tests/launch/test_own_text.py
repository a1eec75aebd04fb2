"""`text=FOLDER`: the short word for a text of one's own, in every verb that reads a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException

from clozelab.launch import sweep
from clozelab.launch.overrides import check_overrides
from clozelab.planning.steps import make_steps
from clozelab.text.paths import CONF_DIR, EXPERIMENTS_DIR

TABLE5 = EXPERIMENTS_DIR / "table5_pretraining_tasks"
LONG = ["corpus=scale_own", "corpus.sources.0.path=texts"]


@pytest.mark.parametrize("verb", ["prepare", "pretrain"])
@pytest.mark.parametrize("scale", ["own", "demo"])
def test_the_short_word_is_the_long_ones(verb: str, scale: str) -> None:
    short = sweep.compose(verb, [f"scale={scale}", "text=texts"])
    long = sweep.compose(verb, [f"scale={scale}", *LONG])
    assert short.recorded == long.recorded
    assert short.config.corpus.generator is None
    assert short.config.corpus.validation_fraction == 0.05


@pytest.mark.parametrize("path", ["it's (here)", "dump/*.csv.xz", "my folder", "a=b", "{x}", "1"])
@pytest.mark.parametrize(
    ("verb", "key", "words"),
    [
        ("pretrain", "corpus.sources.0.path", []),
        ("evaluate", "measure.data.sources.0.path", ["measure=held_out_text"]),
    ],
)
def test_any_path_may_be_named(verb: str, key: str, words: list[str], path: str) -> None:
    assert sweep.compose(verb, [f"text={path}", *words]).get(key) == path


def test_keys_beside_it_go_on_saying_how_the_text_is_read() -> None:
    words = ["text=posts.parquet", "corpus.sources.0.text_field=body", "corpus=text"]
    corpus = sweep.compose("prepare", words).config.corpus
    assert (corpus.sources[0].path, corpus.sources[0].text_field) == ("posts.parquet", "body")
    assert corpus.validation_fraction == 0.01, "corpus=text says so"


def test_a_scale_of_ones_own_needs_no_corpus_file(tmp_path: Path) -> None:
    own = (CONF_DIR / "scale" / "own.yaml").read_text()
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "night.yaml").write_text(own.replace("name: own", "name: night"))
    composed = sweep.compose("pretrain", ["scale=night", "text=texts"], folder=tmp_path)
    assert composed.get("corpus.sources.0.path") == "texts"


def test_who_reads_runs_names_no_text_and_allows_no_code(tmp_path: Path) -> None:
    """`report` and `pack` take the first sweep that needs neither; a slip is told as before."""
    own = (CONF_DIR / "scale" / "own.yaml").read_text()
    files = {"scale/night.yaml": own.replace("name: own", "name: night")}
    files["optimizer/mine.yaml"] = "_target_: mypkg.plain\n"
    files["paper.yaml"] = "arms: {a: {objective: mlm, optimizer: mine}}\ncolumns: [mrpc]\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for scale in ("night", "own"):
        root, _ = sweep.runs_root(tmp_path, [f"scale={scale}"])
        assert root == Path("runs", tmp_path.name, scale)
    with pytest.raises(ConfigCompositionException, match="Could not override 'epoch'"):
        sweep.runs_root(tmp_path, ["scale=own", "epoch=2"])


def test_a_sweep_goes_through_several_texts() -> None:
    jobs = sweep.Sweep("pretrain", ["text=a,b", "objective=mlm"]).jobs
    for job, name in zip(jobs, "ab", strict=True):
        assert f"corpus.sources.0.path={name}" in job
    assert [job[-1] for job in jobs] == ["arm=path-a", "arm=path-b"]


def test_a_whole_experiment_gives_it_to_the_stages_with_a_corpus() -> None:
    prepare, pretrain, finetune = make_steps(TABLE5, ["scale=own", "text=texts"])
    assert prepare.overrides == ("corpus=scale_own", "scale=own", "text=texts")
    assert pretrain.overrides == ("scale=own", "text=texts")
    assert finetune.overrides == ("scale=own",)
    assert pretrain.sweep.master.get("corpus.sources.0.path") == "texts"
    *_, evaluate = make_steps(EXPERIMENTS_DIR / "zero_shot", ["text=texts"])
    assert (evaluate.verb, evaluate.overrides) == ("evaluate", ())


@pytest.mark.parametrize(
    ("verb", "words", "message"),
    [
        ("pretrain", ["corpus=wiki_books"], "text=t and corpus=wiki_books name two texts"),
        ("prepare", ["corpus.sources.0.path=b"], "corpus.sources.0.path=b name two texts"),
        ("prepare", ["corpus.sources=[]"], "corpus.sources=[] name two texts"),
        ("finetune", [], "finetune reads none"),
        ("evaluate", ["measure=blimp"], "the measure blimp reads no text of yours"),
        (
            "evaluate",
            ["measure=held_out_text", "measure.data.sources=[{name: a, path: b}]"],
            "name two texts",
        ),
    ],
)
def test_it_is_refused(verb: str, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match="text=t") as caught:
        sweep.compose(verb, ["text=t", *words])
    assert message in str(caught.value)


def test_nothing_is_no_text() -> None:
    with pytest.raises(ValueError, match="text='' names nothing: say text=FOLDER"):
        sweep.compose("pretrain", ["text=''"])


def test_an_experiment_that_pre_trains_nothing_refuses_it() -> None:
    with pytest.raises(ValueError, match=r"no stage takes 'text=t'.* no step 'pretrain'"):
        make_steps(EXPERIMENTS_DIR / "public_encoder", ["encoder=bert", "text=t"])


@pytest.mark.parametrize("verb", ["prepare", "pretrain"])
def test_a_path_of_a_generated_corpus_is_refused(verb: str) -> None:
    with pytest.raises(ValueError, match=r"the generated corpus microworld.* say text=t instead"):
        check_overrides(sweep.compose(verb, ["corpus.sources.0.path=t"]))
    check_overrides(sweep.compose(verb, ["corpus=text", "corpus.sources.0.path=t"]))
