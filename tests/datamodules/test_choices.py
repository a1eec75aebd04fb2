"""Multiple choice: official files, folds, and choices that stay together, unpadded."""

from __future__ import annotations

import logging
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parts import choice_data, ready

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule, TrainingBatches
from clozelab.datamodules.labelled import TaskInputs
from clozelab.tasks.choices import ChoiceFormat, fold_of

Make = Callable[..., FinetuningDataModule]

HEADER = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
)
ENDINGS = ["ending0", "ending1", "ending2", "ending3"]
SWAG = ChoiceFormat("sent1", "sent2", ENDINGS, "label")
CODAH = ChoiceFormat("prompt", None, ENDINGS, "label", ["category", "prompt", *ENDINGS, "label"])


TASK: dict[str, Any] = {
    "train_file": "train.csv",
    "validation_file": "val.csv",
    "published_train_examples": None,
    "folds": None,
    "held_out_fold": None,
    "file_format": "auto",
    "columns": None,
    "context_column": "sent1",
    "start_column": "sent2",
    "ending_columns": ENDINGS,
    "label_column": "label",
    "max_seq_length": 32,
}


def row(number: int, **changes: str) -> str:
    values = {"sent1": "The cat sat.", "sent2": "the cat", "label": str(number % 4)} | changes
    endings = [changes.get(name, f'"ran, fast {i}"') for i, name in enumerate(ENDINGS)]
    cells = [str(number), "v", "1", "x", values["sent1"], values["sent2"], "gold"]
    return ",".join([*cells, *endings, values["label"]])


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_official_csv(tmp_path: Path) -> None:
    """Quotes, a comma, a doubled quote and a line break in a field, CRLF, a byte order mark."""
    odd = row(1, sent1='"A ""red"" cat,\nsat."', ending2="")
    path = write(
        tmp_path / "x.csv", "\ufeff" + (HEADER + row(0) + "\n" + odd + "\n").replace("\n", "\r\n")
    )
    examples = SWAG.read(path)
    assert examples.ids == ["0", "1"]
    assert [texts[0] for texts in examples.texts] == ["The cat sat.", 'A "red" cat,\r\nsat.']
    assert list(examples.texts[0][1:]) == [f"the cat ran, fast {i}" for i in range(4)]
    assert examples.texts[1][3] == "the cat"  # an empty ending stays a choice
    assert examples.labels == ["0", "1"]


def test_tab_separated_without_quoting_or_header(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tsv", 'o\t"I am\tran".\tsat\t"\tdid\t3\n')
    examples = CODAH.read(path)
    assert (examples.texts, examples.labels) == ([('"I am', 'ran".', "sat", '"', "did")], ["3"])


def test_rows_stand_in_order_and_share_their_context(
    make: Make, tmp_path: Path, tokenizer: WordPieceTokenizer
) -> None:
    write(tmp_path / "train.csv", HEADER + "".join(row(i) + "\n" for i in range(3)))
    columns = {"validation_file": "train.csv", "start_column": "sent2", "ending_columns": ENDINGS}
    whole, cut = (make(tokenizer, max_seq_length=length, **columns) for length in (32, 10))
    for data in (whole, cut):
        data.setup()
    split = whole.train
    assert (len(split), len(split.sequences)) == (3, 12)
    first, second = (
        split.sequences.input_ids[a:b]
        for a, b in ((0, split.sequences.offsets[1]), split.sequences.offsets[1:3])
    )
    words = [tokenizer.vocabulary[i] for i in first]
    assert " ".join(words) == "[CLS] the cat sat . [SEP] the cat ran , fast 0 [SEP]"
    assert [tokenizer.vocabulary[i] for i in second[-2:]] == ["1", "[SEP]"]
    assert split.sequences.second_starts[0] == 6
    assert cut.train.sequences.lengths.max() == 10
    assert cut.train.counts["truncated_sequences"] == 12


def test_folds_are_of_like_size_and_keep_a_context_together() -> None:
    places = [fold_of(f"c{i // 2}", 5) for i in range(200)]
    assert places[::2] == places[1::2] and set(places) == set(range(5))
    assert min(places.count(fold) for fold in range(5)) > 16


@pytest.mark.shared
def test_shared_files(shared_dir: Path) -> None:
    swag = [SWAG.read(shared_dir / f"data/swag/{name}.csv") for name in ("train", "val")]
    assert [len(part) for part in swag] == [9089, 953]
    codah = CODAH.read(shared_dir / "data/codah/full_data.tsv")
    assert (len(codah), codah.num_bad_rows) == (2776, 0)
    held_out = sum(fold_of(context, 5) == 0 for context, *_ in codah.texts)
    assert abs(held_out / 2776 - 0.2) < 0.03


TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase], lowercase=True)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(data changes) on 21 training and 7 validation questions of unequal choices."""
    for name, count in (("train", 21), ("val", 7)):
        rows = [f"c{i},{'a ' * (i % 3)}b,{'a ' * (i % 5)}b,b a,{i % 3}" for i in range(count)]
        (tmp_path / f"{name}.csv").write_text("sent1,e0,e1,e2,label\n" + "\n".join(rows) + "\n")

    def build(tokenizer: WordPieceTokenizer = TOKENIZER, **data: Any) -> FinetuningDataModule:
        columns = {"start_column": None, "ending_columns": ["e0", "e1", "e2"]}
        task = TASK | {"test_files": {"Toy": "test.csv"}} | columns
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", tokenizer, 32)
        return choice_data(inputs=inputs, **(task | data))

    return build


def test_choices_are_sequences_of_their_own(make: Make) -> None:
    data = ready(make())
    data.setup()  # the second time does nothing
    assert data.steps_per_epoch == 6
    for batch in TrainingBatches(data, range(6), 0, 1):
        index = batch["example_index"].numpy()
        assert batch["layout"].batch_size == 3 * len(index)
        assert batch["labels"].tolist() == (index % 3).tolist()
        # nothing is padded
        assert batch["layout"].num_tokens == len(batch["input_ids"]) == batch["global_tokens"]
        per_choice = np.array(batch["layout"].lengths_list).reshape(-1, 3)
        assert (per_choice[:, 0] - index % 3 == per_choice[:, 2] - 1).all()
        assert (per_choice[:, 1] - index % 5 == per_choice[:, 2] - 1).all()
        assert batch["global_examples"] == batch["global_targets"] == len(index)
    evaluated = np.concatenate([batch["example_index"] for batch in data.val_dataloader()])
    assert sorted(evaluated.tolist()) == list(range(7))


def test_folds_of_one_file(make: Make) -> None:
    data = ready(make(validation_file="train.csv", folds=3, held_out_fold=1))
    assert len(data.train) + len(data.validation) == 21
    assert not set(data.train.ids) & set(data.validation.ids)
    assert data.facts["train_examples_available"] == len(data.train)
    assert (
        make(validation_file="train.csv", folds=3, held_out_fold=2).fingerprint != data.fingerprint
    )


def test_the_published_set_is_no_other_set(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    make(published_train_examples=21).setup()
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [text for text in warned if "[UNK]" not in text], (
        "letters are words that the vocabulary lacks"
    )
    make(published_train_examples=73546).setup()
    assert "train.csv has 21 examples, toy's own has 73546" in caplog.text


def test_test_file(make: Make, tmp_path: Path) -> None:
    """Without a label column, and with labels that mean nothing; whole, whatever the folds."""
    for header, end in (("sent1,e0,e1,e2", ""), ("sent1,e0,e1,e2,label", ",-1")):
        (tmp_path / "test.csv").write_text(
            header + "\n" + "".join(f"c{i},a,b,c{end}\n" for i in range(9))
        )
        data = ready(make(validation_file="train.csv", folds=3, held_out_fold=1))
        sequences, split = data.load_test()["Toy"]
        assert len(sequences) == 9
        assert len(split) == 9
        assert split.ids.tolist() == [str(i) for i in range(9)]


def test_preview_reads_the_files_and_keeps_the_folds_apart(make: Make) -> None:
    whole = make().preview()
    assert whole.train.num_examples == 21
    assert whole.validation.num_examples == 7
    assert whole.label_names == ["0", "1", "2"]
    assert whole.train.labels == [str(i % 3) for i in range(21)]
    assert [len(whole.validation.texts[part]) for part in ("context", "ending")] == [7, 21]
    parts = make(validation_file="train.csv", folds=3, held_out_fold=1).preview()
    contexts = [set(found.texts["context"]) for found in (parts.train, parts.validation)]
    assert len(contexts[0] | contexts[1]) == 21 and not contexts[0] & contexts[1] and contexts[1]


# What is refused

LINE = row(0) + "\n"
BAD_FILES = {
    "no column 'sent1'; its columns are": HEADER.replace("sent1", "context") + LINE,
    r"x.csv:3: label '4' is not one of the known labels \['0', '1', '2', '3'\]": (
        HEADER + LINE + row(1, label="4") + "\n"
    ),
}


@pytest.mark.parametrize(("sentence", "content"), BAD_FILES.items())
def test_a_bad_file_is_refused(tmp_path: Path, sentence: str, content: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SWAG.read(write(tmp_path / "x.csv", content))


@pytest.mark.parametrize(
    "folds", [{"folds": 3}, {"held_out_fold": 0}, {"folds": 5, "held_out_fold": 5}]
)
def test_folds_that_cannot_be(make: Make, folds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"held_out_fold=\w+ is not one of folds=\w+"):
        make(**folds)
