"""`clozelab vocabulary`: the rows of every family, and that nothing else moves."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.composing import composed
from tests.corpus.test_folder_tokenizers import TRAINING

import clozelab
from clozelab.assembly.encoders import build_objectives, encoder_config
from clozelab.cli import main
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.tokenizers import (
    ByteBpeTokenizer,
    MpnetTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from clozelab.launch.sweep import phase_objectives
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.registry import family_for
from clozelab.modules.model import write_model
from clozelab.objectives.objective import build_models

transformers = pytest.importorskip("transformers")

NEW = ["carcinoma", "metastasis", "cytokine"]
TEXT = [
    " ".join(words) for words in (["the", "doctor", "and", "a", "word"], ["said", "the", "cat"])
]
OF_EVERY_KIND = ("bert", "deberta", "electra", "mpnet", "roberta", "xlnet")
"""Of every tokenizer, template and head; a family beside them is slow."""
FAMILIES = []
for path in sorted(Path("conf/architecture").glob("*.yaml")):
    marks = [] if path.stem in OF_EVERY_KIND else [pytest.mark.slow]
    FAMILIES.append(pytest.param(path.stem, marks=marks))
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
}


def encoder_of(architecture: str, tokenizer: Tokenizer) -> Encoder:
    """A small one with random weights everywhere."""
    cfg = composed("pretrain", [f"architecture={architecture}", "model=tiny"]).config
    ids = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    return Encoder(EncoderConfig(**vars(cfg.model) | SHAPE, **vars(cfg.architecture), **ids))


def write_folder(folder: Path, architecture: str, tokenizer: Tokenizer) -> None:
    encoder = encoder_of(architecture, tokenizer)
    kinds = ["lm", "rtd"] if architecture == "electra" else ["lm"]
    family = family_for(encoder.config)
    heads = {kind: family.head(kind, encoder) for kind in kinds}
    torch.manual_seed(3)
    for module in (encoder, *heads.values()):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    write_model(folder, encoder, heads, tokenizer)


def own_tokenizer(architecture: str) -> Tokenizer:
    if architecture == "roberta":
        return ByteBpeTokenizer.train(TRAINING, 400, False, False)
    if architecture == "mpnet":
        return MpnetTokenizer(MpnetTokenizer.train(TRAINING, 300, True).vocabulary, lowercase=True)
    tokenizer = WordPieceTokenizer.train(TRAINING, 300, True)
    return tokenizer.ending_with_cls() if architecture == "xlnet" else tokenizer


def states(folder: Path, texts: list[str]) -> np.ndarray:
    return np.concatenate(clozelab.load(str(folder), device="cpu").hidden_states(texts), axis=1)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_new_rows_are_means_and_all_else_is_bit_identical(
    architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = own_tokenizer(architecture)
    write_folder(tmp_path / "old", architecture, tokenizer)
    (tmp_path / "words.txt").write_text("\n".join(NEW) + "\n")
    words = f"words={tmp_path / 'words.txt'}"
    assert main(["vocabulary", str(tmp_path / "old"), f"to={tmp_path / 'new'}", words]) == 0
    before = load_file(tmp_path / "old/model.safetensors")
    after = load_file(tmp_path / "new/model.safetensors")
    # Theirs on both sides: no code of ours says which pieces a word has, or what id it got.
    old = transformers.AutoTokenizer.from_pretrained(tmp_path / "old")
    new = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    num_new = 2 * len(NEW) if architecture == "roberta" else len(NEW)
    assert len(new) == len(old) + num_new
    pieces = {}
    for word in NEW:
        for text in {f"x {word}", word}:
            (new_id,) = new(text, add_special_tokens=False)["input_ids"][-1:]
            start = len(old("x", add_special_tokens=False)["input_ids"]) if " " in text else 0
            pieces[new_id] = old(text, add_special_tokens=False)["input_ids"][start:]
    assert sorted(pieces) == list(range(len(old), len(new)))
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["vocab_size"] == len(new)
    changed = 0
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if tensor.shape[:1] != (len(old),):
            assert torch.equal(tensor, after[name]), name
            continue
        changed += 1
        assert torch.equal(tensor, after[name][: len(old)]), name
        for new_id, ids in pieces.items():
            mean = sum(tensor[index].double() for index in ids) / len(ids)
            torch.testing.assert_close(after[name][new_id].double(), mean, rtol=0, atol=1e-6)
    # The embeddings, and the bias or a matrix of the prediction.
    assert changed >= 2
    assert np.array_equal(states(tmp_path / "old", TEXT), states(tmp_path / "new", TEXT))
    out = capsys.readouterr().out
    assert f"rows: {len(old):,} copied, {num_new} means of their pieces, 0 of all" in out


def shuffled(tokenizer: WordPieceTokenizer) -> WordPieceTokenizer:
    vocabulary = list(tokenizer.vocabulary)
    random.Random(1).shuffle(vocabulary)
    return WordPieceTokenizer(vocabulary, lowercase=True)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "ultrabert")]


@pytest.mark.parametrize("architecture", ["bert", "mpnet", "deberta", *SLOW])
def test_the_same_entries_in_another_order_change_no_state(
    architecture: str, tmp_path: Path
) -> None:
    tokenizer = own_tokenizer("bert")
    other = shuffled(tokenizer)
    # Positions begin behind the padding's id, in RoBERTa and MPNet.
    assert other.pad_id != tokenizer.pad_id
    write_folder(tmp_path / "old", architecture, tokenizer)
    (tmp_path / "other").mkdir()
    for name, content in other.files().items():
        (tmp_path / "other" / name).write_bytes(content)
    arguments = [str(tmp_path / "old"), f"to={tmp_path / 'new'}", f"tokenizer={tmp_path / 'other'}"]
    assert main(["vocabulary", *arguments]) == 0
    assert read_tokenizer(tmp_path / "new").vocabulary == other.vocabulary
    assert np.array_equal(states(tmp_path / "old", TEXT), states(tmp_path / "new", TEXT))
    fills = []
    for name in ("old", "new"):
        filled = clozelab.load(str(tmp_path / name), device="cpu").fill_mask("the [MASK] said")
        fills.append({one.token: one.probability for one in filled.masks[0]})
    assert fills[1] == pytest.approx(fills[0], abs=1e-6)


def test_another_tokenizer_stands_as_the_encoder_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_tokenizer("bert")
    for name, tokenizer in (("cls first", own), ("cls last", own.ending_with_cls())):
        (tmp_path / name).mkdir()
        for file, content in tokenizer.files().items():
            (tmp_path / name / file).write_bytes(content)

    def change(architecture: str, other: str) -> int:
        tokenizer = own_tokenizer(architecture)
        if architecture == "xlnet":
            tokenizer = tokenizer.ending_with_cls()
        write_folder(tmp_path / architecture, architecture, tokenizer)
        to = f"to={tmp_path / 'new' / architecture}"
        tokenizer_of = f"tokenizer={tmp_path / other}"
        return main(["vocabulary", str(tmp_path / architecture), to, tokenizer_of])

    # An XLNet gets the template that it reads, whatever the tokenizer's own.
    assert change("xlnet", "cls first") == 0
    assert np.array_equal(states(tmp_path / "xlnet", TEXT), states(tmp_path / "new/xlnet", TEXT))
    # No other model reads a [CLS] at the end.
    assert change("bert", "cls last") == 1
    assert "ends a text with [CLS]" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new/bert").exists()
    # RoBERTa's encoder has one token type.
    assert change("roberta", "cls first") == 0
    pair = ("the cat", "said a word")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new/roberta")
    model = transformers.AutoModel.from_pretrained(tmp_path / "new/roberta")
    expected = model(**theirs(*pair, return_tensors="pt")).last_hidden_state[0]
    ours = clozelab.load(tmp_path / "new/roberta", device="cpu", precision="32-true")
    distance = ours.hidden_states([pair])[0][-1] - expected.detach().numpy()
    assert np.abs(distance).max() <= 1e-5


def compounds(path: Path) -> None:
    """Text whose subjects and verbs are compounds: a subject goes with the verbs of its kind."""
    draw = random.Random(4)
    parts = [["stone", "fish", "river", "sea"], ["cloud", "bird", "wing", "sky"]]
    verbs = [["swims", "sinks", "flows"], ["flies", "soars", "floats"]]
    lines = []
    for _ in range(1500):
        kind = draw.randrange(2)
        first, second = (draw.choice(parts[kind]) + draw.choice(parts[kind]) for _ in range(2))
        verb = draw.choice(verbs[kind])
        lines.append(f"the {first} {verb} and a {second} {verb} too.")
    paragraphs = [" ".join(lines[start : start + 6]) for start in range(0, len(lines), 6)]
    path.write_text("\n\n".join(paragraphs) + "\n")


def test_training_goes_on_from_means_with_a_lower_loss_than_from_random_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compounds(tmp_path / "text.txt")
    batch = {"seq_length": 32, "global_batch_size": 16, "micro_batch_size": 16}
    common: dict[str, Any] = {
        "scale": "own",
        "corpus": {"sources": [{"name": "text", "path": str(tmp_path / "text.txt")}]},
        "objective": "mlm",
        "trainer": {"precision": "32-true", "threads": 1, "progress_bar": False},
        "cache_dir": str(tmp_path / "cache"),
        "runs_dir": str(tmp_path / "runs"),
    }

    def train(arm: str, steps: int, **more: Any) -> Any:
        phases = [batch | {"steps": steps}]
        words = "objective/input=full_sentences"
        return clozelab.pretrain(words, arm=arm, phases=phases, **common, **more)

    def loss_of(encoder: Path, arm: str, steps: int, rate: float) -> float:
        file = {"vocab_file": str(encoder / "tokenizer.json"), "lowercase": True}
        rates = {"learning_rate": rate}
        run = train(arm, steps, encoder=str(encoder), tokenizer=file, optimizer=rates)
        return float(run.values["validation/loss"])

    shape = {"hidden_size": 64, "intermediate_size": 256}
    first = train("first", 200, model=shape, tokenizer={"vocab_size": 48})
    old = first.folder / "encoder"
    words = ["vocabulary", str(old), f"text={tmp_path / 'text.txt'}", "add=20"]
    assert main([*words, f"to={tmp_path / 'means'}"]) == 0
    before, after = re.findall(
        r"tokens a word: ([\d.]+) before, ([\d.]+) after", capsys.readouterr().out
    )[0]
    assert float(after) < float(before) - 0.2
    # The same folder with fresh rows instead of the means.
    shutil.copytree(tmp_path / "means", tmp_path / "random")
    (tmp_path / "random/checksums.json").unlink()
    tensors = load_file(tmp_path / "means/model.safetensors")
    rows = tensors["bert.embeddings.word_embeddings.weight"]
    new = rows[read_tokenizer(old).vocab_size :]
    assert len(new) == 20
    torch.nn.init.normal_(new, std=0.05, generator=torch.Generator().manual_seed(1))
    save_file(tensors, tmp_path / "random/model.safetensors", metadata={"format": "pt"})
    # A rate of nearly nothing: the loss that training goes on from.
    means, fresh = (loss_of(tmp_path / name, name, 1, 1e-9) for name in ("means", "random"))
    assert means < fresh - 0.1
    assert loss_of(tmp_path / "means", "further", 40, 1e-3) < means - 0.1


def write_run(run: Path, recipe: str, text: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Encoder and generator with random weights, as a pre-training writes them; its words."""
    file = run / "encoder/tokenizer.json"
    options: dict[str, Any] = {
        "scale": "own",
        "recipe": recipe,
        "corpus": {"sources": [{"name": "text", "path": str(text)}]},
        "tokenizer": {"vocab_file": str(file), "lowercase": True},
        "model": SHAPE | {"hidden_dropout_prob": 0.0},
        "phases": [{"seq_length": 32, "steps": 1, "global_batch_size": 4, "micro_batch_size": 4}],
        "validation": {"seq_length": 32},
        "optimizer": {"learning_rate": 1e-12, "matrix_learning_rate": 1e-12},
        "trainer": {"precision": "32-true", "threads": 1, "progress_bar": False},
        "cache_dir": str(run / "cache"),
        "runs_dir": str(run / "runs"),
    }
    cfg: Any = composed("pretrain", [*clozelab._to_argv(options)]).config
    (objective,) = build_objectives(phase_objectives(cfg))
    ids = SpecialIds.from_tokenizer(tokenizer)
    models = build_models(Encoder(encoder_config(cfg, ids, objective)), [objective])
    torch.manual_seed(3)
    for model in models.values():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    for name, model in models.items():
        write_model(run / name, model.encoder, dict(model.heads.items()), tokenizer)
    return options


@pytest.mark.parametrize("recipe", ["electra", "deberta_v3"])
def test_a_generator_gets_the_same_words_and_training_goes_on_from_both(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compounds(tmp_path / "text.txt")
    options = write_run(tmp_path / "old", recipe, tmp_path / "text.txt", own_tokenizer("electra"))
    (tmp_path / "words.txt").write_text("stonefish\n")
    words = ["vocabulary", str(tmp_path / "old"), f"words={tmp_path / 'words.txt'}"]
    assert main([*words, f"to={tmp_path / 'new'}"]) == 1
    err = "".join(capsys.readouterr().err.split())
    assert f"sayto={tmp_path / 'new/encoder'}," in err and not (tmp_path / "new").exists()
    assert main([*words, f"to={tmp_path / 'new/encoder'}"]) == 0
    old = transformers.AutoTokenizer.from_pretrained(tmp_path / "old/generator")
    new = transformers.AutoTokenizer.from_pretrained(tmp_path / "new/generator")
    pieces = old("stonefish", add_special_tokens=False)["input_ids"]
    assert new("stonefish", add_special_tokens=False)["input_ids"] == [len(old)]
    before = load_file(tmp_path / "old/generator/model.safetensors")
    after = load_file(tmp_path / "new/generator/model.safetensors")
    changed = 0
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name][: len(tensor)]), name
        if len(tensor) == len(old):
            changed += 1
            mean = sum(tensor[index].double() for index in pieces) / len(pieces)
            torch.testing.assert_close(after[name][-1].double(), mean, rtol=0, atol=1e-6)
    assert changed == 2, "word embeddings and the bias"
    # A step of nearly no rate: what training begins from.
    file = {"vocab_file": str(tmp_path / "new/encoder/tokenizer.json"), "lowercase": True}
    del options["model"]
    options |= {"tokenizer": file, "encoder": str(tmp_path / "new/encoder")}
    run = clozelab.pretrain("objective/input=full_sentences", **options)
    assert run.inputs.keys() == {"corpus", "encoder", "generator"}
    for name in ("encoder", "generator"):
        begun = load_file(tmp_path / "new" / name / "model.safetensors")
        trained = load_file(run.folder / name / "model.safetensors")
        assert begun.keys() == trained.keys()
        for key, tensor in begun.items():
            torch.testing.assert_close(trained[key], tensor, rtol=0, atol=1e-6)
    # A generator of another vocabulary, and another kind of encoder, are told before a step.
    shutil.rmtree(tmp_path / "new/generator")
    shutil.copytree(tmp_path / "old/generator", tmp_path / "new/generator")
    with pytest.raises(ValueError, match="new/generator was trained with another vocabulary"):
        clozelab.pretrain("objective/input=full_sentences", **options, seed=2)
    with pytest.raises(ValueError, match=r"model_type=modernbert.*is of type"):
        clozelab.pretrain(**options | {"recipe": "modernbert"})


REFUSED = {
    "no folder to write": (["words=x"], "say to=FOLDER"),
    "nothing to do": (["to=TO"], "say to=FOLDER, and one of"),
    "two things to do": (["to=TO", "words=x", "tokenizer=y"], "and one of"),
    "words of no text": (["to=TO", "add=5"], "and one of text=PATH add=NUMBER"),
    "no number": (["to=TO", "add=many", "text=x"], "add=many is no number of words"),
    "none to add": (["to=TO", "add=0", "text=x"], "add=0 is no number of words"),
    "two words in a line": (["to=TO", "words=PHRASES"], "PHRASES:2: 'a b' is no one word"),
    "no such file": (["to=TO", "words=nowhere.txt"], "nowhere.txt does not exist"),
    "known words": (["to=TO", "words=KNOWN"], "every word has an entry already"),
    "a folder that is there": (["to=MODEL", "words=KNOWN"], "remove it, or give to= another name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_vocabulary_is_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = own_tokenizer("bert")
    write_folder(tmp_path / "MODEL", "bert", tokenizer)
    (tmp_path / "KNOWN").write_text("the\nand\n")
    (tmp_path / "PHRASES").write_text("carcinoma\na b\n")
    words, message = REFUSED[case]
    for name in ("TO", "MODEL", "KNOWN", "PHRASES"):
        words = [word.replace(name, str(tmp_path / name)) for word in words]
    assert main(["vocabulary", str(tmp_path / "MODEL"), *words]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "TO").exists()
