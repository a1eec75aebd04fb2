"""The pretrain stage as a user runs it: real corpus, encoder folder, resume, kill, ranks."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import logging
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import forked
from tests.composing import composed, run_stage
from tests.runs.records import edit, read_json
from tests.screens import refuses, shows

from clozelab.assembly.corpora import prepared_corpus
from clozelab.assembly.encoders import build_objectives
from clozelab.cli import main
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.random import instance_indices
from clozelab.datamodules.corpus import VALIDATION_SEED
from clozelab.launch.sweep import phase_objectives
from clozelab.models.folders import load_encoder
from clozelab.modules.model import open_tokenizer, read_model
from clozelab.modules.pretraining import PretrainingModule
from clozelab.stages import pretrain
from clozelab.training.callbacks import (
    GracefulStop,
    LastCheckpoint,
    TrainingInterruptedError,
)
from clozelab.training.checkpoints import load_file as load_checkpoint

TIMED = ("train/tokens_per_second", "train/mfu")
PHASES = (
    "[{seq_length: 16, steps: 5, global_batch_size: 8, micro_batch_size: 3},"
    " {seq_length: 32, steps: 5, global_batch_size: 8, micro_batch_size: 4}]"
)
SHORT = "[{seq_length: 16, steps: 2, global_batch_size: 4, micro_batch_size: 4}]"
LONGER = SHORT.replace("16", "24")


def write_text(folder: Path, documents: int = 120) -> None:
    """A small corpus, text.txt."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(120)]
    texts = []
    for number in range(documents):
        lengths = [draw.randint(3, 9) for _ in range(draw.randint(4, 12))]
        if number % 2:
            # Rows with padding, so that micro-batches and ranks have unequal numbers of
            # predictions: with equal ones a mean of means would pass for the global mean.
            lengths = [draw.randint(1, 3) for _ in range(2)]
        texts.append("\n".join(" ".join(draw.choices(words, k=n)) + "." for n in lengths))
    (folder / "text.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def overrides(workplace: Path, run_dir: Path, **changes: Any) -> list[str]:
    settings: dict[str, Any] = {
        "corpus": "text",
        "corpus.sources.0.path": "text.txt",
        "tokenizer.vocab_size": 150,
        "corpus.validation_fraction": 0.2,
        "data_dir": workplace,
        "cache_dir": workplace / "cache",
        "run_dir": run_dir,
        "arm": "test",
        "objective": "mlm_nsp",
        "model.hidden_size": 16,
        "model.num_hidden_layers": 1,
        "model.num_attention_heads": 2,
        "model.intermediate_size": 32,
        "model.hidden_dropout_prob": 0.1,
        "model.attention_probs_dropout_prob": 0.1,
        "model.max_position_embeddings": 64,
        "phases": PHASES,
        "validation.interval_steps": 4,
        "validation.instances": 20,
        "validation.seq_length": 16,
        "checkpoint_interval_steps": 3,
        "trainer.log_interval_steps": 1,
        "trainer.precision": "32-true",
        "trainer.threads": 1,
        "trainer.progress_bar": False,
    }
    return [f"{key}={value}" for key, value in (settings | changes).items()]


def run_here(workplace: Path, run_dir: Path, **changes: Any) -> None:
    run_stage(pretrain.main, composed("pretrain", overrides(workplace, run_dir, **changes)))


def command(workplace: Path, run_dir: Path, **changes: Any) -> list[str]:
    return [sys.executable, "-m", "clozelab", "pretrain", *overrides(workplace, run_dir, **changes)]


def environment() -> dict[str, str]:
    unwanted = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_PORT", "MASTER_ADDR")
    return {name: value for name, value in os.environ.items() if name not in unwanted} | {
        "OMP_NUM_THREADS": "1"
    }


def run_alone(words: list[str], status: int = 0, **options: Any) -> str:
    """A command in a process of its own, and what it says on standard error."""
    options = {"env": environment(), "capture_output": True, "text": True} | options
    done = forked.run(words, timeout=500, **options)
    assert done.returncode == status, done.stderr[-3000:]
    return str(done.stderr)


def figures(run_dir: Path) -> dict[tuple[int, str], float]:
    """Every figure of a run's metrics by its step and name."""
    return {(step, key): float(value) for step, key, value in rows(run_dir)}


def rows(run_dir: Path) -> list[tuple[int, str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as stream:
        lines = [line for line in csv.DictReader(stream) if line["key"] not in TIMED]
    return [(int(line["step"]), line["key"], line["value"]) for line in lines]


def state(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "run.json").read_text()))


def tensors(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "encoder" / "model.safetensors")


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Of the encoder and, where there is one, of the generator."""
    found = {}
    for path in run_dir.glob("*/model.safetensors"):
        found |= {f"{path.parent.name} {key}": value for key, value in load_file(path).items()}
    return found


def assert_same_bits(one: Path, other: Path) -> None:
    """Of every figure and weight."""
    assert rows(one) == rows(other)
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def stop_in(step: int) -> Any:
    """A hook that sends a real SIGTERM to this process in the middle of a step."""

    def stop(self: LastCheckpoint, trainer: Any, *rest: Any) -> None:
        if trainer.global_step + 1 == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return stop


def stop_here(workplace: Path, run_dir: Path, step: int, **changes: Any) -> None:
    """A run that a signal stops in a step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LastCheckpoint, "on_train_batch_start", stop_in(step))
        with pytest.raises(TrainingInterruptedError):
            run_here(workplace, run_dir, **changes)
    assert state(run_dir)["status"] == "interrupted"


def stop_and_go_on(workplace: Path, run_dir: Path, step: int, **changes: Any) -> None:
    """A run that is stopped in a step, and the same command again."""
    stop_here(workplace, run_dir, step, **changes)
    run_here(workplace, run_dir, **changes)
    assert state(run_dir)["status"] == "complete"


@pytest.fixture(scope="module")
def whole_run(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_here(workplace, folder)
    return folder


def test_run_folder_holds_what_it_promises(whole_run: Path) -> None:
    record = state(whole_run)
    assert record["status"] == "complete"
    facts = record["facts"]
    told = "tokens steps flops world_size tokens_per_second mfu unigram_loss parameters precision"
    for key in (*told.split(), "trained_parameters"):
        assert facts[key], key
    for key in ("loss", "perplexity", "accuracy", "nsp_accuracy"):
        assert facts[f"validation/{key}"] >= 0
    logged = rows(whole_run)
    assert [step for step, key, _ in logged if key == "train/loss"] == list(range(1, 11))
    assert [step for step, key, _ in logged if key == "validation/loss"] == [4, 8, 10]
    memory = json.loads((whole_run / "encoder" / "config.json").read_text())["clozelab"]
    assert memory["run_fingerprint"] == record["fingerprint"]
    assert memory["trained_seq_lengths"] == [16, 32]
    assert {"cls.predictions.bias", "cls.seq_relationship.weight"} <= tensors(whole_run).keys()


def test_the_line_without_context_is_on_the_held_out_labels(
    workplace: Path, whole_run: Path
) -> None:
    """The training text's frequencies on held-out labels, counted one instance at a time."""
    cfg = composed("pretrain", overrides(workplace, whole_run)).config
    corpus = prepared_corpus(cfg)
    objective, _ = build_objectives(phase_objectives(cfg))
    special_ids = SpecialIds.from_tokenizer(corpus.tokenizer)
    instances = objective.input.bind(corpus.validation, special_ids, 16)
    labels = []
    for number in instance_indices(VALIDATION_SEED, len(instances), np.arange(20))[1]:
        batch = objective.arrays(instances, VALIDATION_SEED, 0, np.array([number]))
        labels.extend(batch["prediction_labels"].tolist())
    counts = Counter(corpus.train.tokens[:].tolist())
    total = corpus.train.num_tokens + corpus.train.vocab_size / 2
    loss = -sum(math.log((counts[label] + 0.5) / total) for label in labels) / len(labels)
    assert state(whole_run)["facts"]["unigram_loss"] == pytest.approx(loss)
    assert abs(loss - corpus.train.unigram_entropy) > 0.01


def test_encoder_folder_loads_in_transformers(whole_run: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, report = transformers.BertForPreTraining.from_pretrained(
        whole_run / "encoder", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.vocab_size <= 150


def test_options_that_change_no_result_change_no_bit_and_no_fingerprint(
    workplace: Path, whole_run: Path, tmp_path: Path
) -> None:
    """Data workers, activations that are computed twice, and a measured micro-batch."""
    options = {"num_workers": 2, "gradient_checkpointing": True, "micro_batch": "auto"}
    changes = {f"trainer.{key}": value for key, value in options.items()}
    run_here(workplace, tmp_path / "run", **changes)
    assert state(tmp_path / "run")["fingerprint"] == state(whole_run)["fingerprint"]
    assert state(tmp_path / "run")["facts"]["micro_batch_sizes"] == [3, 4]
    assert_same_bits(tmp_path / "run", whole_run)


def test_bf16_run_stopped_at_the_change_of_phase_ends_with_the_same_bits(
    workplace: Path, whole_run: Path, tmp_path: Path
) -> None:
    """What `auto` means on most machines: micro-batches under autocast, and its checkpoint."""
    bf16 = {"trainer.precision": "bf16-mixed"}
    run_here(workplace, tmp_path / "whole", **bf16)
    stop_and_go_on(workplace, tmp_path / "run", 5, **bf16)
    assert_same_bits(tmp_path / "run", tmp_path / "whole")
    ours, exact = tensors(tmp_path / "run"), tensors(whole_run)
    # The weights themselves stay fp32.
    assert {value.dtype for value in ours.values()} == {torch.float32}
    assert any(not torch.equal(ours[name], exact[name]) for name in exact)
    rounded, whole = figures(tmp_path / "run"), figures(whole_run)
    for step in (1, 2, 3):
        assert rounded[step, "train/loss"] == pytest.approx(whole[step, "train/loss"], abs=0.02)


MODERNBERT = {"architecture": "modernbert", "objective": "mlm", "model.num_hidden_layers": 2}
LONGFORMER = MODERNBERT | {"architecture": "longformer", "architecture.attention.window": [1, 3]}
BLOCKS = {"architecture.attention.block_size": 2, "architecture.attention.num_random_blocks": 1}
BIGBIRD = MODERNBERT | {"architecture": "bigbird"} | BLOCKS


@pytest.mark.parametrize(
    "changes",
    [{}, *(pytest.param(one, marks=pytest.mark.slow) for one in (LONGFORMER, MODERNBERT, BIGBIRD))],
    ids=lambda changes: changes.get("architecture", "bert"),
)
def test_stopped_run_ends_with_the_same_bits(
    workplace: Path, whole_run: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Both phases, dropout on."""
    if changes:
        whole_run = tmp_path / "whole"
        run_here(workplace, whole_run, **changes)
    stop_and_go_on(workplace, tmp_path / "run", 5, **changes)
    assert_same_bits(tmp_path / "run", whole_run)
    assert state(tmp_path / "run")["facts"]["tokens"] == state(whole_run)["facts"]["tokens"]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def test_a_run_passes_over_a_damaged_newest_checkpoint_and_ends_with_the_same_bits(
    workplace: Path, whole_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says in one line where it goes on: which step, of how many, from which file."""
    caplog.set_level(logging.INFO)
    run_dir = tmp_path / "run"
    with pytest.raises(TrainingInterruptedError):
        run_here(workplace, run_dir, stop_after_step=7)
    cut(run_dir / "checkpoints" / "last.ckpt")
    run_here(workplace, run_dir)
    said = (run_dir / "log.txt").read_text()
    assert f"going on after step 6 of 10, from {run_dir / 'checkpoints' / 'previous.ckpt'}" in said
    assert f"{run_dir / 'checkpoints' / 'last.ckpt'}" in said and "it is passed over" in said
    assert_same_bits(run_dir, whole_run)
    assert state(run_dir)["facts"]["batches_seen"] == state(whole_run)["facts"]["batches_seen"]


def test_text_that_a_given_encoder_has_read_in_the_same_order_is_warned_of(
    workplace: Path, whole_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that goes on with an encoder's seed begins with that one's first batches."""
    runs: dict[str, dict[str, Any]] = {
        "same": {"phases": SHORT},
        "seed": {"phases": SHORT, "seed": 2},
        "length": {"phases": LONGER},
    }
    warned = {}
    for name, changes in runs.items():
        caplog.clear()
        run_here(workplace, tmp_path / name, encoder=whole_run / "encoder", **changes)
        warned[name] = "reads the same instances again, in the same order" in caplog.text
    assert warned == {"same": True, "seed": False, "length": False}


def test_a_masked_model_that_reads_too_little_is_told_how_much_it_takes(
    workplace: Path, whole_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As its plan says: before the training, and not after it alone."""
    told = {}
    for objective in ("mlm", "ltr"):
        caplog.clear()
        run_here(workplace, tmp_path / objective, objective=objective, phases=SHORT)
        sentence = re.search(r"too short .* where a masked model takes about \d+.* k", caplog.text)
        told[objective] = sentence is not None
    assert told == {"mlm": True, "ltr": False}
    caplog.clear()
    run_here(workplace, tmp_path / "on", encoder=whole_run / "encoder", phases=SHORT)
    assert "too short" not in caplog.text


def test_a_stopped_run_does_not_advise_a_command_that_removes_it(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GracefulStop, "on_train_start", _stop_at_once)
    with pytest.raises(TrainingInterruptedError, match="the same command without reuse=never"):
        run_here(workplace, tmp_path / "run", reuse="never", phases=SHORT)


def _stop_at_once(callback: GracefulStop, _: object, module: PretrainingModule) -> None:
    module.stop_requested = lambda: 143


def test_the_digest_of_batches_tells_seeds_and_masks_apart(workplace: Path, tmp_path: Path) -> None:
    """And not layouts: micro-batches of another size hold the same instances."""
    phases = "[{seq_length: 16, steps: 2, global_batch_size: 8, micro_batch_size: 3}]"
    digests = {}
    changes = {
        "plain": {},
        "micro": {"phases": phases.replace("size: 3", "size: 8")},
        "seed": {"seed": 2},
        "masks": {"objective.token.predict_prob": 0.2},
    }
    for name, change in changes.items():
        run_here(workplace, tmp_path / name, **({"phases": phases} | change))
        digests[name] = state(tmp_path / name)["facts"]["batches_seen"]
    assert digests["plain"] == digests["micro"]
    assert len(set(digests.values())) == 3


@pytest.mark.parametrize("objective", ["mlm_nsp", pytest.param("ltr", marks=pytest.mark.slow)])
def test_a_simple_language_is_learnt(tmp_path: Path, objective: str) -> None:
    """A document repeats one word: the held-out loss falls far below the unigram entropy."""
    draw, words = random.Random(0), ["".join(pair) for pair in itertools.product("bcdfg", "aeiou")]
    documents = []
    for _ in range(300):
        word = draw.choice(words)
        documents.append("\n".join(" ".join([word] * draw.randint(4, 9)) for _ in range(6)))
    (tmp_path / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    changes = {
        "tokenizer.vocab_size": 60,
        "model.hidden_size": 32,
        "model.hidden_dropout_prob": 0.0,
        "model.attention_probs_dropout_prob": 0.0,
        "phases": "[{seq_length: 32, steps: 240, global_batch_size: 32, micro_batch_size: 32}]",
        "validation.interval_steps": 240,
        "validation.instances": 100,
        "validation.seq_length": 32,
        "checkpoint_interval_steps": 1000,
        "optimizer.learning_rate": 0.02,
        "objective": objective,
    }
    run_here(tmp_path, tmp_path / "run", **changes)
    facts = state(tmp_path / "run")["facts"]
    assert facts["unigram_loss"] == pytest.approx(math.log(25), abs=0.15)
    # From the left, a row's first word cannot be known, nor half of the second segments'.
    assert facts["validation/loss"] < 0.4 * facts["unigram_loss"]
    assert objective == "ltr" or facts["validation/nsp_accuracy_one_source"] > 0.65


def test_complete_run_is_left_alone(workplace: Path, whole_run: Path) -> None:
    before = (whole_run / "run.json").read_bytes()
    run_here(workplace, whole_run)
    assert (whole_run / "run.json").read_bytes() == before


@pytest.mark.parametrize("what", ["flipped", "other vocabulary"])
def test_a_damaged_corpus_is_named_before_the_first_step(
    workplace: Path, whole_run: Path, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed byte is refused; what the cache can see by sizes it prepares again, and says so."""
    cache = shutil.copytree(workplace / "cache", tmp_path / "cache")
    (tokens,) = cache.glob("corpora/*/train/tokens-00000.bin")
    content, vocabulary = tokens.read_bytes(), tokens.parents[1] / "tokenizer" / "vocab.txt"
    if what == "flipped":
        half = len(content) // 2
        tokens.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])
        with refuses("train/tokens-00000.bin has changed since it was written"):
            run_here(workplace, tmp_path / "run", cache_dir=cache)
        assert not (tmp_path / "run").exists()
        shutil.rmtree(tokens.parents[1])
        run_here(workplace, tmp_path / "run", cache_dir=cache)  # as the message says
    else:
        vocabulary.write_text(vocabulary.read_text().replace("\na\n", "\nq\n", 1))
        run_here(workplace, tmp_path / "run", cache_dir=cache)
        assert "has 'q' where tokenizer.json has 'a' (id 6)" in caplog.text
    assert tokens.read_bytes() == content
    assert state(tmp_path / "run")["inputs"] == state(whole_run)["inputs"]


def test_encoders_on_the_way_are_kept_and_change_nothing(
    workplace: Path, whole_run: Path, tmp_path: Path
) -> None:
    """Also over a stop behind a kept step, and for a second experiment that shares the run."""
    runs = tmp_path / "runs"
    folder = runs / "first" / "demo" / "pretrain" / "test" / "seed-1"
    keep = {"runs_dir": runs, "keep_encoders": "[0.4,0.8]"}
    stop_here(workplace, folder, 5, experiment="first", **keep)
    assert [path.name for path in (folder / "encoders").iterdir()] == ["step-4"]
    run_here(workplace, folder, experiment="first", **keep)
    assert_same_bits(folder, whole_run)
    seen, last = {}, tensors(folder)
    for step in (4, 8):
        kept = folder / "encoders" / f"step-{step}"
        about = json.loads((kept / "config.json").read_text())["clozelab"]
        assert about["step"] == step
        seen[step] = about["trained_seq_lengths"]
        assert load_encoder(kept).config.hidden_size == 16  # whole, and its checksums fit
        stored = load_file(kept / "model.safetensors")
        assert any(not torch.equal(value, last[name]) for name, value in stored.items())
    assert seen == {4: [16], 8: [16, 32]}
    second = runs / "second" / "demo" / "pretrain" / "other" / "seed-1"
    changes = keep | {"experiment": "second", "arm": "other"}
    changes |= {"share_runs": True, "needs_kept_encoders": True}
    run_here(workplace, second, **changes)
    assert state(second)["shared"]["run"] == "../../../../../first/demo/pretrain/test/seed-1"
    assert (second / "encoders" / "step-8").resolve() == (folder / "encoders" / "step-8").resolve()
    assert not (second / "checkpoints").exists()
    run_here(workplace, second, **changes)  # complete


def test_an_early_stop_tells_of_the_steps_that_were_trained(
    workplace: Path, tmp_path: Path
) -> None:
    """It comes after step 4 of 10, no log point, in the phase of short sequences."""
    changes = {
        "callbacks": "early_stopping",
        "callbacks.early_stopping.patience": 1,
        "callbacks.early_stopping.min_delta": 100,
        "validation.interval_steps": 2,
        "trainer.log_interval_steps": 50,
        "keep_encoders": "[0.2,0.9]",
    }
    run_here(workplace, tmp_path / "run", **changes)
    facts = state(tmp_path / "run")["facts"]
    assert (facts["steps"], facts["total_steps"]) == (4, 10)
    assert 0 < facts["tokens"] <= 4 * 8 * 16 and facts["flops"] and facts["batches_seen"]
    about = json.loads((tmp_path / "run/encoder/config.json").read_text())["clozelab"]
    assert (about["step"], about["trained_seq_lengths"]) == (4, [16])
    log = (tmp_path / "run/log.txt").read_text()
    assert "encoders/step-9 is not there" in log
    # By min_delta the first evaluation stays the best one.
    best = figures(tmp_path / "run")[2, "validation/loss"]
    assert "ended early, after step 4 of 10" in log
    assert f"the best validation/loss was {best:.4g}" in log
    run_here(workplace, tmp_path / "run", **changes)  # complete


def test_a_complete_run_kept_no_encoder_at_words_that_it_was_not_told_of(
    workplace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for changes in ({"keep_encoders_at_words": "[20]"}, {"keep_encoders_at_words": "[20]"}, {}):
        run_here(workplace, folder, phases=SHORT, **changes)
    with refuses("is complete, but has no encoders at [50] words"):
        run_here(workplace, folder, phases=SHORT, keep_encoders_at_words="[50]")


def test_an_arm_of_other_steps_is_the_run_with_those_steps(workplace: Path, tmp_path: Path) -> None:
    """Schedule, kept encoders and the record count the steps that are taken."""
    explicit, factor = tmp_path / "said", tmp_path / "factor"
    keep = {"keep_encoders": "[0.5]"}
    run_here(workplace, explicit, phases=PHASES.replace("steps: 5", "steps: 2"), **keep)
    words = overrides(workplace, factor, **keep)
    words = [word for word in words if not word.startswith("phases=")]
    words += [f"scale.pretrain.phases={PHASES}", "steps_factor=0.4"]
    run_stage(pretrain.main, composed("pretrain", words))
    assert state(factor)["fingerprint"] == state(explicit)["fingerprint"]
    assert [phase["steps"] for phase in state(factor)["config"]["phases"]] == [2, 2]
    assert state(factor)["facts"]["steps"] == 4
    assert (factor / "encoders" / "step-2" / "config.json").is_file()
    assert_same_bits(factor, explicit)


@pytest.mark.parametrize("layout", ["full_sentences", "segment_pairs"])
def test_an_encoder_that_never_saw_a_second_segment_says_so(
    workplace: Path, tmp_path: Path, layout: str
) -> None:
    """Its token type 1 is as drawn: pairs have type 0, unless the user wants the other."""
    changes = {"objective": "mlm", "objective/input": layout, "phases": SHORT}
    run_here(workplace, tmp_path / "run", **changes)
    encoder, has_pairs = tmp_path / "run" / "encoder", layout == "segment_pairs"
    assert open_tokenizer(encoder).has_token_types == has_pairs
    assert open_tokenizer(encoder, "two").has_token_types
    assert not open_tokenizer(encoder, "one").has_token_types
    # What an earlier run has trained stays trained.
    changes["objective/input"] = "full_sentences"
    run_here(workplace, tmp_path / "on", encoder=encoder, **changes)
    assert open_tokenizer(tmp_path / "on" / "encoder").has_token_types == has_pairs


def test_a_longformers_global_tokens_begin_alike_also_after_a_second_training(
    workplace: Path, tmp_path: Path
) -> None:
    changes = LONGFORMER | {"phases": SHORT}
    run_here(workplace, tmp_path / "run", **changes)
    run_here(workplace, tmp_path / "on", encoder=tmp_path / "run" / "encoder", **changes)
    facts = state(tmp_path / "on")["facts"]
    assert facts["encoder"]["scale"] == "demo" and facts["fresh_heads"] == []
    first, second = tensors(tmp_path / "run"), tensors(tmp_path / "on")
    names = [name for name in second if ".query_global." in name]
    assert names
    for name in names:
        assert torch.equal(second[name], second[name.replace("query_global", "query")])
        assert not torch.equal(second[name], first[name])


def edited_encoder(run: Path, to: Path, stored: dict[str, torch.Tensor]) -> Path:
    """A copy of a run's encoder with other weights, as a folder from elsewhere."""
    shutil.copytree(run / "encoder", to)
    (to / "checksums.json").unlink()
    save_file(stored, to / "model.safetensors")
    return to


def test_an_untied_encoder_is_refused_before_the_folder_is_taken(
    workplace: Path, whole_run: Path, tmp_path: Path
) -> None:
    stored, decoder = tensors(whole_run), "cls.predictions.decoder.weight"
    stored[decoder] = stored["bert.embeddings.word_embeddings.weight"] + 1e-3
    untied = edited_encoder(whole_run, tmp_path / "untied", stored)
    with refuses("cls.predictions.decoder.weight is not the word embeddings: this"):
        run_here(workplace, tmp_path / "run", encoder=untied)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"phases": PHASES.replace("32", "65")}, r"seq_length is 65.*64 positions"),
        (
            {"model.num_attention_heads": 3},
            r"model\.hidden_size is 16; model\.num_attention_heads 3 must divide it",
        ),
        ({"optimizer.learning_rate": -1}, r"optimizer\.learning_rate is -1"),
        ({"schedule.warmup_fraction": 1.5}, r"schedule\.warmup_fraction is 1\.5"),
        ({"objective.token.predict_prob": 0}, r"predict_prob is 0"),
        ({"logger": "wandb", "logger.wandb.mode": "on"}, r"logger\.wandb\.mode is 'on'"),
    ],
)
def test_settings_that_cannot_run_are_refused_before_the_corpus_is_read(
    workplace: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    """A failed run of other settings would be in the way of the corrected command."""
    with pytest.raises(Exception, match=words):
        run_here(workplace, tmp_path / "run", data_dir=tmp_path / "no data here", **change)
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_that_gives_no_rows_leaves_no_run_behind(workplace: Path, tmp_path: Path) -> None:
    with refuses("The train split at seq_length 7: seq_length 7 is too short for"):
        run_here(workplace, tmp_path / "run", phases=SHORT.replace("16", "7"))
    assert list(tmp_path.iterdir()) == []


LONG = "[{seq_length: 16, steps: 250, global_batch_size: 4, micro_batch_size: 4}]"


def stop_from_outside(words: list[str], run_dir: Path) -> int:
    """Start a job, send SIGTERM once it trains; returns its exit status."""
    process = forked.Popen(words, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (run_dir / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    return process.wait(timeout=120)


GROWTH = {"ddp": "tile", "fsdp": "none"}
"""Sharded embeddings cannot be tiled."""
NO_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}


def ranks(strategy: str) -> dict[str, Any]:
    """Settings of two processes; of one where the strategy is ''."""
    if not strategy:
        return {}
    growth = {"position_growth": GROWTH[strategy]}
    return growth | {"trainer": strategy, "trainer.accelerator": "cpu"}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_killed_processes_go_on(workplace: Path, tmp_path: Path, strategy: str) -> None:
    """The first process gets the signal; both stop at one step, and both go on."""
    changes = ranks(strategy) | {"phases": LONG, "validation.interval_steps": 100}
    run_dir = tmp_path / "run"
    words = command(workplace, run_dir, **changes)
    assert stop_from_outside(words, run_dir) == 143
    assert state(run_dir)["status"] == "interrupted"
    run_alone(words)
    assert state(run_dir)["status"] == "complete"
    run_alone(command(workplace, tmp_path / "whole", **changes))
    steps = [step for step, key, _ in rows(run_dir) if key == "train/loss"]
    assert steps == list(range(1, 251))
    assert_near(run_dir, tmp_path / "whole")


@pytest.mark.parametrize("strategy", ["", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_checkpoint_becomes_a_folder_by_one_command(
    workplace: Path, tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a stopped run, sharded or not: the very weights; at the end the run's own folder."""
    steps = 10
    changes = ranks(strategy) | {"validation.interval_steps": steps}
    # a relative path, as people write
    words, run_dir = command(workplace, Path("run"), **changes), tmp_path / "run"
    run_alone([*words, "stop_after_step=7"], 143, cwd=tmp_path)
    assert state(run_dir)["status"] == "interrupted"
    assert main(["export", str(run_dir)]) == 0
    saved = load_checkpoint(run_dir / "checkpoints" / "last.ckpt")
    folder = run_dir / "encoders" / f"step-{saved['global_step']}"
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    assert saved["global_step"] == 7
    prefix = "model.models.encoder.encoder."
    exported = load_encoder(folder).state_dict()
    assert {f"{prefix}{name}" for name in exported} == {
        name for name in saved["state_dict"] if name.startswith(prefix)
    }
    for name, value in exported.items():
        assert torch.equal(value, saved["state_dict"][f"{prefix}{name}"]), name
    transformers = pytest.importorskip("transformers")
    _, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    run_alone(words, cwd=tmp_path)
    assert state(run_dir)["status"] == "complete"
    assert main(["export", str(run_dir), f"to={tmp_path / 'last'}", "checkpoint=true"]) == 0
    last, own = tmp_path / "last", run_dir / "encoder"
    for name in ("model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (last / name).read_bytes() == (own / name).read_bytes(), name
    config = read_json(last, "config.json")
    assert config["clozelab"].pop("step") == steps
    assert config == read_json(own, "config.json")
    checkpoints = run_dir / "checkpoints"
    cut(checkpoints / "last.ckpt")
    assert main(["export", str(run_dir), f"to={tmp_path / 'earlier'}", "checkpoint=true"]) == 0
    step = read_json(tmp_path / "earlier", "config.json")["clozelab"]["step"]
    assert step == load_checkpoint(checkpoints / "previous.ckpt")["global_step"] < steps
    # The run may be training: what is damaged is its own to put aside.
    assert (checkpoints / "last.ckpt").exists()
    # The text was edited since: a vocabulary learnt today would be written beside the weights.
    edit(run_dir / "run.json", inputs={"corpus": "of other text"})
    assert main(["export", str(run_dir), f"to={tmp_path / 'other'}", "checkpoint=true"]) == 1
    assert not (tmp_path / "other").exists()
    shows(capsys.readouterr().err, "was trained on another corpus than is here now")


def test_a_checkpoint_reads_as_it_was_trained(
    workplace: Path, whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A given encoder that read both sides is causal in every folder that is made of it."""
    changes = {"objective": "ltr", "objective/input": "full_sentences"}
    changes["encoder"] = str(whole_run / "encoder")
    run = tmp_path / "run"

    def is_killed(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingModule, "save_encoder", is_killed)
        with pytest.raises(RuntimeError, match="killed"):
            run_here(workplace, run, **changes)
    assert main(["export", str(run), f"to={tmp_path / 'exported'}", "checkpoint=true"]) == 0
    run_here(workplace, run, **changes)
    for folder in (tmp_path / "exported", run / "encoder"):
        assert read_json(folder, "config.json")["is_decoder"], folder


def test_an_encoder_is_written_in_half_precision(
    workplace: Path, whole_run: Path, tmp_path: Path
) -> None:
    """By its run, or when it is released: the same numbers to float16."""
    run_here(workplace, tmp_path / "half", encoder_dtype="float16")
    to = tmp_path / "release"
    assert main(["export", str(whole_run), f"to={to}", "dtype=float16"]) == 0
    whole = tensors(whole_run)
    assert {value.dtype for value in whole.values()} == {torch.float32}
    for folder in (tmp_path / "half" / "encoder", to):
        for name, value in load_file(folder / "model.safetensors").items():
            assert value.dtype == torch.float16 and torch.equal(value, whole[name].half()), name
        assert read_model(folder).encoder.config == read_model(whole_run / "encoder").encoder.config
        # Whatever reads it computes in float32.
        assert {one.dtype for one in load_encoder(folder).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["RUN", "RUN", "to=OUT"], "export"),
        (["RUN"], "say where the model goes"),
        (["RUN", "to=OUT", "checkpoint=true", "dtype=float16"], "dtype is for finished runs"),
        (["RUN", "to=OUT", "format=onnx", "dtype=float16"], "do not go together"),
    ],
)
def test_releases_are_refused_whole(
    whole_run: Path, tmp_path: Path, capsys: Any, words: list[str], sentence: str
) -> None:
    places = {"RUN": str(whole_run), "to=OUT": f"to={tmp_path / 'out'}"}
    words = [places.get(word, word) for word in words]
    assert main(["export", *words]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"config_name": ""}, "was not made by a command line"),
        ({"fingerprint": "0" * 64}, "is of another run than the run.json above it"),
        (None, "is no pre-training run with a checkpoint"),
    ],
)
def test_only_a_run_of_its_own_checkpoint_is_exported(
    whole_run: Path, tmp_path: Path, capsys: Any, change: dict[str, str] | None, sentence: str
) -> None:
    run = Path(shutil.copytree(whole_run, tmp_path / "run"))
    if change is None:
        shutil.rmtree(run / "checkpoints")
    else:
        edit(run / "run.json", **change)
    assert main(["export", str(run), "checkpoint=true"]) == 1
    assert sentence in capsys.readouterr().err


def test_one_process_goes_on_as_two(workplace: Path, tmp_path: Path) -> None:
    """The quick form of the next test, with validation in both phases."""
    still = NO_DROPOUT | {"position_growth": GROWTH["ddp"]}
    run_dir = tmp_path / "run"
    one = still | {"phases": PHASES.replace("micro_batch_size: 3", "micro_batch_size: 8")}
    with pytest.raises(TrainingInterruptedError):
        run_here(workplace, run_dir, **one, stop_after_step=3)
    said = run_alone(command(workplace, run_dir, **still | ranks("ddp")))
    shows(said, "goes on in another layout, with other rounding")
    assert "sync_dist" not in said, "figures are the same on all ranks already"
    for sentence in ("reading the configuration", "train split at seq_length 16: ", "phase 2 of 2"):
        assert said.count(sentence) == 1, sentence
    assert [one["trainer.devices"] for one in state(run_dir)["facts"]["earlier_layouts"]] == [1]
    run_here(workplace, tmp_path / "whole", **still)
    assert_near(run_dir, tmp_path / "whole")
    # One process can read what two have written.
    mine, others = (
        load_checkpoint(one / "checkpoints/last.ckpt") for one in (run_dir, tmp_path / "whole")
    )
    assert mine["state_dict"].keys() == others["state_dict"].keys()


def assert_near(changed: Path, whole: Path) -> None:
    """Every figure within 1e-5, the same instances, and the same weights."""
    mine, others = figures(changed), figures(whole)
    assert mine.keys() == others.keys()
    for key, value in others.items():
        assert mine[key] == pytest.approx(value, abs=1e-5, rel=1e-5), key
    for fact in ("batches_seen", "tokens"):
        assert state(changed)["facts"][fact] == state(whole)["facts"][fact]
    ours, theirs = weights(changed), weights(whole)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_goes_on_with_other_devices(workplace: Path, tmp_path: Path, strategy: str) -> None:
    """Two processes, one with other micro-batches, two again: each instance once."""
    still = NO_DROPOUT | {"position_growth": GROWTH[strategy]}
    two = still | ranks(strategy)
    one = still | {"phases": PHASES.replace("micro_batch_size: 3", "micro_batch_size: 8")}
    run_dir = tmp_path / "run"
    for changes, stop in ((two, 3), (one, 6), (two, None)):
        words = command(workplace, run_dir, **changes)
        run_alone([*words, f"stop_after_step={stop or 'null'}"], 143 if stop else 0)
    assert [one["trainer.devices"] for one in state(run_dir)["facts"]["earlier_layouts"]] == [2, 1]
    run_here(workplace, tmp_path / "whole", **still)
    assert_near(run_dir, tmp_path / "whole")


@pytest.mark.slow
def test_sharded_gradients_have_the_norms_of_whole_ones(workplace: Path, tmp_path: Path) -> None:
    changes = NO_DROPOUT | {"position_growth": "none", "callbacks": "gradient_statistics"}
    run_alone(command(workplace, tmp_path / "two", **changes | ranks("fsdp")))
    run_here(workplace, tmp_path / "one", **changes)
    assert_near(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_two_processes_say_once_that_held_out_instances_lack(
    workplace: Path, tmp_path: Path
) -> None:
    changes = ranks("ddp") | {"position_growth": "none", "validation.instances": 1}
    said = run_alone(command(workplace, tmp_path / "run", **changes), status=1)
    assert said.count("1 instances for 2 devices") == 1


@pytest.mark.slow
def test_an_optimizer_draws_the_same_on_all_ranks(workplace: Path, tmp_path: Path) -> None:
    """Gravity's momentum begins with random numbers; Kron, Magma and others draw in each step."""
    pytest.importorskip("pytorch_optimizer", reason="needs pip install 'clozelab[optimizers]'")
    changes = NO_DROPOUT | {"optimizer": "lamb", "optimizer.name": "Gravity"}
    changes["position_growth"] = "none"
    run_alone(command(workplace, tmp_path / "two", **ranks("ddp") | changes))
    run_here(workplace, tmp_path / "one", **changes)
    assert_near(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize(
    "strategy",
    ["", pytest.param("ddp", marks=pytest.mark.slow), pytest.param("fsdp", marks=pytest.mark.slow)],
)
def test_killed_after_the_last_checkpoint(workplace: Path, tmp_path: Path, strategy: str) -> None:
    """Nothing is left to train then, and the encoder is still the whole one."""
    run_dir = tmp_path / "run"
    words = command(workplace, run_dir, **ranks(strategy))
    run_alone(words)
    before = {path.name: path.read_bytes() for path in (run_dir / "encoder").iterdir()}
    shutil.rmtree(run_dir / "encoder")
    edit(run_dir / "run.json", status="running", finished=None)
    run_alone(words)
    assert {path.name: path.read_bytes() for path in (run_dir / "encoder").iterdir()} == before
    assert state(run_dir)["status"] == "complete"


def second_rank(first: subprocess.Popen[Any]) -> int | None:
    """Process id of the rank that the first one has started, among its children."""
    for pid in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"LOCAL_RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return int(pid)
    return None


@pytest.mark.slow
def test_a_rank_ends_with_the_first(workplace: Path, tmp_path: Path) -> None:
    """The first rank is killed while the second starts, which must not wait for it."""
    changes = ranks("ddp") | {"phases": LONG, "position_growth": "none"}
    first = subprocess.Popen(command(workplace, tmp_path / "run", **changes), env=environment())
    deadline = time.monotonic() + 300
    while (rank := second_rank(first)) is None:
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    first.wait()
    if not forked.gone([rank], 60.0):
        os.kill(rank, signal.SIGKILL)
        pytest.fail("it is still there")


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(workplace: Path, whole_run: Path, tmp_path: Path) -> None:
    """Another generator draws its dropout, so the losses are near, not equal."""
    run_here(workplace, tmp_path / "run", **{"trainer.compile": True})
    assert state(tmp_path / "run")["facts"]["compiled"] is True
    compiled = figures(tmp_path / "run")
    eager = figures(whole_run)
    for step in range(1, 11):
        assert compiled[step, "train/loss"] == pytest.approx(eager[step, "train/loss"], abs=0.1)
    assert tensors(tmp_path / "run").keys() == tensors(whole_run).keys()


def test_a_head_that_a_given_encoder_lacks_begins_with_frequencies_and_copying(
    workplace: Path, whole_run: Path, tmp_path: Path
) -> None:
    stored = tensors(whole_run)
    kept = {name: tensor for name, tensor in stored.items() if "predictions" not in name}
    assert len(kept) < len(stored)
    bare = edited_encoder(whole_run, tmp_path / "bare", kept)
    untrained = {"objective": "mlm", "optimizer.learning_rate": 1e-12, "phases": SHORT}
    run_here(workplace, tmp_path / "fresh", encoder=bare, **untrained)
    record, begun = state(tmp_path / "fresh"), tensors(tmp_path / "fresh")
    assert record["facts"]["fresh_heads"] == ["lm"]
    assert "identity" in record["inputs"]["fresh_head"]
    dense = begun["cls.predictions.transform.dense.weight"]
    bias = begun["cls.predictions.bias"]
    assert torch.allclose(dense, torch.eye(len(dense)), atol=1e-6)
    # The frequencies are a distribution: the exponentials of the bias have the sum of one.
    assert bias.exp().sum().item() == pytest.approx(1.0, abs=1e-4)
    # A head that was trained is used as it is.
    run_here(workplace, tmp_path / "trained", encoder=whole_run / "encoder", **untrained)
    record = state(tmp_path / "trained")
    facts = record["facts"]
    assert facts["fresh_heads"] == [] and "fresh_head" not in record["inputs"]
    assert facts["validation/loss"] != pytest.approx(facts["unigram_loss"], abs=1e-2)
