"""docs/python.md as it stands, on a tiny world; and what `clozelab predict` makes of its runs."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import clozelab
from clozelab.cli import main
from clozelab.metrics import glue

PAGE = Path(__file__).parents[1] / "docs/python.md"
TINY: dict[str, Any] = {
    "trainer": {"precision": "32-true", "threads": 1, "progress_bar": False},
}
PRETRAIN: dict[str, Any] = {
    "corpus": {
        "generator": {"num_documents": 24, "train_examples": 64, "validation_examples": 24, "entropy_documents": 0},
        "validation_fraction": 0.14,
    },
    "tokenizer": {"vocab_size": 500},
    "model": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64},
    "phases": [{"seq_length": 64, "steps": 4, "global_batch_size": 8, "micro_batch_size": 8}],
    "validation": {"interval_steps": 4, "instances": 8, "seq_length": 32},
}
FINETUNE = {"epochs": 1, "evaluations_per_epoch": 1, "global_batch_size": 16}


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page's snippets leave behind, one after the other; `root` is where they ran."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("page")
    places = {name: str(root / name) for name in ("data_dir", "cache_dir", "runs_dir")}
    names: dict[str, Any] = {"root": root, "places": places, "tiny": TINY | places, "print": lambda *_: None}
    names |= {"of_pretraining": PRETRAIN, "of_finetuning": FINETUNE}
    with patch.context() as here:
        here.chdir(root)
        for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
            kind = "of_pretraining" if "clozelab.pretrain" in snippet else "of_finetuning"
            code = snippet.replace('scale="demo",', f'scale="demo", **tiny, **{kind},')
            exec(
                compile(
                    code.replace(
                        "Trainer(\n", "Trainer(logger=False, enable_progress_bar=False, enable_checkpointing=False,\n"
                    ),
                    str(PAGE),
                    "exec",
                ),
                names,
            )
            names.setdefault("runs", []).append(names["run"])
    return names


def test_the_page_runs_as_it_stands(page: dict[str, Any]) -> None:
    pretraining, finetuning = page["runs"][:2]
    assert (pretraining.stage, pretraining.status, finetuning.stage) == ("pretrain", "complete", "finetune")
    assert pretraining.folder.is_relative_to(page["root"]) and pretraining.choices["objective"] == "mlm_nsp"
    assert page["vectors"].shape == (2, 32)
    # An own Trainer's training is the stage's: the same scores from the same seeds.
    assert {key: 100 * value for key, value in page["module"].best.scores.items()} == pytest.approx(finetuning.values)


def test_the_functions_take_what_the_command_line_takes(page: dict[str, Any]) -> None:
    again = clozelab.finetune(
        "seed=1", scale="demo", encoder=page["encoder"], row="mine", task="sst2", **page["tiny"], **FINETUNE
    )
    assert again.finished == page["runs"][1].finished, "complete already"
    assert clozelab.prepare(
        scale="demo", **page["places"], **{k: PRETRAIN[k] for k in ("corpus", "tokenizer")}
    ).is_dir()
    with pytest.raises(ValueError, match="finetune has no key 'epoch'; did you mean 'epochs'"):
        clozelab.finetune(epoch=3)
    with pytest.raises(ValueError, match="there is no task 'sst3'; did you mean 'sst2'"):
        clozelab.finetune(task="sst3")
    report = clozelab.make_report(page["root"] / "runs_dir/adhoc/demo")
    assert (report.folder / "report.md").is_file()
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        clozelab.lode  # noqa: B018


def said(capsys: pytest.CaptureFixture[str], *words: Any) -> list[str]:
    capsys.readouterr()
    status = main(["predict", *map(str, words)])
    out, err = capsys.readouterr()
    assert status == 0, err
    return out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    capsys.readouterr()
    assert main(["predict", *map(str, words)]) == 1
    return " ".join(capsys.readouterr().err.split())


def test_a_run_predicts_its_own_validation_file_as_it_was_scored(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, score = page["runs"][1].folder, json.loads((page["runs"][1].folder / "scores.json").read_text())
    validation = page["root"] / "data_dir/glue/SST-2/dev.tsv"
    table = pandas.read_csv(validation, sep="\t", dtype=str, quoting=3)
    labels = table.label.astype(int).to_numpy()
    # In the benchmark's own format, by the task's module:
    (path,) = said(capsys, run, f"test={validation}", f"output={tmp_path / 'there'}")
    answers = [int(line.split("\t")[1]) for line in Path(path).read_text().splitlines()[1:]]
    assert glue.score(["accuracy"], np.array(answers), labels)["accuracy"] == score["scores"]["validation/accuracy"]
    # As plain lines, by the model alone:
    (tmp_path / "lines.txt").write_text("\n".join(table.sentence) + "\n")
    words = [f"input={tmp_path / 'lines.txt'}", "precision=32-true"]
    lines = said(capsys, run, *words)
    assert [int(line.split("\t")[0]) for line in lines] == answers
    assert said(capsys, run, *words, f"output={tmp_path / 'out.jsonl'}") == []
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == [*table.sentence] and records[0]["prediction"]["label"] in "01"
    # The test files of the task, as predict_test=true would have written them:
    assert [Path(one).parent.name for one in said(capsys, run, "--test")] == ["test_predictions"]


def test_what_predict_prints_and_writes(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = page["encoder"].parent
    (line,) = said(capsys, encoder, "text=the [MASK] saw the [MASK]", "top_k=2")
    assert [len(part.split()) for part in line.split("\t")] == [4, 4]
    (line,) = said(capsys, encoder, "text=one", "pair=two", "do=next", "--json")
    assert json.loads(line)["prediction"].keys() == {"label", "probability", "probabilities"}
    monkeypatch.setattr("sys.stdin", io.StringIO("a text\nanother text\n"))
    assert said(capsys, encoder, "input=-", "do=embed", f"output={tmp_path / 'v.npy'}") == []
    vectors = clozelab.load(encoder).embed(["a text", "another text"])
    assert np.array_equal(np.load(tmp_path / "v.npy"), vectors)
    (tmp_path / "in.jsonl").write_text('{"text": "a text", "id": 7, "log_probability": 1}\n{"text": "another text"}\n')
    said(capsys, encoder, f"input={tmp_path / 'in.jsonl'}", "do=embed", f"output={tmp_path / 'v.parquet'}")
    assert np.array_equal(np.stack(pandas.read_parquet(tmp_path / "v.parquet").embedding), vectors)
    (line, _) = said(capsys, encoder, f"input={tmp_path / 'in.jsonl'}", "do=score", "--json")
    assert json.loads(line)["id"] == 7 and json.loads(line)["prediction"]["log_probability"] < 0


def test_what_predict_refuses(page: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    encoder = page["encoder"].parent
    assert "needs one of text=TEXT and input=FILE" in refused(capsys, encoder)
    assert "do=dance: choose one of fill, classify" in refused(capsys, encoder, "text=a", "do=dance")
    assert "stride=3 is nothing for do=fill" in refused(capsys, encoder, "text=a [MASK]", "stride=3")
    assert "was never trained" in refused(capsys, encoder, "text=a", "do=classify")
    assert "do=answer needs 'pair' of every text" in refused(capsys, encoder, "text=a", "do=answer")
    assert "is no complete fine-tuning" in refused(capsys, encoder, "--test")
    assert "there is no such file" in refused(capsys, encoder, "input=nowhere.txt")
    (tmp_path / "in.jsonl").write_text("[1]\n")
    assert "in.jsonl:1 is no JSON object" in refused(capsys, encoder, f"input={tmp_path / 'in.jsonl'}")
    assert "only do=embed gives what a .npy file holds" in refused(
        capsys, encoder, "text=a [MASK]", f"output={tmp_path / 'x.npy'}"
    )
