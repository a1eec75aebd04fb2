"""Which columns of a table, or keys of a record, are read.

They are named by the caller, or found by their names.

    choose_columns(["id", "sentence1", "sentence2"], "classify")
        {"text": "sentence1", "pair": "sentence2"}
    choose_columns(["id", "review"], "classify", named=["review"])
        {"text": "review"}

A role is what a text is for: `text` and `pair`, the `question` before a passage, the `words` of a
tagger, `passages`. A second text under a name that nobody knows is refused, for a model that is not
shown it answers something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from claims.text.did_you_mean import hint, nearest
from clozelab.files.origin import RUN_FILE
from clozelab.readers.records import check_columns
from clozelab.text.plain import read_json

ROLES = ("text", "pair", "question", "words", "passages")
LISTS = ("words", "passages")  # roles whose value is a list of texts
SINGLE = ("fill", "tag", "score")  # acts that read no pair
ROLES_OF = {
    "fill": ("text",),
    "score": ("text",),
    "tag": ("text", "words"),
    "answer": ("text", "pair", "question", "passages"),
}
"""Act -> the roles that it reads; of any other act text and pair."""
FIRST_NAMES = ("text", "sentence")
SECOND_NAMES = (
    "sentence2",
    "sentence_2",
    "sentence_b",
    "text2",
    "text_2",
    "text_b",
    "text_pair",
    "question2",
    "second",
    "second_text",
    "hypothesis",
)
PAIRED_NAMES = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
)
ANSWERED_NAMES = (("question", "context"), ("question", "passage"))
ALIKE = 0.8  # of 1: a name so much like a role's is a slip of the pen
# of the only column of a file; more words are a text, and the file has no header
PLAIN_NAME_WORDS = 1


def document_text(record: Mapping[str, object]) -> str:
    """A text of a BEIR folder, with its title before it where there is one."""
    return f"{record.get('title') or ''} {record.get('text') or ''}".strip()


def describe_for_command_line(names: Sequence[str]) -> str:
    """How columns are named there: `text=premise,hypothesis`."""
    return f"text={','.join(names)}"


def describe_for_python(names: Sequence[str]) -> str:
    """How columns are named there: `columns=['premise', 'hypothesis']`."""
    return f"columns={list(names)!r}"


def roles_of(act: str) -> tuple[str, ...]:
    """What an act may read of a record."""
    return ROLES_OF.get(act, ("text", "pair"))


def choose_columns(
    columns: Sequence[str],
    act: str,
    *,
    named: Sequence[str] = (),
    where: str = "the table",
    describe: Callable[[Sequence[str]], str] = describe_for_command_line,
) -> dict[str, str]:
    """Role -> column of what an act reads.

    `named` are the caller's: one column, or the two of pairs. ValueError where a named one is
    missing, where none can be told to be the text, and where a column looks like a second text that
    would not be read.
    """
    # The caller has the first word.
    if named:
        check_columns(columns, named, where)
        return _by_order(named, act, where)
    # Columns that are called as the roles are.
    column_of = {role: role for role in named_roles(columns, act)}
    if is_enough(column_of, act):
        refuse_unread(columns, column_of, act, where, describe)
        return column_of
    # The usual names of pairs, then of single texts, or the only column.
    pair = _known_pair(columns, act)
    if pair is not None:
        return _by_order(pair, act, where)
    single = _known_single(columns)
    if single is None or act in ("answer", "next"):
        problem = "nobody can tell which is the text"
        if act in ("answer", "next"):
            problem = "two columns are read"
        listed = ", ".join(map(repr, columns))
        raise ValueError(
            f"{where} has the columns {listed}, and {problem}: say {describe(['COLUMN'])}, "
            f"or {describe(['FIRST', 'SECOND'])} for two texts"
        )
    column_of = {"text": single}
    refuse_unread(columns, column_of, act, where, describe)
    return column_of


def trained_columns(run: Path, side: Literal["query", "passage"] | None = None) -> list[str]:
    """The columns of texts that a fine-tuned run read; none of what is no such run.

    Of a retrieval run, `side` is the one of its two columns that is wanted.
    """
    try:
        data = read_json(run / RUN_FILE)["config"]["task"]["data"]
        columns = list(data["text_columns"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    # Of all formats, retrieval alone has negatives of its own.
    if side is None or "negative_columns" not in data:
        return columns
    query, passage = columns
    return [query] if side == "query" else [passage]


def named_roles(columns: Iterable[str], act: str) -> list[str]:
    """The roles of an act that columns are called by.

    Of a question's passage there is one name at a time.
    """
    names = list(columns)
    roles = [role for role in roles_of(act) if role in names]
    # beside a question, `pair` would be a second name of its passage
    if act == "answer" and "question" in roles:
        roles = [role for role in roles if role != "pair"]
    return roles


def is_enough(chosen: Iterable[str], act: str) -> bool:
    """Whether these roles are all that an act needs."""
    given = set(chosen)
    if act == "answer":
        has_passage = bool(given & {"text", "passages"})
        return ("question" in given and has_passage) or {"text", "pair"} <= given
    if act == "tag":
        return bool(given & {"text", "words"})
    if act == "next":
        return {"text", "pair"} <= given
    return "text" in given


def refuse_unread(
    columns: Iterable[str],
    column_of: Mapping[str, str],
    act: str,
    where: str,
    describe: Callable[[Sequence[str]], str] = describe_for_command_line,
) -> None:
    """ValueError for a column that looks like a text of the example and is not read.

    `column_of` has the column of each role that is.
    """
    read = list(column_of.values())
    for name in columns:
        if name in read:
            continue
        role = _intended_role(name)
        if role is None:
            continue
        # "txt" in place of "text": nobody else has this role, so it is a slip of the pen
        if role != name and role in roles_of(act) and role not in column_of:
            raise ValueError(
                f"{where} has {name!r}, which nothing reads: did you mean {role!r}? Call it so, "
                f"or say {describe([*read, name])}; {describe(read)} leaves it out"
            )
        raise ValueError(
            f"{where} has {name!r}, which do={act} does not read: {describe(read)} leaves it out",
        )


def refuse_unknown_keys(record: Mapping[str, object], act: str, where: str) -> None:
    """ValueError for a key of a request that nothing reads.

    In a request there are no columns beside the texts.
    """
    roles = roles_of(act)
    for name in record:
        if name in roles:
            continue
        if name in ROLES:
            raise ValueError(
                f"{where} has {name!r}, which do={act} does not read; it reads {', '.join(roles)}",
            )
        advice = hint(name, roles)
        role = _intended_role(name)
        if role in roles:
            advice = f"did you mean {role!r}?"
        raise ValueError(f"{where} has {name!r}, which nothing reads; {advice}")


@lru_cache(maxsize=4096)  # objects of a file have the same few keys, row after row
def _intended_role(name: str) -> str | None:
    """The role whose name this is, or which it was probably meant to have."""
    word = name.casefold()
    if word in SECOND_NAMES:
        return "pair"
    return nearest(word, [role for role in ROLES if role != "text"], cutoff=ALIKE)


def _by_order(names: Sequence[str], act: str, where: str) -> dict[str, str]:
    """Roles of one column, or of two: a text and its pair, a question and its passage."""
    if len(names) > 2:
        raise ValueError(
            f"{where}: {len(names)} columns are named; a text is one column, a pair is two",
        )
    if len(names) == 2 and act in SINGLE:
        raise ValueError(
            f"{where}: do={act} takes single texts, and {' and '.join(names)} are a pair",
        )
    roles = ("text", "pair")
    if act == "answer" and len(names) == 2:
        roles = ("question", "text")
    return dict(zip(roles, names, strict=False))


def _known_pair(columns: Sequence[str], act: str) -> tuple[str, str] | None:
    if act in SINGLE:
        return None
    # "Sentence1" is found as "sentence1", and keeps its spelling.
    by_word = {name.casefold(): name for name in columns}
    usual_pairs: Sequence[tuple[str, str]] = PAIRED_NAMES
    if act == "answer":
        usual_pairs = ANSWERED_NAMES
    for first, second in usual_pairs:
        if first in by_word and second in by_word:
            return by_word[first], by_word[second]
    return None


def _known_single(columns: Sequence[str]) -> str | None:
    """A column that is called as texts are, or the only one."""
    by_word = {name.casefold(): name for name in columns}
    for word in FIRST_NAMES:
        if word in by_word:
            return by_word[word]
    if len(columns) == 1 and len(columns[0].split()) == PLAIN_NAME_WORDS:
        return columns[0]
    return None
