"""Labelled examples: read, cached and held out.

What examples are and what is predicted of them is said by a unit and a target (tasks/). The data
module that makes batches of them is in finetuning.py: who only reads them, such as a plan, need not
wait for Lightning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.encoding import MAX_UNKNOWN_SHARE, refuse_unknown
from clozelab.corpus.generated import generator_of
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules import files
from clozelab.files.digests import file_sha256
from clozelab.readers.tables import table_format
from clozelab.tasks.baselines import Scores
from clozelab.tasks.cache import (
    Arrays,
    Facts,
    cached_arrays,
    cached_folder,
    collected_warnings,
    content_key,
    fingerprint_of,
)
from clozelab.tasks.preview import Preview, TaskPreview
from clozelab.tasks.sequences import Sequences, balanced_subset, subset
from clozelab.tasks.splitting import Fold, HeldOut, Overlap
from clozelab.tasks.target import Target
from clozelab.tasks.unit import BatchContext, EncoderSource, Split, SplitSource, Unit
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)

# what the cache holds of each row of a file; "swapped_hashes" of pairs alone, and "group_hashes"
# with a `group_column`
ROW_ARRAYS = ("row_hashes", "row_lines", "swapped_hashes", "group_hashes")
SAMPLED_SEQUENCES = 2000  # of a split, evenly spread, in which [UNK] are counted
FEW_HELD_OUT = 10  # of fewer examples each is ten points of a score
CUTS = {  # counts of a split that mean lost text, in words
    "truncated_sequences": "sequences are longer than max_seq_length={max_seq_length} and were cut",
    "truncated_tokens": "tokens were lost with them",
    "questions_cut": "questions are longer than max_query_length and were cut",
    "empty_texts": "texts are empty",
    "cut_words": "words are longer than a sequence and were cut",
}


@dataclass(frozen=True)
class TaskInputs:
    """What a task's data is made from beside its settings.

    The encoder takes sequences of up to `max_positions`.
    """

    name: str
    data_dir: Path
    cache_dir: Path
    tokenizer: Tokenizer
    max_positions: int
    encoder: EncoderSource | None = None  # only what computes features needs it
    max_unknown_share: float = MAX_UNKNOWN_SHARE  # of [UNK] in a split
    # hash of the code that reads it: what other code has put into the cache is built anew
    code: str = ""
    # of a fine-tuned model: its classes, whatever the files have
    label_names: Sequence[str] | None = None
    corpus: str | None = None  # fingerprint of the prepared corpus that the encoder was trained on
    predicts_next: bool = False  # EncoderConfig's
    seed: int = 0  # says which of `validation_folds` is this run's (`sampling_seed`)


@dataclass(frozen=True)
class TrainingPlan:
    """How long and on how much training goes."""

    global_batch_size: int
    epochs: float
    evaluations_per_epoch: int
    max_train_examples: int | None  # of each training file
    seed: int
    num_workers: int
    # of the draw of the training examples, as many of each class; None: one draw for all runs
    sample_seed: int | None = None


class LabelledData:
    """Labelled examples of any unit and target: read, cached and held out.

    Files are named below data_dir; `how_to_get` is said where one is missing. Without a validation
    file `validation_fraction` of the training file is held out, drawn by `validation_seed`; or one
    of `validation_folds`, the one of `seed`.
    `max_seq_length` is cut to what the encoder takes, evaluation batches are cut to
    `evaluation_tokens`. After `setup` the target knows its classes.

    Args:
        extra_validation_files: name -> a further validation file, scored beside the first.
        test_files: name -> a file that is read only to be predicted.
        train_extra: further training files, gone through once before the others. The schedule of
            learning rates covers them too.
    """

    train: Split  # of the same kind as `validation`
    train_sequences: Sequences
    train_targets: dict[str, np.ndarray]
    validation: Split  # with further validation splits as its `extra`
    validation_sequences: Sequences
    extra: list[Split]  # of `train_extra`

    def __init__(
        self,
        *,
        inputs: TaskInputs,
        plan: TrainingPlan,
        unit: Unit,
        target: Target,
        train_file: str,
        validation_file: str | None,
        validation_fraction: float,
        validation_seed: int,
        test_files: Mapping[str, str] | None,
        how_to_get: str,
        max_seq_length: int,
        evaluation_tokens: int,
        extra_validation_files: Mapping[str, str] | None = None,
        train_extra: list[str] | None = None,
        validation_folds: int | None = None,
    ) -> None:
        super().__init__()
        unit.check_target(target)
        unit.check_files(train_extra, extra_validation_files)
        self.inputs = inputs
        self.plan = plan
        # Training and validation files are looked for at once: a missing one is refused before
        # anything is read.
        self.require = partial(
            files.require_file,
            inputs.data_dir,
            how_to_get=how_to_get,
            is_folder=unit.reads_folders,
        )
        self.asked_seq_length = max_seq_length
        self.max_seq_length = min(max_seq_length, inputs.max_positions)
        self.evaluation_tokens = evaluation_tokens
        self.test_files = dict(test_files or {})
        if train_file is None:
            raise ValueError("task.data.train_file is null: name the file to train on")
        self.train_path = self.require(train_file)
        self.held_out: HeldOut | Fold | None = None
        if validation_file is None:
            self.held_out = HeldOut(validation_fraction, validation_seed)
            if validation_folds is not None:
                number = inputs.seed % max(1, validation_folds)
                self.held_out = Fold(validation_folds, validation_seed, number)
            self.validation_path = self.train_path
        elif validation_folds is not None:
            raise ValueError(
                f"task.data.validation_folds={validation_folds} is for a task without a validation"
                f" file, and this one has {validation_file}: leave one of them out"
            )
        else:
            self.validation_path = self.require(validation_file)
        # None where the task's format knows no such files
        self.extra_validation_paths: dict[str, Path] | None = None
        if extra_validation_files is not None:
            self.extra_validation_paths = {
                name: self.require(file) for name, file in extra_validation_files.items()
            }
        self.train_extra_paths: list[Path] | None = None
        if train_extra is not None:
            self.train_extra_paths = [self.require(file) for file in train_extra]
        self.unit = self._fitted(unit, target)
        # The classes of a fine-tuned model go before those of the configuration.
        if inputs.label_names is not None:
            target = target.of_model(inputs.label_names)
        self.target = target
        # (role, file) -> hashes and lines of its rows
        self._rows: dict[tuple[str, Path], Arrays] = {}
        # of a file of which a part is held out: role -> its rows
        self._numbers_of_role: dict[str, NDArray[np.int64]] = {}
        self.unknown_shares: dict[str, float] = {}  # of [UNK] in the splits that were read

    def _fitted(self, unit: Unit, target: Target) -> Unit:
        """The unit for this length and this target."""
        # The encoder may take shorter sequences than the task says.
        fitted = unit.fitted(self.max_seq_length, self.inputs.name)
        if target.compares_examples and fitted.groups_by_length is None:
            fitted.groups_by_length = False
        return fitted

    # Fingerprints

    def config_to_save(self) -> PlainDict:
        """What a model's folder is told of how its texts were read, called as the settings are."""
        return self.unit.config_to_save() | self.target.config_to_save()

    @cached_property
    def reading(self) -> PlainDict:
        """How the two files are read, and the content of all others that are read with them."""
        reading = self.unit.reading(self.target) | self.target.reading()
        if self.extra_validation_paths is not None:
            checksums = {}
            for name, path in self.extra_validation_paths.items():
                checksums[name] = file_sha256(path)
            reading["extra_validation"] = checksums
        if self.train_extra_paths is not None:
            reading["train_extra"] = [file_sha256(path) for path in self.train_extra_paths]
        return reading

    @property
    def tokenization(self) -> PlainDict:
        """What the encoder adds: the other part of what the sequences are made from."""
        tokenizer = self.inputs.tokenizer
        tokenization: PlainDict = {
            "tokenizer": tokenizer.fingerprint,
            "max_seq_length": self.max_seq_length,
        }
        if not tokenizer.has_token_types:
            tokenization["token_types"] = 1
        return tokenization | self.unit.tokenization()

    @cached_property
    def fingerprint(self) -> str:
        """Names everything the sequences are made from; cheap."""
        return fingerprint_of({"sources": self.source_fingerprint, **self.tokenization})

    @cached_property
    def source_fingerprint(self) -> str:
        """Names the files' content and how it is read.

        Where it is equal, runs of different encoders are comparable.
        """
        checksums = [file_sha256(path) for path in (self.train_path, self.validation_path)]
        held_out = self._holding_out
        for split in held_out.values():
            split.pop("number", None)  # every fold is of the same data
        return fingerprint_of({"files": checksums, **self.reading, **held_out})

    @property
    def _holding_out(self) -> dict[str, PlainDict]:
        """How validation is held out; nothing where it has a file."""
        if self.held_out is None:
            return {}
        holding_out = asdict(self.held_out)
        if self.unit.group_column is not None:
            holding_out["group_column"] = self.unit.group_column
        return {"held_out": holding_out}

    @property
    def held_out_settings(self) -> PlainDict | None:
        """The settings that say which rows are held out; None where validation has a file."""
        if self.held_out is None:
            return None
        settings: PlainDict = dict(self.held_out.draw)
        if self.unit.group_column is not None:
            settings["group_column"] = self.unit.group_column
        return settings

    # Examples

    @property
    def train_paths(self) -> list[Path]:
        """All training files, the main one first."""
        return [self.train_path, *(self.train_extra_paths or ())]

    def examples(self, path: Path, role: str, *, strict: bool = True) -> Any:
        """The examples of a file that are for a role, with labels as they are predicted.

        Without `strict` labels are taken as they are written, and may be none of the target's.
        """
        examples = self.unit.read(path, role, self.target, strict=strict)
        held_out = self.held_out
        if held_out is None or self.unit.has_folds:
            return examples
        if role == "test" or path != self.train_path:
            return examples
        # The file is divided once, by the rows and texts that validation reads of it.
        if not self._numbers_of_role:
            rows = examples
            if role == "training" and self.unit.training_differs:
                rows = self.unit.read(path, "validation", self.target, strict=strict)
            self._numbers_of_role = self._divide(rows, held_out)
        rows_of_role = np.flatnonzero(np.isin(examples.numbers, self._numbers_of_role[role]))
        if not len(rows_of_role):
            raise ValueError(
                f"{path}: none of its {len(examples)} rows is left for {role} with"
                f" {held_out.setting}, since {self.unit.grouping}: take another number, or"
                " name a task.data.validation_file"
            )
        return examples.select(rows_of_role.tolist())

    def examples_in_use(self, path: Path, role: str) -> Any:
        """The same, as many as the plan allows."""
        return self._in_use(self.examples(path, role), role)

    def _in_use(self, examples: Any, role: str) -> Any:
        if role != "training" or self.plan.sample_seed is None:
            return examples.select(subset(len(examples), self.limit(role)))
        classes = self.unit.strata(examples, self.target)
        return examples.select(
            balanced_subset(len(examples), self.limit(role), self.plan.sample_seed, classes)
        )

    def _divide(self, examples: Any, held_out: HeldOut | Fold) -> dict[str, NDArray[np.int64]]:
        """Role -> the numbers of the file's rows that are for it."""
        groups = self.unit.groups(examples)
        strata = self.unit.strata(examples, self.target)
        if strata is None:
            # A group is drawn as a whole: its rows would tell each other's labels.
            is_held_out = held_out.drawn(groups)
        elif self.unit.group_column is not None:
            is_held_out = held_out.balanced(groups, strata)
        else:
            is_held_out = held_out.stratified(groups, strata)
        numbers = np.array(examples.numbers)
        return {"training": numbers[~is_held_out], "validation": numbers[is_held_out]}

    @property
    def overlap(self) -> Overlap:
        """How many validation rows stand in training, after `setup`."""
        return self._overlap(self.validation_path, self.train_paths)

    def _overlap(self, path: Path, train_paths: Sequence[Path]) -> Overlap:
        """How many rows of a validation file stand in any of these training files."""
        train = [self._rows["training", train_path]["row_hashes"] for train_path in train_paths]
        rows = self._rows["validation", path]
        return Overlap.between(
            np.concatenate(train), rows["row_hashes"], rows.get("swapped_hashes")
        )

    def refuse_overlap(self, *, allowed: bool) -> None:
        """Warn of validation rows that stand in training; ValueError where all of a file do.

        ValueError also where any of those do that are held out of the training file. Unless that
        is `allowed`.
        """
        if allowed:
            return
        if self.held_out is not None and not self.unit.divides_equal_rows:
            within = self._overlap(self.train_path, [self.train_path])
            if within.num_seen:
                raise ValueError(
                    f"{self._described(within, self.train_path)}, which is the same file: training"
                    " reads other columns of it, so name a task.data.validation_file"
                )
        paths = {"validation_file": self.validation_path}
        for name, path in (self.extra_validation_paths or {}).items():
            paths[f"extra_validation_files.{name}"] = path
        for key, path in paths.items():
            self._refuse_shared_groups(path)
            self._refuse_large(self._overlap(path, self.train_paths), key, path)

    def _refuse_shared_groups(self, path: Path) -> None:
        """ValueError where rows of a validation file are of a group that is trained on."""
        rows = self._rows["validation", path]
        if "group_hashes" not in rows:
            return
        train = [self._rows["training", file]["group_hashes"] for file in self.train_paths]
        shared = Overlap.between(np.concatenate(train), rows["group_hashes"])
        if not shared.num_seen:
            return
        first = f"{self.unit.row_noun} {rows['row_lines'][shared.validation_row]}"
        raise ValueError(
            f"{shared.num_seen} of {shared.num_rows} rows of {path} have a"
            f" {self.unit.group_column} that is also in training (the first: {first}): remove"
            " these rows from one of the files, or say task.data.group_column=null"
        )

    def _refuse_large(self, overlap: Overlap, key: str, path: Path) -> None:
        if not overlap.is_large:
            return
        problem = self._described(overlap, path)
        if overlap.num_seen == overlap.num_rows:
            raise ValueError(
                f"{problem}, so a score would be one on training data: name another"
                f" task.data.{key} (task.data.validation_file=null holds out a part of the training"
                " file), or say allow_validation_in_training=true"
            )
        log.warning(
            "%s, so scores are higher than on new texts: remove them from one of your files"
            " (benchmarks have some); allow_validation_in_training=true silences this",
            problem,
        )

    def _described(self, overlap: Overlap, path: Path) -> str:
        """How many rows of a validation file stand in training, and where the first one does."""
        noun = self.unit.row_noun
        validation_line = self._rows["validation", path]["row_lines"][overlap.validation_row]
        training_row = overlap.training_row
        for train_path in self.train_paths:
            lines = self._rows["training", train_path]["row_lines"]
            if training_row < len(lines):
                break
            training_row -= len(lines)
        in_order = ""
        if overlap.num_swapped:
            in_order = f", {overlap.num_swapped} of them also in swapped order"
        return (
            f"{overlap.num_seen} of {overlap.num_rows} rows of {path} stand in the training file"
            f" {train_path}{in_order} (the first: {noun} {validation_line} is {noun}"
            f" {lines[training_row]} of training)"
        )

    @cached_property
    def synthetic(self) -> str | None:
        """Name of the generator that wrote these files in a real benchmark's format.

        It is None for real ones.
        """
        return generator_of(self.inputs.data_dir, (self.train_path, self.validation_path))

    @cached_property
    def baselines(self) -> Scores:
        """What simple methods score on the validation split.

        A list beside it says so; else they learn from the training examples and are scored.
        """
        listed = files.baselines_of(self.inputs.data_dir, self.validation_path)
        if listed:
            return listed
        # Another code, other files, examples or scores: another key.
        content = {
            "code": self.inputs.code,
            "sources": self.source_fingerprint,
            "max_examples": self._sample("training"),
            "target": self.target.config_to_save(),
            "metrics": [metric.name for metric in self.target.metrics],
        }
        if isinstance(self.held_out, Fold):
            content["fold"] = self.held_out.number
        key = content_key(content)
        folder = self.inputs.cache_dir / "baselines" / f"{self.inputs.name}-{key}"
        facts = cached_folder(folder, lambda _: {"scores": self.compute_baselines()})
        return facts["scores"]

    def compute_baselines(self) -> Scores:
        """The same, from the training examples that the plan allows.

        `setup` has run before, so the files are sound.
        """
        train_paths = [*(self.train_extra_paths or ()), self.train_path]
        train = [self.examples_in_use(path, "training") for path in train_paths]
        validation = {"": self.examples(self.validation_path, "validation")}
        for name, path in (self.extra_validation_paths or {}).items():
            validation[name] = self.examples(path, "validation")
        return self.target.baselines(self.unit.joined(train), validation)

    @property
    def facts(self) -> PlainDict:
        """Counts worth keeping with a run: examples, skipped rows, cut lengths."""
        num_token_types = 1
        if self.inputs.tokenizer.has_token_types:
            num_token_types = 2
        facts: PlainDict = {
            "max_seq_length": self.max_seq_length,
            "train_examples_available": self.train.num_available,
            "unknown_shares": self.unknown_shares,
            "token_types": num_token_types,
            "bad_rows": sum(self._bad_rows.values()),
        }
        facts |= self._holding_out
        facts["validation_in_training"] = self.overlap.num_seen
        for name, split in (("train", self.train), ("validation", self.validation)):
            facts[f"{name}_examples"] = len(split)
            facts[f"{name}_counts"] = split.counts
        return facts | self.unit.facts

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002
        """Read and tokenise both splits; does nothing the second time."""
        if hasattr(self, "train"):
            return
        self.read_splits()
        for path, num_bad_rows in self._bad_rows.items():
            if num_bad_rows:  # a score is over the others
                log.warning(
                    "%s: %d damaged row(s) of %s left out", self.inputs.name, num_bad_rows, path
                )
        for name, _, split in self.splits():
            self._warn_of_lost_text(name, split)
        train = self.train
        if self.held_out is not None:
            log.info(
                "%s has no validation file: %s of the rows of %s are held out (validation_seed=%d);"
                " %s",
                self.inputs.name,
                self.held_out.share,
                self.train_path,
                self.held_out.seed,
                self.unit.grouping,
            )
        self._warn_of_few(len(self.validation))
        reason = ""
        if self.max_seq_length < self.asked_seq_length:
            reason = (
                f", as the encoder takes no longer ones (max_seq_length={self.asked_seq_length})"
            )
        log.info(
            "%s: %d of %d training examples and %d of validation, of at most %d tokens%s",
            self.inputs.name,
            len(train),
            train.num_available,
            len(self.validation),
            self.max_seq_length,
            reason,
        )
        for path, extra in zip(self.train_extra_paths or (), self.extra, strict=True):
            log.info(
                "%s: beside them %d of %d training examples of %s, gone through once before",
                self.inputs.name,
                len(extra),
                extra.num_available,
                path,
            )

    def read_splits(self) -> None:
        """Fill `train`, `validation`, their sequences and targets."""
        self.target = self.target.fitted(self.inputs.tokenizer)
        # Training first: it tells the target the classes that all other splits are read with.
        self.train = self._load(self.train_path, "training")
        self.target.check_training(self.train_path, self.train, self.unit.column_key)
        extra_validation = {}
        for name, path in (self.extra_validation_paths or {}).items():
            extra_validation[name] = self._load(path, "validation")
        validation = self._load(self.validation_path, "validation")
        self.validation = replace(validation, extra=extra_validation)
        self.extra = [self._load(path, "training") for path in self.train_extra_paths or ()]
        both = [(self.train_path, self.train), (self.validation_path, self.validation)]
        self.target.check_splits(both, self.inputs.tokenizer)
        self.unit.check_splits(both, self.inputs.name)
        # The sequences of `train_extra` come first: see `FinetuningDataModule.num_first_sequences`.
        training_splits = [*self.extra, self.train]
        batch_context = self._batch_context()
        self.train_sequences = self.unit.batched(training_splits, "training", batch_context)
        self.train_targets = self.unit.targets(training_splits)
        if self.extra and "labels" in self.train_targets:
            self.target.learn_shares(self.train_targets["labels"])
        validation_splits = [self.validation, *extra_validation.values()]
        self.validation_sequences = self.unit.batched(
            validation_splits, "validation", batch_context
        )

    def _batch_context(self) -> BatchContext:
        encoder = self.inputs.encoder
        if encoder is not None:
            # once for all splits, never where they are stored
            encoder = replace(encoder, load=cache(encoder.load))
        return BatchContext(
            self.inputs.name, self.inputs.cache_dir, self.evaluation_tokens, encoder
        )

    def _load(self, path: Path, role: str) -> Split:
        """One split. That of the training file tells the target its classes."""
        # The file is read at most once: for what is not in the cache, and for its texts.
        read = cache(partial(self.examples, path, role))
        arrays, facts, key = self.cached(path, role, partial(self._encode, read))
        if role == "training":
            self.target = self.target.with_classes(facts["names"])
        del facts["names"]
        read_anew = partial(self.examples_in_use, path, role)
        source = SplitSource(path, role, key, lambda: self._in_use(read(), role), read_anew)
        return self.unit.split(arrays, facts, source)

    def _encode(self, read: Callable[[], Any], path: Path, role: str) -> tuple[Arrays, Facts]:
        """What the cache holds of one split."""
        examples = read()
        # The classes are those of all examples, also of those that the plan leaves out.
        used = self._in_use(examples, role)
        names = list(self.target.classes_of(self.unit.label_pool(examples)))
        arrays, counts = self.unit.encode(used, self.inputs.tokenizer)
        arrays["ids"] = np.array(used.ids, dtype=np.str_)
        arrays["labels"] = self.unit.labels(used, self.target.with_classes(names), path)
        facts: Facts = {
            "names": names,
            "num_available": len(examples),
            "num_bad_rows": examples.num_bad_rows,
            "counts": counts,
        }
        return arrays | self.unit.row_arrays(examples), facts

    def refuse_outside(self) -> None:
        """ValueError, with file and line, for a label that cannot be."""
        for _, path, split in self.splits():
            is_outside = self.target.outside(split.labels)
            if is_outside is None or not is_outside.any():
                continue
            # An error names the line, which only reading the file again can tell.
            is_trained = any(split is one for one in (self.train, *self.extra))
            role = "training" if is_trained else "validation"
            examples = self.examples_in_use(path, role)
            place = int(is_outside.argmax())
            problem = self.target.refuse_outside(self.unit.flat_labels(examples)[place])
            raise ValueError(f"{path}:{self.unit.line_of(examples, place)}: {problem}")

    def splits(self) -> list[tuple[str, Path, Split]]:
        """(name, file, split) of all training and validation files."""
        splits = [
            ("training", self.train_path, self.train),
            ("validation", self.validation_path, self.validation),
        ]
        for name, path in (self.extra_validation_paths or {}).items():
            splits.append((name, path, self.validation.extra[name]))
        for path, split in zip(self.train_extra_paths or (), self.extra, strict=True):
            splits.append((path.name, path, split))
        return splits

    @property
    def _bad_rows(self) -> dict[Path, int]:
        """File -> its damaged rows; once also where validation is held out of the training file."""
        return {path: split.num_bad_rows for _, path, split in self.splits()}

    def limit(self, role: str) -> int | None:
        """How many examples of one file of a split are used; None: all."""
        if role == "training":
            return self.plan.max_train_examples
        return None

    def _sample(self, role: str) -> int | tuple[int | None, int] | None:
        """Which examples of a split are used, for keys of the cache."""
        if role != "training" or self.plan.sample_seed is None:
            return self.limit(role)
        return self.limit(role), self.plan.sample_seed

    def cached(
        self, path: Path, role: str, build: Callable[[Path, str], tuple[Arrays, Facts]]
    ) -> tuple[Arrays, Facts, str]:
        """What `build(path, role)` gives of one file, built once, and its key.

        The `role` is training, validation or test. The key is of the file, how it is read, what the
        encoder adds, how many examples are used, and the target's classes.
        """
        of_file = {
            "file": file_sha256(path),
            "reading": self.reading,
            "role": role,
            "role_reading": self.unit.role_reading(role),
        }
        # What the name of a file says is read otherwise under another name.
        if table_format(path) == "csv":
            of_file["format"] = "csv"
        of_examples = {
            "code": self.inputs.code,
            "names": list(self.target.classes),
            "max_examples": self._sample(role),
        }
        # Any other value of these would give other arrays, so it has another folder of the cache.
        key = content_key(of_file | of_examples | self._holding_out | self.tokenization)
        folder = self.inputs.cache_dir / "tasks" / f"{self.inputs.name}-{key}"
        arrays, facts = cached_arrays(folder, path, partial(build, path, role))
        self._rows[role, path] = {name: arrays[name] for name in ROW_ARRAYS if name in arrays}
        return arrays, facts, key

    def preview(self) -> TaskPreview:
        """Texts and labels of both splits as written, without tokenising."""
        with collected_warnings() as records:
            train = self._preview(self.train_path, "training")
            validation = self._preview(self.validation_path, "validation")
            self._warn_of_few(validation.num_examples)
        # Both may be parts of one file, and warn of the same.
        warnings = list(dict.fromkeys(record.getMessage() for record in records))
        names = self.target.preview_classes(train.labels or ())
        positive_label = None
        if names is not None:
            positive_label = self.target.with_classes(names).positive_label
        preview = TaskPreview(
            train,
            validation,
            label_names=names,
            positive_label=positive_label,
            predicts_numbers=self.target.predicts_numbers,
            one_label_each=self.target.one_label_each,
            aligned=self.unit.aligned,
            pairs_read=self.unit.pairs_read,
            expects_unanswerable=self.unit.expects_unanswerable,
        )
        return replace(preview, template=self.unit.template_texts, warnings=warnings)

    def _preview(self, path: Path, role: str) -> Preview:
        return self.unit.preview(self.examples(path, role, strict=False), self.target)

    def require_test_files(self) -> str:
        """Fingerprint of the test files; ValueError where the task has none or one is missing."""
        paths = self._test_paths()
        return fingerprint_of({name: file_sha256(path) for name, path in paths.items()})

    def load_test(self) -> dict[str, tuple[Sequences, Split]]:
        """The test sets by name, as `read_test` gives them; a damaged row is an error here."""
        test_sets = {name: self.read_test(path) for name, path in self._test_paths().items()}
        # Every row of a test file wants a prediction, so a damaged one is no dirt here.
        for name, (_, split) in test_sets.items():
            self._warn_of_lost_text(name, split)
            if split.num_bad_rows:
                raise ValueError(
                    f"{self.test_files[name]}: {split.num_bad_rows} damaged rows; predictions must"
                    " be made for every row of a test file, so take an undamaged copy"
                )
        return test_sets

    def read_test(self, path: Path) -> tuple[Sequences, Split]:
        """One test file, after `setup`: what batches are made of, and the split itself."""
        split = self._load(path, "test")
        return self.unit.batched([split], "test", self._batch_context()), split

    def _warn_of_few(self, num_held_out: int) -> None:
        """Warn where so little of the training file is held out that a score says nothing."""
        if isinstance(self.held_out, HeldOut) and num_held_out < FEW_HELD_OUT:
            log.warning(
                "%s: a score is over %d example(s), held out of %s, and says little: raise"
                " task.data.validation_fraction, or name a task.data.validation_file",
                self.inputs.name,
                num_held_out,
                self.train_path,
            )

    def _warn_of_lost_text(self, name: str, split: Split) -> None:
        """Warn of text of a split that did not fit, or that is [UNK].

        ValueError where too much is [UNK].
        """
        lost = []
        for key, text in CUTS.items():
            if split.counts.get(key):
                lost.append(f"{split.counts[key]} {text}")
        if lost:
            message = ", ".join(lost).format(max_seq_length=self.max_seq_length)
            log.warning("%s, %s: %s", self.inputs.name, name, message)
        share = self._unknown_share(split.sequences)
        self.unknown_shares[name] = round(share, 4)
        refuse_unknown(
            f"task {self.inputs.name}, {name} file,", share, self.inputs.max_unknown_share
        )

    def _unknown_share(self, sequences: Sequences) -> float:
        """Share of [UNK] among the tokens that are not special, of evenly spread sequences."""
        tokenizer = self.inputs.tokenizer
        num_sampled = min(len(sequences), SAMPLED_SEQUENCES)
        # Evenly spread, since files may be sorted by source or by label.
        sampled = np.linspace(0, len(sequences) - 1, num_sampled).astype(np.int64)
        ids = sequences.gather(sampled)["input_ids"]
        is_special = np.isin(ids, (tokenizer.cls_id, tokenizer.sep_id))
        return float((ids == tokenizer.unk_id).sum() / max(1, (~is_special).sum()))

    def _test_paths(self) -> dict[str, Path]:
        if not self.test_files:
            raise ValueError(
                f"task {self.inputs.name!r} has no test files to predict; name them"
                " (+task.data.test_files.NAME=FILE), or leave predict_test=false"
            )
        return {name: self.require(file) for name, file in self.test_files.items()}
