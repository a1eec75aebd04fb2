"""What the verbs that are no Hydra applications make of a command line."""

from __future__ import annotations

import pytest

from clozelab.terminal import key_of, parse


def test_hydra_s_words_are_passed_on_as_they_are() -> None:
    words = ["~logger", "+seed=1", "objective/pair=none", "~task.data={a: 1}", "hydra/launcher=slurm"]
    said = parse("doctor", ["pretrain", *words], names=(0, 1), takes_overrides=True)
    assert said.names == ["pretrain"] and said.overrides == words


def test_a_path_may_have_a_sign_in_it() -> None:
    said = parse("submit", ["glue", "runs/lr=1e-3", "out=there"], names=(1, 2), keys=["out"])
    assert said.names == ["glue", "runs/lr=1e-3"] and said.values == {"out": "there"}
    with pytest.raises(ValueError, match="submit has no key 'ot'; did you mean 'out'"):
        parse("submit", ["glue", "ot=there"], names=(1, 2), keys=["out"])


@pytest.mark.parametrize("word", ["seed=1", "+seed=1", "++seed=1", "~seed"])
def test_the_key_of_a_word(word: str) -> None:
    assert key_of(word) == "seed"
