"""Every reason for which two rows are not comparable, from runs made by hand, and its sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from claims.analysis.comparability import (
    Exclusion,
    Pair,
    RowEvidence,
    RunEvidence,
    find_incomparability,
    provenance,
)
from claims.text.phrases import truncate_list

RUN = RunEvidence(
    place="finetune/ltr/1",
    is_finetuning=True,
    seeds=(1, 1),
    settings={},
    code={},
    environment={},
    delta={},
    encoder=None,
    encoder_arm=None,
    encoder_fraction=1.0,
)


def row(name: str, pretrained: RunEvidence | None = RUN, tuned: RunEvidence = RUN) -> RowEvidence:
    """A row of the arm of its name, with one run of each stage; None: never pre-trained."""
    return RowEvidence(
        name=name,
        arm=name,
        pretraining=[pretrained] if pretrained else [],
        finetuning=[tuned],
        evaluation=[],
        by_task={"mrpc": [tuned]},
    )


def pair(first: RowEvidence, second: RowEvidence | None = None, **changes: Any) -> Pair:
    values: dict[str, Any] = {
        "matched": (),
        "free_keys": frozenset(),
        "arm_factors": frozenset(),
        "row_factors": frozenset(),
    }
    return Pair(first, second or row("mlm"), **values | changes)


def seen(**amounts: float) -> RunEvidence:
    return replace(RUN, amounts=amounts)


def made(**fields: Any) -> RunEvidence:
    return replace(RUN, **fields)


SETTINGS = {f"key{number}": "1" for number in range(5)}
REASONS = [
    (
        pair(row("ltr"), outdated="all 6 run(s) of ltr are old"),
        ("older version", "all 6 run(s) of ltr are old"),
    ),
    (
        pair(row("ltr", None), row("mlm", None), matched=("steps",)),
        ("no pre-training", "no complete pre-training run of ltr and mlm"),
    ),
    (
        pair(row("ltr"), matched=("flops",)),
        (
            "unknown amount",
            "flops of pre-training not known for ltr and mlm, so nobody can say the arms match",
        ),
    ),
    (
        pair(row("ltr", seen(tokens=1e6)), row("mlm", seen(tokens=2e6)), matched=("tokens",)),
        (
            "unmatched amount",
            (
                "arms not matched: 1 M against 2 M tokens of pre-training, and matched_by in"
                " paper.yaml does not say that this is meant"
            ),
        ),
    ),
    (
        pair(
            row("ltr", seen(training_seconds=60.0)),
            row("mlm", seen(training_seconds=90.0)),
            matched=("training_seconds",),
        ),
        (
            "unmatched amount",
            (
                "arms not matched: 60 against 90 training time (seconds x devices) of"
                " pre-training, and matched_by in paper.yaml does not say that this is meant"
            ),
        ),
    ),
    (
        pair(replace(row("ltr"), pretraining=[RUN, made(delta={"a": "1"})])),
        ("several versions", "the runs of ltr were made from 2 versions of its arm"),
    ),
    (
        pair(replace(row("ltr"), finetuning=[RUN, made(delta={"a": "1"})])),
        ("several versions", "the runs of ltr were made from 2 versions of its row"),
    ),
    (
        pair(row("ltr", made(settings=SETTINGS))),
        (
            "other protocol",
            (
                "another protocol: pre-trained with key0 1 against none; key1 1 against none;"
                " key2 1 against none and 2 more, which differ_in in paper.yaml does not allow for"
            ),
        ),
    ),
    (
        pair(row("ltr", RUN, made(settings={"epochs": "5"}))),
        (
            "other protocol",
            (
                "another protocol: fine-tuned with epochs 5 against none, which differ_in in"
                " paper.yaml does not allow for"
            ),
        ),
    ),
    (
        pair(row("ltr", made(code={"m": "a"})), row("mlm", made(code={"m": "b"}))),
        (
            "other code",
            "other code: pre-trained with two versions of m, and differ_in does not say code",
        ),
    ),
    (
        pair(row("ltr", RUN, made(encoder_arm="mlm_nsp"))),
        (
            "wrong encoder",
            (
                "not what it is called: paper.yaml says arm ltr of the row ltr, and 1 of 1 runs"
                " have the encoder of mlm_nsp (e.g. finetune/ltr/1)"
            ),
        ),
    ),
    (
        pair(row("ltr", RUN, made(encoder="e")), row("mlm", RUN, made(encoder="e"))),
        (
            "shared encoder",
            (
                "the rows stand for two encoders, and began from one and the same (pre-training"
                " seed 1)"
            ),
        ),
    ),
    (
        pair(
            row("ltr", RUN, made(encoder="e")),
            replace(row("lstm", RUN, made(encoder="f")), arm="ltr"),
        ),
        (
            "shared encoder",
            "the rows stand for one encoder, and began from different ones (pre-training seed 1)",
        ),
    ),
]


@pytest.mark.parametrize(("compared", "reason"), REASONS)
def test_why_two_rows_are_not_comparable(compared: Pair, reason: tuple[str, str]) -> None:
    assert find_incomparability(compared) == Exclusion(*reason)


def test_what_is_allowed_for_bars_nothing() -> None:
    allowed = frozenset(SETTINGS)
    assert find_incomparability(pair(row("ltr"))) is None
    settings = row("ltr", made(settings=SETTINGS))
    assert find_incomparability(pair(settings, arm_factors=allowed)) is None
    assert find_incomparability(pair(settings, free_keys=frozenset({"key*"}))) is None
    code = (row("ltr", made(code={"m": "a"})), row("mlm", made(code={"m": "b"})))
    assert find_incomparability(pair(*code, free_keys=frozenset({"code"}))) is None


def test_what_runs_were_made_with_is_said() -> None:
    older = made(environment={"torch": "2.11", "numpy": "2"})
    newer = made(environment={"torch": "2.13", "numpy": "2"})
    compared = pair(row("ltr", older, older), row("mlm", newer, newer))
    assert provenance(compared) == (
        "pre-trained with torch 2.11 against 2.13; fine-tuned with torch 2.11 against 2.13"
    )
    assert provenance(pair(row("ltr", older), row("mlm"))) == "", "what is unknown is no difference"


def test_the_first_names_and_how_many_more() -> None:
    assert truncate_list(["a", "b", "c"]) == "a, b, c"
    assert truncate_list(list("abcde"), "; ") == "a; b; c and 2 more"
