"""The pre-flight finds what is planted, by the check that should find it, and nothing in a sound
experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.checks.conftest import make_arm, make_mlm, make_numbers, make_questions, make_task
from tests.screens import shows

from claims.text.phrases import format_count
from clozelab.checks import doctor
from clozelab.checks.arms import check_masks, check_pairs, sample_instances
from clozelab.checks.doctor import examine
from clozelab.checks.subject import ERROR, OK, WARNING, Finding, Subject
from clozelab.corpus.instances import PairInstances, ReleasedInstances, SegmentPairs
from clozelab.corpus.packing import Masking, PackedInstances, SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.simple_tokenizers import BytesTokenizer
from clozelab.models import attention
from clozelab.models.config import ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.objective import Objective
from clozelab.objectives.rtd import ReplacedTokenDetection
from clozelab.planning.arms import Arm, Corpus
from clozelab.planning.cost import DiskUsage

PHASE = {"steps": 1000, "global_batch_size": 64, "micro_batch_size": 64}


def levels(findings: Sequence[Finding], level: str) -> set[str]:
    return {finding.check for finding in findings if finding.level == level}


def caught(subject: Subject, *, warning: bool = False) -> set[str]:
    """Names of the checks that found an error (or, for a lesser defect, a warning); each says what
    to do.
    """
    findings = list(examine(subject))
    found = [one for one in findings if one.level != OK]
    assert all(one.remedy for one in found), found
    if warning:
        assert not levels(findings, ERROR), found
        return levels(findings, WARNING)
    return levels(findings, ERROR)


def with_corpus(subject: Subject, corpus: Corpus) -> Subject:
    arms = [make_arm(arm.name, corpus) for arm in subject.arms]
    return replace(subject, arms=arms)


def plant(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, defect: Callable[..., Any]
) -> None:
    """A method that gives what `defect` makes of the method, its object and what it is given."""
    whole = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, *given: defect(whole, self, *given))


@pytest.fixture
def one_arm(subject: Subject) -> Subject:
    """For defects of tasks and of the machine: arms are looked at by the tests of theirs."""
    return replace(subject, arms=subject.arms[1:2])


def test_a_sound_experiment_has_no_finding(subject: Subject) -> None:
    findings = list(examine(subject))
    assert {one.level for one in findings} == {OK}, [one for one in findings if one.level != OK]
    expected = {"future", "own label", "neighbours", "masks", "pairs", "duplicates", "held out"}
    expected |= {"vocabulary", "unknown tokens", "schedule", "disk"}
    expected |= {"labels", "label map", "contamination", "lengths", "task overlap"}
    assert {one.check for one in findings} == expected


def leave_bias_out(monkeypatch: pytest.MonkeyPatch, *, causal: bool) -> None:
    """Everything is in sight of left-to-right attention, or of any other."""
    whole = Layout.cached

    def remember(layout: Layout, key: Any, make: Any) -> Any:
        found = whole(layout, key, make)
        return torch.zeros_like(found) if key[0] == "bias" and key[1].is_causal is causal else found

    monkeypatch.setattr(Layout, "cached", remember)


def test_left_to_right_without_its_mask(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_bias_out(monkeypatch, causal=True)
    # Without it padding is seen, too.
    assert caught(subject) == {"future", "own label", "neighbours"}
    # Bidirectional arms do not use that mask.
    findings = [one for one in examine(subject) if one.level == ERROR]
    assert all(one.what.startswith("ltr") for one in findings)


def test_masked_model_under_a_causal_mask(subject: Subject, corpus: Corpus) -> None:
    arm = make_arm("mlm", corpus)
    arm = replace(arm, config=replace(arm.config, is_causal=True))
    assert caught(replace(subject, arms=[arm])) == {"future"}


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "clozelab.models.attention.LongAttention", "window": [1, 2]},
        pytest.param(
            {"_target_": "clozelab.models.attention.LocalAttention", "window": 1},
            marks=pytest.mark.slow,
        ),
        {
            "_target_": "clozelab.models.attention.BlockAttention",
            "block_size": 1,
            "num_random_blocks": 1,
        },
    ],
)
def test_a_narrow_view_is_no_defect_and_a_causal_one_is(
    subject: Subject, corpus: Corpus, node: dict[str, Any]
) -> None:
    """No token needs to see what stands beyond its window."""
    arm = make_arm("mlm", corpus)
    for is_causal in (False, True):
        part = ModuleSpec.from_node(node, "")
        config = replace(arm.config, attention=part, is_causal=is_causal)
        expected = {"future"} if is_causal else set()
        assert caught(replace(subject, arms=[replace(arm, config=config)])) == expected


def labels_in_sight(whole: Any, masking: Masking, rows: PackedInstances, *rest: Any) -> Any:
    _, position, labels = whole(masking, rows, *rest)
    return rows.input_ids, position, labels


def special_as_others(whole: Any, masking: Masking, rows: PackedInstances, *rest: Any) -> Any:
    return whole(masking, replace(rows, special=rows.special & False), *rest)


def always_next(whole: Any, pairs: PairInstances, *rest: Any) -> PackedInstances:
    rows = whole(pairs, *rest)
    return replace(rows, next_sentence_label=np.zeros_like(rows.lengths))


def lying_labels(whole: Any, pairs: PairInstances, *rest: Any) -> PackedInstances:
    """As many random pairs as there should be, and lengths as they should be: only the text
    tells.
    """
    rows = whole(pairs, *rest)
    return replace(rows, next_sentence_label=1 - rows.next_sentence_label)


def betraying_lengths(whole: Any, pairs: PairInstances, *rest: Any) -> PackedInstances:
    rows = whole(pairs, *rest)
    b_length = rows.token_type_ids.reshape(-1, rows.width).sum(1)
    return replace(rows, next_sentence_label=(b_length > np.median(b_length)).astype(np.int64))


@pytest.mark.parametrize(
    ("owner", "name", "defect", "found"),
    [
        (Masking, "apply", labels_in_sight, {"own label", "masks"}),
        (Masking, "apply", special_as_others, {"masks"}),
        (PairInstances, "pack", always_next, {"pairs"}),
        (PairInstances, "pack", lying_labels, {"pairs"}),
        (PairInstances, "pack", betraying_lengths, {"pairs"}),
    ],
)
def test_a_defect_of_instances(
    subject: Subject,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    defect: Callable[..., Any],
    found: set[str],
) -> None:
    plant(monkeypatch, owner, name, defect)
    assert caught(subject) == found


@pytest.fixture
def electra(corpus: Corpus) -> Arm:
    """Replaced-token detection on the sound corpus, with a generator half as wide."""
    token = ReplacedTokenDetection(
        generator_width="1/2",
        generator_weight=1.0,
        predict_prob=0.15,
        mask_fraction=0.85,
        random_fraction=0.0,
        same_fraction=0.15,
        weight=50.0,
    )
    arm = make_arm("mlm", corpus)
    return replace(
        arm,
        name="rtd",
        objective=Objective(input=SegmentPairs(0.0, "corpus"), token=token, pair=None),
    )


def test_a_discriminator_that_reads_what_was_replaced(
    subject: Subject, electra: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models are tried, each against what the objective allows it."""
    sound = replace(subject, arms=[electra])
    assert caught(sound) == set()

    def leave(whole: Any, token: Any, generator: Any, hidden: Any, batch: Any) -> Any:
        _, is_replaced = whole(token, generator, hidden, batch)
        places = batch["prediction_positions"]
        return batch["input_ids"].index_copy(0, places, batch["prediction_labels"]), is_replaced

    plant(monkeypatch, ReplacedTokenDetection, "replace", leave)
    assert caught(sound) == {"own label"}
    (finding,) = [one for one in examine(sound) if one.level == ERROR]
    assert finding.what == "rtd, rtd: sees what it predicts"


def test_a_check_that_cannot_read_a_file_is_a_finding(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_arm: Arm) -> Any:
        raise IsADirectoryError(21, "Is a directory", "train.tsv")

    monkeypatch.setattr(doctor, "check_masks", failing)
    found = [one for one in examine(subject) if one.level == ERROR]
    assert found and all("could not be run: [Errno 21]" in one.what for one in found)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_student_is_tried_whether_its_teacher_is_there_or_not(
    subject: Subject, corpus: Corpus, tmp_path: Path, is_there: bool
) -> None:
    arm = make_arm("mlm", corpus)
    if is_there:
        encoder = Encoder(replace(arm.config, hidden_size=8, embedding_size=8))
        head = {"lm": family_for(encoder.config).head("lm", encoder)}
        save_encoder_folder(tmp_path, encoder, heads=head, tokenizer_files={}, extra_config={})
    token = Distillation(
        teacher=tmp_path,
        teacher_layers=None,
        temperature=2.0,
        soft_weight=5.0,
        cosine_weight=0.0,
        hidden_layers=[[1, 1]],
        hidden_weight=1.0,
        score_layers=[],
        score_weight=1.0,
        predict_prob=0.15,
        mask_fraction=0.8,
        random_fraction=0.1,
        same_fraction=0.1,
        weight=2.0,
    )
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=None)
    student = replace(arm, name="student", objective=objective)
    assert caught(replace(subject, arms=[student])) == set()
    assert student.flops > arm.flops
    leaky = copy(token)
    leaky.arrays = lambda packed: token.arrays(packed) | {"input_ids": packed.input_ids}
    unmasked = Objective(input=objective.input, token=leaky, pair=None)
    assert "own label" in caught(replace(subject, arms=[replace(student, objective=unmasked)]))


def test_arrays_that_leave_more_in_sight_than_the_objective_allows(
    subject: Subject, electra: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(whole: Any, token: Any, packed: PackedInstances, *rest: Any) -> Any:
        return whole(token, packed, *rest) | {"input_ids": packed.input_ids}

    plant(monkeypatch, ReplacedTokenDetection, "arrays", leave)
    found = [one for one in examine(replace(subject, arms=[electra])) if one.level == ERROR]
    first = next(one for one in found if one.check == "own label")
    assert first.what == "rtd, mlm: sees what it predicts"


@pytest.mark.parametrize("kernel", ["dense", "grouped"])
def test_attention_across_sequences(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """The stream as one long sequence, and, in the other form, padding that is seen."""
    if kernel == "dense":
        leave_bias_out(monkeypatch, causal=False)
    else:

        def one(qkv: Any, layout: Layout, prob: float, inputs: Any) -> Any:
            single = Layout.rectangle([layout.num_slots], len(qkv))
            heads = qkv.shape[2]
            rows = attention.dense_rows(single, inputs.mask, heads, qkv.dtype, qkv.device)
            q, k, v = qkv.unbind(1)
            return attention._dense(q, k, v, rows, prob, inputs.score_bias)

        monkeypatch.setattr(attention, "_grouped", one)
    assert caught(subject) == {"neighbours"}


def test_nothing_is_masked(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.zeros(0, dtype=np.int64)
    monkeypatch.setattr("clozelab.corpus.packing.choose_positions", lambda *rest: nothing)
    assert caught(subject) == {"own label", "masks"}


@pytest.mark.parametrize(
    "fractions",
    [
        (0.8, 0.2, 0.0),
        pytest.param((1.0, 0.0, 0.0), marks=pytest.mark.slow),
        pytest.param((0.6, 0.2, 0.2), marks=pytest.mark.slow),
    ],
)
def test_another_split_than_the_configured_one(
    subject: Subject,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    fractions: tuple[float, ...],
) -> None:
    other = Masking(0.15, *fractions)
    plant(monkeypatch, Masking, "apply", lambda whole, _, *rest: whole(other, *rest))
    found = caught(subject)
    assert "masks" in found and found <= {"masks", "own label"}


def test_sources_that_tell_the_label(subject: Subject, corpus: Corpus) -> None:
    """Half of the random segments come from the other source, unless each is drawn inside its
    own.
    """
    sources = (np.arange(corpus.train.num_documents) % 2).astype(np.uint8)
    mixed = replace(
        corpus,
        train=replace(corpus.train, document_source=sources, source_names=("a", "b")),
        _instances={},
    )
    changed = with_corpus(subject, mixed)
    told = [one for one in examine(changed) if one.level == WARNING]
    assert {one.check for one in told} == {"pairs"}
    shows(told[0].what, "mlm_nsp: asking whether both segments are of one source is right for")
    inside = [replace(arm, objective=copy(arm.objective)) for arm in changed.arms]
    for arm in inside:
        arm.objective.input = SegmentPairs(0.5, "source")
    assert {one.level for one in examine(replace(changed, arms=inside))} == {OK}


@pytest.mark.parametrize(
    ("weights", "level"), [({}, OK), ({"a": 1.0, "b": 1.0}, WARNING), ({"a": 1.0, "b": 0.0}, OK)]
)
def test_sources_are_read_by_their_weights(
    weights: dict[str, float], level: str, corpus: Corpus
) -> None:
    """A source of one text in fifty tells little of the label, unless it is read as often."""
    sources = (np.arange(corpus.train.num_documents) % 50 == 0).astype(np.uint8)
    train = replace(corpus.train, document_source=sources, source_names=("a", "b"))
    mixed = replace(corpus, train=train, _instances={})
    arm = make_arm("mlm_nsp", mixed, source_weights=[weights])
    (finding,) = check_pairs(arm)
    assert finding.level == level
    packed = sample_instances(arm)
    assert packed.source is not None
    shares = {OK: (0.0, 0.05), WARNING: (0.45, 0.55)}
    low, high = shares[level]
    assert low <= packed.source.mean() <= high
    assert bool(weights.get("b", 1.0)) == bool(packed.source.any())


def test_words_of_several_bytes_leave_a_few_predictions_out() -> None:
    """No word is as short as what is left of the wanted number."""
    rng = np.random.default_rng(0)
    tokenizer = BytesTokenizer.train([], 0, lowercase=False, add_prefix_space=True)
    words = ["tree", "blue", "rose"]
    sentences = [" ".join(rng.choice(words, 9)) for _ in range(4000)]
    ids = tokenizer.encode_batch(sentences)
    train = TokenShards(
        tokens=TokenStream([np.concatenate(ids)]),
        sentence_offsets=np.append(0, np.cumsum(list(map(len, ids)))),
        document_offsets=np.arange(0, 4001, 10),
        document_source=np.zeros(400, dtype=np.uint8),
        source_names=("bytes",),
        vocab_size=tokenizer.vocab_size,
        unigram_entropy=4.0,
        fingerprint="",
    )
    special_ids = SpecialIds.from_tokenizer(tokenizer)
    corpus = Corpus("bytes", train, train, special_ids, tokenizer.unk_id, tokenizer)
    arm = make_arm("mlm", corpus, phases=[PHASE | {"seq_length": 32}])
    whole = replace(arm, objective=copy(arm.objective))
    whole.objective.token = make_mlm(whole_words=True)
    (finding,) = check_masks(whole)
    assert finding.level == OK, finding


RELEASED = SegmentPairs(
    0.5,
    "corpus",
    cuts="released",
    short_seq_prob=0.1,
    put_back_unused=True,
    lone_sentences="random",
    copies=2,
)


@pytest.fixture
def released(corpus: Corpus) -> Callable[..., Arm]:
    """released(**masking) -> an arm on the released builder's instances, over a vocabulary of words
    and pieces.
    """
    continues = np.random.default_rng(3).random(corpus.ids.vocab_size) < 0.4
    continues[:5] = False
    pieces = replace(corpus, ids=replace(corpus.ids, continues=continues), _instances={})

    def build(**masking: Any) -> Arm:
        arm = make_arm("mlm_nsp", pieces)
        return replace(
            arm,
            objective=Objective(input=RELEASED, token=make_mlm(**masking), pair=arm.objective.pair),
        )

    return build


def test_the_released_recipe_is_sound(subject: Subject, released: Callable[..., Arm]) -> None:
    """More random pairs than half, cuts at the boundary, and masks of words and spans are as the
    settings say.
    """
    for masking in ({}, {"whole_words": True}, {"whole_words": True, "span_weights": [6, 3, 2]}):
        findings = [*examine(replace(subject, arms=[released(count_specials=True, **masking)]))]
        assert {one.level for one in findings} == {OK}, [one for one in findings if one.level != OK]


@pytest.mark.parametrize("lies", [False, True])
def test_lengths_that_betray_the_label_of_the_released_recipe(
    subject: Subject, released: Callable[..., Arm], monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    """What it is known for is a warning, which hides no error. Here the lengths of true Bs are
    halved.
    """

    def betray(whole: Any, self: ReleasedInstances, *rest: Any) -> PackedInstances:
        rows = whole(self, *rest)
        assert rows.b_length is not None and rows.next_sentence_label is not None
        is_random = rows.next_sentence_label == 1
        label = 1 - rows.next_sentence_label if lies else rows.next_sentence_label
        return replace(
            rows,
            b_length=np.where(is_random, rows.b_length, rows.b_length // 4),
            next_sentence_label=label,
        )

    plant(monkeypatch, ReleasedInstances, "pack", betray)
    spoilt = replace(subject, arms=[released()])
    assert caught(spoilt, warning=not lies) == {"pairs"}
    assert any("lengths of segments betray" in one.what for one in examine(spoilt)) != lies


def test_words_that_are_torn(
    subject: Subject, released: Callable[..., Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "clozelab.corpus.packing.begin_words",
        lambda packed, _: ~packed.special.reshape(-1, packed.width),
    )
    torn = replace(subject, arms=[released(whole_words=True)])
    found = [one for one in examine(torn) if one.level == ERROR]
    assert {one.check for one in found} == {"masks"}
    shows(found[0].what, "mlm_nsp: 6638 words are predicted in part")


def test_another_share_than_the_settings_say(
    subject: Subject, released: Callable[..., Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = released(count_specials=True, predict_prob=0.5)
    assert caught(replace(subject, arms=[arm])) == set()
    assert caught(replace(subject, arms=[released(max_predictions_fraction=0.1)])) == set()
    plant(
        monkeypatch,
        Masking,
        "number",
        lambda whole, self, *rest: whole(replace(self, count_specials=False), *rest),
    )
    assert caught(replace(subject, arms=[arm])) == {"masks"}


def test_random_pairs_at_another_share(
    subject: Subject, released: Callable[..., Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_too_often(whole: Any, self: ReleasedInstances, *rest: Any) -> PackedInstances:
        rows = whole(self, *rest)
        label = rows.next_sentence_label * (rows.draws.names % 3 > 0)
        return replace(rows, next_sentence_label=label)

    plant(monkeypatch, ReleasedInstances, "pack", next_too_often)
    assert caught(replace(subject, arms=[released()])) == {"pairs"}


def repeated(shards: TokenShards, times: int) -> TokenShards:
    tokens = np.tile(shards.tokens[:], times).astype("<u2")
    lengths, sizes = np.diff(shards.sentence_offsets), np.diff(shards.document_offsets)
    return replace(
        shards,
        tokens=TokenStream([tokens]),
        sentence_offsets=np.append(0, np.cumsum(np.tile(lengths, times))),
        document_offsets=np.append(0, np.cumsum(np.tile(sizes, times))),
        document_source=np.tile(shards.document_source, times),
    )


def rewritten(corpus: Corpus, places: slice, token: int) -> TokenShards:
    """The training text with one token in all of these places."""
    tokens = corpus.train.tokens[:].astype("<u2")
    tokens[places] = token
    return replace(corpus.train, tokens=TokenStream([tokens]))


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        (lambda corpus: {"train": repeated(corpus.train, 2)}, "duplicates"),
        (lambda corpus: {"validation": corpus.train}, "held out"),
        (
            lambda corpus: {"train": rewritten(corpus, slice(-1, None), corpus.ids.vocab_size)},
            "vocabulary",
        ),
        (
            lambda corpus: {"train": rewritten(corpus, slice(0, None, 4), corpus.unk_id)},
            "unknown tokens",
        ),
    ],
)
def test_a_defect_of_the_corpus(
    subject: Subject,
    corpus: Corpus,
    defect: Callable[[Corpus], dict[str, TokenShards]],
    check: str,
) -> None:
    broken = replace(corpus, **defect(corpus), _instances={})
    assert caught(with_corpus(subject, broken)) == {check}


def test_a_task_in_another_case(one_arm: Subject, tokenizer: Any) -> None:
    task = make_task(type(tokenizer)(tokenizer.vocabulary, lowercase=False))
    texts = {}
    for column, original in task.preview.validation.texts.items():
        texts[column] = [text.upper() for text in original]
    preview = replace(task.preview, validation=replace(task.preview.validation, texts=texts))
    found = caught(replace(one_arm, tasks=[replace(task, preview=preview)]))
    assert found == {"unknown tokens"}


def test_contaminated_corpus(subject: Subject, corpus: Corpus, tokenizer: Any) -> None:
    """Half of the validation texts of one part are put into the corpus."""
    task = make_task(tokenizer)
    texts = tokenizer.encode_batch(task.preview.validation.texts["first"][::2])
    tokens = corpus.train.tokens[:].astype("<u2")
    for number, ids in enumerate(texts):
        tokens[40 * number : 40 * number + len(ids)] = ids
    dirty = replace(
        corpus, train=replace(corpus.train, tokens=TokenStream([tokens])), _instances={}
    )
    spoilt = replace(with_corpus(subject, dirty), tasks=[task])
    assert caught(spoilt, warning=True) == {"contamination"}
    one, other = [found for found in examine(spoilt) if found.check == "contamination"]
    assert one.figure.startswith("150 of 300 (50.0 %)")
    shows(one.what, "nli, first: texts stand in the corpus words")
    assert other.level == OK
    shows(other.what, "nli, second: texts do not stand in the corpus words")


def exchanged(preview: Any, first: str, second: str) -> Any:
    names = {first: second, second: first}
    labels = [names.get(label, label) for label in preview.validation.labels]
    return replace(preview, validation=replace(preview.validation, labels=labels))


def test_exchanged_labels_between_files(one_arm: Subject, tokenizer: Any) -> None:
    task = make_task(tokenizer)
    swapped = replace(task, preview=exchanged(task.preview, "entailment", "neutral"))
    spoilt = replace(one_arm, tasks=[swapped])
    assert caught(spoilt) == {"label map"}
    (finding,) = [one for one in examine(spoilt) if one.check == "label map"]
    shows(finding.what, "nli: labels of the training and the validation file are exchanged")


def test_a_turned_scale(one_arm: Subject, tokenizer: Any) -> None:
    task = make_numbers(tokenizer)
    turned = [f"{5 - float(label):.1f}" for label in task.preview.validation.labels]
    preview = replace(task.preview, validation=replace(task.preview.validation, labels=turned))
    assert caught(replace(one_arm, tasks=[replace(task, preview=preview)])) == {"label map"}


def relabelled(task: Any, split: str, labels: Sequence[str]) -> Any:
    found = replace(getattr(task.preview, split), labels=list(labels))
    return replace(task, preview=replace(task.preview, **{split: found}))


@pytest.mark.parametrize(
    ("split", "change", "message"),
    [
        ("train", lambda labels: ["neutral"] * len(labels), "a single label"),
        (
            "train",
            lambda labels: [label.replace("neutral", "entailment") for label in labels],
            "no example of",
        ),
        (
            "validation",
            lambda labels: [label.replace("neutral", "2") for label in labels],
            "not the task's",
        ),
    ],
)
def test_wrong_label_files(
    one_arm: Subject,
    tokenizer: Any,
    split: str,
    change: Callable[..., list[str]],
    message: str,
) -> None:
    task = make_task(tokenizer)
    wrong = relabelled(task, split, change(getattr(task.preview, split).labels))
    spoilt = replace(one_arm, tasks=[wrong])
    assert caught(spoilt) == {"labels"}
    assert any(message in one.what for one in examine(spoilt) if one.check == "labels")


@pytest.mark.parametrize(
    ("names", "are_caught"), [(["1", "10", "2"], False), (["1", "2", "10"], False), ("213", True)]
)
def test_numbered_classes_are_in_an_order(
    one_arm: Subject, tokenizer: Any, names: Sequence[str], *, are_caught: bool
) -> None:
    task = make_task(tokenizer)
    given = task.preview.label_names or ()
    new_names = dict(zip(given, names, strict=True))
    for split in ("train", "validation"):
        labels = [new_names[label] for label in getattr(task.preview, split).labels]
        task = relabelled(task, split, labels)
    task = replace(task, preview=replace(task.preview, label_names=list(names)))
    expected = {"labels"} if are_caught else set()
    assert caught(replace(one_arm, tasks=[task])) == expected


def test_what_reading_the_files_warned_of(one_arm: Subject, tokenizer: Any) -> None:
    task = make_task(tokenizer)
    warned = replace(task, preview=replace(task.preview, warnings=["x.csv: 2 odd labels"]))
    subject = replace(one_arm, tasks=[warned])
    assert caught(subject, warning=True) == {"labels"}
    assert [one.what for one in examine(subject) if one.check == "labels"] == [
        f"{task.name}: x.csv: 2 odd labels"
    ]


def test_label_maps_out_of_order(one_arm: Subject, tokenizer: Any) -> None:
    digits = make_task(tokenizer, names=("1", "0"))
    assert caught(replace(one_arm, tasks=[digits])) == {"labels"}
    assert caught(replace(one_arm, tasks=[make_task(tokenizer, names=("0", "1"))])) == set()


def test_numbers_on_another_scale(one_arm: Subject, tokenizer: Any) -> None:
    task = make_numbers(tokenizer)
    for change in (0.2, 20.0):
        labels = [f"{float(label) * change:g}" for label in task.preview.train.labels]
        assert "labels" in caught(replace(one_arm, tasks=[relabelled(task, "train", labels)]))


def test_answers_that_are_not_there(one_arm: Subject, tokenizer: Any) -> None:
    for counts in ({"answer_not_in_passage": 10}, {"question_without_answer": 3}):
        assert caught(replace(one_arm, tasks=[make_questions(tokenizer, **counts)])) == {"labels"}
    repaired = make_questions(tokenizer, answer_offset_repaired=2)
    assert caught(replace(one_arm, tasks=[repaired]), warning=True) == {"labels"}


def test_no_disk(one_arm: Subject) -> None:
    assert caught(replace(one_arm, disk=DiskUsage("runs", 100_000))) == {"disk"}
    # What earlier runs hold already is not wanted a second time.
    assert caught(replace(one_arm, disk=DiskUsage("runs", 2_000_000, run_bytes=10**9))) == {"disk"}
    there = DiskUsage("runs", 2_000_000, run_bytes=10**9, used_bytes=10**9)
    assert caught(replace(one_arm, disk=there)) == set()


def test_a_long_warm_up(subject: Subject, corpus: Corpus) -> None:
    arm = make_arm("mlm", corpus)
    settings = replace(arm.settings, schedule={"warmup_fraction": 0.5})
    arm = replace(arm, settings=settings)
    assert levels(list(examine(replace(subject, arms=[arm]))), WARNING) == {"schedule"}


def test_a_budget_before_the_plateau(subject: Subject, corpus: Corpus, tmp_path: Path) -> None:
    short = [{"seq_length": 48, "steps": 100, "global_batch_size": 8}]
    arms = [make_arm(name, corpus, phases=short) for name in ("mlm", "ltr")]
    spoilt = replace(subject, arms=arms)
    assert caught(spoilt, warning=True) == {"schedule"}
    (found,) = [one for one in examine(spoilt) if one.level == WARNING]
    assert found.what.split(":")[0] == "mlm"
    arm = arms[0]
    assert found.figure.startswith(f"100 steps, {format_count(arm.tokens)} tokens, ")
    assert f"(about {format_count(arm.tokens_to_plateau)} tokens)" in found.what

    # Weights that were given have left it behind.
    given = replace(arm, settings=replace(arm.settings, encoder="minilm"))
    assert given.tokens_to_plateau == 0.0
    assert not caught(replace(subject, arms=[given]), warning=True)
    # A head that their folder lacks has not.
    for name, tokens in (("cls.predictions.bias", 0.0), ("pooler.dense.bias", 75_000.0)):
        save_file({name: torch.zeros(1)}, tmp_path / "model.safetensors")
        given = replace(arm, settings=replace(arm.settings, encoder=str(tmp_path)))
        assert given.tokens_to_plateau == tokens
    assert caught(replace(subject, arms=[given]), warning=True) == {"schedule"}


def test_texts_that_do_not_fit(one_arm: Subject, tokenizer: Any) -> None:
    task = replace(make_task(tokenizer), trained_length=16)
    assert caught(replace(one_arm, tasks=[task]), warning=True) == {"lengths"}
    # Where each text of a pair is a sequence by itself, the lengths are not added up.
    numbers = make_numbers(tokenizer)
    texts = chain.from_iterable(numbers.preview.validation.texts.values())
    longest = max(map(len, tokenizer.encode_batch(list(texts))))
    numbers = replace(numbers, trained_length=longest + 2)
    assert caught(replace(one_arm, tasks=[numbers]), warning=True) == {"lengths"}
    apart = replace(numbers, preview=replace(numbers.preview, pairs_read="apart"))
    assert caught(replace(one_arm, tasks=[apart]), warning=True) == set()


def test_validation_examples_in_training(one_arm: Subject, tokenizer: Any) -> None:
    task = make_task(tokenizer)
    preview = replace(task.preview, validation=task.preview.train)
    assert caught(replace(one_arm, tasks=[replace(task, preview=preview)]), warning=True) == {
        "task overlap"
    }


def test_what_cannot_be_built_is_an_error(one_arm: Subject) -> None:
    assert caught(replace(one_arm, refusals=[("pre-training mlm", "no such key")])) == {"settings"}


def test_a_check_that_fails_is_an_error_of_its_name(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("clozelab.checks.visibility.ArmProbe.from_arm", fail)
    assert caught(subject) == {"future"}
