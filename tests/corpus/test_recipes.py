"""Corpora of conf/corpus that name a public data set, prepared from files of its form."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.composing import composed
from tests.corpus.test_prepare import make_text
from tests.screens import refuses, shows

import clozelab
from clozelab.assembly.corpora import find_corpus, prepared_corpus, require_sources
from clozelab.corpus.files import CorpusCounts, CorpusSource
from clozelab.corpus.shards import PreparedCorpus
from clozelab.corpus.sources import DatasetSource, make_source
from clozelab.stages import list as list_verb
from clozelab.text.paths import CONF_DIR

PAGE = Path(__file__).parents[2] / "docs/corpus-recipes.md"
DOCUMENTS = make_text(60).strip().split("\n\n")
"""Sixty documents of one to four lines, which are sentences."""
BABYLM = ("bnc_spoken", "childes", "gutenberg", "open_subtitles", "simple_wiki", "switchboard")


def rows(**columns: object) -> pandas.DataFrame:
    """The documents as rows of a table, with further columns."""
    return pandas.DataFrame({"text": DOCUMENTS, **columns})


def wikipedia(folder: Path) -> None:
    table = rows(id="12", url="https://en.wikipedia.org/wiki/A", title="A")
    for number, part in enumerate((table[:20], table[20:])):
        part.to_parquet(folder / f"train-{number:05}-of-00041.parquet", index=False)


def wikipedia_dump(folder: Path) -> None:
    for number, name in enumerate(("AA/wiki_00", "AB/wiki_00")):
        articles = []
        for text in DOCUMENTS[number::2]:
            article = {"id": "1", "revid": "2", "url": "u", "title": "A title", "text": text}
            articles.append(json.dumps(article) + "\n")
        (folder / name).parent.mkdir()
        (folder / name).write_text("".join(articles))


def fineweb_edu(folder: Path) -> None:
    table = rows(id="<urn:uuid:1>", dump="CC-MAIN-2024-10", url="u", file_path="s3://x")
    table = table.assign(language="en", language_score=0.9, token_count=12, score=3.1, int_score=3)
    table.to_parquet(folder / "000_00000.parquet", index=False)


def pg19(folder: Path) -> None:
    """Four books of fifteen paragraphs, wrapped at some words a line."""
    for number in range(4):
        paragraphs = []
        for text in DOCUMENTS[number::4]:
            words = text.split()
            lines = [" ".join(words[start : start + 5]) for start in range(0, len(words), 5)]
            paragraphs.append("\n".join(lines))
        (folder / f"{10000 + number}.txt").write_text("\n\n\n".join(paragraphs) + "\n")


def babylm(folder: Path) -> None:
    for number, name in enumerate(BABYLM):
        text = "\n\n".join(DOCUMENTS[10 * number : 10 * number + 10])
        (folder / f"{name}.train").write_text(text)


def c4(folder: Path) -> None:
    lines = rows(timestamp="2019-04-25T12:57:54Z", url="u").to_json(orient="records", lines=True)
    (folder / "c4-train.00000-of-01024.json.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "c4-validation.00000-of-00008.json.gz").write_bytes(b"not read")


def openwebtext(folder: Path) -> None:
    rows().to_parquet(folder / "train-00000-of-00080.parquet", index=False)


RECIPES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "wikipedia": ("wikipedia/20231101.en", wikipedia),
    "wikipedia_dump": ("wikipedia_dump", wikipedia_dump),
    "fineweb_edu": ("fineweb_edu/sample/10BT", fineweb_edu),
    "pg19": ("pg19/train", pg19),
    "babylm_10m": ("babylm/train_10M", babylm),
    "babylm_100m": ("babylm/train_100M", babylm),
    "c4": ("c4/en", c4),
    "openwebtext": ("openwebtext/plain_text", openwebtext),
}
SETTINGS = ("tokenizer.vocab_size=150", "corpus.validation_fraction=0.2")


def words(name: str, tmp_path: Path) -> list[str]:
    folders = [f"data_dir={tmp_path}/data", f"cache_dir={tmp_path}/cache"]
    return [f"corpus={name}", *SETTINGS, *folders]


def test_every_recipe_is_tried_here() -> None:
    named = set()
    for path in (CONF_DIR / "corpus").glob("*.yaml"):
        if "how_to_get:" in path.read_text(encoding="utf-8"):
            named.add(path.stem)
    assert named == {*RECIPES, "fineweb_edu_hub"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_reads_files_of_its_form(tmp_path: Path, name: str) -> None:
    folder, write = RECIPES[name]
    (tmp_path / "data" / folder).mkdir(parents=True)
    write(tmp_path / "data" / folder)
    corpus = prepared_corpus(composed("prepare", words(name, tmp_path)).config)
    sentences = sum(len(document.split("\n")) for document in DOCUMENTS)
    assert corpus.manifest["counts"]["sentences"] == sentences
    assert corpus.manifest["counts"]["rows"] >= (4 if name == "pg19" else 60)
    expected = 4 if name == "pg19" else 60
    assert corpus.manifest["counts"]["documents"] == expected
    if write is babylm:
        assert corpus.train.source_names == BABYLM


@pytest.mark.parametrize("name", RECIPES)
def test_without_its_files_a_recipe_says_how_to_get_them(tmp_path: Path, name: str) -> None:
    config = composed("prepare", words(name, tmp_path)).config
    command = " ".join(config.corpus.how_to_get.split())
    assert f"{tmp_path}/data/{RECIPES[name][0].split('/')[0]}" in command
    for check in (require_sources, find_corpus, prepared_corpus):
        with refuses("no text files at") as refused:
            check(config)
        shows(refused.value, f"how to get them: {command}")


def test_the_streamed_recipe_asks_for_the_commit_of_the_other(tmp_path: Path) -> None:
    config = composed("prepare", words("fineweb_edu_hub", tmp_path)).config
    with refuses("comes from the Hugging Face hub, which is asked only with corpus.hub=true"):
        require_sources(config)
    (source,) = config.corpus.sources
    made = make_source(vars(source), 0, hub=True)
    assert isinstance(made, DatasetSource)
    other = composed("prepare", words("fineweb_edu", tmp_path)).config
    assert made.revision == other.corpus.about["revision"]
    assert (made.config, made.split) == ("sample-10BT", "train")


def test_the_list_of_corpora(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_verb.main(["corpora"]) == 0
    out = capsys.readouterr().out
    shows(out, "c4 source: https://huggingface.co/datasets/allenai/c4 licence: ODC-By, and")
    shows(out, "--include 'sample/10BT/*' --local-dir DATA_DIR/fineweb_edu")
    assert "microworld" not in out


def test_a_book_is_one_document_of_unwrapped_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\nA line that\n is wrapped.\n\n \nAnother\nparagraph.\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    texts = []
    for file in CorpusSource("books", "*.txt", "book").shards(0, tmp_path):
        texts.append(list(file.texts(CorpusCounts())))
    assert texts == [["A line that is wrapped.\nAnother paragraph."], [""]]


def test_the_snippet_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As it stands, and by way of a folder that the datasets library saved."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOZELAB_CACHE", str(tmp_path / "cache"))
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    by_file = PreparedCorpus.open(names["folder"])
    assert by_file.manifest["counts"]["documents"] == 2000
    names["posts"].save_to_disk("posts")
    names["posts"].to_iterable_dataset().to_parquet("stream.parquet")
    for place in ("posts", "stream.parquet"):
        exec(snippet.replace('text="posts.parquet"', f'text="{place}"'), names)
        assert PreparedCorpus.open(names["folder"]).fingerprint == by_file.fingerprint
    # What the library notes of a data set is no text that is missing.
    assert "left out" not in caplog.text
    with refuses("a Dataset is no value of a configuration: write a table or a data set to a file"):
        clozelab.prepare(scale="own", text=names["posts"])


def test_the_page_lists_every_recipe() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in (*RECIPES, "fineweb_edu_hub"):
        about = composed("prepare", [f"corpus={name}"]).config.corpus.about
        assert f"`{name}`" in page
        revision = about["revision"]
        assert revision in page or len(revision) != 40
