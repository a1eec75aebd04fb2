"""Folders of sentence-transformers: written, read in both of its spellings, and what is refused."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.modules.test_embeddings import TOKENIZER

import clozelab
from clozelab.assembly.together import model_folders
from clozelab.cli import main
from clozelab.models.encoder import Encoder
from clozelab.models.registry import family_for
from clozelab.modules.model import max_positions, sentence_vectors, with_pooling, write_model
from clozelab.modules.sentence_folders import (
    SentenceVectors,
    sentence_files,
    sidecar_files,
    similarity_of,
)

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


def modules(*types: str) -> list[dict[str, str]]:
    """What modules.json holds; a type without dots is the library's."""
    return [{"type": name if "." in name else TYPES + name, "path": ""} for name in types]


MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
UNIT = "2_Normalize/config.json"
TRANSFORMER = "sentence_bert_config.json"
LIBRARY = "config_sentence_transformers.json"
ELSEWHERE = [modules("Transformer")[0] | {"path": "0_Transformer"}, *modules("Pooling")]
SPARSE = "sentence_transformers.sparse_encoder.models.MLMTransformer"
OF_TOKENS = {"module_input_name": "token_embeddings"}
OF_ANOTHER = {"module_input_name": "sentence_embedding", "module_output_name": "unit"}
LOGITS = {"text": {"method": "forward", "method_output_name": "logits"}}
REFUSED: dict[str, tuple[str, Any, str]] = {
    "a dense layer": (MODULES, modules("Dense"), "pass a Dense"),
    "another pooling": (POOLING, {"pooling_mode": "lasttoken"}, "is lasttoken"),
    "two poolings": (POOLING, {"pooling_mode": ["cls", "mean"]}, "'cls', 'mean'"),
    "an older pooling": (POOLING, {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
    "no pooling": (POOLING, {}, "pooling is"),
    "no module of pooling": (MODULES, modules("Transformer"), "names no Pooling, .* say pooling="),
    "a sparse encoder": (MODULES, modules(SPARSE), "pass a MLMTransformer"),
    "code of its own": (MODULES, modules("custom_st.Transformer", "Pooling"), "which is not"),
    "another order": (MODULES, modules("Pooling", "Transformer"), "are Pooling, Transformer"),
    "two in a row": (MODULES, modules("Transformer", "Pooling", "Pooling"), "Pooling, Pooling"),
    "an encoder elsewhere": (MODULES, ELSEWHERE, "encoder is in 0_Transformer"),
    "unit lengths of tokens": (UNIT, OF_TOKENS, "Normalize is not of the vector"),
    "unit lengths elsewhere": (UNIT, OF_ANOTHER, "Normalize is not of the vector"),
    "no list": (MODULES, {"Transformer": ""}, "is no list of modules"),
    "no types": (MODULES, [{"path": ""}], "is no list of modules"),
    "a task": (TRANSFORMER, {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
    "another output": (TRANSFORMER, {"modality_config": LOGITS}, "modality_config takes"),
    "arguments": (TRANSFORMER, {"model_args": {"x": 1}}, "model_args is"),
    "expansion": (TRANSFORMER, {"query_length": 32}, "query_length is 32"),
    "older file": ("sentence_roberta_config.json", {"do_lower_case": True}, "do_lower_case True"),
    "columns in words": (LIBRARY, {"truncate_dim": "8"}, "'8'; it is"),
    "no columns": (LIBRARY, {"truncate_dim": 0}, "above 0, or null"),
    "a prompt": (LIBRARY, {"default_prompt_name": "query"}, "query"),
    "lower case": (TRANSFORMER, {"do_lower_case": True}, "do_lower_case True"),
}


def keep_case(folder: Path) -> None:
    """Lets a folder's tokenizer keep capital letters."""
    for name, keys in (
        ("tokenizer.json", ("normalizer", "lowercase")),
        ("tokenizer_config.json", ("do_lower_case",)),
    ):
        content = json.loads((folder / name).read_text())
        *above, last = keys
        place = content
        for key in above:
            place = place[key]
        place[last] = False
        (folder / name).write_text(json.dumps(content))


def test_lower_case_of_the_library_is_that_of_the_tokenizer(write: Any) -> None:
    """Many public folders say do_lower_case beside a tokenizer that lower-cases anyway."""
    library = pytest.importorskip("sentence_transformers")
    folder = write(SentenceVectors())
    limits = {"max_seq_length": 12, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    texts = ["A cat SAT", "a cat sat"]
    ours = clozelab.load(str(folder), device="cpu", precision="32-true").embed(texts)
    theirs = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(theirs - ours).max() <= 1e-5
    assert np.abs(ours[0] - ours[1]).max() <= 1e-6


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_here_is_refused_by_name(write: Any, case: str) -> None:
    name, content, message = REFUSED[case]
    folder = write(SentenceVectors(normalized=True))
    (folder / "2_Normalize").mkdir()
    if case == "older file":
        (folder / "sentence_bert_config.json").unlink()
    if case in ("older file", "lower case"):
        keep_case(folder)
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        sentence_vectors(folder)
    # The encoder itself is as good as ever.
    assert np.isfinite(embeddings(folder, pooling="mean")).all()


@pytest.mark.parametrize("size", [1, 16, 1000])
@pytest.mark.parametrize("normalized", [False, True])
def test_kept_columns_are_those_of_sentence_transformers(
    write: Any, tmp_path: Path, size: int, normalized: bool
) -> None:
    library = pytest.importorskip("sentence_transformers")
    vectors = SentenceVectors("mean", normalized, size)
    folder = write(vectors)
    whole = embeddings(write(SentenceVectors("mean", normalized), "whole"))
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    ours = embeddings(folder)
    assert ours.shape == (len(TEXTS), min(size, whole.shape[1]))
    assert np.abs(ours - whole[:, :size]).max() <= 1e-6
    assert np.abs(theirs.encode(TEXTS) - ours).max() <= 1e-5
    assert (
        main(["export", str(folder), f"to={tmp_path / 'o'}", "format=sentence_transformers"]) == 0
    )
    assert sentence_vectors(tmp_path / "o") == vectors
    # Training and measures take whole vectors, if one says so.
    with pytest.raises(ValueError, match=f"first {size} columns .* say pooling=mean"):
        with_pooling({"pooling": "auto"}, folder)
    assert with_pooling({"pooling": "cls"}, folder) == {"pooling": "cls"}


@pytest.mark.parametrize("normalized", [False, True])
def test_texts_that_are_all_too_long_are_rows_of_nan(write: Any, normalized: bool) -> None:
    model = clozelab.load(str(write(SentenceVectors(normalized=normalized))), device="cpu")
    vectors = model.embed(["a " * 1000] * 3)
    assert vectors.shape == (3, model.encoder.config.output_size) and np.isnan(vectors).all()


def test_cls_of_an_encoder_that_is_read_by_another_token_is_refused(
    write: Any,
) -> None:
    """The library takes the first token, of which a causal encoder has seen nothing else."""
    folder = write(SentenceVectors("cls"))
    config = json.loads((folder / "config.json").read_text()) | {"is_decoder": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"takes the first token for \[CLS\]"):
        sentence_vectors(folder)
    assert np.isfinite(embeddings(folder, pooling="cls")).all()


def test_what_changes_no_vector_is_named(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(SentenceVectors())
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"type": TYPES + "Dropout", "path": "2_Dropout"})
    (folder / "modules.json").write_text(json.dumps(modules))
    settings = {"similarity_fn_name": "dot", "prompts": {"query": "q: ", "document": ""}, "new": 1}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with caplog.at_level("WARNING"):
        vectors = sentence_vectors(folder)
        assert vectors == SentenceVectors(prompts={"query": "q: "})
        vectors.warn_of_prompts(folder)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "has prompts (query), which are not put before a text" in text
    assert "compares vectors by dot (similarity_fn_name)" in text
    assert "reads new; if code" in text


# Cross-encoders

PAIRS = list(itertools.pairwise(TEXTS[:10]))
SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.fixture
def cross_encoder(tmp_path: Path, tiny_config: Callable[..., Any]) -> Callable[..., Path]:
    """cross_encoder(labels, config.json's further keys, the library's file) -> a folder."""

    def build(num_labels: int = 1, keys: Any = None, library: Any = None) -> Path:
        torch.manual_seed(2)
        config = tiny_config(vocab_size=TOKENIZER.vocab_size, initializer_range=0.2)
        encoder = Encoder(config)
        head = family_for(config).head("classification", encoder, num_labels=num_labels)
        labels = [f"LABEL_{number}" for number in range(num_labels)]
        folder = tmp_path / "ce"
        heads = {"classification": head}
        write_model(folder, encoder, heads, TOKENIZER, labels=labels, extra_config=keys)
        (folder / "checksums.json").unlink()
        if library is not None:
            module = {"idx": 0, "name": "0", "type": TYPES + "Transformer", "path": ""}
            (folder / "modules.json").write_text(json.dumps([module]))
            task = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
            states = {"text": {"method": "forward", "method_output_name": "logits"}}
            path = folder / "sentence_bert_config.json"
            path.write_text(json.dumps({**task, "modality_config": states}))
            path = folder / "config_sentence_transformers.json"
            path.write_text(json.dumps({"model_type": "CrossEncoder", **library}))
        return folder

    return build


def numbers(folder: Path) -> np.ndarray:
    answers = clozelab.load(str(folder), device="cpu", precision="32-true").classify(PAIRS)
    return np.array([answer.value for answer in answers])


@pytest.mark.parametrize(
    ("keys", "library", "is_squashed"),
    [
        ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "5"}}, None, True),
        ({"sbert_ce_default_activation_function": SIGMOID}, None, True),
        ({}, {"activation_fn": SIGMOID}, True),
        ({}, {}, True),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, None, False),
        ({"sbert_ce_default_activation_function": IDENTITY}, None, False),
        ({}, {"activation_fn": IDENTITY}, False),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {"activation_fn": SIGMOID}, True),
    ],
)
def test_a_cross_encoders_number_is_that_of_its_library(
    cross_encoder: Any, tmp_path: Path, keys: Any, library: Any, is_squashed: bool
) -> None:
    package = pytest.importorskip("sentence_transformers")
    folder = cross_encoder(1, keys, library)
    ours = numbers(folder)
    theirs = package.CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    assert np.abs(ours - theirs).max() <= 1e-5
    raw = numbers(cross_encoder(1, {"sentence_transformers": {"activation_fn": IDENTITY}}))
    assert np.abs(raw - ours).max() > 0.1 or not is_squashed
    folder = cross_encoder(1, keys, library)
    for verb, name in ((["export", str(folder)], "out"), (["vocabulary", str(folder)], "longer")):
        if verb[0] == "vocabulary":
            (tmp_path / "words.txt").write_text("abc\n")
            verb = [*verb, f"words={tmp_path / 'words.txt'}"]
        assert main([*verb, f"to={tmp_path / name}"]) == 0
        assert np.abs(numbers(tmp_path / name) - ours).max() <= 1e-6
        again = package.CrossEncoder(str(tmp_path / name), device="cpu").predict(PAIRS)
        assert np.abs(again - ours).max() <= 1e-5


@pytest.mark.parametrize(
    ("num_labels", "keys", "message"),
    [
        (
            1,
            {"sbert_ce_default_activation_function": "torch.nn.modules.Tanh"},
            "Tanh .* and only I",
        ),
        (3, {"sentence_transformers": {"activation_fn": SIGMOID}}, "only Identity or Softmax"),
    ],
)
def test_another_activation_is_refused(
    cross_encoder: Any, num_labels: int, keys: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        clozelab.load(str(cross_encoder(num_labels, keys)), device="cpu")


def test_the_sigmoid_comes_behind_the_mean_of_the_windows(cross_encoder: Any) -> None:
    """As the probabilities of classes come behind that of their logits."""
    texts = [TEXTS[0], " ".join(TEXTS)]
    answers = {}
    for name in (IDENTITY, SIGMOID):
        folder = cross_encoder(1, {"sentence_transformers": {"activation_fn": name}})
        model = clozelab.load(str(folder), device="cpu", precision="32-true")
        answers[name] = np.array([one.value for one in model.classify(texts, stride=5)])
    expected = torch.from_numpy(answers[IDENTITY]).sigmoid().numpy()
    assert np.abs(answers[SIGMOID] - expected).max() <= 1e-6


@pytest.mark.parametrize("name", ["Identity", "Softmax"])
def test_classes_keep_their_softmax(cross_encoder: Any, name: str) -> None:
    """The library applies it where the folder names it, or where it is asked to."""
    activation = IDENTITY.replace("linear.Identity", f"activation.{name}")
    if name == "Identity":
        activation = IDENTITY
    folder = cross_encoder(3, {"sentence_transformers": {"activation_fn": activation}})
    package = pytest.importorskip("sentence_transformers")
    asks = name == "Identity"
    theirs = package.CrossEncoder(str(folder), device="cpu").predict(PAIRS, apply_softmax=asks)
    answers = clozelab.load(str(folder), device="cpu", precision="32-true").classify(PAIRS)
    ours = np.array([list(answer.probabilities.values()) for answer in answers])
    assert np.abs(ours - theirs).max() <= 1e-5


def test_an_export_keeps_what_the_folder_says_or_takes_what_one_says(
    write: Any, tmp_path: Path
) -> None:
    prompts = {"query": "a b", "document": "c"}
    own = SentenceVectors("cls", normalized=True, prompts=prompts)
    folder = write(own)
    for name, words, expected in (
        ("same", [], own),
        ("mean", ["pooling=mean"], SentenceVectors("mean", prompts=prompts)),
        ("plain", ["pooling=cls"], SentenceVectors("cls", prompts=prompts)),
    ):
        to = [f"to={tmp_path / name}", "format=sentence_transformers"]
        assert main(["export", str(folder), *to, *words]) == 0
        assert sentence_vectors(tmp_path / name) == expected
        assert max_positions(tmp_path / name) == 12


@pytest.mark.parametrize("name", ["dot", "euclidean", None])
def test_an_export_keeps_by_what_vectors_are_compared(
    write: Any, tmp_path: Path, name: str | None
) -> None:
    folder = write(SentenceVectors())
    settings = {"similarity_fn_name": name}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    words = [f"to={tmp_path / 'out'}", "format=sentence_transformers"]
    assert main(["export", str(folder), *words]) == 0
    library = pytest.importorskip("sentence_transformers")
    before, after = (
        library.SentenceTransformer(str(place), device="cpu")
        for place in (folder, tmp_path / "out")
    )
    vectors = before.encode(TEXTS)
    assert torch.equal(after.similarity(vectors, vectors), before.similarity(vectors, vectors))


@pytest.mark.parametrize(("of_training", "expected"), [({}, "dot"), ({"pooling": "mean"}, None)])
def test_what_is_fine_tuned_as_vectors_is_compared_as_it_was_trained(
    tmp_path: Path, of_training: dict[str, str], expected: str | None
) -> None:
    """A siamese run learns the cosine, also on an encoder that began with one of dot products."""
    provenance = {"given_vectors": {"pooling": "mean", "similarity": "dot"}} | of_training
    config = {"model_type": "bert", "clozelab": provenance}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert similarity_of(tmp_path) == expected


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_without_a_prompts_tokens_are_refused(write: Any, pooling: str) -> None:
    """The library leaves them out of a mean, and takes the first token behind them for [CLS]."""
    folder = write(SentenceVectors(pooling))
    path = folder / "1_Pooling/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"include_prompt": False}))
    assert sentence_vectors(folder) == SentenceVectors(pooling), "nothing is left out"
    prompts = {"prompts": {"query": "a b", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with pytest.raises(ValueError, match=rf"include_prompt is false, .*; say pooling={pooling}"):
        sentence_vectors(folder)
    ours = embeddings(folder, pooling=pooling, prompt="query")
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    assert np.abs(theirs.encode(TEXTS, prompt_name="query") - ours).max() > 1e-2
    theirs[1].include_prompt = True
    assert np.abs(theirs.encode(TEXTS, prompt_name="query") - ours).max() <= 1e-5


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
        sidecar_files(folder)
    for name, words in commands.items():
        assert main([*words, f"to={tmp_path / name / 'again'}"]) == 1
        assert not (tmp_path / name / "again").exists()


@pytest.mark.parametrize("name", [SIGMOID, IDENTITY])
def test_an_evaluation_scores_the_number_behind_the_sigmoid(
    cross_encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Pearson's correlation differs without it, Spearman's does not."""
    package = pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(tmp_path)
    folder = cross_encoder(1, {"sentence_transformers": {"activation_fn": name}})
    pairs = list(itertools.product(TEXTS[:6], TEXTS[5:10]))
    scores = [round(0.3 + (7 * number % 30) / 7, 3) for number in range(len(pairs))]
    lines = ["sentence1\tsentence2\tscore\tindex"]
    for number, ((first, second), score) in enumerate(zip(pairs, scores, strict=True)):
        lines.append(f"{first}\t{second}\t{score}\t{number}")
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
    words = ["measure=labelled", "task@measure.task=stsb", "measure.name=given", "row=ce"]
    words += [f"encoder={folder}", f"measure.task.data.validation_file={tmp_path / 'dev.tsv'}"]
    assert main(["evaluate", *words, "trainer.precision=32-true"]) == 0
    (record,) = (tmp_path / "runs").rglob("run.json")
    given = json.loads(record.read_text())["scores"]["validation/pearson"]["value"]
    library = package.CrossEncoder(str(folder), device="cpu")
    expected = np.corrcoef(library.predict(pairs), scores)[0, 1]
    assert given / 100 == pytest.approx(expected, abs=1e-5)
    other = torch.nn.Identity() if name == SIGMOID else torch.nn.Sigmoid()
    changed = np.corrcoef(library.predict(pairs, activation_fn=other), scores)[0, 1]
    assert abs(changed - expected) > 1e-4


def evaluated(texts: list[str], *overrides: str) -> list[float]:
    """What `evaluate` in the working folder predicts of texts, read in windows."""
    lines = ["text,label"]
    for number, text in enumerate(texts):
        lines.append(f"{text},{(7 * number % 8) / 8}")
    Path("long.csv").write_text("\n".join(lines) + "\n")
    words = ["measure=labelled", "task@measure.task=long.csv", "row=ce", *overrides]
    settings = ("validation_file=long.csv", "long_documents=windows", "window_stride=5")
    words += [f"measure.task.data.{setting}" for setting in settings]
    assert main(["evaluate", *words, "trainer.precision=32-true"]) == 0
    (file,) = Path("runs").rglob("predictions.jsonl")
    return [json.loads(line)["prediction"] for line in file.read_text().splitlines()]


def predicted(texts: list[str], folder: Path) -> list[float]:
    model = clozelab.load(str(folder), device="cpu", precision="32-true")
    return [answer.value for answer in model.classify(texts, stride=5)]


@pytest.mark.parametrize("name", [SIGMOID, IDENTITY])
def test_an_evaluation_pools_windows_before_the_sigmoid_as_predict_does(
    cross_encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = cross_encoder(1, {"sentence_transformers": {"activation_fn": name}})
    texts = [" ".join(["a p"] * (30 + number) + ["c"] * 60) for number in range(8)]
    scored = evaluated(texts, f"encoder={folder}")
    assert scored == pytest.approx(predicted(texts, folder), abs=1e-6)


def test_cross_encoders_scored_as_one_have_the_mean_of_their_numbers(
    cross_encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = cross_encoder(1, {"sentence_transformers": {"activation_fn": SIGMOID}})
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] += 3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    scored = evaluated(TEXTS[:8], f"models=[{folder},{other}]", "combine=predictions")
    means = np.mean([predicted(TEXTS[:8], folder), predicted(TEXTS[:8], other)], axis=0)
    assert scored == pytest.approx(means, abs=1e-6)
    change = {"sentence_transformers": {"activation_fn": IDENTITY}}
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match="are of other shapes, tasks or classes"):
        model_folders([str(folder), str(other)])
    # A sigmoid that is not named is the same as one that is, and not the same as none.
    settings = json.dumps({"model_type": "CrossEncoder"})
    (other / "modules.json").write_text("[]")
    (other / "config_sentence_transformers.json").write_text(settings)
    (other / "config.json").write_text(json.dumps(config | {"sentence_transformers": None}))
    model_folders([str(folder), str(other)])
    (other / "config_sentence_transformers.json").unlink()
    with pytest.raises(ValueError, match="are of other shapes, tasks or classes"):
        model_folders([str(folder), str(other)])
