"""Keys and passwords are written nowhere; what only looks a little like them is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tests.composing import given

from clozelab.config import canonical
from clozelab.launch import sweep
from clozelab.runs.inputs import watched_files
from clozelab.runs.store import Run
from clozelab.runs.tracked import tracked_config
from clozelab.text.paths import EXPERIMENTS_DIR
from clozelab.text.plain import flatten
from clozelab.text.redaction import HIDDEN, redact_argv, redacted

WANDB_KEY = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logger.api_key", "anything"),
        ("logger.wandb.password", "hunter2"),
        ("hub.token", "x"),
        ("hub.tokens.0", f"hf_{'a1B2' * 8}"),
        ("note", WANDB_KEY),
        ("note", "sk-proj-abcdefghijklmnop1234"),
        ("note", f"before ghp_{'aB3' * 12} after"),
        ("note", "AKIAIOSFODNN7EXAMPLE"),
        ("url", "https://me:hunter2@example.org/data"),
        ("env", "${oc.env:KEY,sk-abcdefghijklmnop1234}"),
        ("setup", "export WANDB_API_KEY=hunter2"),
    ],
)
def test_hidden(key: str, value: str) -> None:
    shown = redacted(value, key)
    assert HIDDEN in shown
    for part in ("hunter2", WANDB_KEY, "abcdefghijklmnop", "IOSFODNN"):
        assert part not in shown
    *parents, last = key.split(".")
    nested: Any = {last: value}
    for name in reversed(parents):
        nested = {name: nested} if not last.isdigit() or name != parents[-1] else {name: [value]}
    assert HIDDEN in str(redacted(nested))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logger.api_key", None),
        ("logger.api_key", "${oc.env:WANDB_API_KEY}"),
        ("objective.token", {"_target_": "clozelab.objectives.mlm.MaskedLM"}),
        ("task.hub.revision", WANDB_KEY),
        ("encoder", f"/models/snapshots/{WANDB_KEY}"),
        ("data_dir", "/data/pk_pretraining_corpora_v2"),
        ("encoder", "/m/sk-encoder-large-2020-final/encoder"),
        ("corpus.md5", WANDB_KEY),
        ("tokens", 1000),
        ("title", "Masked-language modelling with whole words and 512 tokens"),
        ("data.train_file", "https://example.org/a:b/c@d"),
        ("seed", "1,2,3"),
    ],
)
def test_left_alone(key: str, value: Any) -> None:
    assert redacted(value, key) == value


def test_command_line() -> None:
    words = ["pretrain", "-m", "objective/token=mlm", "seed=1,2"]
    secrets = ["+logger.api_key=abc", f"note={WANDB_KEY}"]
    hidden = [f"+logger.api_key={HIDDEN}", f"note={HIDDEN}"]
    assert redact_argv([*words, *secrets]) == [*words, *hidden]


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_nothing_of_our_own_is_hidden(stage: str) -> None:
    """With every tracker, and in some experiments: a false alarm would change a fingerprint."""
    for name in (None, "table5_pretraining_tasks", "table8_masking", "distillation_retention"):
        folder = EXPERIMENTS_DIR / name if name else None
        file = f"sweep_{stage}" if name else stage
        composed = sweep.compose(file, ["logger=[wandb,tensorboard]"], folder=folder)
        assert HIDDEN not in str(redacted(composed.unresolved))
        assert "sha256" not in json.dumps(composed.recorded)


def leaks(text: str) -> list[str]:
    """The secrets that stand in a text."""
    return [secret for secret in ("hunter2", WANDB_KEY) if secret in text]


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through another key, inside a longer value, from a resolver's list, and as literals."""
    monkeypatch.setenv("FIRST", "hunter2")
    monkeypatch.setenv("SECOND", "[hunter2, 3]")
    settings = {
        "direct": "${oc.env:FIRST}",
        "through": "${direct}",
        "within": "https://${through}@example.org",
        "decoded": "${oc.decode:${oc.env:SECOND}}",
        "part": {"nested": "${decoded}"},
        "part_again": "${part}",
        "logger": {"unexpected": WANDB_KEY},
        "note": f"key {WANDB_KEY}",
        "seed": 1,
        "plain": "${seed}",
        "same_seed": "${plain}",
    }
    config = OmegaConf.create(settings)
    # the control: it is there to be written
    assert leaks(str(OmegaConf.to_container(config, resolve=True))) == ["hunter2", WANDB_KEY]
    with Run.claim(tmp_path, stage="pretrain", config=given("pretrain", config)) as run:
        run.complete()
    written = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert {"run.json", "config.yaml"} < written.keys()
    assert leaks("".join(written.values())) == []
    recorded = json.loads(written["run.json"])["config"]
    shown = str(tracked_config(recorded))
    assert leaks(shown) == [] and "sha256" not in shown
    assert (recorded["plain"], recorded["same_seed"]) == (1, 1)
    before = flatten(canonical(config))
    monkeypatch.setenv("FIRST", "another")
    config.note = f"key {WANDB_KEY[::-1]}"
    after = flatten(canonical(config))
    changed = {key for key in before if before[key] != after.get(key)}
    assert changed == {"direct", "through", "within", "note"}
    assert leaks(str(before)) == []


def test_inputs_from_the_environment_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("one")
    monkeypatch.setenv("MY_DATA", str(tmp_path))
    config = {"data_dir": "", "place": "${oc.env:MY_DATA}", "source": "${place}/text.txt"}
    assert str(tmp_path / "text.txt") in watched_files(given("pretrain", config))


def test_what_a_run_is_found_by_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its row or seed would be unknown to the report, and the run missing in silence."""
    monkeypatch.setenv("ARM", "mlm")
    monkeypatch.setenv("BASE", "3")
    row = "mask80same10random10predict15percent"
    config = {"base": "${oc.decode:${oc.env:BASE}}", "seed": "${base}", "row": row}
    found = canonical(OmegaConf.create(config))
    assert (found["row"], found["seed"]) == (row, 3)
    indirect = {"name": "${oc.env:ARM}", "encoder_arm": "${name}", "row": "${encoder_arm}"}
    found = canonical(OmegaConf.create(indirect))
    assert found["row"] == found["encoder_arm"] == "mlm" and "mlm" not in found["name"]
