"""Tiny models in folders, what changes them, and how answers are compared with those of
transformers.

All models are tiny and random, with every tensor drawn anew, so that no two parts of them are
alike. Where transformers cannot read an odd folder, or reads it wrongly, it reads the clean folder
that the odd one was made from.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.fuzz.lab import close, equal
from transformers import BertConfig, BertTokenizerFast

import clozelab

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
ENGLISH = "the a cat dog sat on mat ran fast slow blue red film good bad ada bob eve max"
WORDS = [*ENGLISH.split(), *'.,:!?"-']
VOCABULARY = list(
    dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{one}" for one in LETTERS), "中", "文"])
)
CASED = [*VOCABULARY, *LETTERS[:26].upper(), "é", "##é", "É", "ö", "##ö", "##中", "##文"]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
TEXTS = ["the cat sat on the mat .", "The Cat, HÉLLO wörld!", "a 中文 b", 'ada-19: "2 films"?']
MASKED = "the [MASK] sat on the mat ."
LABELS = ["anger", "fear", "joy"]
WEIGHTS = "model.safetensors"
JSON, RULES_FILE = "tokenizer.json", "tokenizer_config.json"
LINES = "".join(f"{word}\n" for word in VOCABULARY)
Change = Callable[[Path], object]  # of a folder
Tensors = dict[str, torch.Tensor]


# Making folders


def plain_encoder(folder: Path, head: str = "ForMaskedLM", **sizes: Any) -> Path:
    """A tiny BERT without any oddity, in `folder` itself and with fresh weights."""
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(VOCABULARY), **(SIZES | sizes))
    getattr(transformers, f"Bert{head}")(config).save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return folder


def wordpiece(vocabulary: Sequence[str] = VOCABULARY, **rules: Any) -> BertTokenizerFast:
    return BertTokenizerFast(
        vocab={word: number for number, word in enumerate(vocabulary)}, **rules
    )


def drawn(model: Any) -> Any:
    """The model with every parameter drawn anew."""
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    model.tie_weights()
    return model.eval()


def bert(
    place: Path,
    head: str = "ForMaskedLM",
    tokenizer: Any = None,
    rows: int | None = None,
    **config: Any,
) -> Path:
    """A folder `place/model` of a tiny BERT; `rows` of embeddings, by default as many as the
    vocabulary has.
    """
    folder = place / "model"
    made = wordpiece() if tokenizer is None else tokenizer
    settings = {"vocab_size": len(made) if rows is None else rows, **SIZES, **config}
    cls = getattr(transformers, f"Bert{head}")
    drawn(cls(BertConfig(**settings))).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


def classifier(place: Path, labels: Sequence[str] = LABELS, **config: Any) -> Path:
    numbers = {name: number for number, name in enumerate(labels)}
    named = {"id2label": dict(enumerate(labels)), "label2id": numbers}
    return bert(place, "ForSequenceClassification", **named, **config)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the object of a JSON file in place."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values, indent=1))


def configure(folder: Path, **changes: Any) -> None:
    edit(folder / "config.json", lambda values: values.update(changes))


def drop(folder: Path, *keys: str) -> None:
    edit(folder / "config.json", lambda values: [values.pop(key, None) for key in keys])


def reweight(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change the tensors of a folder."""
    changed = change(load_file(folder / WEIGHTS))
    tensors = {name: value.clone().contiguous() for name, value in changed.items()}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def copy_of(folder: Path) -> Path:
    """A clean twin beside a folder, made before it is changed."""
    return Path(shutil.copytree(folder, folder.with_name("twin")))


def nothing(_: Path) -> None:
    """No change: the folder is odd as it was made."""


def json_lines(rows: Iterable[Any], **options: Any) -> str:
    return "".join(json.dumps(row, **options) + "\n" for row in rows)


def table(
    rows: Iterable[Sequence[Any]],
    separator: str = ",",
    line_end: str = "\n",
    header: str = "text,label",
) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator, lineterminator=line_end)
    if header:
        writer.writerow(header.split(","))
    writer.writerows(rows)
    return buffer.getvalue()


def parquet(frame: pandas.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return buffer.getvalue()


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names]


def put(name: str, content: bytes | str) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def in_json(
    name: str, change: Callable[[dict[str, Any]], object] | None = None, **values: Any
) -> Change:
    """A change of a JSON file: by a function, or to these values."""
    if change is not None:
        return lambda folder: edit(folder / name, change)
    return lambda folder: edit(folder / name, lambda content: content.update(values))


def byte_level(place: Path, prefix: bool = False, hole: bool = False, lstrip: bool = True) -> Path:
    from tokenizers.implementations import ByteLevelBPETokenizer

    library = ByteLevelBPETokenizer(add_prefix_space=prefix)
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    library.train_from_iterator(
        ["the cat sat on the mat", "a dog ran"] * 20,
        vocab_size=300,
        show_progress=False,
        special_tokens=[*names, "<mask>"],
    )
    raw = place / "raw"
    raw.mkdir(parents=True)
    library.save_model(str(raw))
    entries = json.loads((raw / "vocab.json").read_text())
    if hole:
        entries = {word: number + (number > 280) for word, number in entries.items()}
    merges = [tuple(line.split()) for line in (raw / "merges.txt").read_text().splitlines()[1:]]
    mask = tokenizers.AddedToken("<mask>", lstrip=lstrip, special=True)
    tokenizer = transformers.RobertaTokenizerFast(
        vocab=entries, merges=merges, add_prefix_space=prefix, mask_token=mask
    )
    folder = place / "model"
    config = transformers.RobertaConfig(
        vocab_size=max(entries.values()) + 1,
        type_vocab_size=1,
        **(SIZES | {"max_position_embeddings": 66}),
    )
    drawn(transformers.RobertaForMaskedLM(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# Comparing


def load(folder: Path | str) -> Any:
    return clozelab.load(folder, precision="32-true", device="cpu")


def ids_of(predictor: Any, texts: Sequence[str]) -> list[list[int]]:
    sequences = predictor.sequences_of(list(texts))
    ends = sequences.offsets.tolist()
    return [sequences.input_ids[a:b].tolist() for a, b in itertools.pairwise(ends)]


def same_ids(predictor: Any, twin: Path, texts: Sequence[str] = TEXTS) -> None:
    """WrongError unless each text has the ids that AutoTokenizer gives it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(twin)
    for text, ids in zip(texts, ids_of(predictor, texts), strict=True):
        equal(ids, tokenizer(text)["input_ids"], f"ids of {text!r}")


def encoded(twin: Path, *texts: str) -> dict[str, torch.Tensor]:
    inputs = transformers.AutoTokenizer.from_pretrained(twin)(*texts, return_tensors="pt")
    return {name: value for name, value in inputs.items() if name != "attention_mask"}


def theirs(twin: Path, head: str = "", **options: Any) -> Any:
    auto = getattr(transformers, f"AutoModel{head}")
    return auto.from_pretrained(twin, dtype=torch.float32, **options).eval()


@torch.no_grad()
def same_states(
    predictor: Any, twin: Path, texts: Sequence[str] = TEXTS, model: Any = None
) -> None:
    model = theirs(twin) if model is None else model
    for text in texts:
        states = model(**encoded(twin, text), output_hidden_states=True).hidden_states
        close(predictor.hidden_states(text), torch.cat(states).numpy(), f"states of {text!r}")


@torch.no_grad()
def same_masks(predictor: Any, twin: Path, model: Any = None, text: str = MASKED) -> None:
    """The five best tokens for the mask, and their probabilities."""
    model = theirs(twin, "ForMaskedLM") if model is None else model
    tokenizer = transformers.AutoTokenizer.from_pretrained(twin)
    inputs = encoded(twin, text)
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    shares = model(**inputs).logits[0, place, : len(tokenizer)].softmax(-1)
    best = shares.topk(5)
    answers = predictor.fill_mask(text, top_k=5).masks[0]
    equal([token.id for token in answers], best.indices.tolist(), "best tokens")
    close([token.probability for token in answers], best.values, "probabilities")


@torch.no_grad()
def same_classes(predictor: Any, twin: Path, labels: Sequence[str] = LABELS) -> None:
    model = theirs(twin, "ForSequenceClassification")
    for text in TEXTS[:2]:
        shares = model(**encoded(twin, text)).logits[0].softmax(-1)
        answer = predictor.classify(text)
        equal(list(answer.probabilities), list(labels), "labels")
        close(list(answer.probabilities.values()), shares, "probabilities")
        equal(answer.label, labels[int(shares.argmax())], "label")


def agrees_after(place: Path, change: Change, **made: Any) -> None:
    """A clean model is changed; WrongError unless it answers as it did."""
    folder = bert(place, **made)
    twin = copy_of(folder)
    change(folder)
    agrees(folder, twin)


def agrees(
    folder: Path, twin: Path | None = None, texts: Sequence[str] = TEXTS, place: Path | str = ""
) -> Any:
    """Load a masked model; WrongError unless ids, states and filled masks are those of its twin, or
    of itself.
    """
    predictor = load(place if place else folder)
    twin = folder if twin is None else twin
    same_ids(predictor, twin, texts)
    same_states(predictor, twin, texts)
    same_masks(predictor, twin)
    return predictor
