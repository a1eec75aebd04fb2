"""docs/python.md as it stands, on a tiny world; and what `clozelab predict` makes of its runs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from tests.screens import refuses, shows

import clozelab
from clozelab.cli import main
from clozelab.metrics import glue
from clozelab.modules.pretraining import check_lengths
from clozelab.text.plain import hydra_literal

PAGE = Path(__file__).parents[1] / "docs/python.md"
TINY: dict[str, Any] = {
    "trainer": {"precision": "32-true", "threads": 1, "progress_bar": False},
}
PRETRAIN: dict[str, Any] = {
    "corpus": {
        "generator": {
            "num_documents": 24,
            "train_examples": 64,
            "validation_examples": 24,
            "entropy_documents": 0,
        },
        "validation_fraction": 0.14,
    },
    "tokenizer": {"vocab_size": 500},
    "model": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    },
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
    names: dict[str, Any] = {
        "root": root,
        "places": places,
        "tiny": TINY | places,
        "print": lambda *_: None,
    }
    names |= {"of_pretraining": PRETRAIN, "of_finetuning": FINETUNE}
    with patch.context() as here:
        here.chdir(root)
        for snippet in re.findall(
            r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
        ):
            kind = "of_pretraining" if "clozelab.pretrain" in snippet else "of_finetuning"
            code = snippet.replace('scale="demo",', f'scale="demo", **tiny, **{kind},')
            quiet = code.replace("Trainer(\n", "Trainer(logger=False, enable_progress_bar=False,\n")
            exec(compile(quiet, str(PAGE), "exec"), names)
            names.setdefault("runs", []).append(names["run"])
    return names


def test_the_page_runs_as_it_stands(page: dict[str, Any]) -> None:
    pretraining, finetuning = page["runs"][:2]
    assert (pretraining.stage, pretraining.status, finetuning.stage) == (
        "pretrain",
        "complete",
        "finetune",
    )
    assert pretraining.folder.is_relative_to(page["root"])
    assert pretraining.choices["objective"] == "mlm_nsp"
    assert page["vectors"].shape == (2, 32)
    rules, config = (
        json.loads((page["encoder"] / name).read_text())
        for name in ("tokenizer_config.json", "config.json")
    )
    assert (rules["model_max_length"], config["architectures"]) == (
        64,
        ["BertForPreTraining"],
    ), "the longest trained"
    assert {path.stat().st_mode & 0o777 for path in page["encoder"].iterdir()} == {0o644 & ~umask()}
    labels = json.loads((page["model"] / "config.json").read_text())["id2label"]
    assert labels == {"0": "0", "1": "1"}, "as the task's files name them"
    # An own Trainer's training is the stage's: the same scores from the same seeds.
    assert {key: 100 * value for key, value in page["module"].best.scores.items()} == pytest.approx(
        finetuning.values
    )
    assert [path.suffix for path in (page["root"] / "kept").iterdir()] == [".ckpt"]
    assert clozelab.load(finetuning).classify("a text") == page["sentiment"].classify("a text")
    assert (
        page["trainer"].callback_metrics["validation/accuracy"]
        == page["module"].history[-1]["validation/accuracy"]
    )


def test_the_functions_take_what_the_command_line_takes(page: dict[str, Any]) -> None:
    settings = {"scale": "demo", "encoder": page["encoder"], "row": "mine", "task": "sst2"}
    again = clozelab.finetune("seed=1", **settings, **page["tiny"], **FINETUNE)
    assert again.finished == page["runs"][1].finished, "complete already"
    assert clozelab.prepare(
        scale="demo", **page["places"], **{k: PRETRAIN[k] for k in ("corpus", "tokenizer")}
    ).is_dir()
    for key, value, reason in (
        ("epoch", 3, "finetune has no key 'epoch'; did you mean 'epochs'?"),
        ("task", "sst3", "there is no task 'sst3'; did you mean 'sst2'?"),
    ):
        with refuses(reason):
            clozelab.finetune(**{key: value})
    report = clozelab.make_report(page["root"] / "runs_dir/adhoc/demo")
    assert (report.folder / "report.md").is_file()
    assert [*clozelab._to_argv({"encoder": page["runs"][0]})] == [
        f"encoder={hydra_literal(page['encoder'].parent)}"
    ], "a run stands for its folder"
    with refuses("module 'clozelab' has no attribute 'lode'", AttributeError):
        clozelab.lode  # noqa: B018


def torch_settings() -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "fp32": torch.get_float32_matmul_precision(),
        "fp32 of oneDNN": torch.backends.mkldnn.matmul.fp32_precision,
    }


@pytest.mark.parametrize("ends", ["complete", "refused"])
def test_a_run_leaves_torch_as_it_was(
    page: dict[str, Any], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook, whose own work goes on: threads, algorithms, how fp32 is multiplied."""
    trainer = page["tiny"]["trainer"] | {"deterministic": True}
    options = page["tiny"] | PRETRAIN | {"trainer": trainer}
    if ends == "refused":
        # after the machine was looked at
        options["validation"] = PRETRAIN["validation"] | {"seq_length": 4096}
    during = []

    def check(*args: Any) -> None:
        during.append((torch.get_num_threads(), torch.get_deterministic_debug_mode()))
        check_lengths(*args)

    monkeypatch.setattr("clozelab.assembly.pretraining.check_lengths", check)
    # The page's own Trainer has left what `compose` set.
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_num_threads(2)
    try:
        before = torch_settings()
        with nullcontext() if ends == "complete" else pytest.raises(ValueError, match="positions"):
            clozelab.pretrain(scale="demo", seed=7, objective="mlm", **options)
        assert torch_settings() == before
    finally:
        torch.set_num_threads(1)
    assert during == [(1, 2)], "of the run: its own"


@pytest.mark.parametrize(
    "value",
    [
        "a\\d",
        "ends\\",
        "it's",
        "a\\'b",
        "/home/josé/x y",
        "1e-5",
        "null",
        "",
        "${x}",
        1e-5,
        np.int64(3),
        float("inf"),
        [1, "b c"],
    ],
)
def test_a_value_is_said_in_hydras_grammar(value: Any) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString

    from clozelab import _to_argv

    found = OverridesParser.create().parse_override(*_to_argv({"key": value})).value()
    assert (found.text if isinstance(found, QuotedString) else found) == value


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
    run = page["runs"][1].folder
    score = json.loads((run / "scores.json").read_text())
    validation = page["root"] / "data_dir/glue/SST-2/dev.tsv"
    table = pandas.read_csv(validation, sep="\t", dtype=str, quoting=3)
    labels = table.label.astype(int).to_numpy()
    # In the benchmark's own format, by the task's module:
    (path,) = said(capsys, run, f"test={validation}", f"output={tmp_path / 'there'}")
    answers = [int(line.split("\t")[1]) for line in Path(path).read_text().splitlines()[1:]]
    assert (
        glue.score(["accuracy"], np.array(answers), labels)["accuracy"]
        == score["scores"]["validation/accuracy"]
    )
    # As plain lines, by the model alone:
    (tmp_path / "lines.txt").write_text("\n".join(table.sentence) + "\n")
    words = [f"input={tmp_path / 'lines.txt'}", "precision=32-true"]
    lines = said(capsys, run, *words)
    assert [int(line.split("\t")[0]) for line in lines] == answers
    assert said(capsys, run, *words, f"output={tmp_path / 'out.jsonl'}") == [
        f"{len(table)} rows: {tmp_path / 'out.jsonl'}"
    ]
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == [*table.sentence]
    assert [int(record["prediction"]["label"]) for record in records] == answers
    # Classes under other names:
    words = [f"test={validation}", f"output={tmp_path / 'named'}", "label_names={0: bad, 1: good}"]
    (path,) = said(capsys, run, *words)
    named = [line.split("\t")[1] for line in Path(path).read_text().splitlines()[1:]]
    assert named == [("bad", "good")[answer] for answer in answers]
    # The test files of the task, as predict_test=true would have written them:
    assert [Path(one).parent.name for one in said(capsys, run, "--test")] == ["test_predictions"]


def test_what_predict_prints_and_writes(
    page: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = page["encoder"].parent
    (line,) = said(capsys, encoder, "text=the [MASK] saw the [MASK]", "top_k=2")
    assert [len(part.split()) for part in line.split("\t")] == [4, 4]
    (line,) = said(capsys, encoder, "text=one", "pair=two", "do=next", "--json")
    assert json.loads(line).keys() == {"text", "pair", "prediction"}
    assert json.loads(line)["prediction"].keys() == {"label", "probability", "probabilities"}
    (tmp_path / "in.jsonl").write_text(
        '\ufeff{"text": "a text", "id": 7, "log_probability": 1}\n{"text": "another text"}\n'
    )
    line, _ = said(capsys, encoder, f"input={tmp_path / 'in.jsonl'}", "do=score", "--json")
    record = json.loads(line)
    assert (record["id"], record["log_probability"]) == (7, 1)
    assert record["prediction"]["log_probability"] < 0
    monkeypatch.setattr("sys.stdin", io.StringIO(line + "\n"))
    # what it printed, it reads
    again = json.loads(*said(capsys, encoder, "input=-", "do=score", "--json"))
    assert again.keys() == record.keys()
    assert again["prediction"]["tokens"] == record["prediction"]["tokens"]


def test_a_task_is_predicted_as_it_was_trained_alone(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run, data = page["runs"][1].folder, page["root"] / "data_dir/glue/SST-2"
    test = shutil.copy(data / "test.tsv", tmp_path / "SST-2.tsv")
    reason = "is called as the task's own test set: say output=FOLDER"
    shows(refused(capsys, run, f"test={test}"), reason)
    first = "sentence\tlabel\n"
    for path, old, new, word in (
        (data / "train.tsv", first, f"{first}a new line\t1\n", "was trained on other task files"),
        (run / "run.json", '"epochs": 1.0', '"epochs": 2.0', "gives another configuration"),
    ):
        before = path.read_text()
        path.write_text(before.replace(old, new))
        assert path.read_text() != before
        assert word in refused(capsys, run, "--test")
        path.write_text(before)


def test_a_line_of_text_is_one_line() -> None:
    from clozelab.modules.answer_files import text_line
    from clozelab.modules.answers import Answer

    assert text_line(Answer("New\nYork\tCity", 0.5, 0, 3, 16)) == "New York City\t0.5000"


def test_what_predict_refuses(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    encoder = page["encoder"].parent
    lines = tmp_path / "in.txt"
    where = f"input={lines}"
    for content, act, word in (
        ("one\ttwo\n", "score", "has 'pair', which do=score does not read"),
        ("a text\tpositive\t7\n", "embed", "in.txt has lines of three columns and more"),
        ('{"text": "a"}\n{"text": 7}\n', "embed", "in.txt:2 has 7 as 'text': a string was"),
        ('{"question": "who", "passages": "he"}\n', "answer", "has 'he' as 'passages': a list of"),
        ('{"text": "a"}\n{"id": 7}\n', "embed", "in.txt:2 has no 'text'"),
        ('{"text": "a", "text_pair": "b"}\n', "embed", "'text_pair', which nothing reads: did you"),
    ):
        lines.write_text(content)
        words = (where, f"do={act}", f"output={tmp_path / 'out.txt'}", "errors=raise")
        assert word in refused(capsys, encoder, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"], "nothing half-written is left"
    lines.write_bytes(b"caf\xe9\n")
    (tmp_path / "in.jsonl").write_text("[1]\n")
    for words, sentence in (
        ((), "needs one of text=TEXT and input=FILE"),
        (("text=a", "do=dance"), "do=dance: choose one of fill, classify"),
        (("text=a [MASK]", "stride=3"), "stride=3 is nothing for do=fill"),
        (("text=a", "do=embed", "layer=--1"), "layer=--1 is nothing for do=embed, or no whole"),
        (("text=a", "do=classify"), "was never trained"),
        (("text=a", "do=answer"), "do=answer needs question= beside text="),
        (("--test",), "is no complete fine-tuning"),
        (("input=nowhere.txt",), "there is no such file"),
        ((where, "do=embed"), "in.txt:1 is damaged: not UTF-8 text"),
        (("text=a", f"output={tmp_path}/no/x.npy"), "give a file, in a folder that is there"),
        (("text=a", "do=embed", "question=who"), "question= is nothing for do=embed"),
        ((f"input={tmp_path / 'in.jsonl'}",), "in.jsonl:1 begins a JSON array"),
        (("text=a [MASK]", f"output={tmp_path}/x.npy"), "only do=embed gives what a .npy file"),
    ):
        assert sentence in refused(capsys, encoder, *words)
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "in.jsonl"}
