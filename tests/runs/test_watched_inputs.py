"""Whatever a run opens to know its inputs is watched, however short its name is: a quick look that
watches less takes a run of other inputs for complete.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.composing import composed, given, run_stage
from tests.runs.sentiment import TOKENIZER, write_sentiment

from clozelab.assembly import evaluation, finetuning, pretraining
from clozelab.models.adaptation import LoRA, save_adapter
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, save_encoder_folder
from clozelab.models.registry import family_for
from clozelab.runs.inputs import encoder_fingerprint, watched_files
from clozelab.stages import evaluate, finetune, pretrain

PHASE = "seq_length: 16, steps: 2, global_batch_size: 8, micro_batch_size: 8"
PHASES = f"phases=[{{{PHASE}}}]"
TEACHER = "objective: {token: {teacher: teacher}}"
PLACES = ["data_dir=.", "cache_dir=cache", "run_dir=run"]
PLACES += ["trainer.precision=32-true", "trainer.progress_bar=false"]
TEXT = ["corpus=text", "corpus.sources.0.path=texts", "corpus.validation_fraction=0.2"]
TEXT += [
    "tokenizer.vocab_file=vocab",
    "validation.instances=4",
    "validation.seq_length=16",
    "arm=a",
]
TEXT += ["model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2"]
SHAPE = {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 128}
LORA = ["adaptation=lora", "adaptation.adapter=lora"]
BENCHMARK = "corpus.steps=[{decontaminate: {files: [benchmark]}}]"
TASK = ["task=sst2", "encoder=mine", "allow_validation_in_training=true", "predict_test=true"]
TASK += ["task.data.train_file=train", "task.data.validation_file=dev"]
TASK += ["+task.data.extra_validation_files={more: more}", "task.data.test_files.SST-2=test"]
# As wide as the encoder, with embeddings of its own.
GENERATOR = ["objective=rtd_gdes", "objective.token.generator_width=1"]
GENERATOR += ["objective.token.generator_depth=1"]
DISTILLATION = "objective=distillation"
RUNS = {
    "an encoder, its adapter and cleaned text": (
        "pretrain",
        [*TEXT, PHASES, "objective=mlm", "encoder=mine", *LORA, BENCHMARK],
    ),
    "the generator beside": ("pretrain", [*TEXT, PHASES, *GENERATOR, "encoder=mine"]),
    "units": ("pretrain", [*TEXT, PHASES, "objective=mlm", "objective.token.units=units"]),
    "a teacher": ("pretrain", [*TEXT, PHASES, DISTILLATION, "objective.token.teacher=teacher"]),
    "a phase's teacher": ("pretrain", [*TEXT, f"phases=[{{{PHASE}, {TEACHER}}}]", DISTILLATION]),
    "a task and an adapter": ("finetune", [*TASK, *LORA]),
    "documents": ("evaluate", ["measure=retrieval", "measure.data.folder=beir", "encoder=mine"]),
    "held-out text": (
        "evaluate",
        ["measure=held_out_text", "measure.data.sources=[{name: a, path: texts}]", "encoder=mine"],
    ),
}
STAGES = {"pretrain": pretrain, "finetune": finetune, "evaluate": evaluate}


def write_documents(folder: Path) -> None:
    """A folder as BEIR's."""
    (folder / "qrels").mkdir(parents=True)
    document = {"_id": "d", "title": "the", "text": "film"}
    (folder / "corpus.jsonl").write_text(json.dumps(document) + "\n")
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "the film"}) + "\n")
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")


class ClaimedError(Exception):
    """The run is claimed; nothing is trained."""


def stop(*_: object, **__: object) -> None:
    raise ClaimedError


opened: set[Path] | None = None


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and opened is not None and isinstance(arguments[0], str):
        opened.add(Path(os.path.realpath(arguments[0])))


sys.addaudithook(note)


@contextmanager
def noted() -> Iterator[set[Path]]:
    """Every file that is opened meanwhile."""
    global opened
    files: set[Path] = set()
    opened = files
    try:
        yield files
    finally:
        opened = None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_config: Callable[..., Any]) -> Path:
    """A folder in which everything has a name of one word."""
    monkeypatch.chdir(tmp_path)
    for module, name in ((pretraining, "train"), (finetuning, "train"), (evaluation, "evaluate")):
        monkeypatch.setattr(module, name, stop)
    write_sentiment(Path(), train=16, dev=8)
    for name in ("train", "dev"):
        Path(f"glue/SST-2/{name}.tsv").rename(name)
    shutil.copy("dev", "more")
    lines = [f"{number}\tthe film good" for number in range(4)]
    Path("test").write_text("\n".join(["index\tsentence", *lines]))
    for name in ("mine", "teacher", "generator"):
        encoder = Encoder(tiny_config(vocab_size=TOKENIZER.vocab_size, hidden_size=16, **SHAPE))
        heads = {"lm": family_for(encoder.config).head("lm", encoder)}
        files = TOKENIZER.files()
        save_encoder_folder(name, encoder, heads=heads, tokenizer_files=files, extra_config={})
    shutil.copy("mine/vocab.txt", "vocab")
    for name in ("texts", "benchmark"):
        Path(name).mkdir()
    words = ["the film good bad", "the film is fine great awful", "a dull film"]
    text = "\n\n".join(f"{first}.\n{second}." for first, second in product(words, repeat=2))
    Path("texts/a.txt").write_text("\n\n".join([text] * 8))
    Path("benchmark/b.txt").write_text("no such thing " * 9)
    Path("units").write_text("the film\n")
    write_documents(Path("beir"))
    encoder = load_encoder("mine")
    LoRA().apply(encoder)
    save_adapter(Path("lora"), encoder, {}, "mine", base_fingerprint=encoder_fingerprint("mine"))
    return tmp_path


@pytest.mark.parametrize(("stage", "words"), RUNS.values(), ids=RUNS)
def test_what_a_claim_has_read_is_watched(world: Path, stage: str, words: list[str]) -> None:
    config = composed(stage, [*PLACES, *words])
    with noted() as files, pytest.raises(ClaimedError):
        run_stage(STAGES[stage].main, config)
    made_here = (world / "cache", world / "run")
    read = set()
    for file in files:
        is_made = any(file.is_relative_to(folder) for folder in made_here)
        if file.is_relative_to(world) and file.is_file() and not is_made:
            read.add(file.relative_to(world).as_posix())
    assert len(read) > 1
    watched = {os.path.relpath(path) for path in watched_files(config)}
    assert read <= watched


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"token": {"tutor": "mine"}}},
        {"phases": [{"objective": {"token": {"tutor": "mine"}}}]},
        {"corpus": {"steps": [{"own": {"lexicon": "mine"}}]}},
    ],
)
def test_a_part_of_ones_own_may_call_its_folder_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Its `inputs` are of the run's; a key that no list has must not be forgotten."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/one").write_text("a")
    config = given("pretrain", {"seed": 1, "data_dir": "data"} | changes)
    assert watched_files(config).keys() == {"mine/one"}
