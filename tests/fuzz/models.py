"""Odd tokenizers, configurations and labels in model folders for `load`: ids, states and answers
are those of transformers.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, close, equal
from tests.fuzz.making import (
    CASED,
    JSON,
    LABELS,
    LINES,
    MASKED,
    RULES_FILE,
    SPECIAL,
    TEXTS,
    VOCABULARY,
    Change,
    agrees,
    agrees_after,
    bert,
    byte_level,
    classifier,
    configure,
    copy_of,
    drop,
    encoded,
    ids_of,
    in_json,
    load,
    nothing,
    put,
    remove,
    same_classes,
    same_ids,
    same_masks,
    same_states,
    theirs,
    wordpiece,
)

CASES = Cases("model folders")


# Tokens that were added, and rules of WordPiece


@CASES.rows("load")
def rules_case(place: Path, **rules: Any) -> None:
    folder = bert(place, tokenizer=wordpiece(CASED, **rules))
    agrees(folder, texts=[*TEXTS, "Éb é wörld 中b文", "É HÉLLO"])


rules_case("lower case, but accents are kept", READ, do_lower_case=True, strip_accents=False)
rules_case("case is kept, but accents are not", READ, do_lower_case=False, strip_accents=True)
no_words = {"do_lower_case": False, "tokenize_chinese_chars": False}
rules_case("Chinese characters are no words", READ, **no_words)
rules_case("case and accents are kept", READ, do_lower_case=False)


@CASES.rows("load")
def made_case(place: Path, texts: Sequence[str] = TEXTS, **made: Any) -> None:
    agrees(bert(place, **made), texts=texts)


made_case("Nothing: the control of the masked models", READ)
made_case("Embeddings padded to a multiple of 64", READ, rows=128)
oddity = "A thousand embeddings more than the vocabulary has entries"
made_case(oddity, EITHER, rows=len(VOCABULARY) + 1000, names="embeddings")
with_ends = wordpiece()
with_ends.add_special_tokens({"additional_special_tokens": ["<e>", "</e>"]})
texts = ["the <e> cat </e> sat", "<e>ada</e>", *TEXTS]
made_case("Special tokens that were added to the tokenizer", READ, texts, tokenizer=with_ends)
with_word = wordpiece()
with_word.add_tokens(["covid"])
oddity = "Added tokens, but the embeddings were never made larger"
made_case(oddity, EITHER, tokenizer=with_word, rows=len(VOCABULARY), names="added")
with_blanks = wordpiece()
two_words = tokenizers.AddedToken("new york", lstrip=True, rstrip=True, single_word=True)
with_blanks.add_tokens([two_words])
oddity = "An added token of two words that takes the blanks beside it along"
texts = ["a cat in new york .", "New York", "new yorkers", *TEXTS]
made_case(oddity, READ, texts, tokenizer=with_blanks)


@CASES.add("load", READ)
def added_tokens(place: Path) -> None:
    """Words that were added to the tokenizer, with embeddings of their own"""
    tokenizer = wordpiece()
    tokenizer.add_tokens(["[E1]", "covid"])
    folder = bert(place, tokenizer=tokenizer)
    predictor = agrees(folder, texts=["the covid cat", "[E1] sat[E1]on covids", *TEXTS])
    candidates = {token.id for token in predictor.fill_mask(MASKED, top_k=len(tokenizer)).masks[0]}
    equal(candidates, set(range(len(tokenizer))), "candidates")


# A tokenizer's files


@CASES.rows("load")
def tokenizer_case(place: Path, change: Change) -> None:
    """A clean folder whose tokenizer's files are changed; the ids are those of the clean folder."""
    folder = bert(place)
    (folder / "vocab.txt").write_text(LINES)
    twin = copy_of(folder)
    change(folder)
    agrees(folder, twin)


def vocab_alone(content: str) -> Change:
    """vocab.txt with this content, and no tokenizer.json."""

    def change(folder: Path) -> None:
        (folder / JSON).unlink()
        (folder / "vocab.txt").write_bytes(content.encode())

    return change


def rules_in_bytes(change: Callable[[bytes], bytes], name: str = RULES_FILE) -> Change:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


PADDING = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
CUT = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
LEFT_OVER = {"padding": PADDING, "truncation": CUT}
SLOW = {"tokenizer_class": "BertTokenizer", "do_basic_tokenize": True, "never_split": None}
VOCABULARIES = {
    "with Windows line ends": (READ, LINES.replace("\n", "\r\n"), ""),
    "with a byte order mark": (EITHER, "\ufeff" + LINES, "vocab.txt"),
    "without its last line end": (READ, LINES.rstrip("\n"), ""),
    "with blank lines at its end": (EITHER, LINES + "\n\n", "vocab.txt"),
    "with an entry twice": (REFUSED, LINES.replace("\nmat\n", "\ncat\n"), "cat"),
    "without [MASK]": (REFUSED, LINES.replace("[MASK]", "[unused]"), "[MASK]"),
    "without an entry": (REFUSED, "", "vocab.txt"),
}
for _oddity, (_expected, _content, _names) in VOCABULARIES.items():
    tokenizer_case(f"vocab.txt {_oddity}", _expected, vocab_alone(_content), names=_names)
tokenizer_case("tokenizer.json and no other file of it", READ, remove("vocab.txt", RULES_FILE))
tokenizer_case("vocab.txt with tokenizer_config.json, and no tokenizer.json", READ, remove(JSON))
tokenizer_case("vocab.txt and no other file of it", EITHER, remove(JSON, RULES_FILE), names="lower")
cut = rules_in_bytes(lambda content: content[:500], JSON)
tokenizer_case("tokenizer.json cut in half", REFUSED, cut, names=JSON)
emptied = put(JSON, "")
tokenizer_case("an empty tokenizer.json beside a whole vocab.txt", EITHER, emptied, names=JSON)
mark = rules_in_bytes(lambda content: BOM_UTF8 + content)
tokenizer_case("tokenizer_config.json with a byte order mark", EITHER, mark, names=RULES_FILE)
listed = put(RULES_FILE, "[]")
tokenizer_case("tokenizer_config.json holds a list", EITHER, listed, names=RULES_FILE)
left_over = "padding and truncation to 8 tokens are left over in tokenizer.json"
tokenizer_case(left_over, READ, in_json(JSON, **LEFT_OVER))
short = in_json(RULES_FILE, model_max_length=4)
tokenizer_case("tokenizer_config.json says model_max_length 4", EITHER, short)
of_old = in_json(RULES_FILE, **SLOW)
tokenizer_case("tokenizer_class is that of a slow tokenizer of old", READ, of_old)
no_file = remove("vocab.txt", JSON, RULES_FILE)
tokenizer_case("no file of a tokenizer", REFUSED, no_file, names="tokenizer")


@CASES.rows("load")
def contradiction_case(place: Path, change: Change) -> None:
    """A folder whose files contradict each other, or differ from BERT's.

    It is refused, or read as transformers reads it, or as its tokenizer.json says.
    """
    folder = bert(place)
    (folder / "vocab.txt").write_text(LINES)
    change(folder)
    predictor = load(folder)
    # The classes of transformers build BERT's rules anew; the file says what the library makes of
    # it.
    library = tokenizers.Tokenizer.from_file(str(folder / JSON))
    if ids_of(predictor, TEXTS) != [library.encode(text).ids for text in TEXTS]:
        same_ids(predictor, folder)


def edited(part: str, **values: Any) -> Change:
    """Values inside one part of tokenizer.json."""
    return in_json(JSON, change=lambda content: content[part].update(values))


def swap_two_words(content: dict[str, Any]) -> None:
    entries = content["model"]["vocab"]
    entries["cat"], entries["dog"] = entries["dog"], entries["cat"]


swapped = in_json(JSON, change=swap_two_words)
oddity = "vocab.txt and tokenizer.json number two words differently"
contradiction_case(oddity, EITHER, swapped, names=f"vocab.txt|{JSON}")
cased = edited("normalizer", lowercase=False)
oddity = "tokenizer.json keeps case, tokenizer_config.json does not"
contradiction_case(oddity, EITHER, cased, names="case|lower")
no_ends = in_json(JSON, post_processor=None)
oddity = "a tokenizer.json that adds no [CLS] and no [SEP]"
contradiction_case(oddity, EITHER, no_ends, names=f"{JSON}|[CLS]")
at_signs = edited("model", continuing_subword_prefix="@@")
contradiction_case("pieces inside words begin with @@", EITHER, at_signs, names=f"{JSON}|@@|##")
unclean = in_json(JSON, normalizer=None)
contradiction_case("a tokenizer.json that cleans nothing", EITHER, unclean, names=JSON)
blanks = in_json(JSON, pre_tokenizer={"type": "WhitespaceSplit"})
contradiction_case("a tokenizer.json that splits at blanks alone", EITHER, blanks, names=JSON)
untyped = in_json(RULES_FILE, model_input_names=["input_ids", "attention_mask"])
contradiction_case("a tokenizer without token types", EITHER, untyped)


@CASES.add("load", READ)
def long_word(place: Path) -> None:
    """A word of 150 letters: more than tokenizer.json says that a word may have"""
    folder = bert(place, max_position_embeddings=256)
    same_ids(load(folder), folder, ["the " + "cat" * 50 + " sat", *TEXTS])


ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


@CASES.add("load", EITHER, "mask|pad|<")
def other_special_tokens(place: Path) -> None:
    """WordPiece with special tokens called <pad>, <unk>, <s>, </s> and <mask>"""
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    roles = dict(zip(ROLES, names, strict=True))
    folder = bert(place, tokenizer=wordpiece([*names, *VOCABULARY[5:]], **roles))
    predictor = load(folder)
    same_ids(predictor, folder)
    same_masks(predictor, folder, text=MASKED.replace("[MASK]", "<mask>"))


@CASES.rows("load")
def other_library(place: Path, model: Any) -> None:
    """A BERT whose tokenizer is of another model: read as transformers reads it, or refused."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = dict(zip(ROLES, SPECIAL, strict=True))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **roles)
    folder = bert(place, tokenizer=made)
    same_ids(load(folder), folder, ["the cat sat"])


pieces = [(word, -1.0 - number) for number, word in enumerate(VOCABULARY)]
unigram = tokenizers.models.Unigram(pieces, unk_id=1)
of_pieces = "a Unigram tokenizer, as SentencePiece makes them"
other_library(of_pieces, EITHER, unigram, names="unigram")
entries = {word: number for number, word in enumerate(VOCABULARY)}
whole_words = tokenizers.models.WordLevel(entries, unk_token="[UNK]")
other_library("a tokenizer of whole words", EITHER, whole_words, names="wordlevel")


@CASES.add("load", REFUSED, "vocab|embeddings")
def too_few_rows(place: Path) -> None:
    """Fewer embeddings than entries of the vocabulary"""
    load(bert(place, rows=len(VOCABULARY) - 3))


# RoBERTa's byte-level BPE

ROBERTA_TEXTS = ["the cat sat", " The  cat\n sat ", "wörld 中 😀", "a dog's mat?"]


@CASES.rows("load")
def bytes_case(
    place: Path, change: Change = nothing, is_own_twin: bool = False, **made: Any
) -> None:
    folder = byte_level(place, **made)
    twin = folder if is_own_twin else copy_of(folder)
    change(folder)
    predictor = load(folder)
    same_ids(predictor, twin, ROBERTA_TEXTS)
    same_states(predictor, twin, ROBERTA_TEXTS)
    same_masks(predictor, twin, text="the <mask> sat")


bytes_case("byte-level BPE: nothing, the control", READ)
bytes_case("byte-level BPE: a blank before the first word", READ, prefix=True)
alone = remove("vocab.json", "merges.txt", RULES_FILE)
bytes_case("byte-level BPE: tokenizer.json and no other file of it", READ, alone)
bytes_case("byte-level BPE: an id that no entry has", EITHER, names="ids", hole=True)
other_pad = in_json("config.json", pad_token_id=3)
oddity = "byte-level BPE: another padding id, from which positions are counted"
bytes_case(oddity, EITHER, other_pad, is_own_twin=True, names="pad")
oddity = "byte-level BPE: a mask that does not take the blank before it along"
bytes_case(oddity, READ, lstrip=False)


# Configurations


@CASES.rows("load")
def config_case(
    place: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    dropped: Sequence[str] = (),
    is_own_twin: bool = False,
    **made: Any,
) -> None:
    """A clean folder whose config.json is changed; compared with itself by transformers, or with
    the clean one.
    """
    folder = bert(place, **made)
    twin = folder if is_own_twin else copy_of(folder)
    configure(folder, **(changes or {}))
    drop(folder, *dropped)
    agrees(folder, twin)


LEFT_OUT = ["hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps"]
LEFT_OUT += ["initializer_range", "pad_token_id", "use_cache", "type_vocab_size", "hidden_act"]
config_case("no model_type", EITHER, names="model_type", dropped=["model_type"])
config_case("no architectures", READ, dropped=["architectures"])
oddity = "the sizes alone: dropouts, epsilon and initialisation are left out"
config_case(oddity, READ, dropped=LEFT_OUT)
sizes = ["hidden_size", "num_hidden_layers", "vocab_size"]
config_case("no sizes at all", REFUSED, names="config.json", dropped=sizes)
config_case("one token type", READ, type_vocab_size=1)
one_layer = {"num_hidden_layers": 1}
oddity = "the configuration has one layer, the weights have two"
config_case(oddity, REFUSED, one_layer, names="layer.1", num_hidden_layers=2)
half = {"dtype": "float16", "torch_dtype": "float16"}
for _oddity, _changes in {
    "architectures is null": {"architectures": None},
    "keys that nobody knows, nested ones among them": {
        "my_key": {"a": [1, None]},
        "_name_or_path": "/x",
    },
    "another padding id": {"pad_token_id": 7},
    "the configuration says float16, the weights are float32": half,
    "two architectures": {"architectures": ["BertForMaskedLM", "BertModel"]},
}.items():
    config_case(_oddity, READ, _changes)
for _activation in ("gelu_new", "relu"):
    oddity = f"the activation {_activation}"
    config_case(oddity, EITHER, {"hidden_act": _activation}, names=_activation, is_own_twin=True)
config_case("a layer norm's epsilon of 0.1", READ, {"layer_norm_eps": 0.1}, is_own_twin=True)
for _oddity, _changes, _names in (
    ("an activation that nobody knows", {"hidden_act": "gulu"}, "gulu"),
    (
        "position_embedding_type is relative_key",
        {"position_embedding_type": "relative_key"},
        "relative_key",
    ),
    ("the configuration has two layers, the weights have one", {"num_hidden_layers": 2}, "layer.1"),
    ("three heads for 16 dimensions", {"num_attention_heads": 3}, "head"),
    ("a hidden size of 32, and weights of 16", {"hidden_size": 32}, "shape|16"),
    ("a negative number of layers", {"num_hidden_layers": -1}, "config.json"),
    ("hidden_size is null", {"hidden_size": None}, "hidden_size|config.json"),
    ("a class that nobody knows", {"architectures": ["BertForEverything"]}, "BertForEverything"),
    ("model_type is roformer", {"model_type": "roformer"}, "roformer"),
):
    config_case(_oddity, REFUSED, _changes, names=_names)
decoding = {"add_cross_attention": True, "is_decoder": True}
config_case("add_cross_attention and is_decoder are true", REFUSED, decoding, names="cross")
one_more = {"vocab_size": len(VOCABULARY) + 1}
oddity = "vocab_size is one more than the weights have rows"
config_case(oddity, REFUSED, one_more, names="vocab|word_embeddings")
oddity = "model_type roberta, architecture BertForMaskedLM"
of_roberta = {"model_type": "roberta"}
config_case(oddity, REFUSED, of_roberta, names="roberta|BertForMaskedLM")
for _oddity, _changes, _names in (
    ("architectures is a text, not a list", {"architectures": "BertForMaskedLM"}, "architecture"),
    ("numbers are written as text", {"hidden_size": "16", "num_hidden_layers": "1"}, "config.json"),
    ("1.0 layers", {"num_hidden_layers": 1.0}, "config.json"),
    ("auto_map names code of the folder", {"auto_map": {"AutoModel": "own.Model"}}, "auto_map"),
):
    config_case(_oddity, EITHER, _changes, names=_names)


@CASES.rows("load", "config.json")
def config_file_case(place: Path, change: Callable[[bytes], bytes]) -> None:
    """A config.json that is another file, or written otherwise."""
    agrees_after(place, rules_in_bytes(change, "config.json"))


def rewritten(content: bytes) -> bytes:
    values = json.loads(content)
    return json.dumps(dict(reversed(values.items())), indent="\t").encode()


config_file_case("an empty config.json", REFUSED, lambda _: b"")
config_file_case("config.json holds a list", REFUSED, lambda _: b"[]")
config_file_case("config.json is cut", REFUSED, lambda content: content[:40])
config_file_case("config.json in UTF-16", REFUSED, lambda text: text.decode().encode("utf-16"))
config_file_case("config.json with tabs, and in another order", READ, rewritten)
config_file_case("config.json with a byte order mark", EITHER, lambda text: BOM_UTF8 + text)


@CASES.add("load", EITHER, "is_decoder|LMHead|causal")
def decoder(place: Path) -> None:
    """A BERT that reads from left to right (is_decoder)"""
    folder = bert(place, "LMHeadModel", is_decoder=True)
    model = transformers.BertLMHeadModel.from_pretrained(folder).eval()
    predictor = load(folder)
    same_ids(predictor, folder)
    same_states(predictor, folder, model=model)


@CASES.add("load", REFUSED, "text 1|tokens|8")
def few_positions(place: Path) -> None:
    """Eight positions, and a text of eleven tokens"""
    predictor = load(bert(place, max_position_embeddings=8))
    same_ids(predictor, place / "model", ["the cat sat"])
    predictor.hidden_states("the cat sat on the mat and ran")


# Labels


@CASES.rows("load", "label")
def label_case(
    place: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    dropped: Sequence[str] = (),
    labels: Sequence[str] = LABELS,
    made: Sequence[str] = LABELS,
) -> None:
    """A classifier whose config.json is changed; `labels`: the names that are right."""
    folder = classifier(place, made)
    twin = copy_of(folder)
    configure(folder, **(changes or {}))
    drop(folder, *dropped)
    same_classes(load(folder), twin, labels)


def named(*names: Any) -> dict[str, Any]:
    """Names as config.json has them."""
    return {"id2label": {str(number): name for number, name in enumerate(names)}}


label_case("nothing: the control of the classifiers", READ)
gap = {"id2label": {"0": "anger", "1": "fear", "3": "joy"}}
label_case("id2label has 0, 1 and 3", REFUSED, gap)
label_case("two names for three outputs", REFUSED, named("anger", "fear"))
label_case("four names for three outputs", REFUSED, named(*"abcd"))
label_case("two classes of one name", REFUSED, named("anger", "anger", "joy"), names="anger")
turned = {"id2label": {name: number for number, name in enumerate(LABELS)}}
label_case("id2label from names to numbers", REFUSED, turned)
other_way = {"label2id": {"anger": 2, "fear": 1, "joy": 0}}
label_case("label2id contradicts id2label", EITHER, other_way, names="label2id")
label_case("label2id without id2label", EITHER, names="label2id", dropped=["id2label"])
label_case("id2label is a list", EITHER, {"id2label": LABELS})
for _name in (None, ""):
    changes = named("anger", _name, "joy")
    label_case(f"a name is {_name!r}", EITHER, changes, labels=["anger", str(_name), "joy"])
none = {"architectures": None}
label_case("no architectures, and a classifier", EITHER, none, names="architecture")
ranking = {"problem_type": "ranking"}
label_case("a problem_type that nobody knows", EITHER, ranking, names="problem_type")
label_case("num_labels is 7 beside three names", EITHER, {"num_labels": 7}, names="label")
unnamed = [f"LABEL_{number}" for number in range(3)]
label_case("neither id2label nor label2id", READ, dropped=["id2label", "label2id"], labels=unnamed)
TWELVE = [f"class {number}" for number in range(12)]
in_text_order = {"id2label": {key: TWELVE[int(key)] for key in sorted(map(str, range(12)))}}
oddity = "id2label in the order of text: 0, 1, 10, 11, 2"
label_case(oddity, READ, in_text_order, made=TWELVE, labels=TWELVE)
odd = ["a\nb", "😀", "  "]
label_case("names with line breaks, emoji and blanks", READ, made=odd, labels=odd)


@torch.no_grad()
def outputs(folder: Path, *texts: str) -> torch.Tensor:
    """What transformers' classifier answers to a text or a pair."""
    logits: torch.Tensor = theirs(folder, "ForSequenceClassification")(
        **encoded(folder, *texts)
    ).logits[0]
    return logits


@CASES.add("load", EITHER, "multi_label")
def multi_label(place: Path) -> None:
    """A classifier of several labels at once (problem_type)"""
    folder = classifier(place, problem_type="multi_label_classification")
    answer = load(folder).classify(TEXTS[0])
    shares = [answer.probabilities[name] for name in LABELS]
    close(shares, outputs(folder, TEXTS[0]).sigmoid(), "probabilities")


@CASES.add("load", READ)
def one_output(place: Path) -> None:
    """A classifier of one output, which is a number"""
    folder = classifier(place, ["LABEL_0"])
    number = load(folder).classify(TEXTS[0]).to_dict()["value"]
    close([number], outputs(folder, TEXTS[0]), "number")


@CASES.add("load", READ)
def pair_types(place: Path) -> None:
    """A pair: the second text has the other token type"""
    folder = classifier(place)
    pair = ("the cat sat", "a dog")
    shares = load(folder).classify(pair).probabilities.values()
    close(list(shares), outputs(folder, *pair).softmax(-1), "probabilities")
