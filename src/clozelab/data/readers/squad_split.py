"""One split of SQuAD, tokenised: from the JSON file through the cache to windows, texts only where they are needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from clozelab.data.checksums import file_sha256
from clozelab.data.readers.cache import Arrays, Facts, cached_arrays, content_key
from clozelab.data.readers.labelled import subset
from clozelab.data.readers.squad import SquadExamples, read_squad
from clozelab.data.readers.squad_features import SquadFeatures, WindowSettings, build_features
from clozelab.data.tokenizer import WordPieceTokenizer

FORMAT_VERSION = 2
"""Raised when this code makes other windows of the same file: older cache folders are then not found."""
MAX_UNUSABLE_FRACTION = 0.1
"""More questions without a usable answer than this: another data set (2.0, say), not dirt."""


@dataclass(frozen=True)
class SquadSplit:
    """`examples` is None for training, where no text is needed any more."""

    features: SquadFeatures
    examples: SquadExamples | None
    num_questions: int
    num_available: int
    counts: dict[str, int]

    def require_examples(self) -> SquadExamples:
        """The texts of a split that was loaded for scoring."""
        assert self.examples is not None, "this split was loaded for training"
        return self.examples


def load_squad(
    path: Path,
    tokenizer: WordPieceTokenizer,
    settings: WindowSettings,
    *,
    name: str,
    cache_dir: Path,
    for_training: bool,
    max_examples: int | None,
    with_unanswerable: bool = False,
    for_prediction: bool = False,
) -> SquadSplit:
    """One split, its windows from the cache if they were made before; `with_unanswerable` for 2.0.

    `for_prediction`: the file may come without answers.
    """
    key = {
        "version": FORMAT_VERSION,
        "file": file_sha256(path),
        "settings": asdict(settings),
        "tokenizer": tokenizer.fingerprint,
        "for_training": for_training,
        "max_examples": max_examples,
        "with_unanswerable": with_unanswerable,
    }
    loaded: list[SquadExamples] = []

    def read() -> SquadExamples:
        examples = read_squad(path, for_training=for_training, with_unanswerable=with_unanswerable)
        if not for_prediction:
            _refuse_other_data(path, examples, with_unanswerable)
        loaded.append(examples.select(subset(len(examples), max_examples)))
        return examples

    def build() -> tuple[Arrays, Facts]:
        available = len(read())
        features, counts = build_features(loaded[0], tokenizer, settings)
        total = Counter(loaded[0].counts) + counts
        facts = {"num_questions": len(loaded[0]), "num_available": available, "counts": dict(total)}
        return features.to_arrays(), facts

    arrays, facts = cached_arrays(cache_dir / "tasks" / f"{name}-{content_key(key)}", build)
    if not for_training and not loaded:
        read()
    return SquadSplit(SquadFeatures.from_arrays(arrays), None if for_training else loaded[0], **facts)


def _refuse_other_data(path: Path, examples: SquadExamples, with_unanswerable: bool) -> None:
    unanswerable = 0 if with_unanswerable else examples.counts["question_without_answer"]
    unusable = unanswerable + examples.counts["answer_not_in_passage"]
    if unusable > MAX_UNUSABLE_FRACTION * (len(examples) + unusable):
        raise ValueError(
            f"{path}: {unusable} questions have no answer inside their passage ({dict(examples.counts)}); "
            + ("another data set?" if with_unanswerable else "this task needs SQuAD 1.1, where every question has one")
        )
