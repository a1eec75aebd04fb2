"""`text=FOLDER` on a command line: the short word for a text of one's own.

It changes nothing that a run is known by: `text=FOLDER` is `corpus=scale_own
corpus.sources.0.path=FOLDER` for whatever pre-trains, at any scale. An evaluation measures on that
text: `measure.data.sources=[{name: text, path: FOLDER}]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from clozelab.text.did_you_mean import key_of
from clozelab.text.plain import hydra_text

OWN_TEXT = "text="
OWN_CORPUS = "scale_own"
# choices of conf/corpus whose one source is a text of the user's
CORPORA = (OWN_CORPUS, "text")
# Keys that name the text, too; corpus.sources.0.text_field= may stand beside `text=`.
CORPUS_PATHS = ("corpus.sources", "corpus.sources.0", "corpus.sources.0.path")
MEASURE_SOURCES = "measure.data.sources"
# how Hydra refuses a choice of corpus for a stage that has none
NO_CORPUS = "Could not override 'corpus'"


def has_own_text(overrides: Sequence[str]) -> bool:
    """Whether `text=` is among some overrides."""
    return any(word.startswith(OWN_TEXT) for word in overrides)


def without_own_text(overrides: Sequence[str]) -> list[str]:
    """Return the overrides beside `text=`."""
    return [word for word in overrides if not word.startswith(OWN_TEXT)]


def with_corpus(overrides: Sequence[str]) -> list[str]:
    """Return overrides in which `text=FOLDER` is spelt out for a stage that has a corpus.

    ValueError where it names nothing, or where another override names a text, too.
    """
    word, path = _own_text(overrides)
    remaining = without_own_text(overrides)
    has_corpus = False
    for override in remaining:
        key = key_of(override)
        is_own = key == "corpus" and override.partition("=")[2] in CORPORA
        if key in CORPUS_PATHS or (key == "corpus" and not is_own):
            raise ValueError(f"{word} and {override} name two texts: leave one of them out")
        has_corpus = has_corpus or is_own
    if not has_corpus:
        remaining.append(f"corpus={OWN_CORPUS}")
    return [*remaining, f"corpus.sources.0.path={path}"]


def with_measured_text(overrides: Sequence[str], composed: DictConfig) -> list[str]:
    """Return overrides in which `text=FOLDER` is spelt out for an evaluation.

    Args:
        overrides: with `text=`.
        composed: the configuration without it.

    Raises:
        ValueError: the stage, or its measure, reads no text of the user's; or another override
            names a text, too.
    """
    word, path = _own_text(overrides)
    if "measure" not in composed:
        raise ValueError(
            f"{word} is for what reads a corpus: prepare, pretrain, evaluate, and experiments that"
            f" pre-train. {composed.hydra.job.name} reads none"
        )
    data = OmegaConf.select(composed, "measure.data")
    if data is None or "sources" not in data:
        raise ValueError(
            f"{word}: the measure {composed.measure.name} reads no text of yours;"
            " measure=held_out_text and measure=cloze_by_side do"
        )
    remaining = without_own_text(overrides)
    for override in remaining:
        if key_of(override).startswith(MEASURE_SOURCES):
            raise ValueError(f"{word} and {override} name two texts: leave one of them out")
    return [*remaining, f"{MEASURE_SOURCES}=[{{name: text, path: {path}}}]"]


def _own_text(overrides: Sequence[str]) -> tuple[str, str]:
    """The last `text=FOLDER` of some overrides, and the folder in Hydra's grammar.

    One that is in quotes stays as it is, and so does a list for a sweep: `text=a,b`.
    """
    word = [override for override in overrides if override.startswith(OWN_TEXT)][-1]
    path = word.removeprefix(OWN_TEXT)
    if not path.strip("'\" "):
        raise ValueError(f"{word} names nothing: say text=FOLDER, a file or a glob")
    if path[0] in "'\"" or "," in path:
        return word, path
    return word, hydra_text(path)
