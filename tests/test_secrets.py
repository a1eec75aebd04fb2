"""Keys and passwords of the environment, of the command line and inside URLs are in no file that a
sweep leaves.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.runs.test_pretrain_run import overrides, write_text

from clozelab.text.redaction import HIDDEN, scrubbed

SRC = Path(__file__).parents[1] / "src"
PLANTED = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_" + "aB3dE5gH7jK9" * 3,
    "DB_PASSWORD": "correct-horse-battery",
    "OWN_URL": "https://me:hunter2hunter2@example.org/text",
}
SOURCE = "corpus.sources.0.path=text.txt"
LITERAL = "https://you:swordfish-swordfish@example.org"
SECRETS = (*PLANTED.values(), "hunter2hunter2", "swordfish-swordfish")


PHASES = "[{seq_length: 16, steps: 3, global_batch_size: 8, micro_batch_size: 4}]"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    write_text(tmp_path / "corpus")
    return tmp_path / "corpus"


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = (
        os.environ
        | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
        | PLANTED
    )
    command = [sys.executable, "-m", "clozelab", *words]
    return forked.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=500
    )


def pretraining(corpus: Path, *words: str) -> tuple[str, ...]:
    settings = overrides(corpus, corpus, phases=PHASES)
    # Each job of a sweep has its own folder, and its own text.
    swept = ("run_dir=", "arm=", "corpus.sources.0.path=")
    usual = [word for word in settings if not word.startswith(swept)]
    return ("pretrain", "-m", *usual, *words)


def with_secrets(place: Path) -> dict[str, list[str]]:
    """File -> the secrets that stand in it."""
    found = {}
    for path in (
        path for path in place.rglob("*") if path.is_file() and "corpus/text.txt" not in str(path)
    ):
        content = path.read_bytes()
        if here := [secret for secret in SECRETS if secret.encode() in content]:
            found[str(path.relative_to(place))] = here
    return found


def test_a_sweep_leaves_no_secret_in_any_file_or_message(corpus: Path) -> None:
    """One job runs, with a tracker; the other fails, and its error would tell."""
    place = corpus.parent
    sources = f"corpus.sources.0.path=text.txt,'{LITERAL}/x'"
    done = run(
        place, *pretraining(corpus, "logger=wandb", "seed=1", sources, "hydra.launcher.fork=false")
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "https://***@example.org/x cannot be read" in said
    assert [secret for secret in SECRETS if secret in said] == []
    files = {path.name for path in place.rglob("*") if path.is_file()}
    assert {"run.json", "config.yaml", "log.txt"} <= files and "multirun.yaml" not in files
    assert list(place.rglob("offline-run-*")), "the control: W&B was there"
    assert with_secrets(place) == {}
    (place / "control").write_text(LITERAL)
    assert with_secrets(place)


@pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="the extra slurm is missing"
)
@pytest.mark.parametrize(
    "word",
    [
        f"hydra.launcher.setup=['export WANDB_API_KEY={'x' * 12}']",
        f"logger.wandb.project='{LITERAL}'",
    ],
)
def test_a_literal_secret_is_not_handed_to_slurm(corpus: Path, word: str) -> None:
    done = run(
        corpus.parent,
        *pretraining(corpus, SOURCE, "seed=1", "logger=wandb", "hydra/launcher=slurm_local", word),
    )
    assert (
        done.returncode == 1 and "looks like a secret" in done.stderr and HIDDEN in done.stderr
    ), done.stderr
    assert with_secrets(corpus.parent) == {} and "x" * 12 not in done.stderr
    assert not [
        path
        for path in corpus.parent.rglob("*")
        if b"x" * 12 in (path.read_bytes() if path.is_file() else b"")
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="the extra slurm is missing"
)
def test_submitits_files_hold_no_secret(corpus: Path) -> None:
    words = (SOURCE, "seed=1", "logger=wandb", "hydra/launcher=slurm_local")
    done = run(corpus.parent, *pretraining(corpus, *words))
    assert done.returncode == 0, done.stderr
    assert list(corpus.parent.rglob("*_submitted.pkl")) and list(
        corpus.parent.rglob("handed_over.json")
    )
    assert with_secrets(corpus.parent) == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export HF_TOKEN=abc; run", f"export HF_TOKEN={HIDDEN}; run"),
        ("API_KEY=abc", f"API_KEY={HIDDEN}"),
        ("+logger.api_key=abc: no such key", f"+logger.api_key={HIDDEN}: no such key"),
        ("no files at data/https:/me:pw@host/x", f"no files at data/https:/{HIDDEN}@host/x"),
        ("git clone https://abcdef@host/x", f"git clone https://{HIDDEN}@host/x"),
        ("a 'ghp_" + "a1B2" * 9 + "' b", f"a '{HIDDEN}' b"),
        ("sent correct-horse-battery", f"sent {HIDDEN}"),
        ("objective/token=mlm seed=3 in /data/sk-encoder-large-2020-final/x", None),
        ("https://example.org/a:b/c@d, 40 tokens", None),
    ],
)
def test_messages_are_scrubbed(
    monkeypatch: pytest.MonkeyPatch, text: str, shown: str | None
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery")
    assert scrubbed(text) == (text if shown is None else shown)
