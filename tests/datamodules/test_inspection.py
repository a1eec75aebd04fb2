"""What `clozelab inspect` shows of instances is what the training's batches hold."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.composing import composed
from tests.datamodules.test_corpus import PHASES, make_shards

from clozelab.assembly.encoders import build_objectives
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, ByteBpeTokenizer, WordPieceTokenizer
from clozelab.datamodules.corpus import CorpusDataModule, StepStream, phase_at
from clozelab.datamodules.inspection import (
    KEPT,
    MASKED,
    ONE_SIDED,
    RANDOM,
    SPECIAL,
    TEXT,
    InstancePart,
    ShownInstance,
    TokenWriter,
    instance_lengths,
    length_histogram,
    show_document,
    show_instances,
)
from clozelab.launch.sweep import phase_objectives
from clozelab.objectives.objective import Objective

# ids 5 ... 89 are the words "0" ... "84", so that a text can be read back
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *map(str, range(85))], lowercase=True)
TRAIN = make_shards(20, 0)
MASKING = [
    "objective.token.predict_prob=0.4",
    "objective.token.mask_fraction=0.4",
    "objective.token.random_fraction=0.3",
    "objective.token.same_fraction=0.3",
]
MASKED_OBJECTIVES = ["mlm_nsp", "mlm_sop", "mlm", "spans", "rtd", "mlm_emd"]
STEP = 6  # the second one of phase 1


def objective(name: str, *words: str) -> Objective:
    cfg = composed("pretrain", [f"objective={name}", *words]).config
    return build_objectives(phase_objectives(cfg))[0]


def data_of(objective: Objective, weights: dict[str, float] | None = None) -> CorpusDataModule:
    corpus: Any = SimpleNamespace(tokenizer=TOKENIZER, train=TRAIN, validation=make_shards(40, 1))
    return CorpusDataModule(
        corpus,
        [objective] * 2,
        phases=PHASES,
        seed=1,
        num_workers=0,
        validation_instances=40,
        validation_seq_length=24,
        source_weights=[weights or {}] * 2,
    )


def shown_and_trained(
    objective: Objective, weights: dict[str, float] | None = None
) -> tuple[list[ShownInstance], dict[str, Any]]:
    """All instances of a step as they are shown, and the one batch that a training has then."""
    phases = data_of(objective, weights).bound_phases()
    bound = phase_at(phases, STEP)
    (batch,) = StepStream(phases, 0, 0, 1).micro_batches(STEP)
    return show_instances(bound, TOKENIZER, TRAIN.source_names, STEP, 8), batch


def parts_of(instance: ShownInstance) -> list[InstancePart]:
    parts = []
    for segment in instance.segments:
        parts += segment.parts
    return parts


def ids_read(instance: ShownInstance) -> list[int]:
    """The ids that the encoder reads, from the text that is shown."""
    ids = []
    for part in parts_of(instance):
        ids += [TOKENIZER.vocabulary.index(name) for name in part.text.split()]
    return ids


def labels_of(instance: ShownInstance) -> list[int]:
    parts = [part for part in parts_of(instance) if part.label]
    return [TOKENIZER.vocabulary.index(part.label) for part in parts]


@pytest.mark.parametrize("name", MASKED_OBJECTIVES)
def test_instances_are_those_of_the_training(name: str) -> None:
    instances, batch = shown_and_trained(objective(name, *MASKING))
    slots = batch["layout"].row_slots
    rows = batch["input_ids"].reshape(-1, slots).tolist()
    types = batch["token_type_ids"].reshape(-1, slots).tolist()
    labels: dict[int, list[int]] = {row: [] for row in range(len(rows))}
    for position, label in zip(
        batch["prediction_positions"].tolist(), batch["prediction_labels"].tolist(), strict=True
    ):
        labels[position // slots].append(label)
    kinds: Counter[str] = Counter()
    for row, instance in enumerate(instances):
        length = batch["layout"].lengths_list[row]
        assert ids_read(instance) == rows[row][:length]
        assert labels_of(instance) == labels[row]
        assert (instance.num_tokens, instance.num_slots) == (length, slots)
        assert {segment.token_type for segment in instance.segments} == set(types[row][:length])
        assert instance.predictions.total() == len(labels[row])
        kinds += instance.predictions
        for part in parts_of(instance):
            expected = {MASKED: part.text == "[MASK]", KEPT: part.text == part.label}
            expected[RANDOM] = part.text not in ("[MASK]", part.label)
            assert expected.get(part.kind, True)
    assert set(kinds) == {MASKED, RANDOM, KEPT}
    assert [instance.number for instance in instances] == list(range(8, 16))


def test_instances_of_weighted_sources_are_those_of_the_training() -> None:
    weights = {"wiki": 1.0, "books": 0.0}
    instances, batch = shown_and_trained(objective("mlm"), weights)
    rows = batch["input_ids"].reshape(-1, batch["layout"].row_slots).tolist()
    for row, instance in enumerate(instances):
        assert ids_read(instance) == rows[row][: instance.num_tokens]
        assert instance.source == "wiki"


def test_lengths_are_those_of_the_sources_that_are_read() -> None:
    bound = data_of(objective("mlm"), {"wiki": 1.0, "books": 0.0}).bound_phases()[0]
    epochs, places = bound.places(np.arange(len(instance_lengths(bound))))
    expected = bound.instances.pack(bound.seed, epochs, places).lengths
    np.testing.assert_array_equal(instance_lengths(bound), expected)


@pytest.mark.parametrize(
    ("name", "key", "swapped"),
    [
        ("mlm_nsp", "next_sentence_label", "the second segment is of another document"),
        ("mlm_sop", "sentence_order_label", "the two segments are swapped"),
    ],
)
def test_pairs_have_their_labels(name: str, key: str, swapped: str) -> None:
    instances, batch = shown_and_trained(objective(name))
    labels = batch[key].tolist()
    assert set(labels) == {0, 1}
    meanings = ["the second segment follows the first", swapped]
    expected = [f"{key} {label}: {meanings[label]}" for label in labels]
    assert [instance.pair for instance in instances] == expected
    assert all(len(instance.segments) == 2 for instance in instances)
    assert [instance.source for instance in instances] == [
        TRAIN.source_names[source] for source in batch["source"].tolist()
    ]


@pytest.mark.parametrize("name", ["ltr", "ltr_rtl"])
def test_text_that_is_predicted_from_one_side_stands_whole(name: str) -> None:
    words = ["architecture=two_directions"] if name == "ltr_rtl" else []
    instances, batch = shown_and_trained(objective(name, *words))
    rows = batch["input_ids"].reshape(-1, batch["layout"].row_slots).tolist()
    for row, instance in enumerate(instances):
        assert ids_read(instance) == rows[row][: instance.num_tokens]
        assert {part.kind for part in parts_of(instance)} == {TEXT, SPECIAL}
        assert instance.predictions == {ONE_SIDED: instance.num_tokens - 1}


def test_some_instances_are_causal_and_others_masked() -> None:
    words = ["objective.token.causal_fraction=0.5", "objective.token.shift=1"]
    instances, batch = shown_and_trained(objective("hybrid", *words))
    rows = batch["input_ids"].reshape(-1, batch["layout"].row_slots).tolist()
    for row, instance in enumerate(instances):
        assert ids_read(instance) == rows[row][: instance.num_tokens]
        is_causal = ONE_SIDED in instance.predictions
        assert is_causal == (row % 2 == 1)
        assert bool(labels_of(instance)) != is_causal


@pytest.mark.parametrize("name", ["permuted", "mpnet"])
def test_what_stands_behind_the_text_is_shown_in_its_place(name: str) -> None:
    """Masks and queries have slots of their own; the text's are shown as the queries read them."""
    instances, batch = shown_and_trained(objective(name, *MASKING))
    slots = batch["layout"].row_slots
    rows = batch["input_ids"].reshape(-1, slots)
    for row, instance in enumerate(instances):
        text = []
        for part in parts_of(instance):
            names = (part.label or part.text).split()
            text += [TOKENIZER.vocabulary.index(name) for name in names]
        assert text == rows[row, : instance.num_tokens].tolist()
        assert instance.num_tokens == batch["text_lengths"][row]
        is_here = batch["prediction_positions"] // slots == row
        queries = batch["input_ids"][batch["prediction_positions"][is_here]]
        read = [part.text for part in parts_of(instance) if part.label]
        assert sorted(TOKENIZER.vocabulary.index(name) for name in read) == sorted(queries.tolist())
        assert sorted(labels_of(instance)) == sorted(batch["prediction_labels"][is_here].tolist())


def test_words_go_on_without_a_space() -> None:
    vocabulary = [*SPECIAL_TOKENS, "un", "##aff", "##able", "cat"]
    tokenizer = WordPieceTokenizer(vocabulary, lowercase=True)
    shards = SimpleNamespace(
        tokens=np.array([5, 6, 7, 8, 8]),
        sentence_offsets=np.array([0, 3, 5]),
        document_offsets=np.array([0, 1, 2]),
        document_source=np.array([0, 1]),
        source_names=("wiki", "books"),
    )
    document = show_document(shards, tokenizer, 1)  # type: ignore[arg-type]
    assert (document.source, document.num_tokens, document.sentences) == ("books", 2, ["cat cat"])
    assert show_document(shards, tokenizer, 0).sentences == ["unaffable"]  # type: ignore[arg-type]


def test_a_part_of_a_character_has_its_name() -> None:
    """A byte that is no text by itself is not shown as a question mark."""
    tokenizer = ByteBpeTokenizer.train(["é"], 261, False, True)
    name = TokenWriter(tokenizer).name
    assert [name(index) for index in tokenizer.encode_batch(["é"])[0]] == ["Ġ", "Ã", "©"]


def test_lengths_are_counted_in_doubling_ranges() -> None:
    lengths = np.array([1, 1, 2, 3, 4, 7, 8, 1024])
    histogram = length_histogram("tokens", lengths)
    assert histogram.counts["1"] == 2
    assert histogram.counts["2\u20133"] == 2
    assert histogram.counts["4\u20137"] == 2
    assert histogram.counts["8\u201315"] == 1
    assert histogram.counts["1,024\u20132,047"] == 1
    assert sum(histogram.counts.values()) == 8
    assert (histogram.mean, histogram.largest) == (131.25, 1024)
    assert next(iter(length_histogram("tokens", lengths[-2:]).counts)) == "8\u201315"


def test_how_long_instances_are() -> None:
    bound = data_of(objective("mlm_sop")).bound_phases()[1]
    packed = bound.instances.pack(bound.seed, 0, np.arange(len(bound.instances)))
    assert sorted(instance_lengths(bound)) == sorted(packed.lengths)
