"""A folder's own tokenizer gives the ids of transformers' AutoTokenizer, whatever it is made of."""

from __future__ import annotations

import io
import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.corpus.test_tokenizers import ODD_TEXTS, TEXTS, make_texts
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.folder_tokenizer import FolderTokenizer
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.tokenizers import ByteBpeTokenizer, TokenizerSettings, WordPieceTokenizer, read_tokenizer
from clozelab.datamodules.examples import assemble

transformers = pytest.importorskip("transformers")

TRAINING = [*make_texts(), *TEXTS * 5, "Covid-19 and the ent marker, x or <e> and Foo Bar 新冠"]
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
MARKED = ("[E1]", "[e2]", "covid", "Covid-19", "<e>", "Ünï", "新冠", "ing", "a.b")


def added(*names: str) -> list[AddedToken]:
    """Tokens with every combination of flags that five booleans cycle through."""
    tokens = []
    for number, name in enumerate(names):
        flags = {flag: bool(number * 11 + 5 >> place & 1) for place, flag in enumerate(FLAGS)}
        tokens.append(AddedToken(name, **flags))
    return tokens


EVERY_FLAG = [
    AddedToken(f"[{number}x]" if number % 3 else f"Wd{number}", **dict(zip(FLAGS, map(bool, bits), strict=True)))
    for number, bits in enumerate(np.ndindex(2, 2, 2, 2, 2))
]


# Kinds of folders


def bert(where: Path, tokens: Sequence[Any] = (), **how: Any) -> None:
    lowercase = how.get("do_lower_case", True)
    vocabulary = WordPieceTokenizer.train(TRAINING, 300, lowercase).vocabulary
    made = transformers.BertTokenizer(vocab={entry: number for number, entry in enumerate(vocabulary)}, **how)
    made.add_tokens([*tokens])
    made.save_pretrained(where)


def roberta(where: Path, tokens: Sequence[Any] = (), prefix: bool = False) -> None:
    ours = ByteBpeTokenizer.train(TRAINING, 400, False, prefix)
    mask = AddedToken("<mask>", lstrip=True, special=True)
    made = transformers.RobertaTokenizer(
        vocab=dict(ours._ids), merges=ours.merges, add_prefix_space=prefix, mask_token=mask
    )
    made.add_tokens([*tokens])
    made.save_pretrained(where)


def unigram(special: Sequence[str]) -> list[tuple[str, float]]:
    library = Library(models.Unigram())
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=[*special], unk_token="<unk>", show_progress=False)
    library.train_from_iterator(TRAINING, trainer)
    return [(piece, score) for piece, score in json.loads(library.to_str())["model"]["vocab"]]


def albert(where: Path, tokens: Sequence[Any] = ()) -> None:
    vocabulary = unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
    mask = AddedToken("[MASK]", lstrip=True, special=True)
    made = transformers.AlbertTokenizer(vocab=vocabulary, mask_token=mask)
    made.add_tokens([*tokens])
    made.save_pretrained(where)


def xlm_roberta(where: Path, tokens: Sequence[Any] = ()) -> None:
    vocabulary = unigram(["<s>", "<pad>", "</s>", "<unk>"])
    mask = AddedToken("<mask>", lstrip=True, special=True)
    made = transformers.XLMRobertaTokenizer(vocab=vocabulary, mask_token=mask)
    made.add_tokens([*tokens])
    made.save_pretrained(where)


def generic(where: Path, tokens: Sequence[Any] = (), **parts: Any) -> None:
    """A tokenizer.json that no class of transformers builds; `parts`: what differs from lower-cased NFKC words."""
    names = parts.pop("names", ("<p>", "<?>", "<begin>", "<end>", "<hole>"))
    library = Library(parts.pop("model", None) or models.WordLevel(unk_token=names[1]))
    library.normalizer = parts.pop("normalizer", normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    library.pre_tokenizer = parts.pop("splitter", pre_tokenizers.Whitespace())
    trainer = parts.pop("trainer", trainers.WordLevelTrainer)
    library.train_from_iterator(TRAINING, trainer(special_tokens=[*names], vocab_size=300, show_progress=False))
    begin, end = names[2:4]
    library.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} {end} {end} $B:1 {end}:1",
        special_tokens=[(name, library.token_to_id(name)) for name in (begin, end)],
    )
    library.decoder = parts.pop("decoder", None) or decoders.WordPiece()
    for change in parts.pop("changes", ()):
        change(library)
    roles = zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True)
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **dict(roles), **parts)
    made.add_tokens([*tokens])
    made.save_pretrained(where)


def cut_and_padded(where: Path) -> None:
    def change(library: Library) -> None:
        library.enable_truncation(4)
        library.enable_padding(length=9)

    generic(where, changes=[change])


def bpe_of_words(where: Path) -> None:
    names = ("<p>", "<?>", "<begin>", "<end>", "<hole>")
    generic(
        where,
        added(*MARKED),
        model=models.BPE(unk_token="<?>", end_of_word_suffix="</w>"),
        trainer=lambda **how: trainers.BpeTrainer(end_of_word_suffix="</w>", **how),
        splitter=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(True)]),
        names=names,
    )


def whole_texts(where: Path) -> None:
    """Metaspace alone, which looks at runs of spaces; nothing can be encoded by words."""
    vocabulary = unigram(["<p>", "<unk>", "<begin>", "<end>", "<hole>"])
    library = Library(models.Unigram(vocabulary, unk_id=1))
    library.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Lowercase()])
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", pair="<begin> $A <end> $B <end>", special_tokens=[("<begin>", 2), ("<end>", 3)]
    )
    roles = {"unk_token": "<unk>", "cls_token": "<begin>", "sep_token": "<end>", "mask_token": "<hole>"}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=library, pad_token="<p>", **roles)
    made.add_tokens(added(*MARKED))
    made.save_pretrained(where)


def vocabulary_alone(where: Path, **config: Any) -> None:
    """vocab.txt with added_tokens.json, as slow tokenizers of older versions left it."""
    vocabulary = WordPieceTokenizer.train(TRAINING, 300, True).vocabulary
    where.mkdir()
    (where / "vocab.txt").write_text("".join(f"{entry}\n" for entry in vocabulary))
    (where / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    number = len(vocabulary)
    (where / "added_tokens.json").write_text(json.dumps({"covid": number + 1, "[E1]": number}))
    (where / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["[E1]"]}))


def merges_alone(where: Path) -> None:
    ours = ByteBpeTokenizer.train(TRAINING, 400, False, False)
    where.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (where / name).write_bytes(ours.files()[name])
    (where / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    (where / "added_tokens.json").write_text(json.dumps({"covid": ours.vocab_size}))
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}
    (where / "special_tokens_map.json").write_text(json.dumps({"mask_token": mask}))


def changed(make: Callable[[Path], None], config: dict[str, Any]) -> Callable[[Path], None]:
    """A folder whose tokenizer_config.json says something else than its tokenizer.json."""

    def changing(where: Path) -> None:
        make(where)
        path = where / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))

    return changing


KINDS: dict[str, Callable[[Path], None]] = {
    "bert": bert,
    "bert cased": lambda where: bert(where, do_lower_case=False),
    "bert keeps accents": lambda where: bert(where, added(*MARKED), strip_accents=False),
    "bert cased, strips accents": lambda where: bert(where, do_lower_case=False, strip_accents=True),
    "bert without Chinese spacing": lambda where: bert(where, added(*MARKED), tokenize_chinese_chars=False),
    "bert cased, none of them": lambda where: bert(
        where, added(*MARKED), do_lower_case=False, tokenize_chinese_chars=False, strip_accents=False
    ),
    "bert with every flag": lambda where: bert(where, EVERY_FLAG),
    "bert cased with every flag": lambda where: bert(where, EVERY_FLAG, do_lower_case=False),
    "bert with spaces in tokens": lambda where: bert(where, [AddedToken("new york", lstrip=True), " x "]),
    "roberta": roberta,
    "roberta prefixed": lambda where: roberta(where, prefix=True),
    "roberta with every flag": lambda where: roberta(where, EVERY_FLAG),
    "roberta prefixed with every flag": lambda where: roberta(where, EVERY_FLAG, prefix=True),
    "albert": albert,
    "albert with every flag": lambda where: albert(where, EVERY_FLAG),
    "xlm-roberta": xlm_roberta,
    "xlm-roberta with every flag": lambda where: xlm_roberta(where, EVERY_FLAG),
    "other names": generic,
    "other names with every flag": lambda where: generic(where, EVERY_FLAG),
    "cut and padded": cut_and_padded,
    "bpe of words": bpe_of_words,
    "whole texts": whole_texts,
    "lower case, byte level": lambda where: generic(
        where,
        added(*MARKED),
        model=models.BPE(),
        trainer=lambda **how: trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **how),
        normalizer=normalizers.Lowercase(),
        splitter=pre_tokenizers.ByteLevel(add_prefix_space=True),
        decoder=decoders.ByteLevel(),
    ),
    "vocab.txt and added tokens": lambda where: vocabulary_alone(where, do_lower_case=True),
    "vocab.txt and other rules": lambda where: vocabulary_alone(where, do_lower_case=True, strip_accents=False),
    "merges.txt and added tokens": merges_alone,
    "config keeps case": changed(bert, {"do_lower_case": False}),
    "config keeps accents": changed(bert, {"strip_accents": False}),
    "config adds tokens": changed(
        bert,
        {"additional_special_tokens": ["[more]"], "extra_special_tokens": ["[more]"]},
    ),
    "config prefixes": changed(roberta, {"add_prefix_space": True}),
    "special tokens are text": changed(bert, {"split_special_tokens": True}),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}
    logging.disable(logging.WARNING)

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("kinds") / "model"
            KINDS[kind](made[kind])
        return made[kind]

    logging.disable(logging.NOTSET)
    return make


def lines(number: int = 200) -> list[str]:
    """Odd texts, and ordinary ones that added and special tokens were put into."""
    rng = random.Random(1)
    marks = [*MARKED, *(token.content for token in EVERY_FLAG), "[MASK]", "<mask>", "[SEP]", "</s>", "<hole>", "[more]"]
    marks += [mark.upper() for mark in MARKED] + ["new york", " x ", "\u0301", "\u00b4", "\u3000", "İ"]
    made = []
    for text in make_texts(number):
        words = text.split(" ")
        for _ in range(rng.randrange(4)):
            mark = rng.choice(marks)
            glue = rng.choice(["{}", "{}", "({})", "x{}", "{}x", "  {} ", "{},", "\n{}\t", " {}{}"])
            words.insert(rng.randrange(len(words) + 1), glue.replace("{}", mark))
        made.append(" ".join(words))
    return [*ODD_TEXTS, *made]


def compare(ours: Tokenizer, theirs: Any, texts: Sequence[str]) -> None:
    """Ids alone and with special tokens, pairs, token types, character ranges, and words given one by one."""
    flat = ours.encode_batch(texts)
    again = ours.encode_batch(texts)
    aligned = ours.encode_with_offsets(texts)
    expected = theirs(list(texts), add_special_tokens=False, return_offsets_mapping=True)
    for number, text in enumerate(texts):
        wanted = expected["input_ids"][number]
        found = [one[number].tolist() for one in (flat, again)] + [aligned[number][0].tolist()]
        assert found == [wanted] * 3, repr(text)
        for (start, end), (first, last) in zip(aligned[number][1], expected["offset_mapping"][number], strict=True):
            assert first <= start <= end <= last or start == end, repr(text)
            assert text[start:end] == text[first:last].strip(), repr(text)
    single = assemble(ours, flat)
    assert np.split(single.input_ids, single.offsets[1:-1])[3].tolist() == theirs(texts[3])["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_auto_tokenizer(folder_of: Callable[[str], Path], kind: str) -> None:
    folder = folder_of(kind)
    ours, theirs = read_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(str(folder))
    assert isinstance(ours, FolderTokenizer) and ours.vocab_size == len(theirs)
    compare(ours, theirs, lines())
    for first, second in (("the cat", "sat on a mat"), ("covid [E1]", "x")):
        pair = theirs(first, second, return_token_type_ids=True)
        sides = (ours.encode_batch([text]) for text in (first, second))
        packed = assemble(ours, *sides)
        assert packed.input_ids.tolist() == pair["input_ids"]
        types = (np.arange(len(packed.input_ids)) >= packed.second_starts[0]).astype(int).tolist()
        assert types == pair["token_type_ids"]
    words = ["The", "cat's", "covid", "[E1]", "naïve", ",", "日本語"]
    if kind not in ("roberta", "roberta with every flag", "merges.txt and added tokens"):  # transformers refuses it
        split = theirs(words, is_split_into_words=True, add_special_tokens=False)
        ids, lengths = ours.encode_words(words)
        assert ids.tolist() == split["input_ids"]
        assert np.repeat(np.arange(len(words)), lengths).tolist() == split.word_ids()
    special = [theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id]
    assert special == [ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id]
    if theirs.unk_token_id is not None:
        assert ours.unk_id == theirs.unk_token_id
