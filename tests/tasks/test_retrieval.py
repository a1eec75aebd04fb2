"""Pairs of query and passage: what is read, mined, trained and ranked."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.modules.conftest import tiny_module as tiny_module
from tests.modules.test_embeddings import TOKENIZER
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing import start_processes

import clozelab
from clozelab.cli import main
from clozelab.metrics.ranking import mean_scores
from clozelab.modules.finetuning import FineTuning
from clozelab.modules.model import write_model
from clozelab.modules.sentence_folders import SentenceVectors, sentence_files
from clozelab.tasks import retrieval
from clozelab.tasks.baselines import bm25, words_of
from clozelab.tasks.batches import Batch, make_batch
from clozelab.tasks.contrast import ContrastTarget
from clozelab.tasks.retrieval import RetrievalTarget, RetrievalUnit, TextGroups, mine
from clozelab.tasks.sequences import Sequences, encode_examples
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.texts import TextSplit

TRIPLES = [
    ("a b", "c d e", "x"),
    ("q r", "s", "c d e"),
    ("t", "u v", "a b"),
    ("a b", "w", "x"),
    ("y z", "z y", "z y"),
]
DIFFERENT = [("a b", "c d e", "x"), ("q r", "s", "g h"), ("t", "u v", "k"), ("n", "w m", "o")]
METRICS = ["recall_at_1", "recall_at_10", "mrr", "ndcg_at_10"]
UNIT: dict[str, Any] = {
    "text_columns": ["query", "passage"],
    "negative_columns": [],
    "prompts": {"query": "", "document": ""},
    "label_column": "",
    "right_label": None,
    "mined_negatives": 0,
    "skipped_negatives": 0,
    "micro_batch_size": None,
    "pooling": "mean",
    "pairs": "apart",
}


def groups_of(texts: list[tuple[str, ...]]) -> TextGroups:
    sequences = encode_examples(TOKENIZER, list(chain.from_iterable(texts)), max_seq_length=16)
    members = np.arange(len(sequences)).reshape(len(texts), -1)
    return TextGroups(sequences, members, sequences.content_numbers())


@pytest.fixture
def make(tiny_module: Callable[..., Any]) -> Callable[..., tuple[FineTuning, Batch]]:
    """make(texts of each example, **settings) -> a module in training, and a batch of them all."""

    def build(texts: list[tuple[str, ...]], dropout: float = 0.0, **settings: Any) -> Any:
        sizes = settings.pop("sizes", None)
        shape = {
            "vocab_size": TOKENIZER.vocab_size,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
        pairs = groups_of([texts[:2] for texts in texts])
        ids = np.arange(len(texts)).astype(str)
        split = TextSplit(sequences=pairs.sequences, ids=ids, labels=np.full(len(texts), -1))
        module = tiny_module(
            FineTuning,
            shape,
            unit=RetrievalUnit(**(UNIT | settings)),
            target=RetrievalTarget(metrics=METRICS, temperature=0.05, sizes=sizes),
            validation=split,
            metric="validation/mrr",
        )
        batch = make_batch(groups_of(texts), np.arange(len(texts)), {})
        return module.train(), batch | {"local_weight": 1.0}

    return build


def gradients(module: FineTuning, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(3)
    module.zero_grad()
    loss = module.loss(module.logits(batch), batch)
    loss.backward()
    found = {}
    for name, weight in module.named_parameters():
        if weight.grad is not None:
            found[name] = weight.grad.clone()
    return float(loss.detach()), found


def plain_loss(vectors: Tensor) -> Tensor:
    """Of [4, 3, H]: each query's cross-entropy over the passages, then the negatives, of all."""
    unit = torch.nn.functional.normalize(vectors, dim=2)
    candidates = torch.cat([unit[:, 1], unit[:, 2]])
    return torch.nn.functional.cross_entropy(
        unit[:, 0] @ candidates.T / 0.05, torch.arange(4), reduction="sum"
    )


def test_the_loss_is_its_formula_at_each_size(make: Any) -> None:
    for sizes in ([32], [32, 8, 4]):
        module, batch = make(DIFFERENT, sizes=sizes)
        vectors = module.unit.states(module, batch)
        losses = [plain_loss(vectors[:, :, :size]) for size in sizes]
        expected = torch.stack(losses).sum()
        loss = module.loss(module.logits(batch), batch)
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


@pytest.mark.slow  # the library takes 15 seconds to import
@pytest.mark.parametrize("sizes", [None, [32, 8, 4]])
def test_the_loss_is_sentence_transformers(make: Any, tmp_path: Path, sizes: Any) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    module, batch = make(DIFFERENT, sizes=sizes)
    files = sentence_files(SentenceVectors(), module.encoder.config, 16)
    write_model(tmp_path / "m", module.encoder, {}, TOKENIZER, extra_files=files)
    theirs = library.SentenceTransformer(str(tmp_path / "m"), device="cpu").train()
    expected = losses.MultipleNegativesRankingLoss(theirs, scale=20.0)
    if sizes is not None:
        expected = losses.MatryoshkaLoss(theirs, expected, matryoshka_dims=sizes)
    features = [theirs.tokenize(list(side)) for side in zip(*DIFFERENT, strict=True)]
    value = expected(features, torch.zeros(4))
    value.backward()
    loss, found = gradients(module, batch)
    assert loss / 4 == pytest.approx(float(value.detach()), abs=1e-5)
    words = dict(theirs[0].auto_model.named_parameters())["embeddings.word_embeddings.weight"].grad
    ours = found["encoder.embeddings.word_embeddings.weight"] / 4
    assert (ours - words).abs().max() <= 1e-5 * max(1.0, float(words.abs().max()))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_cached_gradients_are_those_of_the_whole_batch(
    make: Any, monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    """With dropout the same parts without caching are compared, which draw the same numbers."""
    module, batch = make(TRIPLES, dropout=dropout, sizes=[32, 8], micro_batch_size=4)
    at_once = []
    read = module.encoder.read

    def count(part: Batch, *more: Any, **options: Any) -> Any:
        at_once.append(part["layout"].batch_size)
        return read(part, *more, **options)

    monkeypatch.setattr(module.encoder, "read", count)
    loss, cached = gradients(module, batch)
    assert at_once[:4] == [4, 4, 4, 3] and sorted(at_once[4:]) == [3, 4, 4, 4], "each part twice"
    if dropout:
        monkeypatch.setattr(retrieval, "checkpoint", lambda run, part, use_reentrant: run(part))
    else:
        module.unit.micro_batch_size = None
    expected, whole = gradients(module, batch)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert cached.keys() == whole.keys()
    differences = torch.cat([(cached[name] - whole[name]).ravel() for name in whole])
    size = torch.cat([gradient.ravel() for gradient in whole.values()]).norm()
    assert differences.norm() <= 1e-6 * size


TARGETS: dict[str, Any] = {
    "retrieval": RetrievalTarget(metrics=METRICS, temperature=0.05, sizes=[16, 4]),
    "contrast": ContrastTarget(
        temperature=0.05,
        dropout=None,
        numeric_labels=True,
        metrics=["pearson"],
        number_range=None,
        labels=None,
        positive_label=None,
    ),
}


def _rank_of_two(rank: int, folder: str, counts: list[int], kind: str) -> None:
    """One process: its part of the examples; the gradients of the states go to a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(counts)
    )
    saved = torch.load(f"{folder}/batch.pt")
    first = sum(counts[:rank])
    # A rank without an example computes on another's, with a weight of nothing.
    part = slice(first, first + counts[rank]) if counts[rank] else slice(0, 1)
    states = saved["states"][part].requires_grad_()
    weight = float(counts[rank] > 0)
    batch = {"text_numbers": saved["numbers"][part], "local_weight": weight}
    target = TARGETS[kind]
    logits = target.logits(torch.nn.Identity(), states, batch, training=True)
    loss = target.loss(logits, batch) * weight
    loss.backward()
    result = {"loss": loss.detach(), "gradient": states.grad, "rows": part}
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("counts", [[3, 2], [5, 0]])
def test_two_ranks_have_the_negatives_of_one(tmp_path: Path, counts: list[int], kind: str) -> None:
    numbers = torch.from_numpy(groups_of(TRIPLES).numbers.reshape(5, 3))
    states = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(0))
    # The same text has the same vector.
    _, first = np.unique(numbers.ravel(), return_index=True)
    states = states.view(15, 16)[first][numbers]
    torch.save({"states": states, "numbers": numbers}, tmp_path / "batch.pt")
    start_processes(_rank_of_two, (str(tmp_path), counts, kind), nprocs=2, start_method="fork")
    target = TARGETS[kind]
    whole = states.clone().requires_grad_()
    batch = {"text_numbers": numbers, "local_weight": 1.0}
    loss = target.loss(target.logits(torch.nn.Identity(), whole, batch, training=True), batch)
    loss.backward()
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    assert float(sum(one["loss"] for one in results)) == pytest.approx(
        float(loss.detach()), rel=1e-6
    )
    found = torch.zeros_like(states)
    for result in results:
        found[result["rows"]] += result["gradient"]
    assert (found - whole.grad).abs().max() <= 1e-6 * whole.grad.abs().max()


def test_mined_negatives_are_a_plain_search() -> None:
    """The most similar passages; neither what answers the query in any row, nor the query."""
    groups = groups_of([texts[:2] for texts in TRIPLES] + [("c d e", "q"), ("o", "a  b")])
    vectors = torch.nn.functional.normalize(
        torch.randn(len(groups.numbers), 8, generator=torch.Generator().manual_seed(1)), dim=1
    )

    def encode(sequences: Sequences) -> Tensor:
        assert isinstance(sequences, TextGroups)
        return vectors[groups.numbers[sequences.members[:, 0]]]

    for num_skipped in (0, 1):
        found = groups.numbers[mine(groups, encode, 2, num_skipped)]
        texts = groups.numbers[groups.members]
        for row, (query, _) in enumerate(texts):
            known = {query, *(passage for other, passage in texts if other == query)}
            candidates = sorted(
                set(texts[:, 1]) - known, key=lambda text: -vectors[query] @ vectors[text]
            )
            assert found[row].tolist() == candidates[num_skipped : num_skipped + 2]
    with pytest.raises(ValueError, match="the training file has only 7 different passages"):
        mine(groups, encode, 6, 0)


def test_bm25_is_its_formula() -> None:
    documents = ["a b b c", "b d", "e", "a a a a a a f"]
    queries = ["a b x", "b b", ""]
    bags = [words_of(text) for text in documents]
    mean = sum(map(len, bags)) / 4
    for query, found in zip(queries, bm25(queries, documents), strict=True):
        for bag, value in zip(bags, found, strict=True):
            expected = 0.0
            for word in words_of(query):
                num_with = sum(word in other for other in bags)
                rarity = np.log(1 + (4 - num_with + 0.5) / (num_with + 0.5))
                count = bag.count(word)
                norm = 1.2 * (1 - 0.75 + 0.75 * len(bag) / mean)
                expected += rarity * count * 2.2 / (count + norm)
            assert value == pytest.approx(expected, abs=1e-12)


def test_baselines_take_texts_of_equal_words_for_one(make: Any) -> None:
    """As scores do with equal tokens: of two passages, both answer the first query."""
    module, _ = make(TRIPLES)
    rows = [("What is A?", "a b"), ("q", "c d"), ("what  is a?", "c  d"), ("q", "C D")]
    scores = module.target.baselines(None, {"": TextExamples(texts=rows)})
    by_chance = scores["random order"]
    assert by_chance["recall_at_1"] == 0.5
    assert by_chance["mrr"] == pytest.approx((1 + 0.75) / 2)


def test_a_query_of_several_rows_has_several_right_passages(make: Any) -> None:
    """Ranks of a plain search, for each size; a record for each different query."""
    module, _ = make(TRIPLES, sizes=[8, 3])
    outputs = np.random.default_rng(0).normal(size=(5, 2, 8)).astype(np.float32)
    outputs[3, 0] = outputs[0, 0]
    outcome = module.target.evaluate(outputs, module.validation)
    assert [record["id"] for record in outcome.records] == ["0", "1", "2", "4"]
    assert [record["label"] for record in outcome.records] == [2, 1, 1, 1]
    for size, suffix in ((8, ""), (3, "/3")):
        cut = outputs[:, :, :size] / np.linalg.norm(outputs[:, :, :size], axis=2, keepdims=True)
        ranks = []
        for query, right in ((0, [0, 3]), (1, [1]), (2, [2]), (4, [4])):
            order = np.argsort(-(cut[:, 1] @ cut[query, 0])).tolist()
            ranks.append(sorted(order.index(passage) + 1 for passage in right))
        for name, value in mean_scores(METRICS, ranks).items():
            assert outcome.scores[name + suffix] == pytest.approx(value)
        if not suffix:
            assert [record["prediction"] for record in outcome.records] == ranks
    assert not outcome.is_collapsed
    flat = module.target.evaluate(np.ones_like(outputs), module.validation)
    assert flat.is_collapsed and flat.scores["recall_at_1"] == 0.0


def test_one_query_has_one_first_passage(make: Any) -> None:
    module, _ = make([("a b", "c d e", "x"), ("a b", "w", "x")])
    outputs = np.random.default_rng(0).normal(size=(2, 2, 8)).astype(np.float32)
    assert not module.target.evaluate(outputs, module.validation).is_collapsed


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"text_columns": ["query"], "pairs": "joint"}, "pairs=joint: this task reads pairs apart"),
        ({"prompts": {"query": "q"}}, "prompts={'query': 'q'}: give a text for each of"),
        ({"mined_negatives": -1}, "mined_negatives=-1: give a whole number from 0 on"),
        ({"skipped_negatives": 1.5}, "skipped_negatives=1.5: give a whole number from 0 on"),
        ({"micro_batch_size": 0}, "micro_batch_size=0: give a whole number above 0"),
        ({"micro_batch_size": -4}, "micro_batch_size=-4: give a whole number above 0"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RetrievalUnit(**(UNIT | settings))


@pytest.mark.parametrize("sizes", [[16, 8], [64, 8], [32, 0], []])
def test_sizes_have_the_whole_vector(make: Any, sizes: list[int]) -> None:
    """A folder gives whole vectors, and the score without a suffix is theirs."""
    module, _ = make(TRIPLES)
    width = module.encoder.config.output_size
    target = RetrievalTarget(metrics=METRICS, temperature=0.05, sizes=sizes)
    with pytest.raises(ValueError, match=f"so give {width} and sizes of 1 to {width}"):
        target.check_encoder(module.encoder.config, module.unit)
    for sound in ([8, width], None):
        target.sizes = sound
        target.check_encoder(module.encoder.config, module.unit)


def test_only_right_pairs_of_a_labelled_file_are_read(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "labelled.tsv"
    file.write_text("query\tpassage\tlabel\na\tb\tyes\na\tc\tno\nd\te\tyes\n")
    target = RetrievalTarget(metrics=METRICS, temperature=0.05, sizes=None)

    def read(right: str) -> list[tuple[str, ...]]:
        unit = RetrievalUnit(**(UNIT | {"label_column": "label", "right_label": right}))
        return unit.read(file, "validation", target).texts

    assert read("yes") == [("a", "b"), ("d", "e")]
    with pytest.raises(ValueError, match=r"right_label=true; its labels are no, yes"):
        read("true")
    # A file to predict has its right pairs told, too.
    file.write_text("query\tpassage\na\tb\n")
    unit = RetrievalUnit(**(UNIT | {"label_column": "label", "right_label": "yes"}))
    with pytest.raises(ValueError, match=r"no column 'label'.*\(it tells the right pairs"):
        unit.read(file, "test", target)


@pytest.mark.parametrize("right", ["1", 1, True])
def test_the_right_label_may_be_a_number_or_a_truth(right: object, tmp_path: Path) -> None:
    rows = [{"query": f"q{n}", "passage": f"p{n}", "label": n % 2} for n in range(4)]
    if right is True:
        rows = [row | {"label": bool(row["label"])} for row in rows]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    unit = RetrievalUnit(**(UNIT | {"label_column": "label", "right_label": right}))
    target = RetrievalTarget(metrics=METRICS, temperature=0.05, sizes=None)
    texts = unit.read(tmp_path / "x.jsonl", "validation", target).texts
    assert texts == [("q1", "p1"), ("q3", "p3")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Any) -> Path:
    """A run on pairs that share their end, a row's number as two letters."""
    root = tmp_path_factory.mktemp("world")
    save_encoder(root / "encoder", TOKENIZER, hidden_size=32, initializer_range=0.1)
    letters = "abcdef"
    for name, first in (("train", "klmnop"), ("dev", "qr")):
        rows = []
        for query in first:
            for a, b in product(letters, repeat=2):
                rows.append((f"{query} {a} {b}", f"{a} z {b} y", "j j j"))
        with (root / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("query", "passage", "wrong"), *rows])
    settings = {
        "task.data.train_file": "train.csv",
        "task.data.validation_file": "dev.csv",
        "task.data.negative_columns": "[wrong]",
        "task.data.mined_negatives": 1,
        "task.data.prompts": "{query: 'u: ', document: 'v: '}",
        "task.module.sizes": "[32,8]",
        "task.module.micro_batch_size": 16,
        "data_dir": root,
        "cache_dir": root / "cache",
        "encoder": root / "encoder",
        "row": "mine",
        "run_dir": root / "run",
        "learning_rate": 3e-3,
        "epochs": 1,
        "global_batch_size": 48,
        "evaluations_per_epoch": 1,
        "trainer.precision": "32-true",
        "trainer.progress_bar": "false",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    assert main(["finetune", "task=pairs", *words]) in (0, None)
    return root


def test_pairs_from_the_command_line(world: Path) -> None:
    """Trained with mined and given negatives, prompts and sizes; the folder keeps the prompts."""
    scores = json.loads((world / "run/scores.json").read_text())
    assert scores["num_examples"] == 72
    assert scores["baselines"]["random order"]["recall_at_1"] == pytest.approx(1 / 36)
    assert scores["scores"]["validation/mrr"] > 0.3 > scores["baselines"]["random order"]["mrr"]
    assert {"validation/mrr/8", "validation/recall_at_10"} <= scores["scores"].keys()
    assert len(list((world / "cache/tasks").glob("*/members.npy"))) == 1
    library = json.loads((world / "run/model/config_sentence_transformers.json").read_text())
    assert library["prompts"] == {"query": "u: ", "document": "v: "}
    ours = clozelab.load(world / "run/model", precision="32-true")
    with pytest.raises(ValueError, match="prompt=title: the model's folder has query, document"):
        ours.embed(["k a b"], prompt="title")
    with pytest.raises(ValueError, match="size=33: a vector has 32 numbers"):
        ours.embed(["k a b"], size=33)


@pytest.mark.slow  # the library takes 15 seconds to import
def test_vectors_of_a_run_are_sentence_transformers(world: Path) -> None:
    """Of queries, documents and sizes."""
    library = pytest.importorskip("sentence_transformers")
    folder = world / "run/model"
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    ours = clozelab.load(folder, precision="32-true")
    texts = ["k a b", "a z b y"]
    plain = ours.embed(texts)
    for name, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        found = ours.embed(texts, prompt=name)
        assert np.abs(found - encode(texts)).max() <= 1e-5
        assert np.abs(found - plain).max() > 1e-3, "a prompt is another text"
    cut = ours.embed(texts, prompt="query", size=8)
    assert np.abs(cut - theirs.encode_query(texts, truncate_dim=8)).max() <= 1e-5
