"""The corpus datamodule: which rows a step holds depends on (seed, step) only."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.screens import shows

from clozelab.assembly.passes import passes
from clozelab.assembly.pretraining import log_passes
from clozelab.corpus.instances import DrawnInstances, FullSentences, SegmentPairs
from clozelab.corpus.random import Draws
from clozelab.corpus.shards import PreparedCorpus, TokenShards, TokenStream
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.corpus import CorpusDataModule, StepStream, contents_of
from clozelab.objectives.hybrid import Hybrid
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective
from clozelab.objectives.sop import SentenceOrderPrediction, SentencePairs

Make = Callable[..., CorpusDataModule]

PHASES = [
    {"seq_length": 16, "steps": 5, "global_batch_size": 12, "micro_batch_size": 4},
    {"seq_length": 32, "steps": 3, "global_batch_size": 8, "micro_batch_size": 8},
]
MASKING = {
    "predict_prob": 0.15,
    "mask_fraction": 0.8,
    "random_fraction": 0.1,
    "same_fraction": 0.1,
}
MLM = MaskedLanguageModel(**MASKING, weight=1.0)
MLM_NSP = Objective(
    input=SegmentPairs(0.5, "corpus"), token=MLM, pair=NextSentencePrediction(weight=1.0)
)


RELEASED = Objective(
    input=SegmentPairs(
        *(0.5, "corpus"),
        cuts="released",
        short_seq_prob=0.2,
        put_back_unused=True,
        lone_sentences="random",
        copies=2,
    ),
    token=MaskedLanguageModel(
        predict_prob=0.15,
        mask_fraction=0.8,
        random_fraction=0.1,
        same_fraction=0.1,
        weight=1.0,
        count_specials=True,
        whole_words=True,
        span_weights=[6, 3, 2],
        one_action_a_span=True,
    ),
    pair=NextSentencePrediction(weight=1.0),
    dupe_factor=2,
)
"""All that the released recipe and its family have, at once."""


def text_of(data: CorpusDataModule) -> list[int]:
    """How many tokens of text each phase can read."""
    return [sum(reading.sizes.values()) for reading in data.readings()]


def make_shards(num_documents: int, seed: int) -> TokenShards:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 9, num_documents)
    lengths = rng.integers(3, 10, sizes.sum())
    return TokenShards(
        tokens=TokenStream([rng.integers(5, 90, lengths.sum())]),
        sentence_offsets=np.append(0, np.cumsum(lengths)).astype(np.int64),
        document_offsets=np.append(0, np.cumsum(sizes)).astype(np.int64),
        document_source=(np.arange(num_documents) % 2).astype(np.uint8),
        source_names=("wiki", "books"),
        vocab_size=90,
        unigram_entropy=4.0,
        fingerprint="",
    )


@pytest.fixture
def corpus() -> Any:
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *map(str, range(85))], lowercase=True)
    return SimpleNamespace(
        tokenizer=tokenizer, train=make_shards(20, 0), validation=make_shards(40, 1)
    )


@pytest.fixture
def make(corpus: Any) -> Make:
    """make(objective, **other arguments) -> datamodule of the small corpus."""

    def build(objective: Objective = MLM_NSP, **changes: Any) -> CorpusDataModule:
        arguments: dict[str, Any] = {
            "phases": PHASES,
            "seed": 1,
            "validation_instances": 40,
            "validation_seq_length": 24,
            "num_workers": 0,
        }
        arguments |= changes
        return CorpusDataModule(corpus, [objective] * len(arguments["phases"]), **arguments)

    return build


WEIGHTS = [{}, {"books": 3.0, "wiki": 1.0}]
STREAMS: dict[str, dict[str, Any]] = {
    "pairs": {},
    "windows": {
        "objective": Objective(input=FullSentences(), token=LeftToRight(weight=1.0), pair=None)
    },
    "released": {"objective": RELEASED},
    "weighted": {"source_weights": WEIGHTS},
}


@pytest.fixture(params=STREAMS)
def make_any(request: pytest.FixtureRequest, make: Make) -> Make:
    """As `make`, for each kind of stream."""
    return partial(make, **STREAMS[request.param])


def fingerprint(batch: dict[str, Any]) -> tuple[Any, ...]:
    tensors = [
        (key, value.tolist())
        for key, value in sorted(batch.items())
        if isinstance(value, torch.Tensor)
    ]
    return (*tensors, batch["layout"].lengths_list, batch["layout"].row_slots)


def stream_fingerprint(steps: Any) -> list[list[tuple[Any, ...]]]:
    result = []
    for step in steps:
        result.append([fingerprint(micro) for micro in step])
    return result


def batch_sizes(steps: Any) -> list[list[int]]:
    """The number of instances of each micro-batch of each step."""
    sizes = []
    for step in steps:
        sizes.append([micro["layout"].batch_size for micro in step])
    return sizes


def rows_of(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    slots = batch["layout"].row_slots
    return [tuple(row) for row in batch["input_ids"].reshape(-1, slots).tolist()]


def predictions_of(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(row's ids, slot, label) of each prediction, which stay however the batch is cut."""
    slots, rows = batch["layout"].row_slots, rows_of(batch)
    pairs = zip(
        batch["prediction_positions"].tolist(), batch["prediction_labels"].tolist(), strict=True
    )
    return [(rows[slot // slots], slot % slots, label) for slot, label in pairs]


def test_steps_and_micro_batches(make: Make) -> None:
    steps = list(make().train_dataloader())
    assert len(steps) == 8
    assert batch_sizes(steps) == [[4, 4, 4]] * 5 + [[8]] * 3
    assert {micro["layout"].row_slots for micro in chain(*steps[:5])} == {16}
    assert {micro["layout"].row_slots for micro in chain(*steps[5:])} == {32}
    uneven = make(
        phases=[{"seq_length": 16, "steps": 1, "global_batch_size": 10, "micro_batch_size": 4}]
    )
    assert batch_sizes(uneven.train_dataloader()) == [[4, 4, 2]]


def test_ranks_and_micro_batches_cut_the_same_global_batch(make_any: Make) -> None:
    phases = [{**phase, "micro_batch_size": 12} for phase in PHASES]
    whole = make_any(phases=phases).train_stream(0, 0, 1)
    for world_size in (1, 2, 4):
        ranks = [list(make_any().train_stream(0, rank, world_size)) for rank in range(world_size)]
        for number, step in enumerate(whole):
            parts = []
            for rank in ranks:
                parts.extend(rank[number])
            assert [*chain(*map(rows_of, parts))] == rows_of(step[0])
            assert [*chain(*map(predictions_of, parts))] == predictions_of(step[0])


def test_same_seed_same_stream_and_other_seed_another(make: Make) -> None:
    first = stream_fingerprint(make().train_dataloader())
    assert stream_fingerprint(make().train_dataloader()) == first
    assert stream_fingerprint(make(seed=2).train_dataloader()) != first


def test_a_stream_starts_anywhere(make_any: Make) -> None:
    whole = stream_fingerprint(make_any().train_dataloader())
    for start_step in (1, 4, 5, 7, 8):
        stream = make_any().train_stream(start_step, 0, 1)
        assert stream_fingerprint(stream) == whole[start_step:]


def test_steps_found_one_by_one_are_the_same(
    make_any: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stream_fingerprint(make_any().train_dataloader())
    monkeypatch.setattr("clozelab.datamodules.corpus.INSTANCES_AHEAD", 1)
    stream = make_any().train_stream(0, 0, 1)
    assert stream_fingerprint(stream) == whole
    # In any order, too.
    backwards = [stream.micro_batches(step) for step in reversed(range(8))]
    assert stream_fingerprint(reversed(backwards)) == whole


def test_workers_and_other_processes_change_nothing(make_any: Make) -> None:
    stream = make_any().train_stream(0, 0, 1)
    whole = stream_fingerprint(stream)
    assert stream_fingerprint(make_any(num_workers=2).train_dataloader()) == whole
    assert stream_fingerprint(pickle.loads(pickle.dumps(stream))) == whole


def instance_counts(stream: StepStream, steps: range) -> Counter[int]:
    """How often each instance comes in these steps."""
    seen: Counter[int] = Counter()

    def record(drawn: DrawnInstances, order: np.ndarray) -> Any:
        seen.update(drawn.draws.names.tolist())
        return MLM_NSP.arranged(drawn, order)

    recorder: Any = SimpleNamespace(draw=MLM_NSP.draw, arranged=record, arrays_of=MLM_NSP.arrays_of)
    stream.phases = [replace(bound, objective=recorder) for bound in stream.phases]
    for step in steps:
        stream.micro_batches(step)
    return seen


@pytest.mark.parametrize("pad", [0, 7])
def test_what_a_batch_holds_is_known_by_its_text_and_not_by_its_padding(pad: int) -> None:
    lengths = np.array([2, 5, 4])
    input_ids = np.full((3, 5), pad)
    expected = 0
    epoch = np.array([0, 0, 1])
    index = np.array([8, 9, 2])
    for row, length in enumerate(lengths.tolist()):
        token_sum = 0
        for slot in range(length):
            input_ids[row, slot] = 100 * row + slot
            weight = int(Draws(0, 0, np.array([slot])).bits("contents")[0])
            token_sum += (100 * row + slot) * weight
        # An instance's own number is a hash of its epoch, its name and this sum; 40 bits count.
        text = np.array([token_sum % 2**64], dtype=np.uint64)
        own = Draws(0, int(epoch[row]), index[row : row + 1]).bits("contents", text)
        expected += int(own[0]) >> 24
    batch = {"input_ids": input_ids.reshape(-1), "lengths": lengths, "width": 5}
    assert contents_of(batch, epoch, index) == expected % 2**40


def test_an_epoch_holds_each_instance_once_and_phases_count_their_own(make: Make) -> None:
    size = len(make().instances("train", 16))
    phases = [
        {"seq_length": 32, "steps": 3, "global_batch_size": 7, "micro_batch_size": 7},
        {"seq_length": 16, "steps": 2 * size, "global_batch_size": 1, "micro_batch_size": 1},
    ]
    stream = make(phases=phases).train_stream(0, 0, 1)
    assert instance_counts(stream, range(3, 3 + size)) == dict.fromkeys(range(size), 1)
    stream = make(phases=phases).train_stream(0, 0, 1)
    assert instance_counts(stream, range(3, 3 + 2 * size)) == dict.fromkeys(range(size), 2)


def test_a_batch_larger_than_the_corpus_runs_into_the_next_epochs(make: Make) -> None:
    phases = [{"seq_length": 64, "steps": 2, "global_batch_size": 150, "micro_batch_size": 50}]
    module = make(phases=phases)
    size = len(module.instances("train", 64))
    assert size < 50
    counts = instance_counts(module.train_stream(0, 0, 1), range(2))
    assert set(counts.values()) <= {300 // size, 300 // size + 1} and len(counts) == size
    assert [len(step) for step in module.train_stream(0, 0, 1)] == [3, 3]


def test_validation_rows_are_the_same_for_every_seed_and_phase(make: Make) -> None:
    first = [fingerprint(batch) for batch in make().val_dataloader()]
    other = make(
        seed=9,
        phases=[{"seq_length": 16, "steps": 1, "global_batch_size": 12, "micro_batch_size": 4}],
    )
    assert [fingerprint(batch) for batch in make(seed=9).val_dataloader()] == first
    rows = sorted(chain(*map(rows_of, make().val_dataloader())))
    assert sorted(chain(*map(rows_of, other.val_dataloader()))) == rows
    batch = next(iter(make().val_dataloader()))
    assert batch["layout"].row_slots == 24 and batch["source_names"] == ("wiki", "books")


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_validation_is_shared_over_ranks_without_duplicates(make: Make, world_size: int) -> None:
    module = make(validation_instances=31)
    streams = [module.validation_stream(rank, world_size) for rank in range(world_size)]
    parts = [*chain(*(stream.phases[0][2] for stream in streams))]
    index = np.concatenate(parts)
    assert len(index) == len(set(index.tolist())) == 31
    assert set(index.tolist()) == set(
        np.concatenate(module.validation_stream(0, 1).phases[0][2]).tolist()
    )
    assert len({len(list(stream)) for stream in streams}) == 1
    assert all(len(part) for part in parts)


def test_fewer_held_out_rows_than_asked_for(make: Make) -> None:
    module = make(validation_instances=10**6)
    total = sum(batch["layout"].batch_size for batch in module.val_dataloader())
    assert total == len(module.instances("validation", 24))


def test_held_out_labels_are_what_the_loss_is_over(make: Make, corpus: Any) -> None:
    """All but [SEP], whose place a left-to-right model can count out."""
    data = make(
        Objective(input=SegmentPairs(0.5, "corpus"), token=LeftToRight(weight=1.0), pair=None)
    )
    batches = list(data.val_dataloader())
    asked = np.concatenate([batch["prediction_labels"].numpy() for batch in batches])
    sep = corpus.tokenizer.sep_id
    assert {batch["sep_id"] for batch in batches} == {sep}
    assert (asked == sep).sum() == 2 * sum(batch["layout"].batch_size for batch in batches)
    assert data.held_out_labels().tolist() == asked[asked != sep].tolist()


def test_documents_that_spoil_next_sentence_prediction_are_told(
    make: Make, corpus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One document with nearly all of the text finds no other one to draw from."""
    make().instances("train", 16)
    assert "train split at" not in caplog.text
    sizes, tokens = np.array([4000, 3, 3, 1]), np.random.default_rng(0).integers(5, 90, 4007 * 6)
    corpus.train = replace(
        corpus.train,
        tokens=TokenStream([tokens]),
        sentence_offsets=np.arange(4008) * 6,
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=np.zeros(4, dtype=np.uint8),
    )
    with caplog.at_level("INFO"):
        make().instances("train", 16)
    shows(
        caplog.text,
        "train split at seq_length 16: 1336 instances",
        "train split at seq_length 16: 1 documents of a single sentence",
        "train split at seq_length 16: 627 of 677 sampled pairs that",
    )
    caplog.clear()
    make(Objective(input=SegmentPairs(0.5, "corpus"), token=MLM, pair=None)).instances("train", 16)
    assert "train split at" not in caplog.text
    # A source of one document draws from the others, which tells its label.
    corpus.train = replace(
        corpus.train,
        document_source=np.array([0, 0, 0, 1], dtype=np.uint8),
        document_offsets=np.array([0, 1000, 2000, 3000, 4007]),
        source_names=("wiki", "books"),
    )
    caplog.clear()
    pair = NextSentencePrediction(weight=1.0)
    of_sources = Objective(input=SegmentPairs(0.5, "source"), token=MLM, pair=pair)
    make(of_sources).instances("train", 16)
    shows(caplog.text, "train split at seq_length 16: source books has a single")


def test_text_that_makes_no_pair_is_told_and_not_counted(
    make: Make, corpus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of mails or posts many have a single sentence: no A and B, whatever the objective asks."""
    sizes = np.tile([1, 1, 1, 2], 200)
    corpus.train = replace(
        corpus.train,
        tokens=TokenStream([np.random.default_rng(0).integers(5, 90, 6000)]),
        sentence_offsets=np.arange(1001) * 6,
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=np.zeros(800, dtype=np.uint8),
    )
    pairs = make(Objective(input=SegmentPairs(0.0, "corpus"), token=MLM, pair=None))
    pairs.instances("train", 16)
    shows(
        caplog.text,
        "600 documents of a single sentence, with 60.0% of the tokens, make no pair and are left",
        "objective/input=full_sentences reads them",
    )
    assert text_of(pairs) == [200 * 12] * 2
    caplog.clear()
    windows = make(Objective(input=FullSentences(), token=MLM, pair=None))
    windows.instances("train", 16)
    assert "left out" not in caplog.text
    assert text_of(windows) == [6000] * 2
    # Two sentences of 6 fit into 16 slots with three marks, and not into 14.
    pair = SentenceOrderPrediction(weight=1.0)
    ordered = make(Objective(input=SentencePairs(), token=MLM, pair=pair))
    corpus.train = replace(corpus.train, document_offsets=np.arange(0, 1001, 4))
    corpus.train = replace(corpus.train, document_source=np.zeros(250, dtype=np.uint8))
    ordered.instances("train", 16)
    assert "left out" not in caplog.text
    assert text_of(ordered) == [6000] * 2
    halves = np.cumsum(np.append(0, np.tile([9, 9, 4, 4], 250)))
    corpus.train = replace(
        corpus.train,
        tokens=TokenStream([np.random.default_rng(0).integers(5, 90, 6500)]),
        sentence_offsets=halves,
    )
    ordered = make(Objective(input=SentencePairs(), token=MLM, pair=pair))
    # Of [9, 9, 4, 4] the sentences 9 and 4 fit together, or from the end 4 and 4.
    assert text_of(ordered) == [125 * (13 + 8), 6500]
    shows(caplog.text, "sentences of which no two fit, with ", "a larger seq_length of the phase")


def test_a_phase_takes_no_text_from_a_source_that_it_does_not_read(
    make: Make, corpus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Books are single sentences: no text for the pairs of the first phase, which leaves them out.

    A source that none reads counts whole where some phase could read it.
    """
    corpus.train = replace(
        corpus.train,
        tokens=TokenStream([np.random.default_rng(0).integers(5, 90, 6000)]),
        sentence_offsets=np.arange(1001) * 6,
        document_offsets=np.append(np.arange(0, 501, 2), np.arange(501, 1001)),
        document_source=np.repeat([0, 1], [250, 500]).astype(np.uint8),
    )
    windows = Objective(input=FullSentences(), token=MLM, pair=None)
    data = make(windows, source_weights=[{"wiki": 1, "books": 0}, {"wiki": 1, "books": 1}])
    data.objectives = [MLM_NSP, windows]
    sizes = [reading.sizes for reading in data.readings()]
    assert sizes == [{"wiki": 3000, "books": 0}, {"wiki": 3000, "books": 3000}]
    with caplog.at_level(logging.INFO):
        log_passes(data.readings())
    shows(caplog.text, "passes over 6 k tokens of text", "books is read")


def test_a_short_phase_of_pairs_adds_its_own_passes_alone(
    make: Make, corpus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A third of the text makes pairs: the long phase of windows reads all of it as often."""
    corpus.train = replace(
        corpus.train,
        tokens=TokenStream([np.random.default_rng(0).integers(5, 90, 6000)]),
        sentence_offsets=np.arange(1001) * 6,
        document_offsets=np.append(np.arange(0, 334, 2), np.arange(334, 1001)),
        document_source=np.zeros(833, dtype=np.uint8),
    )
    windows = Objective(input=FullSentences(), token=MLM, pair=None)
    data = make(windows, phases=[PHASES[0] | {"steps": 10}, PHASES[1] | {"steps": 1000}])
    data.objectives = [MLM_NSP, windows]
    short, long = data.readings()
    assert (short.sizes["wiki"], long.sizes["wiki"]) == (2004, 6000)
    with caplog.at_level(logging.INFO):
        log_passes(data.readings())
    times = short.tokens / 2004 + long.tokens / 6000
    shows(caplog.text, f"{times:.1f} passes over 6 k tokens of text")


# What is refused


def test_fewer_validation_instances_than_devices(make: Make) -> None:
    with pytest.raises(ValueError, match="validation split has 4 instances for 8 devices"):
        make(validation_instances=4).validation_stream(0, 8)


@pytest.mark.parametrize(
    ("split", "num_documents", "sentence"),
    [
        ("validation", 0, "The validation split at seq_length 24: there is no document"),
        ("train", 1, "The train split at seq_length 16: the split has a single document"),
    ],
)
def test_a_split_without_pairs(
    make: Make, corpus: Any, split: str, num_documents: int, sentence: str
) -> None:
    setattr(corpus, split, make_shards(num_documents, 0))
    with pytest.raises(ValueError, match=sentence):
        make().setup("fit")


def test_weights_of_one_phase_leave_the_other_as_it_is(make: Make) -> None:
    plain = stream_fingerprint(StepStream(make().bound_phases(), 0, 0, 1))
    nothing = make(source_weights=[{}, {}])
    assert stream_fingerprint(StepStream(nothing.bound_phases(), 0, 0, 1)) == plain
    weighted = make(source_weights=WEIGHTS)
    steps = stream_fingerprint(StepStream(weighted.bound_phases(), 0, 0, 1))
    assert steps[:5] == plain[:5]
    assert all(mixed != one for mixed, one in zip(steps[5:], plain[5:], strict=True))


def test_a_mixture_is_laid_out_once_whatever_the_micro_batches(make: Make) -> None:
    data = make(source_weights=WEIGHTS)
    before = data.bound_phases()[1]
    data.phases[1] = replace(data.phases[1], micro_batch_size=1)
    after = data.bound_phases()[1]
    assert after.mixture is before.mixture is not None
    assert after.phase.micro_batch_size == 1 < before.phase.micro_batch_size


@pytest.mark.parametrize("input", [FullSentences(), SegmentPairs(0.5, "corpus")])
def test_a_weighted_phase_reads_its_shares(make: Make, corpus: Any, input: Any) -> None:
    # As prepared corpora have it: one source behind the other, so that windows are of one.
    corpus.train = replace(corpus.train, document_source=np.repeat(np.uint8([0, 1]), 10))
    objective = Objective(input=input, token=MLM, pair=None)
    phases = [PHASES[0] | {"steps": 200}]
    data = make(objective, phases=phases, source_weights=[{"wiki": 1.0, "books": 3.0}])
    (bound,) = data.bound_phases()
    _, index = bound.places(np.arange(200 * 12))
    packed = bound.instances.pack(1, 0, index)
    text = packed.lengths - 2  # tokens, with the separators of documents inside
    share = text[packed.source == 1].sum() / text.sum()
    assert share == pytest.approx(0.75, abs=0.02)


def test_a_phase_reads_nothing_of_a_source_with_weight_0(make: Make) -> None:
    data = make(source_weights=[{}, {"wiki": 1.0, "books": 0.0}])
    sources = []
    for bound in data.bound_phases():
        packed = bound.instances.pack(*(bound.seed, *bound.places(np.arange(24))))
        sources.append({*packed.source.tolist(), *packed.b_source.tolist()})
    assert sources == [{0, 1}, {0}]


def test_weights_that_cannot_be_kept_are_refused_before_training(make: Make) -> None:
    with pytest.raises(
        ValueError, match=r"source wiki with weight 1e-09 .* less than one of 65,536"
    ):
        make(source_weights=[{}, {"wiki": 1e-9, "books": 1.0}]).setup("fit")
    with pytest.raises(ValueError, match="the weight of wiki is missing"):
        make(source_weights=[{"books": 1.0}, {}]).setup("fit")


def test_a_batch_that_is_too_small_is_named_with_its_phase(make: Make) -> None:
    token = Hybrid(causal_fraction=0.1, shift=1, weight=1.0, **MASKING)
    objective = Objective(input=FullSentences(), token=token, pair=None)
    with pytest.raises(ValueError, match=r"^phases.1: global_batch_size is 8 .* of 10 or more"):
        make(objective).setup("fit")


@pytest.mark.parametrize("weights", [(), WEIGHTS])
def test_words_are_counted_as_they_are_read(
    make: Make, corpus: Any, weights: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Twice as many words as tokens in wiki, half as many in books.
    manifest = {"words": {"wiki": {"words": 60, "tokens": 30}, "books": {"words": 9, "tokens": 18}}}
    whole = PreparedCorpus(Path("c"), manifest, corpus.tokenizer, corpus.train, corpus.validation)
    corpus.words_per_token = whole.words_per_token
    data = make(source_weights=weights)
    by_step = data.words_by_step()
    # Plainly: every instance of every step, its tokens between the special ones.
    words = 0.0
    tokens = 0
    for bound in data.bound_phases():
        size = bound.phase.global_batch_size
        for place in range(bound.phase.steps * size):
            epoch, index = bound.places(np.array([place]))
            packed = bound.instances.pack(bound.seed, epoch, index)
            of_source = {0: 2.0, 1: 0.5}[int(packed.source[0])]
            tokens += int((~packed.special).sum())
            words += of_source * int((~packed.special).sum())
    assert len(by_step) == 8
    assert by_step[-1] == pytest.approx(words, rel=1e-3)
    assert np.diff(by_step[:5]) == pytest.approx(by_step[0]), "steps of a phase read the same"
    with caplog.at_level(logging.INFO):
        log_passes(data.readings())
    text = corpus.train.num_tokens
    assert passes(tokens / text, text)[0] in caplog.text
