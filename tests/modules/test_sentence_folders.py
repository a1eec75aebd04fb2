"""Folders of sentence-transformers: written, read in both of its spellings, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.modules.test_embeddings import TOKENIZER

import clozelab
from clozelab.cli import main
from clozelab.models.encoder import Encoder
from clozelab.modules.model import max_positions, sentence_vectors, write_model
from clozelab.modules.sentence_folders import SentenceVectors, files_beside, sentence_files

transformers = pytest.importorskip("transformers")

TEXTS = [" ".join("abcdefghijklmnop"[start : start + 1 + start % 5]) for start in range(10)] * 5
TYPES = "sentence_transformers.models."


@pytest.fixture
def write(tmp_path: Path, tiny_config: Callable[..., Any]) -> Callable[..., Path]:
    """write(vectors) -> a folder with random weights, and the library's files."""

    def build(vectors: SentenceVectors, name: str = "st") -> Path:
        torch.manual_seed(2)
        encoder = Encoder(tiny_config(vocab_size=TOKENIZER.vocab_size))
        files = sentence_files(vectors, encoder.config, 12)
        write_model(tmp_path / name, encoder, {}, TOKENIZER, extra_files=files)
        (tmp_path / name / "checksums.json").unlink()  # the tests change files
        return tmp_path / name

    return build


def plain_vectors(folder: Path, vectors: SentenceVectors) -> np.ndarray:
    """transformers' states, pooled by hand."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        row = states[0] if vectors.pooling == "cls" else states.sum(0) / len(states)
        rows.append(row / np.sqrt((row**2).sum()) if vectors.normalized else row)
    return np.stack(rows)


def embeddings(folder: Path, **options: Any) -> np.ndarray:
    return clozelab.load(str(folder), device="cpu", precision="32-true").embed(TEXTS, **options)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalized", [False, True])
def test_vectors_are_those_of_transformers_and_sentence_transformers(
    write: Any, pooling: str, normalized: bool
) -> None:
    vectors = SentenceVectors(pooling, normalized)
    folder = write(vectors)
    expected = plain_vectors(folder, vectors)
    ours = embeddings(folder)
    assert np.abs(ours - expected).max() <= 1e-5
    other = SentenceVectors("cls" if pooling == "mean" else "mean", normalized)
    assert np.abs(plain_vectors(folder, other) - ours).max() > 1e-2
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == 12
    assert np.abs(theirs.encode(TEXTS) - ours).max() <= 1e-5
    # As that library writes it again, in the spelling of its version.
    theirs.save_pretrained(str(folder.with_name("saved")), create_model_card=False)
    assert sentence_vectors(folder.with_name("saved")) == vectors
    assert max_positions(folder.with_name("saved")) == 12
    assert np.abs(embeddings(folder.with_name("saved")) - ours).max() <= 1e-6
    # Whoever names a pooling takes the encoder's own vector.
    plain = plain_vectors(folder, SentenceVectors(pooling))
    assert np.abs(embeddings(folder, pooling=pooling) - plain).max() <= 1e-5


@pytest.mark.parametrize("spelling", ["version 2", "version 6"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_both_spellings_are_read(write: Any, spelling: str, pooling: str) -> None:
    folder = write(SentenceVectors())
    (folder / "1_Pooling").rename(folder / "9_Pooling")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1] |= {"path": "9_Pooling"}
    config: dict[str, Any] = {
        f"pooling_mode_{pooling}_tokens": True,
        "pooling_mode_max_tokens": False,
    }
    if pooling == "cls":
        config = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    limits: dict[str, Any] = {"max_seq_length": 7, "do_lower_case": False}
    if spelling == "version 6":
        modules[1]["type"] = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
        config = {"pooling_mode": pooling, "include_prompt": True}
        limits = {"transformer_task": "feature-extraction"}
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 7}))
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "9_Pooling/config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    assert sentence_vectors(folder) == SentenceVectors(pooling)
    assert max_positions(folder) == 7
    long = clozelab.load(str(folder), device="cpu").embed(["a b c d e f g h i", "a"])
    assert np.isnan(long[0]).all() and not np.isnan(long[1]).any()


REFUSED: dict[str, tuple[str, Any, str]] = {
    "a dense layer": (
        "modules.json",
        [{"type": TYPES + "Dense", "path": "2_Dense"}],
        "pass a Dense",
    ),
    "another pooling": ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "is lasttoken"),
    "two poolings": ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "'cls', 'mean'"),
    "an older pooling": (
        "1_Pooling/config.json",
        {"pooling_mode_max_tokens": True},
        "pooling_mode_max_tokens",
    ),
    "no pooling": ("1_Pooling/config.json", {}, "pooling is"),
    "a prompt": ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "query"),
    "lower case": ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case True"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_here_is_refused_by_name(write: Any, case: str) -> None:
    name, content, message = REFUSED[case]
    folder = write(SentenceVectors())
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        sentence_vectors(folder)
    # The encoder itself is as good as ever.
    assert np.isfinite(embeddings(folder, pooling="mean")).all()


def test_an_export_keeps_what_the_folder_says_or_takes_what_one_says(
    write: Any, tmp_path: Path
) -> None:
    folder = write(SentenceVectors("cls", normalized=True))
    for name, words, expected in (
        ("same", [], SentenceVectors("cls", normalized=True)),
        ("mean", ["pooling=mean"], SentenceVectors("mean")),
        ("plain", ["pooling=cls"], SentenceVectors("cls")),
    ):
        to = [f"to={tmp_path / name}", "format=sentence_transformers"]
        assert main(["export", str(folder), *to, *words]) == 0
        assert sentence_vectors(tmp_path / name) == expected
        assert max_positions(tmp_path / name) == 12


def test_another_vocabulary_and_an_export_leave_the_vectors_as_they_were(
    write: Any, tmp_path: Path
) -> None:
    vectors = SentenceVectors("cls", normalized=True)
    folder = write(vectors)
    (tmp_path / "words.txt").write_text("abc\n")
    commands = {
        "longer": ["vocabulary", str(folder), f"words={tmp_path / 'words.txt'}"],
        "exported": ["export", str(folder)],
    }
    for name, words in commands.items():
        assert main([*words, f"to={tmp_path / name}"]) == 0
        assert sentence_vectors(tmp_path / name) == vectors
        assert max_positions(tmp_path / name) == 12
        assert np.abs(embeddings(tmp_path / name) - embeddings(folder)).max() <= 1e-6
    # Nothing is read or written outside of a folder.
    (folder / "modules.json").write_text(json.dumps([{"type": TYPES + "Dense", "path": "../x"}]))
    with pytest.raises(ValueError, match=r"names \.\./x, which leads out of it"):
        files_beside(folder)
    for name, words in commands.items():
        assert main([*words, f"to={tmp_path / name / 'again'}"]) == 1
        assert not (tmp_path / name / "again").exists()
