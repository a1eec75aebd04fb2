"""What is predicted: a target encodes it, trains on it, scores it and writes it down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.composing import composed
from tests.parts import PAIRS, TEXTS, WORDS
from tests.tasks.labelled_files import read_task

from clozelab.addresses import PERMITTED, build_parts
from clozelab.assembly.finetuning import check_finetuning
from clozelab.assembly.prediction import rename_classes
from clozelab.assembly.task_data import task_code
from clozelab.metrics import glue
from clozelab.runs.code import own_code
from clozelab.tasks.baselines import BAG
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.contrast import ContrastTarget
from clozelab.tasks.features import FeatureUnit
from clozelab.tasks.numbers import NumberTarget, are_one_number
from clozelab.tasks.passages import PassageUnit
from clozelab.tasks.prompts import PromptTarget
from clozelab.tasks.right_choice import ChoiceTarget
from clozelab.tasks.sequences import TokenSequences
from clozelab.tasks.several_classes import SeveralClassesTarget
from clozelab.tasks.similarity import CosineTarget, VectorClassTarget
from clozelab.tasks.spans import SpanTarget
from clozelab.tasks.superglue import AnswerSetTarget, AnswerTarget, SubmittedClass
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.tags import TagTarget
from clozelab.tasks.target import Target
from clozelab.tasks.texts import TextUnit, VectorUnit
from clozelab.tasks.token_numbers import TokenNumberTarget
from clozelab.tasks.unit import Split, Unit
from clozelab.tasks.words import WordUnit
from clozelab.text.paths import CONF_DIR

NO_TOKENS = TokenSequences(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32))


def split_of(labels: np.ndarray) -> Split:
    ids = np.arange(len(labels)).astype(str)
    return Split(sequences=NO_TOKENS, ids=ids, labels=labels)


def examples_of(labels: list[str]) -> TextExamples:
    texts = [(f"{label} text {number % 2}",) for number, label in enumerate(labels)]
    return TextExamples([str(n) for n in range(len(labels))], texts, labels)


def test_other_names_of_classes_stand_in_the_predictions_of_test_files() -> None:
    labels: dict[str, Any] = {"labels": ["0", "1"], "metrics": ["accuracy"]}
    outputs = np.array([[1.0, 0.0], [0.0, 1.0]])
    split = split_of(np.zeros(2))
    names = {"0": "no", "1": "yes"}
    renamed = rename_classes(SubmittedClass(**labels), names, Path("RUN"))
    (lines,) = renamed.prediction_files("x", split, outputs, {}).values()
    assert ['"label": "no"' in line for line in lines] == [True, False]
    # These would not have them.
    for target in (
        SubmittedClass(submitted=["False", "True"], **labels),
        ChoiceTarget(ending_columns=["a", "b"], metrics=["accuracy"]),
        AnswerSetTarget(),
    ):
        with pytest.raises(ValueError, match="label_names: the test predictions of RUN are num"):
            rename_classes(target, names, Path("RUN"))


@pytest.mark.parametrize("target", [AnswerSetTarget(), AnswerTarget()])
def test_candidates_are_scored_alike_in_whatever_order_a_model_has_its_classes(
    target: AnswerSetTarget | AnswerTarget,
) -> None:
    names = ["0", "1", "1", "0", "0"]
    outputs = np.array([[0.2, 0.1], [0.0, 2.0], [1.0, 0.5], [0.1, 0.9], [3.0, 0.0]])
    ids = np.array(["1/Rome", "1/Paris", "2/Rome", "2/Bern", "2/Oslo"])
    scores = []
    for classes, of_classes in ((["0", "1"], outputs), (["1", "0"], outputs[:, ::-1])):
        of_model = target.of_model(classes)
        split = Split(sequences=NO_TOKENS, ids=ids, labels=of_model.encode(names))
        scores.append(of_model.evaluate(of_classes, split).scores)
    assert scores[0] == scores[1]
    assert 0 < min(scores[0].values()) < 1


def test_a_score_that_no_prediction_changes_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A correlation with one number, or the F1 of a class that no row has, was 0.0 in silence."""
    constant = split_of(np.array([2.5, 2.5]))
    varied = split_of(np.array([1.0, 2.0]))
    number = NumberTarget(metrics=["pearson", "mae"])
    number.check_validation(varied)
    classes = ClassTarget(labels=["0", "1"], metrics=["accuracy", "f1", "matthews"])
    classes.check_validation(split_of(np.array([0, 1])))
    assert not caplog.messages
    number.check_validation(replace(varied, extra={"hard": constant}))
    classes.check_validation(split_of(np.array([0, 0])))
    ClassTarget(labels=["0", "1"]).check_validation(split_of(np.array([0, 0])))
    NumberTarget(metrics=["mae"]).check_validation(constant)
    of_numbers, of_classes = caplog.messages
    assert of_numbers.startswith("all rows of the validation set hard have the number 2.5: ")
    assert of_numbers.endswith(": no prediction makes pearson other than 0")
    assert of_classes.startswith("the validation split has rows of 0 alone: ")
    assert of_classes.endswith(": no prediction makes matthews and the f1 of 1 other than 0")


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_numbers_have_collapsed_whatever_their_unit(unit: float) -> None:
    labels = unit * np.arange(5.0)
    assert are_one_number(unit * (2.0 + 5e-4 * labels / unit), labels)
    assert not are_one_number(unit * (2.0 + 5e-3 * labels / unit), labels)


def test_classes_and_numbers() -> None:
    classes = ClassTarget(labels=["no", "yes"])
    assert classes.encode(["yes", "no"]).tolist() == [1, 0] and classes.num_outputs == 2
    outcome = classes.evaluate(np.array([[0.25, 1.0]]), split_of(np.array([0])))
    assert outcome.records == [
        {"id": "0", "prediction": "yes", "label": "no", "logits": [0.25, 1.0]}
    ]
    number = NumberTarget()
    assert number.encode(["1.5", "2"]).tolist() == [1.5, 2.0] and number.num_outputs == 1
    outcome = number.evaluate(np.array([[0.5], [2.0]]), split_of(np.array([1.0, 3.0])))
    assert [record["prediction"] for record in outcome.records] == [0.5, 2.0]
    assert outcome.scores == {"spearman": pytest.approx(1.0)}
    assert number.majority_score("spearman", split_of(np.ones(3))) is None


def test_small_and_large_numbers_keep_their_digits() -> None:
    split = split_of(np.array([1e-4, 2e-4], dtype=np.float32))
    outputs = np.array([[1.25e-4], [2345678.0]], dtype=np.float32)
    target = NumberTarget()
    assert list(target.prediction_files("test", split, outputs, {})["test.tsv"])[1:] == [
        "0\t0.000125",
        "1\t2345678",
    ]
    records = target.evaluate(outputs, split).records
    assert [record["prediction"] for record in records] == [1.25e-4, 2345678.0]


def test_the_bag_of_words_is_scored_by_all_that_means_something() -> None:
    """An F1 of one class is none of it where no class is the positive one."""
    means = [name for name in glue.OF_CLASSES if name != "f1"]
    for names, scores in (("ab", means), ("01", list(glue.OF_CLASSES))):
        examples = examples_of([*names] * 6)
        target = ClassTarget(labels=list(names))
        found = target.baselines(examples, {"": examples, "other": examples})[BAG]
        assert list(found) == [*scores, *(f"other_{name}" for name in scores)]
        assert set(found.values()) == {1.0}


def test_listed_truths_are_spelt_as_files_have_them(tmp_path: Path) -> None:
    """YAML reads false as a truth, and so does JSON."""
    rows = [("the red car", True), ("the blue car", False)]
    data = read_task(tmp_path, ClassTarget, rows, rows, labels=[False, True])
    assert data.target.classes == ["false", "true"] and data.train.labels.tolist() == [1, 0]
    words = {False: "no", True: "yes"}
    prompted = PromptTarget(template="{text} [MASK]", words=words)  # type: ignore[arg-type]
    assert list(prompted.classes) == ["false", "true"]


def test_a_positive_label_is_one_of_the_classes() -> None:
    target = ClassTarget(positive_label="yes", metrics=["f1"])
    assert target.with_classes(["no", "yes"]).positive_label == "yes"
    with pytest.raises(ValueError, match=r"positive_label=yes is not one of the labels a, b"):
        target.with_classes(["a", "b"])
    with pytest.raises(ValueError, match="f1 is of one class, and the labels are a, b"):
        ClassTarget(metrics=["f1"]).with_classes(["a", "b"]).check_scores()


@pytest.mark.parametrize(
    ("unit", "settings"),
    [(TextUnit, TEXTS | {"pairs": "apart", "text_columns": ["a", "b"]}), (VectorUnit, PAIRS)],
    ids=["apart", "joint"],
)
def test_a_unit_reads_pairs_one_way(unit: Any, settings: dict[str, Any]) -> None:
    given = settings | ({"pairs": "joint", "pooling": "mean"} if unit is VectorUnit else {})
    with pytest.raises(ValueError, match=r"task.data.pairs=\w+: this task reads pairs"):
        unit(**given)


UNITS = {
    "TextUnit": TextUnit(**TEXTS),
    "VectorUnit": VectorUnit(pooling="mean", **PAIRS),
    "no labels": VectorUnit(pooling="mean", train_columns=["first", "second"], **PAIRS),
    "WordUnit": WordUnit(**WORDS),
    "FeatureUnit": FeatureUnit(features="last", **WORDS),
    "PassageUnit": PassageUnit(with_unanswerable=False, doc_stride=8, max_query_length=8),
}
CONTRAST = {
    "temperature": 0.05,
    "dropout": None,
    "numeric_labels": True,
    "metrics": ["spearman"],
    "number_range": None,
    "labels": None,
    "positive_label": None,
}
TARGETS: dict[Target, list[str]] = {
    ClassTarget(): ["TextUnit"],
    NumberTarget(): ["TextUnit"],
    SeveralClassesTarget(): ["TextUnit"],
    VectorClassTarget(): ["VectorUnit"],
    CosineTarget(): ["VectorUnit"],
    ContrastTarget(**CONTRAST): ["no labels"],
    TagTarget(entity_tags=False): ["WordUnit", "FeatureUnit"],
    TokenNumberTarget(missing="_"): ["WordUnit", "FeatureUnit"],
    SpanTarget(n_best_size=20, max_answer_length=30, with_unanswerable=False): ["PassageUnit"],
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_a_target_names_the_units_that_fit(target: Target) -> None:
    """Each unit that does not fit is refused; the sentence names those that do, or the setting."""
    for name, unit in UNITS.items():
        if name in TARGETS[target]:
            unit.check_target(target)
            continue
        fitting = f"cannot predict from task.unit .*: take {' or '.join(target.units)} as the unit"
        with pytest.raises(ValueError, match=rf"{fitting}|task\.data\.train_columns"):
            unit.check_target(target)


def test_units_and_targets_of_ones_own_are_free_until_they_say_otherwise() -> None:
    class OwnUnit(TextUnit):
        kind = ""

    class OwnTarget(NumberTarget):
        units = ()

    OwnUnit(**TEXTS).check_target(TagTarget(entity_tags=False))
    UNITS["WordUnit"].check_target(OwnTarget())


def test_numbers_are_not_called_probabilities() -> None:
    """A model's folder would have a label for them."""
    with pytest.raises(TypeError, match="OwnNumbers predicts numbers: its problem_type is"):
        type("OwnNumbers", (TagTarget,), {"predicts_numbers": True})


def lengths_in_batches(unit: Unit[Any]) -> set[int]:
    """How many different lengths a batch holds, of examples of two lengths."""
    lengths = np.array([9] * 32 + [3] * 32)
    sequences: Any = SimpleNamespace(lengths=lengths)
    batches = unit.draw_batches(sequences, slice(0, 64), batch_size=8, seed=1, epoch=0)
    return {len(set(lengths[batch])) for batch in batches}


def test_texts_without_labels_share_no_batch_by_their_length() -> None:
    unit = TextUnit(**TEXTS)
    assert lengths_in_batches(unit) == {1}
    unit.has_training_labels = False
    assert 2 in lengths_in_batches(unit)


def test_examples_that_are_compared_share_no_batch_by_their_length(tmp_path: Path) -> None:
    """With labels, too, as in supervised contrastive learning."""
    compares = type("OwnTarget", (ClassTarget,), {"compares_examples": True})
    rows = [("the red car", "yes"), ("the blue car", "no")]
    assert lengths_in_batches(read_task(tmp_path, ClassTarget, rows, rows).unit) == {1}
    assert 2 in lengths_in_batches(read_task(tmp_path, compares, rows, rows).unit)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["task=stsb_siamese", "task.target._target_=clozelab.tasks.classes.class_or_number"],
            "NumberTarget cannot predict from task.unit VectorUnit: take TextUnit as the unit",
        ),
        (
            ["task=stsb_siamese", "+task.data.train_columns=[sentence1,sentence2]"],
            "CosineTarget learns from labels, .*: leave train_columns out",
        ),
        (["task=stsb_simcse", "task.data.train_columns=null"], "ContrastTarget .*: name their col"),
        (
            [
                "task=pairs",
                "task.data.train_file=pairs.csv",
                "task.data.mined_negatives=2",
                "adaptation=lora",
                "adaptation.adapter=FOLDER",
            ],
            "mined_negatives=2 are mined by encoder=, which lacks adaptation.adapter=FOLDER",
        ),
        (
            [
                "task=own",
                "task.data.train_file=mine.tsv",
                "task.module.metrics=[f1,macro_f1]",
                "task.metric=validation/macro_f1",
                "+task.data.extra_validation_files.macro=other.tsv",
            ],
            "extra_validation_files.macro: its f1 would be called macro_f1, as another score",
        ),
    ],
)
def test_a_fine_tuning_refuses_what_its_parts_cannot_do_before_it_reads(
    words: list[str], message: str
) -> None:
    config: Any = composed("finetune", [*words, "encoder=none", "row=mine"]).config
    with pytest.raises(ValueError, match=message):
        check_finetuning(config)


def test_a_data_module_refuses_a_wrong_pair_before_it_reads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TokenNumberTarget cannot .*\.unit TextUnit"):
        read_task(tmp_path, TokenNumberTarget, [("a", "1")], [("a", "1")], missing="_")


@pytest.mark.parametrize("task", sorted(path.stem for path in (CONF_DIR / "task").glob("*.yaml")))
def test_every_task_is_a_pair_that_fits(task: str) -> None:
    settings = composed("finetune", [f"task={task}", "encoder=none", "row=mine"]).values["task"]
    unit, target = build_parts(settings)
    assert unit.kind in target.units
    unit.check_target(target)


@pytest.mark.parametrize("address", ["own_package.unit.Own", "own_module.Own"])
def test_files_are_read_anew_once_the_code_of_ones_own_unit_changes(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a package any file counts, since the unit may import it."""
    *folders, name, _ = address.split(".")
    file = tmp_path.joinpath(*folders, f"{name}.py")
    file.parent.mkdir(exist_ok=True)
    helper = file.with_name("helper.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(PERMITTED, address.partition(".")[0])
    target = {"_target_": "clozelab.tasks.classes.class_or_number"}
    codes = []
    for size, of_helper in ((1, 1), (2, 1), (2, 2)):
        file.write_text(f"class Own:\n    size = {size}\n")
        helper.write_text(f"SIZE = {of_helper}\n")
        own_code.cache_clear()  # as of the next process
        codes.append(task_code({"unit": {"_target_": address}, "target": target}))
    assert codes[0] != codes[1]
    assert (codes[1] != codes[2]) == bool(folders)


def test_labels_of_ones_own_target_are_encoded_anew_once_a_setting_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `reading` may be silent of a setting that `encode` uses."""
    (tmp_path / "own_cut.py").write_text("class Cut: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(PERMITTED, "own_cut")
    for target, is_own in (("own_cut.Cut", True), ("clozelab.tasks.ordinal.OrdinalTarget", False)):
        codes = set()
        for cut, bins in ((1, 2), (3, 2), (3, 4)):
            task = {
                "unit": {"_target_": "clozelab.tasks.texts.TextUnit"},
                "target": {"_target_": target, "cut": cut},
                "data": {"bins": bins},
            }
            codes.add(task_code(task))
        assert len(codes) == (3 if is_own else 1)
