"""Which class of transformers a folder's tokenizer is of.

The class decides how vocabulary files without a tokenizer.json are read. Here are the classes whose
rules we have; every other one needs a tokenizer.json, which says its rules itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clozelab.text.plain import PlainMapping

# They take tokenizer.json as it is, and read nothing else.
GENERIC = "PreTrainedTokenizer"
GENERIC_FAST = f"{GENERIC}Fast"  # its full name
GENERIC_CLASSES = (GENERIC, "TokenizersBackend")
# vocab.txt and BERT's rules
BERT_CLASSES = frozenset(
    (
        "BertTokenizer",
        "ConvBertTokenizer",
        "DistilBertTokenizer",
        "ElectraTokenizer",
        "LayoutLMTokenizer",
        "MobileBertTokenizer",
        "SqueezeBertTokenizer",
    )
)
# vocab.txt and BERT's rules, with RoBERTa's template
MPNET_CLASS = "MPNetTokenizer"
WORDPIECE_CLASSES = BERT_CLASSES | {MPNET_CLASS}
# vocab.json and merges.txt, in bytes
ROBERTA_CLASSES = frozenset(("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"))
VOCABULARY_FILES: Mapping[str, str] = {
    **dict.fromkeys(WORDPIECE_CLASSES, "vocab.txt"),
    **dict.fromkeys(ROBERTA_CLASSES, "vocab.json"),
}
UNIGRAM_CLASSES = frozenset(
    (
        "AlbertTokenizer",
        "BigBirdTokenizer",
        "CamembertTokenizer",
        "DebertaV2Tokenizer",
        "XLMRobertaTokenizer",
        "XLNetTokenizer",
    )
)
# Of some of these, and of WORD_END_CLASSES, tokenizer.json alone is read.
BYTE_BPE_CLASSES = ROBERTA_CLASSES | {"DebertaTokenizer", "GPT2Tokenizer"}
WORD_END_CLASSES = ("CLIPTokenizer", "HerbertTokenizer", "OpenAIGPTTokenizer")
# Class -> the model of the tokenizers library that it builds of the entries in a tokenizer.json
BUILT_MODELS: Mapping[str, str] = {
    **dict.fromkeys(WORDPIECE_CLASSES, "WordPiece"),
    **dict.fromkeys(BYTE_BPE_CLASSES, "BPE"),
    **dict.fromkeys(UNIGRAM_CLASSES, "Unigram"),
    **dict.fromkeys(WORD_END_CLASSES, "BPE with </w>"),
}
QWEN2_CLASS = "Qwen2Tokenizer"
# Where it splits a text, before it takes the bytes
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Their template has the first and the last token of a text, not cls and sep.
BOS_CLASSES = ("CamembertTokenizer", "XLMRobertaTokenizer")
# Their second texts have token type 1, as in the models' papers.
TYPED_CLASSES = (BERT_CLASSES - {"DistilBertTokenizer"}) | {
    "AlbertTokenizer",
    "DebertaV2Tokenizer",
    "XLNetTokenizer",
}
# Key of tokenizer_config.json -> the classes of unigrams that follow it, not tokenizer.json
FOLLOWED: Mapping[str, frozenset[str]] = {
    "do_lower_case": frozenset(("AlbertTokenizer", "DebertaV2Tokenizer", "XLNetTokenizer")),
    "keep_accents": frozenset(("AlbertTokenizer",)),
    "split_by_punct": frozenset(("DebertaV2Tokenizer",)),
    "add_prefix_space": UNIGRAM_CLASSES - {"DebertaV2Tokenizer", "XLNetTokenizer"},
}
# Their rules are Python code; they write no tokenizer.json, and read none.
PYTHON_CLASSES = frozenset(
    (
        "BartphoTokenizer",
        "BertGenerationTokenizer",
        "BertJapaneseTokenizer",
        "BertweetTokenizer",
        "CanineTokenizer",
        "EsmTokenizer",
        "FlaubertTokenizer",
        "PhobertTokenizer",
        "RoCBertTokenizer",
        "TapasTokenizer",
        "XLMTokenizer",
    )
)
# model_type of config.json -> the class where none is named
CLASS_OF_MODEL: Mapping[str, str] = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "big_bird": "BigBirdTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "ernie": "BertTokenizer",
    "longformer": "RobertaTokenizer",
    "modernbert": GENERIC,
    "mpnet": MPNET_CLASS,
    "roberta": "RobertaTokenizer",
    "xlnet": "XLNetTokenizer",
}


def class_name(config: PlainMapping, model: PlainMapping) -> str:
    """The class, as AutoTokenizer chooses it; "" where no file says it.

    That is the one of tokenizer_config.json (`config`), else of config.json (`model`), else the one
    of the model's type. A name without `Fast` and the one with it are the same class.
    """
    of_model = CLASS_OF_MODEL.get(str(model.get("model_type")), "")
    if of_model == GENERIC:
        return GENERIC
    name = config.get("tokenizer_class") or model.get("tokenizer_class") or of_model
    return str(name).removesuffix("Fast")


def is_generic(name: str) -> bool:
    return name in GENERIC_CLASSES


def refuse_python_rules(folder: Path, name: str) -> None:
    """ValueError for a class whose rules no file holds."""
    if name in PYTHON_CLASSES:
        raise ValueError(
            f"{folder}: the rules of its tokenizer, {name}, are Python code of transformers and in"
            " none of its files; write them as a tokenizer.json, and say tokenizer_class"
            " PreTrainedTokenizerFast in tokenizer_config.json"
        )


def own_code(config: PlainMapping) -> str:
    """The folder's own Python class that makes its tokenizer; "" where there is none."""
    auto_map: Any = config.get("auto_map") or {}
    if isinstance(auto_map, dict):
        auto_map = auto_map.get("AutoTokenizer") or ()
    if isinstance(auto_map, str):
        return auto_map
    return next(filter(None, reversed(auto_map)), "")


def vocabulary_file(folder: Path, config: PlainMapping) -> Path | None:
    """The vocabulary file that the folder's class reads by rules that we have; None: it has none.

    A folder that says no class has that of its file. ValueError for a class whose rules are others.
    """
    names = [name for name in ("vocab.txt", "vocab.json") if (folder / name).is_file()]
    if not names:
        return None
    code = own_code(config)
    if code:
        raise ValueError(
            f"{folder}: its tokenizer is code of its own ({code} in auto_map), which is not run;"
            " write tokenizer.json with that code (save_pretrained)"
        )
    name = str(config["tokenizer_class"])
    expected = {"": names[0], **VOCABULARY_FILES}.get(name)
    if expected in names:
        return folder / expected
    if expected:
        raise ValueError(
            f"{folder} holds {names[0]} and no tokenizer.json, and its tokenizer, {name}, reads"
            f" {expected}: name the class of this vocabulary (tokenizer_class in"
            " tokenizer_config.json)"
        )
    if is_generic(name):
        raise ValueError(
            f"{folder}: its tokenizer, {GENERIC_FAST}, reads tokenizer.json, which is missing; copy"
            " it from where the folder came from"
        )
    default_class = {"vocab.txt": "BertTokenizer", "vocab.json": "RobertaTokenizer"}[names[0]]
    raise ValueError(
        f"{folder}: {names[0]} does not hold the rules of its tokenizer, {name}; write"
        " tokenizer.json (AutoTokenizer.from_pretrained(F).save_pretrained(F)), or name"
        f" {default_class} in tokenizer_config.json if the rules are its"
    )
