"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tests.calling import call_with_fixtures
from tests.measures import test_evaluate_run, test_held_out, test_minimal_pairs

from clozelab.corpus.files import Source
from clozelab.corpus.prepare import plan_corpus, prepare_corpus
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.finetuning import TaskInputs
from clozelab.datamodules.heldout import ClozeBySide, HeldOutText, SentencePairs
from clozelab.modules.measures import logistic_regression
from clozelab.results.experiment import load_experiment

world = test_evaluate_run.world
folder = test_held_out.folder


def a_damaged_weight_is_no_score(world: Path, evaluate: Callable[..., Path]) -> None:
    file = world / "encoder/model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if "layer.0" in name and "weight" in name)
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    (world / "encoder/checksums.json").unlink()  # as in a folder from elsewhere
    evaluate(*test_evaluate_run.PAIRS)


def a_causal_encoder_is_not_asked_from_the_right(
    tmp_path: Path, save_encoder: Callable[..., Path], evaluate: Callable[..., Path], side: str
) -> None:
    save_encoder(tmp_path / "encoder", is_causal=True)
    # before its text is looked for
    evaluate("measure=cloze_by_side", f"measure.data.sides=[left,{side}]")


def an_encoder_without_the_head_is_refused(
    world: Path, evaluate: Callable[..., Path], tokenizer: Any
) -> None:
    from clozelab.models.folders import load_encoder, save_encoder_folder

    encoder = load_encoder(world / "encoder")
    save_encoder_folder(
        world / "bare", encoder, heads={}, tokenizer_files=tokenizer.files(), extra_config={}
    )
    evaluate(*test_evaluate_run.PAIRS, f"encoder={world / 'bare'}")


def a_column_says_its_measure_and_its_score(tmp_path: Path, column: str) -> None:
    (tmp_path / "paper.yaml").write_text(f"columns: [{column}]\nrows: []\n")
    load_experiment(tmp_path)


def text_prepared_with_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    plan = plan_corpus(
        sources=[Source(**source) for source in test_held_out.SOURCES],
        name="mine",
        data_dir=folder,
        cache_dir=tmp_path,
        tokenizer=TokenizerSettings("wordpiece", 300, True),
        validation_fraction=0.3,
    )
    corpus = PreparedCorpus.open(prepare_corpus(plan, 0.5))
    tokenizer = WordPieceTokenizer(corpus.tokenizer.vocabulary[:-1], lowercase=True)
    inputs = TaskInputs("text", folder, tmp_path, tokenizer, 64, corpus=corpus.fingerprint)
    settings = test_held_out.TOGETHER | test_held_out.TEXT
    settings |= {"sources": None, "max_sentences": 10**6}
    HeldOutText(inputs=inputs, is_causal=True, **settings)


def pairs_of_unknown_words_are_refused(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    """Else the answers are told by lengths alone, and filed as what an encoder knows."""
    sentences = [" ".join(["λόγος"] * (3 + i % 5)) for i in range(96)]
    (folder / "greek.txt").write_text(
        "\n\n".join("\n".join(sentences[i : i + 8]) for i in range(0, 96, 8))
    )
    sources = [{"name": "greek", "path": "greek.txt"}]
    test_held_out.made(
        SentencePairs,
        folder,
        tokenizer,
        **(test_held_out.PAIRED | {"question": "next", "sources": sources}),
    )


def bad_input_is_one_sentence(
    tokenizer: WordPieceTokenizer, tmp_path: Path, pairs: Any, changes: Any
) -> None:
    test_minimal_pairs.write_pairs(tmp_path / "pairs.jsonl", pairs)
    test_minimal_pairs.pairs_of(tokenizer, tmp_path, is_causal=False, **changes)


def pairs_without_groups_are_one_group_a_file(tmp_path: Path, tokenizer: Any) -> None:
    rows = [f"{good}\t{bad}\n" for good, bad, *_ in test_minimal_pairs.PAIRS]
    (tmp_path / "mine.tsv").write_text("".join(["good\tbad\n", *rows]))
    test_minimal_pairs.pairs_of(tokenizer, tmp_path, is_causal=False, files="mine.tsv")


def what_no_probe_can_tell(tmp_path: Path, save_encoder: Any, evaluate: Any, task: str) -> None:
    save_encoder(tmp_path / "encoder")
    (tmp_path / "all.tsv").write_text(
        "sentence1\tsentence2\tscore\tindex\na cat\ta dog\t1.5\t0\na dog\ta cat\t2\t1\n"
    )
    words = ["train_file=all.tsv", "validation_file=all.tsv"]
    evaluate(
        "measure=probe",
        f"task@measure.task={task}",
        *(f"measure.task.data.{word}" for word in words),
    )


def a_probe_of_one_class(num_classes: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 7))
    labels = np.zeros(300, dtype=int)
    logistic_regression(vectors, labels, num_classes, strength=0.3, max_iterations=9)


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "a probe of one class of two",
        lambda: a_probe_of_one_class(2),
        ValueError,
        "every training example has the same class",
    ),
    (
        "a probe of one class of five",
        lambda: a_probe_of_one_class(5),
        ValueError,
        "every training example has the same class",
    ),
    (
        "a damaged weight is no score",
        a_damaged_weight_is_no_score,
        ValueError,
        "holds numbers that are not finite",
    ),
    (
        "a causal encoder is not asked from the right: sides=right",
        lambda tmp_path, save_encoder, evaluate: a_causal_encoder_is_not_asked_from_the_right(
            tmp_path, save_encoder, evaluate, "right"
        ),
        ValueError,
        "sides=right: a causal encoder reads from the left alone, and cannot fill",
    ),
    (
        "a causal encoder is not asked from the right: sides=both",
        lambda tmp_path, save_encoder, evaluate: a_causal_encoder_is_not_asked_from_the_right(
            tmp_path, save_encoder, evaluate, "both"
        ),
        ValueError,
        "sides=both: a causal encoder reads from the left alone, and cannot fill",
    ),
    (
        "an encoder without the head is refused",
        an_encoder_without_the_head_is_refused,
        ValueError,
        r"bare has no trained lm head, and my_pairs asks what it predicts: train one first",
    ),
    (
        "a column says its measure and its score: a column from evaluate has",
        lambda tmp_path: a_column_says_its_measure_and_its_score(
            tmp_path, "{name: x, from: evaluate, task: blimp}"
        ),
        ValueError,
        "a column from evaluate has a metric, such as validation/loss",
    ),
    (
        "a column says its measure and its score: with from: evaluate, task is",
        lambda tmp_path: a_column_says_its_measure_and_its_score(
            tmp_path, "{name: x, from: evaluate, metric: validation/accuracy}"
        ),
        ValueError,
        "with from: evaluate, task is a measure",
    ),
    (
        "a column says its measure and its score: it is pretrain, evaluate, or",
        lambda tmp_path: a_column_says_its_measure_and_its_score(
            tmp_path, "{name: x, from: finetune, task: mnli}"
        ),
        ValueError,
        "it is pretrain, evaluate, or left out for a task",
    ),
    (
        "text prepared with another tokenizer",
        text_prepared_with_another_tokenizer,
        ValueError,
        "prepared with another tokenizer; name text of your own",
    ),
    (
        "a causal encoder has the left alone",
        lambda folder, tokenizer: test_held_out.made(
            ClozeBySide,
            folder,
            tokenizer,
            is_causal=True,
            **(test_held_out.CLOZE | {"sides": ["left", "right"]}),
        ),
        ValueError,
        "sides=right: a causal encoder reads from the left alone",
    ),
    (
        "pairs of unknown words are refused",
        pairs_of_unknown_words_are_refused,
        ValueError,
        r"of the tokens of measure text .*\[UNK\]",
    ),
    (
        "bad input: measure.data.sides='middle' is unknown known",
        lambda folder, tokenizer: test_held_out.made(
            ClozeBySide, folder, tokenizer, **test_held_out.CLOZE | {"sides": ["middle"]}
        ),
        ValueError,
        "measure.data.sides='middle' is unknown; known: left, right, both",
    ),
    (
        "bad input: question= why is unknown known",
        lambda folder, tokenizer: test_held_out.made(
            SentencePairs, folder, tokenizer, **test_held_out.PAIRED | {"question": "why"}
        ),
        ValueError,
        "question='why' is unknown; known: next, document, order, follows",
    ),
    (
        "bad input: measure.data.sentences=0: a text has at",
        lambda folder, tokenizer: test_held_out.made(
            SentencePairs,
            folder,
            tokenizer,
            **test_held_out.PAIRED | {"question": "next", "sentences": 0},
        ),
        ValueError,
        "measure.data.sentences=0: a text has at least one",
    ),
    (
        "bad input: source a: no text files",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText,
            folder,
            tokenizer,
            **test_held_out.TEXT | {"sources": [{"name": "a", "path": "gone.txt"}]},
        ),
        ValueError,
        "source a: no text files at",
    ),
    (
        "bad input: two sources have one name",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText,
            folder,
            tokenizer,
            **test_held_out.TEXT
            | {"sources": [test_held_out.SOURCES[0], test_held_out.SOURCES[1] | {"name": "one"}]},
        ),
        ValueError,
        "two sources have one name",
    ),
    (
        "bad input: say each file s name",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText, folder, tokenizer, **test_held_out.TEXT | {"sources": "a.txt"}
        ),
        ValueError,
        r"say each file's name, too: \[\{name: mine, path: mine.txt\}\]",
    ),
    (
        "bad input: measure.data.sources: say each file s",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText, folder, tokenizer, **test_held_out.TEXT | {"sources": ["a.txt"]}
        ),
        ValueError,
        "measure.data.sources: say each file's name, too",
    ),
    (
        "bad input: max_sentences=1: 2 or more, one",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText, folder, tokenizer, **test_held_out.TEXT | {"max_sentences": 1}
        ),
        ValueError,
        "max_sentences=1: 2 or more, one of each source",
    ),
    (
        "bad input: mask_parts=0: a text is read",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText, folder, tokenizer, **test_held_out.TEXT | {"mask_parts": 0}
        ),
        ValueError,
        "mask_parts=0: a text is read once or more",
    ),
    (
        "bad input: max_seq_length=2: a text has 3",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText, folder, tokenizer, **test_held_out.TEXT | {"max_seq_length": 2}
        ),
        ValueError,
        "max_seq_length=2: a text has 3 tokens or more",
    ),
    (
        "bad input: no held-out text: the corpus",
        lambda folder, tokenizer: test_held_out.made(
            HeldOutText, folder, tokenizer, **test_held_out.TEXT | {"sources": None}
        ),
        ValueError,
        "no held-out text: the corpus that this encoder was trained on",
    ),
    (
        "bad input: a sentence without a word",
        lambda tokenizer, tmp_path: bad_input_is_one_sentence(
            tokenizer, tmp_path, [("a cat", "", "a", "b")], {}
        ),
        ValueError,
        "a sentence without a word",
    ),
    (
        "bad input: 100.0 of the tokens of",
        lambda tokenizer, tmp_path: bad_input_is_one_sentence(
            tokenizer, tmp_path, [("дом", "кот", "a", "b")], {}
        ),
        ValueError,
        "100.0% of the tokens of measure pairs are",
    ),
    (
        "bad input: the pairs of order are",
        lambda tokenizer, tmp_path: bad_input_is_one_sentence(
            tokenizer, tmp_path, [*test_minimal_pairs.PAIRS, ("a cat", "a dog", "order", "b")], {}
        ),
        ValueError,
        "the pairs of order are of two fields; a group has one",
    ),
    (
        "bad input: sentences are longer than the",
        lambda tokenizer, tmp_path: bad_input_is_one_sentence(
            tokenizer, tmp_path, test_minimal_pairs.PAIRS, {"max_seq_length": 6}
        ),
        ValueError,
        "sentences are longer than the 6 tokens that this encoder reads",
    ),
    (
        "pairs without groups are one group a file",
        pairs_without_groups_are_one_group_a_file,
        ValueError,
        r"has no column 'sentence_good'.*; measure.data.columns says which columns are",
    ),
    (
        "what no probe can tell: a probe tells classes of",
        lambda tmp_path, save_encoder, evaluate: what_no_probe_can_tell(
            tmp_path, save_encoder, evaluate, "stsb"
        ),
        ValueError,
        "a probe tells classes of words, texts or pairs; this task has numbers, choices or spans",
    ),
    (
        "what no probe can tell: reads stored features take the",
        lambda tmp_path, save_encoder, evaluate: what_no_probe_can_tell(
            tmp_path, save_encoder, evaluate, "ner_features_wnut17"
        ),
        ValueError,
        "reads stored features; take the task of the words themselves",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
