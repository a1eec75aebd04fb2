"""A folder's own tokenizer gives the ids of transformers' AutoTokenizer, whatever it is made of."""

from __future__ import annotations

import json
import logging
import pickle
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.corpus.test_tokenizers import ODD_TEXTS, TEXTS, make_texts
from tests.screens import refuses, shows
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Library

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.corpus.packing import Masking, SpecialIds, pack_windows
from clozelab.corpus.random import Draws
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import ByteBpeTokenizer, WordPieceTokenizer
from clozelab.objectives.sop import SentencePairs
from clozelab.tasks.sequences import assemble

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
    AddedToken(
        f"[{number}x]" if number % 3 else f"Wd{number}",
        **dict(zip(FLAGS, map(bool, bits), strict=True)),
    )
    for number, bits in enumerate(np.ndindex(2, 2, 2, 2, 2))
]


# Kinds of folders


def bert(where: Path, tokens: Sequence[Any] = (), **how: Any) -> None:
    lowercase = how.get("do_lower_case", True)
    vocabulary = WordPieceTokenizer.train(TRAINING, 300, lowercase).vocabulary
    made = transformers.BertTokenizer(
        vocab={entry: number for number, entry in enumerate(vocabulary)}, **how
    )
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
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=[*special], unk_token="<unk>", show_progress=False
    )
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
    """A tokenizer.json of no class of transformers; `parts`: what differs from NFKC words."""
    names = parts.pop("names", ("<p>", "<?>", "<begin>", "<end>", "<hole>"))
    library = Library(parts.pop("model", None) or models.WordLevel(unk_token=names[1]))
    library.normalizer = parts.pop(
        "normalizer", normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    )
    library.pre_tokenizer = parts.pop("splitter", pre_tokenizers.Whitespace())
    trainer = parts.pop("trainer", trainers.WordLevelTrainer)
    library.train_from_iterator(
        TRAINING, trainer(special_tokens=[*names], vocab_size=300, show_progress=False)
    )
    begin, end = names[2:4]
    library.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} {end} {end} $B:1 {end}:1",
        special_tokens=[(name, library.token_to_id(name)) for name in (begin, end)],
    )
    library.decoder = parts.pop("decoder", None) or decoders.WordPiece()
    for change in parts.pop("changes", ()):
        change(library)
    roles = zip(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True
    )
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
        trainer=partial(trainers.BpeTrainer, end_of_word_suffix="</w>"),
        splitter=pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(True)]
        ),
        names=names,
    )


def whole_texts(where: Path) -> None:
    """Metaspace alone, which looks at runs of spaces; nothing can be encoded by words."""
    vocabulary = unigram(["<p>", "<unk>", "<begin>", "<end>", "<hole>"])
    library = Library(models.Unigram(vocabulary, unk_id=1))
    library.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Lowercase()]
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>",
        pair="<begin> $A <end> $B <end>",
        special_tokens=[("<begin>", 2), ("<end>", 3)],
    )
    roles = {
        "unk_token": "<unk>",
        "cls_token": "<begin>",
        "sep_token": "<end>",
        "mask_token": "<hole>",
    }
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=library, pad_token="<p>", **roles)
    made.add_tokens(added(*MARKED))
    made.save_pretrained(where)


def vocabulary_alone(where: Path, **config: Any) -> None:
    """vocab.txt with added_tokens.json, as slow tokenizers of older versions left it."""
    vocabulary = WordPieceTokenizer.train(TRAINING, 300, True).vocabulary
    where.mkdir()
    (where / "vocab.txt").write_text("".join(f"{entry}\n" for entry in vocabulary))
    (where / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", **config})
    )
    number = len(vocabulary)
    (where / "added_tokens.json").write_text(json.dumps({"covid": number + 1, "[E1]": number}))
    (where / "special_tokens_map.json").write_text(
        json.dumps({"additional_special_tokens": ["[E1]"]})
    )


def merges_alone(where: Path) -> None:
    ours = ByteBpeTokenizer.train(TRAINING, 400, False, False)
    where.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (where / name).write_bytes(ours.files()[name])
    (where / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "RobertaTokenizer"})
    )
    (where / "added_tokens.json").write_text(json.dumps({"covid": ours.vocab_size}))
    mask = {
        "content": "<mask>",
        "lstrip": True,
        "rstrip": False,
        "single_word": False,
        "normalized": False,
    }
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
    "bert cased": partial(bert, do_lower_case=False),
    "bert keeps accents": partial(bert, tokens=added(*MARKED), strip_accents=False),
    "bert cased, strips accents": partial(bert, do_lower_case=False, strip_accents=True),
    "bert without Chinese spacing": partial(
        bert, tokens=added(*MARKED), tokenize_chinese_chars=False
    ),
    "bert cased, none of them": partial(
        bert,
        tokens=added(*MARKED),
        do_lower_case=False,
        tokenize_chinese_chars=False,
        strip_accents=False,
    ),
    "bert with every flag": partial(bert, tokens=EVERY_FLAG),
    "bert cased with every flag": partial(bert, tokens=EVERY_FLAG, do_lower_case=False),
    "bert with a special word": partial(
        bert, tokens=[AddedToken("covid", special=True, normalized=False)]
    ),
    "bert with spaces in tokens": partial(
        bert, tokens=[AddedToken("new york", lstrip=True), " x "]
    ),
    "roberta": roberta,
    "roberta prefixed": partial(roberta, prefix=True),
    "roberta with every flag": partial(roberta, tokens=EVERY_FLAG),
    "roberta prefixed with every flag": partial(roberta, tokens=EVERY_FLAG, prefix=True),
    "albert": albert,
    "albert with every flag": partial(albert, tokens=EVERY_FLAG),
    "xlm-roberta": xlm_roberta,
    "xlm-roberta with every flag": partial(xlm_roberta, tokens=EVERY_FLAG),
    "other names": generic,
    "other names with every flag": partial(generic, tokens=EVERY_FLAG),
    "cut and padded": cut_and_padded,
    "bpe of words": bpe_of_words,
    "whole texts": whole_texts,
    "lower case, byte level": partial(
        generic,
        tokens=added(*MARKED),
        model=models.BPE(),
        trainer=partial(trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        normalizer=normalizers.Lowercase(),
        splitter=pre_tokenizers.ByteLevel(add_prefix_space=True),
        decoder=decoders.ByteLevel(),
    ),
    "vocab.txt and added tokens": partial(vocabulary_alone, do_lower_case=True),
    "vocab.txt and other rules": partial(vocabulary_alone, do_lower_case=True, strip_accents=False),
    "merges.txt and added tokens": merges_alone,
    "config keeps case": changed(bert, {"do_lower_case": False}),
    "config keeps accents": changed(bert, {"strip_accents": False}),
    "config adds tokens": changed(
        bert, {"additional_special_tokens": ["[more]"], "extra_special_tokens": ["[more]"]}
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
    marks = [
        *MARKED,
        *(token.content for token in EVERY_FLAG),
        "[MASK]",
        "<mask>",
        "[SEP]",
        "</s>",
        "<hole>",
        "[more]",
    ]
    marks += [mark.upper() for mark in MARKED] + [
        "new york",
        " x ",
        "\u0301",
        "\u00b4",
        "\u3000",
        "İ",
    ]
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
    """Ids alone and with special tokens, token types, character ranges, and single words."""
    flat = ours.encode_batch(texts)
    again = ours.encode_batch(texts)
    aligned = ours.encode_with_offsets(texts)
    expected = theirs(list(texts), add_special_tokens=False, return_offsets_mapping=True)
    for number, text in enumerate(texts):
        wanted = expected["input_ids"][number]
        found = [one[number].tolist() for one in (flat, again)] + [aligned[number][0].tolist()]
        assert found == [wanted] * 3, repr(text)
        for (start, end), (first, last) in zip(
            aligned[number][1], expected["offset_mapping"][number], strict=True
        ):
            assert first <= start <= end <= last or start == end, repr(text)
            assert text[start:end] == text[first:last].strip(), repr(text)
    single = assemble(ours, flat)
    assert (
        np.split(single.input_ids, single.offsets[1:-1])[3].tolist()
        == theirs(texts[3])["input_ids"]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_auto_tokenizer(folder_of: Callable[[str], Path], kind: str) -> None:
    folder = folder_of(kind)
    ours, theirs = read_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(str(folder))
    assert type(ours) is Tokenizer and ours.vocab_size == len(theirs)
    compare(ours, theirs, lines())
    for first, second in (("the cat", "sat on a mat"), ("covid [E1]", "x")):
        pair = theirs(first, second, return_token_type_ids=True)
        sides = (ours.encode_batch([text]) for text in (first, second))
        packed = assemble(ours, *sides)
        assert packed.input_ids.tolist() == pair["input_ids"]
        types = (np.arange(len(packed.input_ids)) >= packed.second_starts[0]).astype(int).tolist()
        expected_types = pair["token_type_ids"]
        if not ours.has_token_types:
            assert "token_type_ids" not in theirs(first, second)
            expected_types = [0] * len(types)
        assert types == expected_types
    words = ["The", "cat's", "covid", "[E1]", "naïve", ",", "日本語"]
    # transformers refuses it
    if kind not in ("roberta", "roberta with every flag", "merges.txt and added tokens"):
        split = theirs(words, is_split_into_words=True, add_special_tokens=False)
        ids, lengths = ours.encode_words(words)
        assert ids.tolist() == split["input_ids"]
        assert np.repeat(np.arange(len(words)), lengths).tolist() == split.word_ids()
    special = [theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id]
    assert special == [ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id]
    if theirs.unk_token_id is not None:
        assert ours.unk_id == theirs.unk_token_id


# What it says of itself


@pytest.mark.parametrize(
    "kind",
    [
        "bert with every flag",
        "roberta prefixed with every flag",
        "albert",
        "whole texts",
        "cut and padded",
    ],
)
def test_its_files_give_the_same_tokenizer_here_and_to_auto_tokenizer(
    folder_of: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    ours = read_tokenizer(folder_of(kind))
    for name, content in ours.files().items():
        (tmp_path / name).write_bytes(content)
    again = read_tokenizer(tmp_path)
    assert type(again) is Tokenizer and again.fingerprint == ours.fingerprint
    assert again.files() == ours.files() and again.has_token_types == ours.has_token_types
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    compare(ours, theirs, lines(40))
    assert theirs.mask_token == ours.mask_token
    one = ours.with_token_types("one")
    assert not one.has_token_types and one.fingerprint == ours.fingerprint
    (tmp_path / "tokenizer_config.json").write_bytes(one.files()["tokenizer_config.json"])
    assert not read_tokenizer(tmp_path).has_token_types
    assert "token_type_ids" not in transformers.AutoTokenizer.from_pretrained(str(tmp_path))(
        "a", "b"
    )


def test_an_export_gives_an_alberts_pair_the_types_that_its_own_class_leaves_out(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """As docs/import-export.md says; AlbertTokenizer of transformers 5 names no token types."""
    ours = read_tokenizer(folder_of("albert"))
    for name, content in ours.files().items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder_of("albert")))
    assert "token_type_ids" not in theirs("the cat", "sat")
    pair = transformers.AutoTokenizer.from_pretrained(str(tmp_path))("the cat", "sat")
    packed = assemble(ours, *(ours.encode_batch([text]) for text in ("the cat", "sat")))
    types = np.arange(len(packed.input_ids)) >= packed.second_starts[0]
    assert pair["token_type_ids"] == types.astype(int).tolist()


@pytest.mark.parametrize(
    "kind", ["bert with every flag", "roberta with every flag", "albert with every flag"]
)
def test_words_of_whole_word_masking(folder_of: Callable[[str], Path], kind: str) -> None:
    """An added token is a word, whatever it looks like."""
    tokenizer, text = read_tokenizer(folder_of(kind)), "the unaffables catrunner [16x] saton"
    ids, continues = (
        tokenizer.encode_batch([text])[0],
        SpecialIds.from_tokenizer(tokenizer).continues,
    )
    assert continues is not None and len(ids) > 6, "no word is split, so this shows nothing"
    starts = np.append(True, ~continues[ids][1:])
    words = np.split(ids, np.flatnonzero(starts)[1:])
    shown = ["".join(map(tokenizer.vocabulary.__getitem__, word)) for word in words]
    assert [word.replace("##", "").lstrip("Ġ▁") for word in shown] == text.split()


def test_a_tokenizer_that_does_not_say_where_words_begin_is_not_guessed_at(
    folder_of: Callable[[str], Path],
) -> None:
    unknown = SpecialIds.from_tokenizer(read_tokenizer(folder_of("bpe of words")))
    assert not unknown.knows_words and unknown.continues is None
    masking = Masking(0.15, 0.8, 0.1, 0.1, whole_words=True)
    packed = pack_windows(
        TokenStream([np.arange(10, 40)]),
        np.array([0]),
        np.array([6]),
        (np.zeros(0, int), np.zeros(0, int)),
        unknown,
        8,
        Draws(0, 0, np.arange(1)),
    )
    with refuses("whole_words=true needs a tokenizer whose entries say which of them go"):
        masking.apply(packed)


def test_it_goes_to_another_process(folder_of: Callable[[str], Path]) -> None:
    for kind in ("bert with every flag", "roberta with every flag", "albert", "whole texts"):
        tokenizer = read_tokenizer(folder_of(kind))
        sent = pickle.loads(pickle.dumps(tokenizer))
        assert sent.fingerprint == tokenizer.fingerprint
        for ids, expected in zip(
            sent.encode_batch(lines(20)), tokenizer.encode_batch(lines(20)), strict=True
        ):
            assert ids.tolist() == expected.tolist()


def test_a_template_of_zeros_is_read_so_where_a_model_reads_types(tmp_path: Path) -> None:
    """Of our own files, too, whose template says how many types there are."""
    one = WordPieceTokenizer.train(TRAINING, 300, True).with_token_types("one")
    for name, content in one.files().items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "token_type_ids"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | names))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)("a", "b")
    assert any(theirs["token_type_ids"]) == read_tokenizer(tmp_path).has_token_types


def test_an_encoder_of_ours_that_transformers_saved_again_is_known(tmp_path: Path) -> None:
    """Its config.json still has the fingerprint of the prepared tokenizer."""
    made = WordPieceTokenizer.train(TRAINING, 300, True)
    for name, content in made.files().items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    theirs.add_tokens(["covid"])
    theirs.save_pretrained(tmp_path / "theirs")
    again = read_tokenizer(tmp_path / "theirs")
    assert type(again) is Tokenizer and again.released == made.fingerprint != again.fingerprint
    assert again.vocab_size == made.vocab_size + 1


def test_a_contradiction_is_told(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        read_tokenizer(folder_of("bert"))
        assert not caplog.text
        read_tokenizer(folder_of("config keeps case"))
    shows(caplog.text, 'has the normalizer {"type": "BertNormalizer", "clean_text": true,')


def test_special_tokens_that_are_text_are_another_tokenizer(
    folder_of: Callable[[str], Path],
) -> None:
    """What it makes of a text goes into caches under its fingerprint."""
    usual = read_tokenizer(folder_of("bert"))
    as_text = read_tokenizer(folder_of("special tokens are text"))
    assert not np.array_equal(*(one.encode_flat(["a [MASK]"])[0] for one in (usual, as_text)))
    assert usual.fingerprint != as_text.fingerprint


def test_a_corpus_can_be_prepared_with_a_tokenizer_json(folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("bert with every flag")
    given = TokenizerSettings("wordpiece", 400, True, "tokenizer.json").given(folder)
    assert given is not None and given.fingerprint == read_tokenizer(folder).fingerprint
    with refuses("lower-cases text: say tokenizer.lowercase=true"):
        TokenizerSettings("wordpiece", 400, False, "tokenizer.json").given(folder)
    with refuses("does not exist; expected a tokenizer of the tokenizers library"):
        TokenizerSettings("wordpiece", 400, False, "nowhere/tokenizer.json").given(folder)


# What cannot be read


def rewritten(folder: Path, where: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    where.mkdir()
    for path in folder.glob("*.json"):
        (where / path.name).write_bytes(path.read_bytes())
    content = json.loads((where / "tokenizer.json").read_text())
    change(content)
    (where / "tokenizer.json").write_text(json.dumps(content))
    return where


def drop_token(content: dict[str, Any], name: str) -> None:
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] != name
    ]
    content["model"]["vocab"] = {
        (f"[was {entry}]" if entry == name else entry): index
        for entry, index in content["model"]["vocab"].items()
    }


DROPOUT = "its model has dropout 0.1, so a text would have other ids each time;"


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("bert", lambda x: x.pop("model"), "m/tokenizer.json"),
        ("bert", lambda x: x["model"].update(type="Magic"), "m/tokenizer.json"),
        ("bert", lambda x: x["post_processor"]["single"].pop(), "m/tokenizer.json"),
        ("bert", lambda x: x["post_processor"]["single"].pop(0), "m/tokenizer.json"),
        ("roberta", lambda x: x["model"].update(dropout=0.1), DROPOUT),
    ],
)
def test_a_tokenizer_json_that_cannot_be_read_is_refused(
    folder_of: Callable[[str], Path],
    tmp_path: Path,
    kind: str,
    change: Callable[[dict[str, Any]], Any],
    reason: str,
) -> None:
    with refuses(reason):
        read_tokenizer(rewritten(folder_of(kind), tmp_path / "m", change))


def test_what_is_missing_is_said_where_it_is_needed(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """A tokenizer without a mask classifies; one whose pairs look otherwise reads single texts."""
    masked = rewritten(
        folder_of("bert"), tmp_path / "m", lambda content: drop_token(content, "[MASK]")
    )
    tokenizer = read_tokenizer(masked)
    assert len(tokenizer.encode_batch(["the cat [MASK]"])[0]) > 3
    assert not tokenizer.has_mask("the [MASK]")
    for needs in (
        lambda: tokenizer.mask_id,
        lambda: tokenizer.mask_token,
        lambda: SpecialIds.from_tokenizer(tokenizer),
    ):
        with refuses("its tokenizer has no mask token (mask_token), so no token can be hidden"):
            needs()

    def swap(content: dict[str, Any]) -> None:
        content["post_processor"]["pair"].reverse()

    pairs = read_tokenizer(rewritten(folder_of("other names"), tmp_path / "p", swap))
    assert len(assemble(pairs, pairs.encode_batch(["the cat"])).input_ids) == 4
    with refuses("of a pair, with token types 1 1 0 0 0 0 0"):
        assemble(pairs, *(pairs.encode_batch(["the cat"]) for _ in range(2)))


def test_full_sentences_need_no_template_of_pairs(
    folder_of: Callable[[str], Path], tmp_path: Path, make_shards: Callable[..., TokenShards]
) -> None:
    """A template that was built of single texts alone has no special token in a pair."""

    def drop_pair(content: dict[str, Any]) -> None:
        texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
        content["post_processor"]["pair"] = texts

    tokenizer = read_tokenizer(rewritten(folder_of("other names"), tmp_path / "s", drop_pair))
    ids = SpecialIds.from_tokenizer(tokenizer)
    shards = make_shards([[3, 2], [2, 1]])
    packed = FullSentences().bind(shards, ids, 16).pack(0, 0, np.array([0]))
    assert packed.input_ids[:4].tolist() == [ids.cls, 10, 11, 12]
    for pairs in (SegmentPairs(0.5, "corpus"), SentencePairs()):
        with refuses("of a pair, with token types 0 1; pairs can be read as"):
            pairs.bind(shards, ids, 16)
