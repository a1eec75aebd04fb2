"""Odd model folders for `load`: ids, states and answers are compared with those of transformers.

All models are tiny and random, with every tensor drawn anew, so that no two parts of them are
alike. Where transformers cannot read an odd folder, or reads it wrongly, it reads the clean folder
that the odd one was made from.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

import clozelab
from odd_corpora import as_nobody
from odd_lab import EITHER, READ, REFUSED, Cases, close, equal

CASES = Cases("model folders")

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


# Making folders


def plain_encoder(folder: Path) -> Path:
    """A tiny BERT without any oddity."""
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=len(VOCABULARY), **SIZES)).save_pretrained(folder)
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
    named = {
        "id2label": dict(enumerate(labels)),
        "label2id": {name: number for number, name in enumerate(labels)},
    }
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


def reweight(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, Any]]) -> None:
    """Change the tensors of a folder."""
    tensors = change(load_file(folder / WEIGHTS))
    save_file(
        {name: value.clone().contiguous() for name, value in tensors.items()},
        folder / WEIGHTS,
        {"format": "pt"},
    )


def copy_of(folder: Path) -> Path:
    """A clean twin beside a folder, made before it is changed."""
    return Path(shutil.copytree(folder, folder.with_name("twin")))


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


# Tokenizers


@CASES.add("load", READ)
def clean(place: Path) -> None:
    """Nothing: the control of the masked models"""
    agrees(bert(place))


@CASES.add("load", READ)
def added_tokens(place: Path) -> None:
    """Words that were added to the tokenizer, with embeddings of their own"""
    tokenizer = wordpiece()
    tokenizer.add_tokens(["[E1]", "covid"])
    folder = bert(place, tokenizer=tokenizer)
    predictor = agrees(folder, texts=["the covid cat", "[E1] sat[E1]on covids", *TEXTS])
    candidates = {token.id for token in predictor.fill_mask(MASKED, top_k=len(tokenizer)).masks[0]}
    equal(candidates, set(range(len(tokenizer))), "candidates")


@CASES.add("load", READ)
def added_special_tokens(place: Path) -> None:
    """Special tokens that were added to the tokenizer"""
    tokenizer = wordpiece()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<e>", "</e>"]})
    agrees(bert(place, tokenizer=tokenizer), texts=["the <e> cat </e> sat", "<e>ada</e>", *TEXTS])


@CASES.add("load", EITHER, "added")
def added_without_rows(place: Path) -> None:
    """Added tokens, but the embeddings were never made larger"""
    tokenizer = wordpiece()
    tokenizer.add_tokens(["covid"])
    agrees(bert(place, tokenizer=tokenizer, rows=len(VOCABULARY)), texts=TEXTS)


@CASES.add("load", READ)
def added_with_blanks(place: Path) -> None:
    """An added token of two words that takes the blanks beside it along"""
    tokenizer = wordpiece()
    tokenizer.add_tokens(
        [tokenizers.AddedToken("new york", lstrip=True, rstrip=True, single_word=True)]
    )
    agrees(
        bert(place, tokenizer=tokenizer),
        texts=["a cat in new york .", "New York", "new yorkers", *TEXTS],
    )


RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "keeps_accents": (
        "lower case, but accents are kept",
        {"do_lower_case": True, "strip_accents": False},
    ),
    "strips_accents": (
        "case is kept, but accents are not",
        {"do_lower_case": False, "strip_accents": True},
    ),
    "chinese_words": (
        "Chinese characters are no words",
        {"do_lower_case": False, "tokenize_chinese_chars": False},
    ),
    "cased": ("case and accents are kept", {"do_lower_case": False}),
}


def rules_case(name: str, oddity: str, rules: Mapping[str, Any]) -> None:
    def act(place: Path) -> None:
        agrees(
            bert(place, tokenizer=wordpiece(CASED, **rules)),
            texts=[*TEXTS, "Éb é wörld 中b文", "É HÉLLO"],
        )

    CASES.add("load", READ, name=name, oddity=oddity)(act)


for rule, (said, settings) in RULES.items():
    rules_case(rule, said, settings)


def tokenizer_case(
    name: str,
    oddity: str,
    expected: str,
    change: Callable[[Path], object],
    names: tuple[str, ...] = (),
) -> None:
    """A clean folder whose tokenizer's files are changed; the ids are those of the clean folder."""

    def act(place: Path) -> None:
        folder = bert(place)
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
        twin = copy_of(folder)
        change(folder)
        agrees(folder, twin)

    CASES.add("load", expected, *names, name=name, oddity=oddity)(act)


def remove(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names]


def put(name: str, content: bytes | str) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def vocab_alone(content: str) -> Callable[[Path], object]:
    """vocab.txt with this content, and no tokenizer.json."""

    def change(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_bytes(content.encode())

    return change


def in_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: edit(folder / name, change)


LINES = "".join(f"{word}\n" for word in VOCABULARY)
JSON, RULES_FILE = "tokenizer.json", "tokenizer_config.json"
tokenizer_case(
    "json_alone", "tokenizer.json and no other file of it", READ, remove("vocab.txt", RULES_FILE)
)
tokenizer_case(
    "vocab_alone", "vocab.txt with tokenizer_config.json, and no tokenizer.json", READ, remove(JSON)
)
tokenizer_case(
    "vocab_without_rules",
    "vocab.txt and no other file of it",
    EITHER,
    remove(JSON, RULES_FILE),
    ("lower",),
)
tokenizer_case(
    "vocab_crlf", "vocab.txt with Windows line ends", READ, vocab_alone(LINES.replace("\n", "\r\n"))
)
tokenizer_case(
    "vocab_bom",
    "vocab.txt with a byte order mark",
    EITHER,
    vocab_alone("\ufeff" + LINES),
    ("vocab.txt",),
)
tokenizer_case(
    "vocab_no_last_end",
    "vocab.txt without its last line end",
    READ,
    vocab_alone(LINES.rstrip("\n")),
)
tokenizer_case(
    "vocab_blank_end",
    "vocab.txt with blank lines at its end",
    EITHER,
    vocab_alone(LINES + "\n\n"),
    ("vocab.txt",),
)
tokenizer_case(
    "vocab_twice",
    "vocab.txt with an entry twice",
    REFUSED,
    vocab_alone(LINES.replace("\nmat\n", "\ncat\n")),
    ("cat",),
)
tokenizer_case(
    "vocab_no_mask",
    "vocab.txt without [MASK]",
    REFUSED,
    vocab_alone(LINES.replace("[MASK]", "[unused]")),
    ("[MASK]",),
)
tokenizer_case(
    "vocab_empty",
    "an empty vocab.txt and no tokenizer.json",
    REFUSED,
    vocab_alone(""),
    ("vocab.txt",),
)
tokenizer_case(
    "json_cut",
    "tokenizer.json cut in half",
    REFUSED,
    lambda folder: (folder / JSON).write_bytes((folder / JSON).read_bytes()[:500]),
    (JSON,),
)
tokenizer_case(
    "json_empty", "an empty tokenizer.json beside a whole vocab.txt", EITHER, put(JSON, ""), (JSON,)
)
tokenizer_case(
    "rules_bom",
    "tokenizer_config.json with a byte order mark",
    EITHER,
    lambda folder: (folder / RULES_FILE).write_bytes(
        b"\xef\xbb\xbf" + (folder / RULES_FILE).read_bytes()
    ),
    (RULES_FILE,),
)
tokenizer_case(
    "rules_list", "tokenizer_config.json holds a list", EITHER, put(RULES_FILE, "[]"), (RULES_FILE,)
)
tokenizer_case(
    "padding",
    "padding and truncation to 8 tokens are left over in tokenizer.json",
    READ,
    in_json(
        JSON,
        lambda values: values.update(
            padding={
                "strategy": {"Fixed": 8},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "[PAD]",
            },
            truncation={
                "direction": "Right",
                "max_length": 8,
                "strategy": "LongestFirst",
                "stride": 0,
            },
        ),
    ),
)
tokenizer_case(
    "small_max_length",
    "tokenizer_config.json says model_max_length 4",
    EITHER,
    in_json(RULES_FILE, lambda values: values.update(model_max_length=4)),
)
tokenizer_case(
    "slow_class",
    "tokenizer_class is that of a slow tokenizer of old",
    READ,
    in_json(
        RULES_FILE,
        lambda values: values.update(
            tokenizer_class="BertTokenizer", do_basic_tokenize=True, never_split=None
        ),
    ),
)
tokenizer_case(
    "no_tokenizer",
    "no file of a tokenizer",
    REFUSED,
    remove("vocab.txt", JSON, RULES_FILE),
    ("tokenizer",),
)


def contradiction_case(
    name: str,
    oddity: str,
    change: Callable[[Path], object],
    names: tuple[str, ...] = (),
    **more: Any,
) -> None:
    """A folder whose files contradict each other, or differ from BERT's.

    It is refused, or read as transformers reads it, or as its tokenizer.json says.
    """

    def act(place: Path) -> None:
        folder = bert(place, **more)
        (folder / "vocab.txt").write_text(LINES)
        change(folder)
        predictor = load(folder)
        # The classes of transformers build BERT's rules anew; the file says what the library makes
        # of it.
        library = tokenizers.Tokenizer.from_file(str(folder / JSON))
        if ids_of(predictor, TEXTS) != [library.encode(text).ids for text in TEXTS]:
            same_ids(predictor, folder)

    CASES.add("load", EITHER, *names, name=name, oddity=oddity)(act)


def swapped(values: dict[str, Any]) -> None:
    entries = values["model"]["vocab"]
    entries["cat"], entries["dog"] = entries["dog"], entries["cat"]


def lower_case(values: dict[str, Any]) -> None:
    values["normalizer"]["lowercase"] = False


contradiction_case(
    "vocab_contradicts_json",
    "vocab.txt and tokenizer.json number two words differently",
    in_json(JSON, swapped),
    ("vocab.txt", "tokenizer.json"),
)
contradiction_case(
    "case_contradicts",
    "tokenizer.json keeps case, tokenizer_config.json does not",
    in_json(JSON, lower_case),
    ("case", "lower"),
)
contradiction_case(
    "no_brackets",
    "a tokenizer.json that adds no [CLS] and no [SEP]",
    in_json(JSON, lambda values: values.update(post_processor=None)),
    (JSON, "[CLS]"),
)
contradiction_case(
    "other_prefix",
    "pieces inside words begin with @@",
    in_json(JSON, lambda values: values["model"].update(continuing_subword_prefix="@@")),
    (JSON, "@@", "##"),
)
contradiction_case(
    "no_normalizer",
    "a tokenizer.json that cleans nothing",
    in_json(JSON, lambda values: values.update(normalizer=None)),
    (JSON,),
)
contradiction_case(
    "split_on_blanks",
    "a tokenizer.json that splits at blanks alone",
    in_json(JSON, lambda values: values.update(pre_tokenizer={"type": "WhitespaceSplit"})),
    (JSON,),
)
contradiction_case(
    "reads_one_type",
    "a tokenizer without token types",
    in_json(
        RULES_FILE, lambda values: values.update(model_input_names=["input_ids", "attention_mask"])
    ),
)


@CASES.add("load", READ)
def long_word(place: Path) -> None:
    """A word of 150 letters: more than tokenizer.json says that a word may have"""
    folder = bert(place, max_position_embeddings=256)
    same_ids(load(folder), folder, ["the " + "cat" * 50 + " sat", *TEXTS])


@CASES.add("load", EITHER, "mask", "pad", "<")
def other_special_tokens(place: Path) -> None:
    """WordPiece with special tokens called <pad>, <unk>, <s>, </s> and <mask>"""
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    entries = [*names, *VOCABULARY[5:]]
    said = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True)
    )
    folder = bert(place, tokenizer=wordpiece(entries, **said))
    predictor = load(folder)
    same_ids(predictor, folder)
    same_masks(predictor, folder, text=MASKED.replace("[MASK]", "<mask>"))


def other_library(model: Any, place: Path) -> Path:
    """A BERT whose tokenizer is of another model."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(
        zip(
            ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True
        )
    )
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)
    return bert(place, tokenizer=made)


@CASES.add("load", EITHER, "unigram")
def unigram(place: Path) -> None:
    """A Unigram tokenizer, as SentencePiece makes them"""
    folder = other_library(
        tokenizers.models.Unigram(
            [(word, -1.0 - n) for n, word in enumerate(VOCABULARY)], unk_id=1
        ),
        place,
    )
    same_ids(load(folder), folder, ["the cat sat"])


@CASES.add("load", EITHER, "wordlevel")
def word_level(place: Path) -> None:
    """A tokenizer of whole words"""
    entries = {word: number for number, word in enumerate(VOCABULARY)}
    folder = other_library(tokenizers.models.WordLevel(entries, unk_token="[UNK]"), place)
    same_ids(load(folder), folder, ["the cat sat"])


@CASES.add("load", REFUSED, "vocab", "embeddings")
def too_few_rows(place: Path) -> None:
    """Fewer embeddings than entries of the vocabulary"""
    load(bert(place, rows=len(VOCABULARY) - 3))


@CASES.add("load", READ)
def padded_rows(place: Path) -> None:
    """Embeddings padded to a multiple of 64"""
    agrees(bert(place, rows=128))


@CASES.add("load", EITHER, "embeddings")
def many_more_rows(place: Path) -> None:
    """A thousand embeddings more than the vocabulary has entries"""
    agrees(bert(place, rows=len(VOCABULARY) + 1000))


# RoBERTa's byte-level BPE


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


ROBERTA_TEXTS = ["the cat sat", " The  cat\n sat ", "wörld 中 😀", "a dog's mat?"]


def roberta_case(
    name: str,
    oddity: str,
    expected: str,
    change: Callable[[Path], object],
    names: tuple[str, ...] = (),
    is_own_twin: bool = False,
    **how: Any,
) -> None:
    def act(place: Path) -> None:
        folder = byte_level(place, **how)
        twin = folder if is_own_twin else copy_of(folder)
        change(folder)
        predictor = load(folder)
        same_ids(predictor, twin, ROBERTA_TEXTS)
        same_states(predictor, twin, ROBERTA_TEXTS)
        same_masks(predictor, twin, text="the <mask> sat")

    CASES.add("load", expected, *names, name=name, oddity=oddity)(act)


roberta_case("roberta", "nothing: the control of byte-level BPE", READ, lambda _: None)
roberta_case("roberta_prefix", "a blank before the first word", READ, lambda _: None, prefix=True)
roberta_case(
    "roberta_json_alone",
    "tokenizer.json and no other file of it",
    READ,
    remove("vocab.json", "merges.txt", RULES_FILE),
)
roberta_case("roberta_hole", "an id that no entry has", EITHER, lambda _: None, ("ids",), hole=True)
roberta_case(
    "roberta_pad",
    "another padding id, from which positions are counted",
    EITHER,
    lambda folder: configure(folder, pad_token_id=3),
    ("pad",),
    is_own_twin=True,
)
roberta_case(
    "roberta_mask",
    "a mask that does not take the blank before it along",
    READ,
    lambda _: None,
    lstrip=False,
)


# Configurations


def config_case(
    name: str,
    oddity: str,
    expected: str,
    changes: Mapping[str, Any] | None = None,
    dropped: Sequence[str] = (),
    names: tuple[str, ...] = (),
    is_own_twin: bool = False,
    **made: Any,
) -> None:
    """A clean folder whose config.json is changed; compared with itself by transformers, or with
    the clean one.
    """

    def act(place: Path) -> None:
        folder = bert(place, **made)
        twin = folder if is_own_twin else copy_of(folder)
        configure(folder, **(changes or {}))
        drop(folder, *dropped)
        agrees(folder, twin)

    CASES.add("load", expected, *names, name=name, oddity=oddity)(act)


config_case("no_model_type", "no model_type", EITHER, dropped=["model_type"], names=("model_type",))
config_case("no_architectures", "no architectures", READ, dropped=["architectures"])
config_case("architectures_null", "architectures is null", READ, {"architectures": None})
config_case(
    "architectures_text",
    "architectures is a text, not a list",
    EITHER,
    {"architectures": "BertForMaskedLM"},
    names=("architecture",),
)
config_case(
    "unknown_keys",
    "keys that nobody knows, nested ones among them",
    READ,
    {"my_key": {"a": [1, None]}, "_name_or_path": "/x"},
)
config_case(
    "few_keys",
    "the sizes alone: dropouts, epsilon and initialisation are left out",
    READ,
    dropped=[
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "layer_norm_eps",
        "initializer_range",
        "pad_token_id",
        "use_cache",
        "type_vocab_size",
        "hidden_act",
    ],
)
config_case(
    "gelu_new",
    "the activation gelu_new",
    EITHER,
    {"hidden_act": "gelu_new"},
    is_own_twin=True,
    names=("gelu_new",),
)
config_case(
    "relu", "the activation relu", EITHER, {"hidden_act": "relu"}, is_own_twin=True, names=("relu",)
)
config_case(
    "unknown_act",
    "an activation that nobody knows",
    REFUSED,
    {"hidden_act": "gulu"},
    names=("gulu",),
)
config_case(
    "epsilon", "a layer norm's epsilon of 0.1", READ, {"layer_norm_eps": 0.1}, is_own_twin=True
)
config_case(
    "relative_positions",
    "position_embedding_type is relative_key",
    REFUSED,
    {"position_embedding_type": "relative_key"},
    names=("relative_key",),
)
config_case(
    "cross_attention",
    "add_cross_attention and is_decoder are true",
    REFUSED,
    {"add_cross_attention": True, "is_decoder": True},
    names=("cross",),
)
config_case(
    "fewer_layers",
    "the configuration has one layer, the weights have two",
    REFUSED,
    {"num_hidden_layers": 1},
    num_hidden_layers=2,
    names=("layer.1",),
)
config_case(
    "more_layers",
    "the configuration has two layers, the weights have one",
    REFUSED,
    {"num_hidden_layers": 2},
    names=("layer.1",),
)
config_case(
    "heads_do_not_divide",
    "three heads for 16 dimensions",
    REFUSED,
    {"num_attention_heads": 3},
    names=("head",),
)
config_case(
    "other_width",
    "a hidden size of 32, and weights of 16",
    REFUSED,
    {"hidden_size": 32},
    names=("shape", "16"),
)
config_case(
    "other_vocabulary",
    "vocab_size is one more than the weights have rows",
    REFUSED,
    {"vocab_size": len(VOCABULARY) + 1},
    names=("vocab", "word_embeddings"),
)
config_case(
    "numbers_as_text",
    "numbers are written as text",
    EITHER,
    {"hidden_size": "16", "num_hidden_layers": "1"},
    names=("config.json",),
)
config_case(
    "negative_size",
    "a negative number of layers",
    REFUSED,
    {"num_hidden_layers": -1},
    names=("config.json",),
)
config_case(
    "null_size",
    "hidden_size is null",
    REFUSED,
    {"hidden_size": None},
    names=("hidden_size", "config.json"),
)
config_case(
    "no_sizes",
    "no sizes at all",
    REFUSED,
    dropped=["hidden_size", "num_hidden_layers", "vocab_size"],
    names=("config.json",),
)
config_case("one_token_type", "one token type", READ, type_vocab_size=1)
config_case("half_layers", "1.0 layers", EITHER, {"num_hidden_layers": 1.0}, names=("config.json",))
config_case("other_pad", "another padding id", READ, {"pad_token_id": 7})
config_case(
    "half_precision_said",
    "the configuration says float16, the weights are float32",
    READ,
    {"dtype": "float16", "torch_dtype": "float16"},
)
config_case(
    "unknown_class",
    "a class that nobody knows",
    REFUSED,
    {"architectures": ["BertForEverything"]},
    names=("BertForEverything",),
)
config_case(
    "two_classes", "two architectures", READ, {"architectures": ["BertForMaskedLM", "BertModel"]}
)
config_case(
    "other_family",
    "model_type is roformer",
    REFUSED,
    {"model_type": "roformer"},
    names=("roformer",),
)
config_case(
    "remote_code",
    "auto_map names code of the folder",
    EITHER,
    {"auto_map": {"AutoModel": "own.Model"}},
    names=("auto_map",),
)
config_case(
    "family_contradicts_class",
    "model_type roberta, architecture BertForMaskedLM",
    REFUSED,
    {"model_type": "roberta"},
    names=("roberta", "BertForMaskedLM"),
)

for content, name, oddity in (
    (b"", "config_empty", "an empty config.json"),
    (b"[]", "config_list", "config.json holds a list"),
    (b'{"model_type": "bert",', "config_cut", "config.json is cut"),
    (b"\xff\xfe{\0}\0", "config_utf16", "config.json in UTF-16"),
):

    def broken_config(place: Path, content: bytes = content) -> None:
        folder = bert(place)
        (folder / "config.json").write_bytes(content)
        load(folder)

    CASES.add("load", REFUSED, "config.json", name=name, oddity=oddity)(broken_config)


@CASES.add("load", READ)
def config_bom_free_json(place: Path) -> None:
    """config.json with tabs, another order and escaped letters"""
    folder = bert(place)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(reversed(values.items())), indent="\t"))
    agrees(folder)


@CASES.add("load", EITHER, "config.json")
def config_bom(place: Path) -> None:
    """config.json with a byte order mark"""
    folder = bert(place)
    twin = copy_of(folder)
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + (folder / "config.json").read_bytes())
    agrees(folder, twin)


@CASES.add("load", EITHER, "is_decoder", "LMHead", "causal")
def decoder(place: Path) -> None:
    """A BERT that reads from left to right (is_decoder)"""
    folder = bert(place, "LMHeadModel", is_decoder=True)
    model = transformers.BertLMHeadModel.from_pretrained(folder).eval()
    predictor = load(folder)
    same_ids(predictor, folder)
    same_states(predictor, folder, model=model)


@CASES.add("load", REFUSED, "text 1", "tokens", "8")
def few_positions(place: Path) -> None:
    """Eight positions, and a text of eleven tokens"""
    predictor = load(bert(place, max_position_embeddings=8))
    same_ids(predictor, place / "model", ["the cat sat"])
    predictor.hidden_states("the cat sat on the mat and ran")


# Labels


def label_case(
    name: str,
    oddity: str,
    expected: str,
    changes: Mapping[str, Any] | None = None,
    dropped: Sequence[str] = (),
    labels: Sequence[str] = LABELS,
    names: tuple[str, ...] = ("id2label", "label"),
    made: Sequence[str] = LABELS,
    **config: Any,
) -> None:
    def act(place: Path) -> None:
        folder = classifier(place, made, **config)
        twin = copy_of(folder)
        configure(folder, **(changes or {}))
        drop(folder, *dropped)
        same_classes(load(folder), twin, labels)

    CASES.add("load", expected, *names, name=name, oddity=oddity)(act)


TWELVE = [f"class {number}" for number in range(12)]
label_case("classifier", "nothing: the control of the classifiers", READ)
label_case(
    "labels_gap",
    "id2label has 0, 1 and 3",
    REFUSED,
    {"id2label": {"0": "anger", "1": "fear", "3": "joy"}},
)
label_case(
    "labels_contradict",
    "label2id contradicts id2label",
    EITHER,
    {"label2id": {"anger": 2, "fear": 1, "joy": 0}},
    names=("label2id",),
)
label_case(
    "label2id_alone", "label2id without id2label", EITHER, dropped=["id2label"], names=("label2id",)
)
label_case(
    "labels_fewer",
    "two names for three outputs",
    REFUSED,
    {"id2label": {"0": "anger", "1": "fear"}},
)
label_case(
    "labels_more",
    "four names for three outputs",
    REFUSED,
    {"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}},
)
label_case(
    "labels_same",
    "two classes of one name",
    REFUSED,
    {"id2label": {"0": "anger", "1": "anger", "2": "joy"}},
    names=("anger",),
)
label_case(
    "labels_missing",
    "neither id2label nor label2id",
    READ,
    dropped=["id2label", "label2id"],
    labels=["LABEL_0", "LABEL_1", "LABEL_2"],
)
label_case(
    "labels_order",
    "id2label in the order of text: 0, 1, 10, 11, 2",
    READ,
    {"id2label": {key: TWELVE[int(key)] for key in sorted(map(str, range(12)))}},
    made=TWELVE,
    labels=TWELVE,
)
label_case("labels_list", "id2label is a list", EITHER, {"id2label": LABELS})
label_case(
    "labels_text_keys",
    "id2label from names to numbers",
    REFUSED,
    {"id2label": {"anger": 0, "fear": 1, "joy": 2}},
)
label_case(
    "labels_null",
    "a name is null",
    EITHER,
    {"id2label": {"0": "anger", "1": None, "2": "joy"}},
    labels=["anger", "None", "joy"],
)
label_case(
    "labels_empty",
    "a name is empty",
    EITHER,
    {"id2label": {"0": "anger", "1": "", "2": "joy"}},
    labels=["anger", "", "joy"],
)
label_case(
    "labels_odd",
    "names with line breaks, emoji and blanks",
    READ,
    made=["a\nb", "😀", "  "],
    labels=["a\nb", "😀", "  "],
)
label_case(
    "no_class_named",
    "a classifier, and no architectures",
    EITHER,
    dropped=["architectures"],
    names=("architecture",),
)
label_case(
    "unknown_problem",
    "a problem_type that nobody knows",
    EITHER,
    {"problem_type": "ranking"},
    names=("problem_type",),
)
label_case(
    "num_labels_contradicts",
    "num_labels is 7 beside three names",
    EITHER,
    {"num_labels": 7},
    names=("num_labels", "label"),
)


@CASES.add("load", EITHER, "multi_label")
def multi_label(place: Path) -> None:
    """A classifier of several labels at once (problem_type)"""
    folder = classifier(place, problem_type="multi_label_classification")
    predictor = load(folder)
    with torch.no_grad():
        shares = (
            theirs(folder, "ForSequenceClassification")(**encoded(folder, TEXTS[0]))
            .logits[0]
            .sigmoid()
        )
    answer = predictor.classify(TEXTS[0])
    close([answer.probabilities[name] for name in LABELS], shares, "probabilities")


@CASES.add("load", READ)
def one_output(place: Path) -> None:
    """A classifier of one output, which is a number"""
    folder = classifier(place, ["LABEL_0"])
    with torch.no_grad():
        value = theirs(folder, "ForSequenceClassification")(**encoded(folder, TEXTS[0])).logits[0]
    close([load(folder).classify(TEXTS[0]).to_dict()["value"]], value, "number")


@CASES.add("load", READ)
def pair_types(place: Path) -> None:
    """A pair: the second text has the other token type"""
    folder = classifier(place)
    with torch.no_grad():
        shares = (
            theirs(folder, "ForSequenceClassification")(**encoded(folder, "the cat sat", "a dog"))
            .logits[0]
            .softmax(-1)
        )
    answer = load(folder).classify(("the cat sat", "a dog"))
    close(list(answer.probabilities.values()), shares, "probabilities")


# Weights


def weight_case(
    name: str,
    oddity: str,
    expected: str,
    change: Callable[[Path], object],
    names: tuple[str, ...] = (),
    compare: Callable[[Path, Path], object] = agrees,
    make: Callable[[Path], Path] = bert,
) -> None:
    def act(place: Path) -> None:
        folder = make(place)
        twin = copy_of(folder)
        change(folder)
        compare(folder, twin)

    CASES.add("load", expected, *names, name=name, oddity=oddity)(act)


def prefixed(prefix: str) -> Callable[[Path], object]:
    return lambda folder: reweight(
        folder, lambda all_: {prefix + name: value for name, value in all_.items()}
    )


def converted(dtype: torch.dtype) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        reweight(folder, lambda all_: {name: value.to(dtype) for name, value in all_.items()})

    return change


def with_tensor(name: str, value: torch.Tensor) -> Callable[[Path], object]:
    return lambda folder: reweight(folder, lambda all_: {**all_, name: value})


def without(*parts: str) -> Callable[[Path], object]:
    def kept(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        result = {}
        for name, tensor in tensors.items():
            if not any(part in name for part in parts):
                result[name] = tensor
        return result

    return lambda folder: reweight(folder, kept)


def as_pickle(folder: Path, name: str = "pytorch_model.bin") -> None:
    torch.save(load_file(folder / WEIGHTS), folder / name)
    (folder / WEIGHTS).unlink()


def renamed(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: reweight(
        folder, lambda all_: {k.replace(old, new): v for k, v in all_.items()}
    )


def of_tensorflow(folder: Path) -> None:
    renamed("LayerNorm.weight", "LayerNorm.gamma")(folder)
    renamed("LayerNorm.bias", "LayerNorm.beta")(folder)


def module_pickle(folder: Path) -> None:
    prefixed("module.")(folder)
    as_pickle(folder)


def in_state(folder: Path) -> None:
    torch.save(
        {"epoch": 3, "state_dict": load_file(folder / WEIGHTS)}, folder / "pytorch_model.bin"
    )
    (folder / WEIGHTS).unlink()


def tensor_set(name: str, value: float) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        def put_in(all_: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            all_[name].view(-1)[3] = value
            return all_

        reweight(folder, put_in)

    return change


def agrees_with_rounded(folder: Path, _: Path) -> None:
    """The folder itself, as transformers reads it into float32."""
    agrees(folder)


WORD_ROWS = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
weight_case("module_prefix", "names begin with module.", READ, prefixed("module."))
weight_case("module_pickle", "names begin with module., in a pickle", READ, module_pickle)
weight_case("model_prefix", "names begin with model.", EITHER, prefixed("model."), ("model.",))
weight_case(
    "compiled_prefix",
    "names begin with _orig_mod.",
    EITHER,
    prefixed("_orig_mod."),
    ("_orig_mod.",),
)
weight_case(
    "doubled_prefix",
    "names begin with bert.bert.",
    EITHER,
    renamed("bert.", "bert.bert."),
    ("bert.bert.",),
)
weight_case(
    "position_ids",
    "a leftover buffer position_ids",
    READ,
    with_tensor("bert.embeddings.position_ids", torch.arange(64)[None]),
)
weight_case(
    "token_type_ids",
    "a leftover buffer token_type_ids",
    READ,
    with_tensor("bert.embeddings.token_type_ids", torch.zeros(1, 64, dtype=torch.long)),
)
weight_case("gamma_beta", "layer norms called gamma and beta", READ, of_tensorflow)
weight_case(
    "tied_copy",
    "the vocabulary projection is stored beside the word embeddings",
    READ,
    lambda folder: reweight(
        folder,
        lambda all_: {
            **all_,
            "cls.predictions.decoder.weight": all_[WORD_ROWS],
            "cls.predictions.decoder.bias": all_["cls.predictions.bias"],
        },
    ),
)
weight_case(
    "extra_head",
    "a head for the next sentence that the class does not name",
    READ,
    lambda folder: reweight(
        folder,
        lambda all_: {
            **all_,
            "cls.seq_relationship.weight": torch.ones(2, 16),
            "cls.seq_relationship.bias": torch.ones(2),
        },
    ),
)
weight_case(
    "extra_pooler",
    "a pooler that the class does not have",
    READ,
    lambda folder: reweight(
        folder,
        lambda all_: {
            **all_,
            "bert.pooler.dense.weight": torch.ones(16, 16),
            "bert.pooler.dense.bias": torch.ones(16),
        },
    ),
)
weight_case(
    "adapter",
    "tensors of an adapter inside a layer",
    REFUSED,
    with_tensor("bert.encoder.layer.0.output.adapter.down.weight", torch.ones(4, 16)),
    ("adapter",),
)
weight_case(
    "unknown_tensor",
    "a tensor beside the encoder that nobody knows",
    EITHER,
    with_tensor("teacher.weight", torch.ones(4)),
    ("teacher",),
)
weight_case("half", "float16", READ, converted(torch.float16), compare=agrees_with_rounded)
weight_case("bfloat16", "bfloat16", READ, converted(torch.bfloat16), compare=agrees_with_rounded)
weight_case("double", "float64", READ, converted(torch.float64))
weight_case("integers", "int8, as quantised weights are", REFUSED, converted(torch.int8), ("int8",))
weight_case("pickle", "pytorch_model.bin alone", READ, as_pickle)
weight_case(
    "no_layer_tensor",
    "a tensor of a layer is missing",
    REFUSED,
    without("query.bias"),
    ("query.bias",),
)
weight_case(
    "no_embeddings",
    "the word embeddings are missing",
    REFUSED,
    without("word_embeddings"),
    ("word_embeddings",),
)
weight_case(
    "transposed",
    "a matrix is transposed",
    REFUSED,
    lambda folder: reweight(
        folder,
        lambda all_: {k: v.T if "intermediate.dense.weight" in k else v for k, v in all_.items()},
    ),
    ("intermediate",),
)
weight_case(
    "flat",
    "a matrix is flat",
    REFUSED,
    lambda folder: reweight(
        folder, lambda all_: {k: v.reshape(-1) if k == QUERY else v for k, v in all_.items()}
    ),
    ("query",),
)
weight_case(
    "nan", "a NaN in a matrix", REFUSED, tensor_set(QUERY, float("nan")), ("finite", "number")
)
weight_case(
    "infinite",
    "an infinity in the embeddings of a word that a text has",
    REFUSED,
    tensor_set("bert.embeddings.position_embeddings.weight", float("inf")),
    ("finite", "number"),
)
weight_case(
    "cut",
    "model.safetensors cut in half",
    REFUSED,
    lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:9000]),
    (WEIGHTS,),
)
weight_case("empty_weights", "an empty model.safetensors", REFUSED, put(WEIGHTS, ""), (WEIGHTS,))
weight_case(
    "lfs_pointer",
    "a pointer of git-lfs in place of the weights",
    REFUSED,
    put(WEIGHTS, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
    (WEIGHTS,),
)
weight_case(
    "pickle_cut",
    "pytorch_model.bin cut in half",
    REFUSED,
    lambda folder: (
        as_pickle(folder),
        (folder / "pytorch_model.bin").write_bytes(
            (folder / "pytorch_model.bin").read_bytes()[:9000]
        ),
    ),
    ("pytorch_model.bin",),
)
weight_case(
    "state_dict",
    "a training's state in place of the tensors alone",
    EITHER,
    in_state,
    ("pytorch_model.bin",),
)
weight_case("no_weights", "no weights", REFUSED, remove(WEIGHTS), ("weights",))
weight_case(
    "tensorflow_weights",
    "tf_model.h5 alone",
    REFUSED,
    lambda folder: (folder / WEIGHTS).rename(folder / "tf_model.h5"),
    ("weights",),
)
weight_case(
    "both_formats",
    "another model's pytorch_model.bin beside model.safetensors",
    READ,
    lambda folder: torch.save(
        {name: value + 1 for name, value in load_file(folder / WEIGHTS).items()},
        folder / "pytorch_model.bin",
    ),
)
weight_case(
    "empty_pickle_beside",
    "an empty pytorch_model.bin beside model.safetensors",
    READ,
    put("pytorch_model.bin", ""),
)
weight_case(
    "adapter_folder",
    "a LoRA adapter's folder",
    REFUSED,
    lambda folder: (
        remove(WEIGHTS, "config.json")(folder),
        put("adapter_config.json", "{}")(folder),
    ),
    ("config.json",),
)


def sharded(folder: Path, suffix: str = "safetensors") -> list[Path]:
    """Weights in two files, with their index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(tensors)
    places, files = {}, []
    for number, own in enumerate((names[::2], names[1::2]), 1):
        path = folder / f"{stem}-{number:05d}-of-00002.{suffix}"
        part = {name: tensors[name] for name in own}
        if suffix == "safetensors":
            save_file(part, path, {"format": "pt"})
        else:
            torch.save(part, path)
        places |= dict.fromkeys(own, path.name)
        files.append(path)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return files


def index_of(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    sharded(folder)
    edit(folder / f"{WEIGHTS}.index.json", change)


weight_case("sharded", "weights in two files", READ, sharded)
weight_case(
    "sharded_pickles", "weights in two pickles", READ, lambda folder: sharded(folder, "bin")
)
weight_case(
    "shard_missing",
    "one of two files of weights is missing",
    REFUSED,
    lambda folder: sharded(folder)[1].unlink(),
    ("00002-of-00002",),
)
weight_case(
    "shard_twice",
    "the second file is a copy of the first",
    REFUSED,
    lambda folder: shutil.copy(*sharded(folder)),
    ("missing", "00002-of-00002"),
)
weight_case(
    "index_empty",
    "an index that lists no file",
    REFUSED,
    lambda folder: index_of(folder, lambda values: values.update(weight_map={})),
    ("index.json",),
)
weight_case(
    "index_up",
    "an index that lists a file above the folder",
    REFUSED,
    lambda folder: index_of(
        folder,
        lambda values: values.update(
            weight_map=dict.fromkeys(values["weight_map"], "../x.safetensors")
        ),
    ),
    ("x.safetensors",),
)
weight_case(
    "shards_without_index",
    "two files of weights and no index",
    EITHER,
    lambda folder: (sharded(folder), (folder / f"{WEIGHTS}.index.json").unlink()),
    ("weights",),
)
weight_case(
    "index_and_whole",
    "an index whose files are gone beside a whole file",
    READ,
    lambda folder: (
        shutil.copy(folder / WEIGHTS, folder.parent / "kept"),
        [path.unlink() for path in sharded(folder)],
        shutil.copy(folder.parent / "kept", folder / WEIGHTS),
    ),
)


@CASES.add("load", READ)
def untied(place: Path) -> None:
    """A vocabulary projection that is not the word embeddings"""
    agrees(bert(place, tie_word_embeddings=False))


@CASES.add("load", EITHER, "tie", "decoder")
def tied_but_other(place: Path) -> None:
    """tie_word_embeddings is true, and the file has another projection"""
    folder = bert(place)
    reweight(folder, lambda all_: {**all_, "cls.predictions.decoder.weight": all_[WORD_ROWS] + 1})
    model = BertForMaskedLM.from_pretrained(folder).eval()
    same_masks(load(folder), folder, model)


@CASES.add("load", READ)
def bare_names(place: Path) -> None:
    """A bare encoder: names without the family's prefix"""
    folder = bert(place, "Model")
    predictor = load(folder)
    same_ids(predictor, folder)
    same_states(predictor, folder)


@CASES.add("load", REFUSED, "classif")
def no_classifier(place: Path) -> None:
    """A classifier's configuration, and weights without its head: it does not classify"""
    folder = classifier(place)
    reweight(folder, lambda all_: {k: v for k, v in all_.items() if "classifier" not in k})
    predictor = load(folder)
    same_states(predictor, folder)
    predictor.classify("the cat")


@CASES.add("load", REFUSED, "classif")
def no_pooler(place: Path) -> None:
    """A classifier without its pooler: it does not classify"""
    folder = classifier(place)
    reweight(folder, lambda all_: {k: v for k, v in all_.items() if "pooler" not in k})
    predictor = load(folder)
    same_states(predictor, folder)
    predictor.classify("the cat")


# Places


@CASES.add("load", READ)
def odd_path(place: Path) -> None:
    """A path with blanks, quotes, an equals sign, brackets and letters beyond ASCII"""
    folder = bert(place)
    agrees(folder.rename(place / "my 'model' [v=1], é 中 #?%20"))


@CASES.add("load", READ)
def at_in_path(place: Path) -> None:
    """A folder's name with @, as the hub's commits are written"""
    agrees(bert(place).rename(place / "name@0123456789012345678901234567890123456789"))


@CASES.add("load", READ)
def linked_folder(place: Path) -> None:
    """The folder is a symbolic link"""
    folder = bert(place)
    (place / "link").symlink_to(folder)
    agrees(folder, place=place / "link")


@CASES.add("load", READ)
def linked_files(place: Path) -> None:
    """All files are symbolic links to files without suffixes, as in the hub's cache"""
    folder = bert(place)
    (place / "blobs").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(place / "blobs" / str(number))
        path.symlink_to(Path("..") / "blobs" / str(number))
    agrees(folder)


@CASES.add("load", REFUSED, "model.safetensors", "weights")
def broken_link(place: Path) -> None:
    """The weights are a symbolic link to nothing"""
    folder = bert(place)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("../blobs/1")
    load(folder)


@CASES.add("load", READ)
def read_only(place: Path) -> None:
    """A folder that one may not write to"""
    folder = bert(place)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    with as_nobody():
        load(folder)
    agrees(folder)


@CASES.add("load", REFUSED, "permission", "may not")
def unreadable(place: Path) -> None:
    """Weights that one may not read"""
    folder = bert(place)
    for path in folder.iterdir():
        path.chmod(0o444)
    (folder / WEIGHTS).chmod(0)
    with as_nobody():
        load(folder)


@CASES.add("load", READ)
def relative_path(place: Path) -> None:
    """A relative path with .. and a slash at its end"""
    folder = bert(place)
    here = Path.cwd()
    os.chdir(place)
    try:
        agrees(folder, place="model/../model/")
    finally:
        os.chdir(here)


@CASES.add("load", READ)
def weights_file(place: Path) -> None:
    """The file of weights in place of its folder"""
    folder = bert(place)
    agrees(folder, place=folder / WEIGHTS)


@CASES.add("load", REFUSED, "config.json")
def outer_folder(place: Path) -> None:
    """The folder above the model's"""
    (place / "outer").mkdir()
    bert(place).rename(place / "outer" / "bert-base")
    load(place / "outer")


@CASES.add("load", REFUSED, "config.json")
def checkpoints(place: Path) -> None:
    """A trainer's folder: checkpoint-500 and checkpoint-1000 inside"""
    folder = bert(place)
    (place / "out").mkdir()
    shutil.copytree(folder, place / "out" / "checkpoint-500")
    folder.rename(place / "out" / "checkpoint-1000")
    load(place / "out")


@CASES.add("load", REFUSED, "empty")
def empty_folder(place: Path) -> None:
    """An empty folder"""
    (place / "empty").mkdir()
    load(place / "empty")


@CASES.add("load", REFUSED, "nowhere")
def nowhere(place: Path) -> None:
    """A folder that is not there"""
    load(place / "nowhere")
