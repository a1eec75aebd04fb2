"""Labelled tables: what is read, what is refused, and the data module on top; a task is a YAML."""

from __future__ import annotations

import logging
import string
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.parts import TEXTS, labelled_data, ready
from tests.screens import refuses, shows

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule, TrainingBatches
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.tasks.sequences import subset
from clozelab.tasks.tables import TableFormat, TextExamples
from clozelab.tasks.texts import TextSplit
from clozelab.terminal import quiet_log

Make = Callable[..., FinetuningDataModule]

PAIRS = TableFormat(["s1", "s2"], "label", "index")
SINGLE = TableFormat(["sentence"], "label")


def read_table_of(
    folder: Path, content: str, layout: TableFormat, names: list[str] | None = None, **more: bool
) -> TextExamples:
    (folder / "train.tsv").write_bytes(content.encode())
    return layout.read(folder / "train.tsv", names=names, **more)


def test_quotes_are_characters(tmp_path: Path) -> None:
    content = 'index\ts1\ts2\tlabel\n7\t"He said\tshe\'s "fine"\tyes\n8\tb\tc"\tno\n'
    examples = read_table_of(tmp_path, content, PAIRS, ["yes", "no"])
    assert examples.ids == ["7", "8"]
    assert examples.texts == [('"He said', 'she\'s "fine"'), ("b", 'c"')]
    assert examples.labels == ["yes", "no"]


def test_byte_order_mark_crlf_and_unicode_line_separators(tmp_path: Path) -> None:
    text = "\ufeffindex\ts1\ts2\tlabel\r\n0\ta\u2028b\tc\x85d\tyes\r\n\r\n\r\n"
    examples = read_table_of(tmp_path, text, PAIRS, ["yes"])
    assert examples.texts == [("a\u2028b", "c\x85d")]
    assert examples.labels == ["yes"]
    assert examples.num_bad_rows == 0


def test_file_without_header(tmp_path: Path) -> None:
    layout = TableFormat(["sentence"], "label", None, ["source", "label", "mark", "sentence"])
    content = "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.\n"
    examples = read_table_of(tmp_path, content, layout, ["0", "1"])
    assert examples.ids == ["0", "1"]
    assert examples.texts == [("One.",), ("Two.",)]
    assert examples.labels == ["1", "0"]


def test_columns_may_be_called_by_numbers(tmp_path: Path) -> None:
    """As pandas writes columns without a name; YAML reads the names as numbers."""
    layout = TableFormat([0], 1)  # type: ignore[list-item, arg-type]
    content = "id\t0\t1\na\tthe cat\tyes\n"
    examples = read_table_of(tmp_path, content, layout)
    assert (examples.texts, examples.labels) == ([("the cat",)], ["yes"])
    assert layout == TableFormat(["0"], "1")
    with refuses("has no column '2'; its columns are 'id', '0', '1'"):
        read_table_of(tmp_path, content, TableFormat(["0"], 2))  # type: ignore[arg-type]


def test_rare_bad_rows_are_counted(tmp_path: Path) -> None:
    rows = [f"text {i}\t{i % 2}" for i in range(300)]
    rows[5] = "torn"
    rows[200] = "a\tb\tc"
    content = "sentence\tlabel\n" + "\n".join(rows)
    examples = read_table_of(tmp_path, content, SINGLE, ["0", "1"])
    assert (len(examples), examples.num_bad_rows) == (298, 2)
    assert examples.ids[5] == "6"  # the row's own number, so that it can be found in the file


def test_a_header_may_have_a_name_twice_that_nobody_reads(tmp_path: Path) -> None:
    unread = "sentence\tlabel\t\t\tnote\tnote\na\t1\t\t\t\t\n"
    assert read_table_of(tmp_path, unread, SINGLE, ["0", "1"]).labels == ["1"]


CODAH_LIKE = TableFormat(["sentence"], "label", "index", ["source", "label", "mark", "sentence"])


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("gj04\t-1\t\tOne.\ngj04\tmaybe\t*\tTwo.\n", ["0", "1"]),  # as the training file: no header
        ("index\tsentence\n7\tOne.\n9\tTwo.\n", ["7", "9"]),  # the benchmark's own
        # another order, and labels that are none
        ("sentence\tmark\tlabel\nOne.\t\t?\nTwo.\t\t?\n", ["0", "1"]),
    ],
)
def test_a_test_file_may_have_labels_a_header_or_neither(
    tmp_path: Path, content: str, ids: list[str]
) -> None:
    """Its labels are not read; a header is a first line that names the texts."""
    found = read_table_of(tmp_path, content, CODAH_LIKE, ["0", "1"], has_labels=False)
    assert (found.texts, found.ids, found.labels) == ([("One.",), ("Two.",)], ids, None)


def test_a_file_without_its_column_of_names_is_numbered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = "s2\ts1\tlabel\nb\ta\tyes\nd\tc\tno\n"
    found = read_table_of(tmp_path, content, PAIRS, ["yes", "no"])
    assert found.ids == ["0", "1"]
    assert found.texts == [("a", "b"), ("c", "d")]
    assert found.labels == ["yes", "no"]
    assert "has no column 'index': its rows are numbered from 0" in caplog.text


QNLI = TableFormat(["question", "sentence"], "label", "index")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "layout", "count"),
    [
        ("glue/MRPC/train.tsv", TableFormat(["#1 String", "#2 String"], "Quality"), 3668),
        ("glue/MRPC/dev.tsv", TableFormat(["#1 String", "#2 String"], "Quality"), 408),
        ("glue/SST-2/train.tsv", SINGLE, 67349),
        ("glue/CoLA/train.tsv", replace(CODAH_LIKE, id_column=None), 8551),
        ("glue/RTE/train.tsv", TableFormat(["sentence1", "sentence2"], "label", "index"), 2490),
        ("glue/QNLI/dev.tsv", QNLI, 5463),
        ("glue/QNLI/train-derived.tsv", QNLI, 87599),
        ("nli/train.tsv", TableFormat(["sentence1", "sentence2"], "gold_label", "index"), 95231),
    ],
)
def test_real_files_give_the_published_counts(
    shared_dir: Path, file: str, layout: TableFormat, count: int
) -> None:
    examples = layout.read(shared_dir / "data" / file)
    assert (len(examples), examples.num_bad_rows) == (count, 0)
    assert 2 <= len(set(examples.labels or [])) <= 3


TASK: dict[str, Any] = TEXTS | {
    "labels": ["yes", "no"],
    "window_stride": 6,
    "max_seq_length": 16,
    "evaluation_tokens": 20,
}


def module(
    table_folder: Path, tokenizer: WordPieceTokenizer, name: str = "x.tsv", **changes: Any
) -> FinetuningDataModule:
    """Of one file, which is both splits; `max_examples` is the plan's."""
    plan = TrainingPlan(8, 1, 1, changes.pop("max_examples", None), 1, 0)
    names = changes.pop("label_names", None)
    cache = table_folder / "cache"
    inputs = TaskInputs("x", table_folder, cache, tokenizer, 64, label_names=names)
    files = {"train_file": name, "validation_file": name}
    return labelled_data(inputs=inputs, plan=plan, **(TASK | files | changes))


def load(*where: Any, **changes: Any) -> TextSplit:
    """The training split."""
    data = ready(module(*where, **changes))
    return data.train


@pytest.fixture
def table_folder(tmp_path: Path) -> Path:
    rows = [f"the cat {i}\t{'no' if i % 3 else 'yes'}" for i in range(20)]
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_label_order_is_the_lists(table_folder: Path, tokenizer: WordPieceTokenizer) -> None:
    data = ready(module(table_folder, tokenizer))
    split = data.train
    assert data.target.classes == ["yes", "no"]
    assert split.labels.tolist()[:4] == [0, 1, 1, 0]
    again = load(table_folder, tokenizer)  # from the cache
    assert again.labels.tolist() == split.labels.tolist()
    assert (again.ids.tolist()[:2], again.num_available, len(again)) == (["0", "1"], 20, 20)


def test_labels_from_the_data_are_sorted(table_folder: Path, tokenizer: WordPieceTokenizer) -> None:
    data = ready(module(table_folder, tokenizer, labels=None))
    assert data.target.classes == ["no", "yes"]


def test_subset_is_fixed_nested_and_in_file_order(
    table_folder: Path, tokenizer: WordPieceTokenizer
) -> None:
    small, large = subset(1000, 50), subset(1000, 200)
    assert small == sorted(small) == subset(1000, 50)
    assert set(small) < set(large)
    assert max(small) > 500 > min(small)
    assert subset(10, None) == subset(10, 99) == list(range(10))
    split = load(table_folder, tokenizer, max_examples=7)
    assert (len(split), split.num_available) == (7, 20)
    assert split.ids.tolist() == [str(i) for i in subset(20, 7)]


def test_cache_follows_content_and_settings(
    table_folder: Path, tokenizer: WordPieceTokenizer
) -> None:
    load(table_folder, tokenizer)
    load(table_folder, tokenizer, max_seq_length=4)
    (table_folder / "x.tsv").write_text("text\tlabel\nthe dog\tyes\n")
    assert len(load(table_folder, tokenizer)) == 1
    # of each a training and a validation split
    assert len(list((table_folder / "cache/tasks").iterdir())) == 3 * 2


NUMBERS: dict[str, Any] = {
    "name": "n.tsv",
    "label_column": "score",
    "labels": None,
    "numeric_labels": True,
}


def test_numbers_and_files_without_labels(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    path = tmp_path / "n.tsv"
    path.write_text("text\tscore\nthe cat\t4.25\nthe dog\t0\n")
    data = ready(module(tmp_path, tokenizer, **NUMBERS))
    split = data.train
    assert (split.labels.tolist(), split.labels.dtype) == ([4.25, 0.0], "float32")
    assert data.target.classes == []
    assert data.target.predicts_numbers
    (tmp_path / "test.tsv").write_text("text\nthe cat\n")
    assert data.read_test(tmp_path / "test.tsv")[1].labels.tolist() == [-1]


def test_what_is_unusual_is_counted(
    tmp_path: Path, tokenizer: WordPieceTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.tsv"
    rows = [
        "1\tthe cat\tthe dog\tyes",
        "3\tthe red cat\tthe green dog ran fast\tyes",
        "2\t \tthe dog\tno",
    ]
    path.write_text("id\ta\tb\tlabel\n" + "\n".join(rows) + "\n")
    settings: dict[str, Any] = {"text_columns": ["a", "b"], "id_column": "id", "labels": None}
    for _ in range(2):  # built, and from the cache
        split = load(tmp_path, tokenizer, max_seq_length=8, **settings)
        expected = {"truncated_sequences": 1, "truncated_tokens": 3, "empty_texts": 1}
        assert split.counts == expected
    assert "1 texts are empty" in caplog.text
    assert split.sequences.lengths.max() == 8


def test_ids_that_stand_twice_are_refused_where_they_are_predicted(
    tmp_path: Path, tokenizer: WordPieceTokenizer
) -> None:
    (tmp_path / "train.tsv").write_text(
        "id\ttext\tlabel\na\tthe cat\tyes\na\tthe cat\tyes\nb\tthe dog\tno\n"
    )
    (tmp_path / "x.tsv").write_text("id\ttext\tlabel\na\tthe cat\tyes\nb\tthe dog\tno\n")
    settings: dict[str, Any] = {"id_column": "id", "train_file": "train.tsv"}
    assert load(tmp_path, tokenizer, **settings).ids.tolist() == ["a", "a", "b"]
    sentence = r"train\.tsv: 1 ids of the column 'id' stand there twice, the first 'a'"
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path, tokenizer, **settings, validation_file="train.tsv")


FILM_WORDS = ["good", "bad", "film", "dull", "fine"]


@pytest.fixture(scope="module")
def film_tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(
        [*SPECIAL_TOKENS, *string.ascii_lowercase, *FILM_WORDS], lowercase=True
    )


@pytest.fixture
def make(tmp_path: Path, film_tokenizer: WordPieceTokenizer) -> Make:
    """make(plan changes, data changes) on 53 training and 9 validation examples."""
    for name, count in (("train", 53), ("dev", 9)):
        rows = [" ".join([FILM_WORDS[i % 5]] * (1 + i % 7)) + f"\t{i % 2}" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")

    def build(max_positions: int = 64, plan: Any = None, **data: Any) -> FinetuningDataModule:
        settings = {
            "global_batch_size": 8,
            "epochs": 2.5,
            "evaluations_per_epoch": 2,
            "max_train_examples": None,
            "seed": 1,
            "num_workers": 0,
        }
        task = TASK | {
            "train_file": "train.tsv",
            "validation_file": "dev.tsv",
            "text_columns": ["sentence"],
            "labels": ["0", "1"],
        }
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", film_tokenizer, max_positions)
        return labelled_data(
            inputs=inputs, plan=TrainingPlan(**(settings | (plan or {}))), **(task | data)
        )

    return build


def test_a_renamed_file_is_read_as_its_name_says(make: Make, tmp_path: Path) -> None:
    """Marks are characters of a tsv, and quotes of a csv: its arrays are not those of the cache."""
    (tmp_path / "train.tsv").write_text('sentence\tlabel\n"fine film"\t1\nbad film\t0\n')
    as_tsv = ready(make())
    (tmp_path / "train.tsv").rename(tmp_path / "train.csv")
    as_csv = ready(make(train_file="train.csv"))
    lengths = [len(data.train.sequences.input_ids) for data in (as_tsv, as_csv)]
    assert lengths[0] > lengths[1]


def test_steps_and_evaluations(make: Make) -> None:
    data = ready(make())
    assert (data.steps_per_epoch, data.total_steps) == (7, 18)  # 2.5 * 7, rounded to the even one
    assert data.evaluation_steps == [4, 7, 10, 14, 18]
    seen = []
    for start in [0, *data.evaluation_steps[:-1]]:
        data.trainer = SimpleNamespace(global_step=start, global_rank=0, world_size=1)
        seen.append(len(list(data.train_dataloader())))
    assert seen == [4, 3, 3, 4, 4]


def test_batches_hold_the_rows_they_name(make: Make) -> None:
    data = ready(make())
    data.setup()  # the second time does nothing
    for batch in TrainingBatches(data, range(3), 0, 1):
        index = batch["example_index"].numpy()
        assert batch["labels"].tolist() == (index % 2).tolist()
        assert batch["layout"].lengths_list == (1 + index % 7 + 2).tolist()
        assert len(batch["input_ids"]) == batch["layout"].num_tokens == batch["global_tokens"]
        assert batch["global_examples"] == len(index)
    evaluated = torch.cat([batch["example_index"] for batch in data.val_dataloader()])
    assert sorted(evaluated.tolist()) == list(range(9))


def test_a_unit_may_draw_other_batches(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here in the order of the file."""

    def in_order(_: object, part: slice, *, batch_size: int, **__: object) -> list[np.ndarray]:
        starts = range(0, part.stop - part.start, batch_size)
        return np.array_split(np.arange(part.stop - part.start), list(starts)[1:])

    data = ready(make())
    monkeypatch.setattr(data.unit, "draw_batches", in_order)
    batches = TrainingBatches(data, range(data.steps_per_epoch), 0, 1)
    seen = chain.from_iterable(batch["example_index"].tolist() for batch in batches)
    assert list(seen) == list(range(53))


def test_workers_change_nothing(make: Make) -> None:
    plain, other = make(), make(plan={"num_workers": 2})
    for data in (plain, other):
        data.setup()
        data.trainer = SimpleNamespace(global_step=10, global_rank=0, world_size=1)
    expected = [batch["input_ids"].tolist() for batch in plain.train_dataloader()]
    assert [batch["input_ids"].tolist() for batch in other.train_dataloader()] == expected


def test_ranks_share_each_global_batch(make: Make) -> None:
    data = make(plan={"global_batch_size": 26})  # the last batch of an epoch has one example
    data.setup()
    for whole, first, second in zip(
        *(TrainingBatches(data, range(3), r, n) for r, n in ((0, 1), (0, 2), (1, 2))), strict=True
    ):
        parts = [b["example_index"] for b in (first, second) if b["local_weight"]]
        assert sorted(torch.cat(parts).tolist()) == sorted(whole["example_index"].tolist())
        assert first["global_examples"] == second["global_examples"] == len(whole["example_index"])
        assert len(second["example_index"]) > 0


def test_rows_are_cut_to_what_the_encoder_takes_and_that_is_said(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make().setup()
    assert "longer ones" not in caplog.text and "were cut" not in caplog.text
    data = ready(make(max_positions=5))
    limit = "of at most 5 tokens, as the encoder takes no longer ones (max_seq_length=16)"
    assert caplog.text.count(limit) == 1
    assert (
        data.max_seq_length
        == 5
        == data.train_sequences.lengths.max()
        == data.facts["max_seq_length"]
    )
    cut = data.facts["train_counts"]
    assert cut["truncated_sequences"] > 0
    shows(
        caplog.text,
        f"toy, training: {cut['truncated_sequences']} sequences are longer than max_seq_length=5",
        f"{cut['truncated_tokens']} tokens were lost with them",
    )


def test_fingerprint_follows_content_and_settings(make: Make, tmp_path: Path) -> None:
    first = make().fingerprint
    assert make().fingerprint == first
    assert make(max_seq_length=8).fingerprint != first
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t1\n")
    assert make().fingerprint != first


def test_further_validation_sets_lie_behind_the_first(make: Make, tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("sentence\tlabel\nbad\t0\ngood good\t1\n")
    data = ready(make(extra_validation_files={"other": "other.tsv"}))
    assert (len(data.validation), len(data.validation_sequences)) == (9, 11)
    assert data.validation.extra["other"].labels.tolist() == [0, 1]
    assert (
        data.validation_sequences.lengths[-2:].tolist()
        == data.validation.extra["other"].sequences.lengths.tolist()
    )
    assert data.fingerprint != make().fingerprint


def test_labels_of_a_test_file_are_not_used(make: Make, tmp_path: Path) -> None:
    """The validation file may be predicted as it is, and labels may be the hub's -1."""
    (tmp_path / "hub.tsv").write_text("label\tsentence\n-1\tgood\n-1\tbad\n")
    (tmp_path / "own.tsv").write_text("index\tsentence\n5\tgood\n6\tbad\n")
    files = {name: f"{name}.tsv" for name in ("dev", "hub", "own")}
    data = ready(make(test_files=files, test_id_column="index"))
    assert data.require_test_files()
    found = {name: split for name, (_, split) in data.load_test().items()}
    assert found["hub"].labels.tolist() == [-1, -1] and found["hub"].ids.tolist() == ["0", "1"]
    assert found["own"].ids.tolist() == ["5", "6"]
    assert np.array_equal(found["dev"].sequences.input_ids, data.validation.sequences.input_ids)


def test_a_text_of_unknown_words_is_refused_and_a_limit_lets_it_pass(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A share of the file's own tokens: [UNK] in 2 of 100 rows, then in 46 of 50."""
    data = ready(make())
    assert data.facts["unknown_shares"] == {"training": 0, "validation": 0}
    assert "[UNK]" not in caplog.text
    for unknown, count in ((2, 100), (46, 50)):
        rows = [f"{'жук' if i < unknown else 'good'}\t{i % 2}" for i in range(count)]
        (tmp_path / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
        data = make()
        if unknown < 25:
            data.setup()
            shows(caplog.text, "2.0% of the tokens of task toy, validation file, are [UNK]")
            continue
        with pytest.raises(
            ValueError,
            match=r"92\.0% of the tokens of task toy, validation file, .*max_unknown_share=0\.5",
        ):
            data.setup()
        data = make()
        data.inputs = replace(data.inputs, max_unknown_share=0.95)
        data.setup()
        assert data.facts["unknown_shares"]["validation"] == 0.92


def test_pairs_of_one_token_type(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    """Both texts have type 0, the cache keeps them apart, and saved files say it."""
    (tmp_path / "x.tsv").write_text(
        "text\tother\tlabel\nthe cat\tthe dog\tyes\na dog\tthe cat\tno\n"
    )
    two, one = (
        module(tmp_path, tokenizer.with_token_types(number), text_columns=["text", "other"])
        for number in ("two", "one")
    )
    for data in (two, one):
        data.setup()
    assert np.array_equal(two.train_sequences.input_ids, one.train_sequences.input_ids)
    types = [data.train_sequences.gather(np.array([0, 1]))["token_type_ids"] for data in (two, one)]
    assert types[0].sum() == 6 and types[1].sum() == 0
    assert (two.facts["token_types"], one.facts["token_types"]) == (2, 1)
    assert two.fingerprint != one.fingerprint and two.source_fingerprint == one.source_fingerprint


def test_damaged_rows_are_said_aloud(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = make()
    rows = []
    for i in range(200):
        text = " ".join(FILM_WORDS[i // part % 5] for part in (1, 5, 25, 125))
        rows.append(f"{text}\t{i % 2}")
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows, "no label"]) + "\n")
    data.setup()
    assert len(data.validation) == 200
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [f"toy: 1 damaged row(s) of {tmp_path / 'dev.tsv'} left out"]

    # Where validation is held out of the training file, its damaged row counts once.
    caplog.clear()
    alone = ready(make(train_file="dev.tsv", validation_file=None))
    assert caplog.text.count("1 damaged row(s)") == 1 and alone.facts["bad_rows"] == 1


def test_swapped_pairs_are_no_new_examples(
    tmp_path: Path, film_tokenizer: WordPieceTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    header = "text\tother\tlabel"
    pairs = []
    for i in range(60):
        text = f"{FILM_WORDS[i % 5]} {FILM_WORDS[i // 5 % 5]} {FILM_WORDS[i // 25]}"
        pairs.append((text, f"{text} {FILM_WORDS[0]}"))
    rows = [
        f"{first}\t{second}\t{'no' if i % 2 else 'yes'}" for i, (first, second) in enumerate(pairs)
    ]
    swaps = [f"{second}\t{first}\tno" for first, second in pairs]
    (tmp_path / "x.tsv").write_text("\n".join([header, *rows]) + "\n")
    for name, some in (
        ("some", [*rows[:2], *swaps[2:5], f"new\t{FILM_WORDS[0]}\tno"]),
        ("all", swaps),
    ):
        (tmp_path / f"{name}.tsv").write_text("\n".join([header, *some]) + "\n")
    columns = {"text_columns": ["text", "other"]}

    some = module(tmp_path, film_tokenizer, validation_file="some.tsv", **columns)
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        some.setup()
        some.refuse_overlap(allowed=False)
        assert "5 of 6 rows" in caplog.text and ", 3 of them also in swapped order (" in caplog.text
        assert some.facts["validation_in_training"] == 5
        some = module(tmp_path, film_tokenizer, validation_file="some.tsv", **columns)
    whole = ready(module(tmp_path, film_tokenizer, validation_file="all.tsv", **columns))
    with pytest.raises(ValueError, match=r"60 of 60 rows .* 60 of them also in swapped order"):
        whole.refuse_overlap(allowed=False)

    (tmp_path / "x.tsv").write_text("\n".join([header, *rows, *swaps]) + "\n")
    held_out = module(tmp_path, film_tokenizer, validation_file=None, **columns)
    with caplog.at_level("INFO"):
        held_out.setup()
    assert held_out.overlap.num_seen == 0 < held_out.overlap.num_rows
    assert "same first text, and a pair and its swap, stay together" in caplog.text


def test_odd_labels_are_said_at_every_launch(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A launch reads its sequences from the cache; the pre-flight, whose log is off, reads too."""
    labels = ["science;old", "science", "old", "Old"]
    rows = [f"{FILM_WORDS[i % 5]} {i}\t{labels[i % 4]}" for i in range(200)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    for max_positions in (64, 64, 32, 32):
        caplog.clear()
        make(max_positions, labels=None, validation_file=None).setup()
        assert caplog.text.count("seem to be several labels with ';'") == 1
        assert caplog.text.count("differ by case alone") == 1
    caplog.clear()
    with quiet_log():
        warnings = make(labels=None, validation_file=None).preview().warnings
    assert not caplog.messages and len(warnings) == 2
    assert "differ by case alone" in warnings[0] and "several labels" in warnings[1]
    assert not make(labels=labels, validation_file=None).preview().warnings, "they are named"


def test_long_documents_in_windows(make: Make) -> None:
    """Nothing is cut; windows are training examples with their text's label."""
    cut, data = (
        make(max_positions=5),
        make(max_positions=5, long_documents="windows", window_stride=2),
    )
    for one in (cut, data):
        one.setup()
    assert data.fingerprint != cut.fingerprint == make(max_positions=5, window_stride=2).fingerprint
    assert cut.fingerprint != make().fingerprint
    assert cut.source_fingerprint == make().source_fingerprint != data.source_fingerprint
    words = 1 + np.arange(53) % 7
    windows = 1 + np.maximum(0, -(-(words - 3) // 2))  # 3 words fit a row
    unusual = {key: number for key, number in data.facts["train_counts"].items() if number}
    assert unusual == {"windows": windows.sum()}
    assert cut.facts["train_counts"]["truncated_sequences"]
    assert data.facts["train_examples"] == 53
    assert len(data.train_sequences) == windows.sum() > data.train_sequences.lengths.max() == 5
    owner = np.repeat(np.arange(53), windows)
    assert data.train_targets["labels"].tolist() == (owner % 2).tolist()
    for batch in TrainingBatches(data, range(2), 0, 1):
        assert batch["labels"].tolist() == (owner[batch["example_index"]] % 2).tolist()
        assert batch["global_targets"] == batch["global_examples"] == len(batch["labels"])
    assert len(data.validation) == 9 < data.validation.num_outputs == len(data.validation_sequences)


# What is refused

BAD_TABLES: dict[str, tuple[str, list[str] | None]] = {
    r"train.tsv:3: 1 fields(.|\n)*1 of 2 rows": ("sentence\tlabel\nfine\t1\ntorn, label\n", ["1"]),
    # Nobody can know which of the two is meant.
    "train.tsv has two columns 'label'; rename": ("sentence\tlabel\tlabel\na\t1\t0\n", ["0", "1"]),
    r"train.tsv:3: label 'maybe' .*\['0', '1'\]": ("sentence\tlabel\na\t1\nb\tmaybe\n", ["0", "1"]),
    "no column 'label'.*can only be predicted": ("index\tsentence\n0\ta\n", ["1"]),
    "no column 'sentence'; its columns are 'text', 'label'": ("text\tlabel\na\t1\n", None),
}


@pytest.mark.parametrize(
    ("sentence", "content", "labels"),
    [(sentence, *given) for sentence, given in BAD_TABLES.items()],
)
def test_a_bad_table_is_refused(
    tmp_path: Path, sentence: str, content: str, labels: list[str] | None
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_table_of(tmp_path, content, SINGLE, labels)


def test_a_number_out_of_range_is_refused_with_its_line(
    tmp_path: Path, tokenizer: WordPieceTokenizer
) -> None:
    (tmp_path / "n.tsv").write_text("text\tscore\nthe cat\t0.1\nthe dog\t0.7\nthe cow\t0.2\n")
    for number_range in (None, [0.1, 0.7]):
        data = ready(module(tmp_path, tokenizer, **NUMBERS, number_range=number_range))
        data.refuse_outside()
    data = ready(module(tmp_path, tokenizer, **NUMBERS, number_range=[0.1, 0.6]))
    with pytest.raises(ValueError, match=r"n\.tsv:3: label 0\.7 lies outside of 0\.1 to 0\.6"):
        data.refuse_outside()


def test_a_class_without_an_example(
    tmp_path: Path, tokenizer: WordPieceTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x.tsv").write_text("text\tlabel\nthe cat\tyes\n \tyes\n")
    load(tmp_path, tokenizer, labels=["yes", "no"])
    assert "x.tsv has no example of 1 of 2 classes: 'no'" in caplog.text
    with pytest.raises(ValueError, match=r"x\.tsv: all rows have one label, 'yes'"):
        load(tmp_path, tokenizer, labels=None)


def test_the_order_of_a_models_classes_changes_no_data(
    table_folder: Path, tokenizer: WordPieceTokenizer
) -> None:
    """Models that were trained elsewhere have other orders, and are compared on one file."""
    orders = [["no", "yes"], ["yes", "no"]]
    modules = []
    for names in orders:
        modules.append(module(table_folder, tokenizer, labels=None, label_names=names))
    assert modules[0].source_fingerprint == modules[1].source_fingerprint
    for data, names in zip(modules, orders, strict=True):
        data.setup()
        assert data.target.classes == names
    labels = [data.train.labels for data in modules]
    np.testing.assert_array_equal(labels[0], 1 - labels[1])


TEST_FILES = {"test_files": {"Toy": "test.tsv"}, "test_id_column": "index"}
WINDOWS = {"long_documents": "windows"}
BAD_SETTINGS: dict[str, dict[str, Any]] = {
    r"(?s)nowhere.tsv.*how to get it: make it": {"validation_file": "nowhere.tsv"},
    r"task.data.labels names a label twice: \['0', '0', '1'\]": {"labels": [0, 0, 1]},
    "'toy' has no test files": {},
    "(?s)test.tsv.*how to get it": TEST_FILES,
    "long_documents=split: choose one of truncate, windows": {"long_documents": "split"},
    "window_pooling=sum: choose one of mean, max": WINDOWS | {"window_pooling": "sum"},
    "long_documents=windows is for single texts": (
        WINDOWS | {"text_columns": ["sentence", "label"]}
    ),
    r"window_stride=15 tokens: sequences of 16 hold 14 .* give 1 to 14": (
        WINDOWS | {"window_stride": 15}
    ),
    "window_stride=0 tokens": WINDOWS | {"window_stride": 0},
    "file_format=xml: choose one of auto, tsv, csv, jsonl": {"file_format": "xml"},
}


@pytest.mark.parametrize(("sentence", "settings"), BAD_SETTINGS.items())
def test_settings_that_cannot_be(make: Make, sentence: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=sentence):
        data = make(**settings)
        data.require_test_files() if "test" in sentence else data.setup()


def test_labels_of_the_training_file_bind_the_validation_split(make: Make, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t2\n")
    with pytest.raises(ValueError, match=r"dev.tsv:2: label '2' .*\['0', '1'\]"):
        make(labels=None).setup()


def test_a_torn_row_of_a_test_file(make: Make, tmp_path: Path) -> None:
    rows = [f"{number}\tgood\n" for number in range(200)]
    (tmp_path / "test.tsv").write_text("".join(["index\tsentence\n", *rows, "torn\n"]))
    data = ready(make(**TEST_FILES))
    with pytest.raises(ValueError, match="1 damaged rows; predictions must be made for every row"):
        data.load_test()
