"""`clozelab vocabulary`: an encoder with more words, or with another tokenizer.

More pre-training begins from the folder that it writes (`pretrain encoder=FOLDER`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from clozelab.corpus import vocabulary
from clozelab.corpus.documents import read_documents
from clozelab.corpus.files import CorpusCounts, CorpusSource
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.files.atomic import refuse_to_replace
from clozelab.models.locate import CONFIG_FILE, find_model
from clozelab.terminal import SWITCH, ParsedArgs, verb

HELP = """\
clozelab vocabulary MODEL to=FOLDER text=PATH add=NUMBER
clozelab vocabulary MODEL to=FOLDER words=FILE
clozelab vocabulary MODEL to=FOLDER tokenizer=FOLDER

Writes a model with a longer vocabulary, or another one, for more pre-training
on texts of another kind. The embedding of a new entry is the mean of its old
pieces' (without any, of all); all other weights stay as they are.

  text=PATH         a file, folder or glob of texts, as of a corpus; of a table
                    text_field= names the column, format= says what it is
  add=NUMBER        so many words of text=, those that save most tokens
  words=FILE        these words, one a line
  tokenizer=FOLDER  the tokenizer of this folder instead of the model's
  hub=true          MODEL is NAME@COMMIT on the Hugging Face hub

A generator beside MODEL (ELECTRA, DeBERTa v3) gets the same: to=NAME/encoder.
With text=, also prints the tokens that a word of it has, before and after.

  clozelab vocabulary bert-base to=bio text=abstracts add=5000
  clozelab pretrain encoder=bio tokenizer.vocab_file=bio/tokenizer.json"""
KEYS = ("to", "text", "format", "text_field", "add", "words", "tokenizer")
GENERATOR = "generator"  # what pre-training calls its folder, beside the encoder's


@verb("vocabulary", HELP, names=(1, 1), keys=KEYS, choices={"hub": SWITCH})
def main(args: ParsedArgs) -> int:
    """Write the folder, and print what became of the rows; returns the exit status."""
    values = args.values
    check_keys(values)
    to = Path(values["to"])
    refuse_to_replace(to)
    source = find_model(args.names[0], from_hub=values.get("hub") == "true")
    targets = folders_to_write(source, to)
    # torch takes seconds, which a wrong key need not wait
    from clozelab.modules.model import read_model
    from clozelab.modules.vocabulary import write

    counts = count_words(values) if "text" in values else None
    models = {target: read_model(folder) for folder, target in targets.items()}
    old = models[to].tokenizer
    for model in models.values():
        if model.tokenizer.fingerprint != old.fingerprint:
            raise ValueError(
                f"vocabulary: {model.folder} has another vocabulary than {source}, so it is not its"
                " generator; move one of them elsewhere"
            )
    new = new_tokenizer(old, values, counts)
    pieces = vocabulary.old_pieces(new, old)
    for target, model in models.items():
        # The rows behind the vocabulary, which pad the matrix, stay.
        padding = range(old.vocab_size, model.encoder.config.vocab_size)
        if "tokenizer" in values:
            padding = range(0)
        write(target, model, new, [*pieces, *([row] for row in padding)])
    # Entries by their old pieces: 0 (mean of all), 1 (a copy), or more (mean of these).
    numbers = Counter(map(len, pieces))
    means = new.vocab_size - numbers[0] - numbers[1]
    print(f"vocabulary: {old.vocab_size:,} entries before, {new.vocab_size:,} after")
    print(f"rows: {numbers[1]:,} copied, {means:,} means of their pieces, {numbers[0]:,} of all")
    if counts is not None:
        before, after = (vocabulary.pieces_per_word(tokenizer, counts) for tokenizer in (old, new))
        print(f"tokens a word: {before:.3f} before, {after:.3f} after")
    for target in models:
        print(target.resolve())
    return 0


def count_words(values: Mapping[str, str]) -> Counter[str]:
    """How often each word stands in text=."""
    settings = {key: values[key] for key in ("format", "text_field") if key in values}
    source = CorpusSource("text", values["text"], **settings, key_format="{name}")
    documents = read_documents(source.shards(0, Path()), CorpusCounts())
    return vocabulary.count_words(documents)


def folders_to_write(source: Path, to: Path) -> dict[Path, Path]:
    """Where a model is written, and the generator beside it that more pre-training would read.

    ValueError where it would not find that one.
    """
    generator = source.resolve().with_name(GENERATOR)
    if generator == source.resolve() or not (generator / CONFIG_FILE).is_file():
        return {source: to}
    if to.name != "encoder":
        raise ValueError(
            f"vocabulary: the model has a generator, {generator}, which needs the same vocabulary;"
            f" say to={to / 'encoder'}, and {to / GENERATOR} is written beside it"
        )
    refuse_to_replace(to.with_name(GENERATOR))
    return {source: to, generator: to.with_name(GENERATOR)}


def check_keys(values: Mapping[str, str]) -> None:
    """ValueError for keys that do not say one new vocabulary."""
    ways = values.keys() & {"add", "words", "tokenizer"}
    if "to" not in values or len(ways) != 1 or ("add" in values and "text" not in values):
        raise ValueError(
            "vocabulary: say to=FOLDER, and one of text=PATH add=NUMBER, words=FILE and"
            " tokenizer=FOLDER; see --help"
        )
    number = values.get("add", "1")
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"vocabulary: add={number} is no number of words; give 1 or more")


def new_tokenizer(
    old: Tokenizer, values: Mapping[str, str], counts: Counter[str] | None
) -> Tokenizer:
    """The tokenizer that the keys ask for; ValueError where nothing would change."""
    if "tokenizer" in values:
        return vocabulary.match_token_layout(old, read_tokenizer(values["tokenizer"]))
    if counts is not None and "add" in values:
        words = vocabulary.useful_words(old, counts, int(values["add"]))
    else:
        words = vocabulary.read_words(Path(values["words"]))
    entries = vocabulary.entries_of(old, words)
    if not entries:
        raise ValueError(
            "vocabulary: every word has an entry already, or is cut by the tokenizer: there is"
            " nothing to add"
        )
    return vocabulary.with_entries(old, entries)
