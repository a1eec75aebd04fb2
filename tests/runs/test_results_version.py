"""The same code version gives the same results: batches to the bit, losses of short trainings to rounding.

RESULTS_VERSIONS are raised by hand, and complete runs of the same version are never made again. Here is what they stand
for, so that a change of results that nobody meant, or that nobody has told them, does not pass.
"""

from __future__ import annotations

import csv
import hashlib
import random
import string
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from clozelab import config as schema
from clozelab.data.packing import SpecialIds
from clozelab.data.segments import FullSentences, SegmentPairs
from clozelab.data.shards import TokenShards, TokenStream
from clozelab.data.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.bucketing import bucketed_batches
from clozelab.ledger.fingerprint import RESULTS_VERSIONS
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.weighted_sum import Objective
from clozelab.stages import pretrain

PINNED_VERSIONS = {"pretrain": 3, "finetune": 4}
BATCHES = {
    "mlm_nsp": "d418ecd29ded6181",
    "ltr": "471f8d177e175205",
    "full_sentences": "7ea99b1804a86e98",
    "finetune": "68c22a08bf9a1fe0",
}
"""sha256 of batches; the same on every machine."""
LOSSES = {
    "mlm_nsp": [5.652194, 5.708037, 5.587045, 5.664251, 5.850101, 5.393166, 5.59906, 5.668413],
    "ltr": [5.112074, 4.977087, 4.857906, 4.866727, 4.896227, 4.862162, 4.818789, 4.767503],
    "finetune": [0.700254, 0.6573651, 0.8610224, 0.7517995, 0.7445413, 0.6286042, 0.634254, 0.7368031],
}
"""Training losses of each optimizer step, fp32 on one CPU thread."""
TOLERANCE = 2e-5
"""Relative. Other processors sum in another order: with and without vector instructions, up to 3e-7 was seen."""
CHANGED = (
    "results have changed: raise RESULTS_VERSIONS in ledger/fingerprint.py (and pin the new values here), or find out "
    "why. Now: "
)
MLM = MaskedLanguageModel(predict_prob=0.15, mask_fraction=0.8, random_fraction=0.1, same_fraction=0.1, weight=1.0)
OBJECTIVES = {
    "mlm_nsp": Objective(input=SegmentPairs(0.5, "corpus"), token=MLM, pair=NextSentencePrediction(weight=1.0)),
    "ltr": Objective(input=SegmentPairs(0.5, "source"), token=LeftToRight(weight=1.0), pair=None),
    "full_sentences": Objective(input=FullSentences(), token=MLM, pair=None),
}
PRETRAINING = {
    "corpus": "text",
    "corpus.sources.0.path": "text.txt",
    "corpus.vocab_size": 150,
    "corpus.validation_fraction": 0.2,
    "model.hidden_size": 16,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 32,
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
    "model.max_position_embeddings": 32,
    "model.initializer_range": 0.1,
    "phases": "[{seq_length: 16, steps: 4, global_batch_size: 8, micro_batch_size: 4},"
    " {seq_length: 32, steps: 4, global_batch_size: 6, micro_batch_size: 4}]",
    "position_growth": "tile",
    "optimizer.learning_rate": 0.01,
    "validation.interval_steps": 100,
    "validation.instances": 4,
    "validation.seq_length": 16,
    "trainer.log_interval_steps": 1,
    "trainer.precision": "32-true",
    "trainer.threads": 1,
    "trainer.progress_bar": "false",
}


@pytest.fixture
def shards() -> TokenShards:
    """30 documents of 2..12 sentences of 3..9 tokens, two sources."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 13, 30)
    lengths = rng.integers(3, 10, sizes.sum())
    return TokenShards(
        tokens=TokenStream([rng.integers(5, 60, lengths.sum())]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=(np.arange(30) % 2).astype(np.uint8),
        source_names=("wiki", "books"),
        vocab_size=60,
        unigram_entropy=4.0,
        fingerprint="",
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """A corpus, a sentiment task in SST-2's place, and an encoder for it."""
    root, draw = tmp_path_factory.mktemp("world"), random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(120)]
    texts = [[" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(8)] for _ in range(40)]
    (root / "text.txt").write_text("\n\n".join(".\n".join(text) for text in texts) + "\n")
    for name, count in (("train", 32), ("dev", 8)):
        lines = [f"{' '.join(draw.choices(words, k=draw.randint(3, 9)))}\t{i % 2}" for i in range(count)]
        path = root / "data/glue/SST-2" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *letters], lowercase=True)
    save_encoder(root / "encoder", tokenizer, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    return root


def digest(arrays: Mapping[str, object]) -> str:
    """Of integer arrays by name, whatever their width."""
    found = hashlib.sha256()
    for key in sorted(arrays):
        if isinstance(value := arrays[key], np.ndarray):
            found.update(f"{key} {value.shape} ".encode() + np.ascontiguousarray(value, dtype="<i8").tobytes())
    return found.hexdigest()[:16]


def losses(run_dir: Path) -> list[float]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [float(line["value"]) for line in csv.DictReader(file) if line["key"] == "train/loss"]


def require_losses(name: str, found: list[float]) -> None:
    shown = [float(f"{loss:.7g}") for loss in found]
    assert found == pytest.approx(LOSSES.get(name, []), rel=TOLERANCE), f"{CHANGED}{name}: {shown}"


def test_the_values_here_are_of_these_versions() -> None:
    assert RESULTS_VERSIONS == PINNED_VERSIONS, "pin the values of these versions: this file's tests print them"


@pytest.mark.parametrize("name", OBJECTIVES)
def test_batches_of_pretraining(shards: TokenShards, name: str) -> None:
    """Rows, pairs, masks and their order, of two epochs."""
    ids = SpecialIds(cls=2, sep=3, pad=0, mask=4, vocab_size=60)
    objective = OBJECTIVES[name]
    instances = objective.bind(shards, ids, 48)
    made = [objective.make_batch(instances, 7, epoch, np.arange(4, 12)) for epoch in (0, 1)]
    found = digest({f"{epoch}.{key}": value for epoch, batch in enumerate(made) for key, value in batch.items()})
    assert found == BATCHES.get(name), f"{CHANGED}{name}: {found}"


def test_order_of_finetuning() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 50)
    made = [bucketed_batches(lengths, batch_size=8, seed=3, epoch=epoch) for epoch in (0, 1)]
    found = digest({f"{epoch}.{i}": batch for epoch, batches in enumerate(made) for i, batch in enumerate(batches)})
    assert found == BATCHES.get("finetune"), f"{CHANGED}finetune: {found}"


@pytest.mark.parametrize("objective", ["mlm_nsp", "ltr"])
def test_losses_of_pretraining(world: Path, tmp_path: Path, objective: str) -> None:
    places = {"data_dir": world, "cache_dir": world / "cache", "run_dir": tmp_path / "run", "objective": objective}
    schema.register()
    with initialize_config_dir(version_base="1.3", config_dir=str(schema.CONF_DIR)):
        words = [f"{key}={value}" for key, value in (PRETRAINING | places).items()]
        pretrain.main(compose("pretrain", [*words, "arm=test"]))
    require_losses(objective, losses(tmp_path / "run"))


def test_losses_of_finetuning(finetune: Callable[..., Path]) -> None:
    folder = finetune("task=sst2", "epochs=2", "evaluations_per_epoch=1", "trainer.log_interval_steps=1")
    require_losses("finetune", losses(folder))
