"""Words that a verb does not take: every one is refused in a sentence before anything is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from clozelab.stages import compare, gc, reproduce, runs, submit, track
from clozelab.stages.doctor import main as doctor

TABLE5 = "table5_pretraining_tasks"
OPTIONS = "there are --dry-run, --no-measure, --skip-doctor"
Verb = Callable[[list[str]], int]

# A name -> the verb, its words (FOLDER is an empty folder), and a part of the sentence.
REFUSED: dict[str, tuple[Verb, Sequence[str], str]] = {
    "submit to another benchmark": (submit.main, ["superglue", "FOLDER"], "supports one benchmark"),
    "submit nothing": (submit.main, ["glue", "FOLDER"], "no test predictions in"),
    "submit from nowhere": (submit.main, ["glue", "FOLDER/nowhere"], "is no folder"),
    "submit, misspelt option": (submit.main, ["--chek", "x"], "no option --chek"),
    "compare no runs": (compare.main, ["FOLDER", "FOLDER"], "is no run folder"),
    "compare one run": (compare.main, ["one"], "takes 2 names, not one"),
    "track nowhere": (track.main, ["FOLDER/typo"], "is no folder"),
    "runs below nowhere": (runs.main, ["runs_dir=FOLDER/nothing"], "is no folder"),
    "runs, misspelt key": (runs.main, ["tsk=mrpc"], "runs has no key 'tsk'; did you mean 'task'"),
    "runs, misspelt option": (runs.main, ["--cvs"], "has no option --cvs; did you mean '--csv'"),
    "runs of two names": (runs.main, ["a", "b"], "runs takes 0 to 1 names, not a b"),
    "gc of everything": (gc.main, ["what=everything"], "what=everything: there are checkpoints"),
    "doctor, misspelt option of a stage": (
        doctor,
        ["pretrain", "--config-nam", "x"],
        "did you mean '--config-name'",
    ),
    "doctor, a stage's option": (
        doctor,
        [TABLE5, "--config-name", "x"],
        "doctor has no option --config-name; there are --all",
    ),
    "doctor, misspelt key": (doctor, ["pretrain", "sed=3"], "did you mean 'seed'"),
    "doctor of two names": (doctor, ["one", "two"], "takes 0 to 1 names, not one two"),
    "doctor of a machine's key": (
        doctor,
        ["threads=2"],
        "threads=2: doctor without an experiment looks at the machine, and takes nothing",
    ),
    "doctor of a text": (doctor, ["text=mails"], "say clozelab doctor pretrain text=mails "),
    "doctor, misspelt experiment": (doctor, ["table5"], f"did you mean '{TABLE5}'"),
    "doctor, misspelt key of an experiment": (doctor, [TABLE5, "sed=3"], "did you mean 'seed'"),
    "reproduce, a folder of choices": (
        reproduce.main,
        [TABLE5, "--config-dir", "my"],
        "no option --config-dir; a folder with choices of yours is 'hydra.searchpath=[file://my]'",
    ),
    "gc, misspelt option": (gc.main, ["--delte"], "did you mean '--delete'"),
}

# A word that is no option of reproduce or of doctor -> what reproduce says beside it.
NO_OPTIONS = {
    "-dry-run": "did you mean '--dry-run'?",
    "--dryrun": "did you mean '--dry-run'?",
    "--dry-run=yes": "did you mean '--dry-run'?",
    "-x": OPTIONS,
}
for word, hint in NO_OPTIONS.items():
    REFUSED[f"reproduce {word}"] = (
        reproduce.main,
        [TABLE5, word],
        f"reproduce has no option {word}; {hint}",
    )
    REFUSED[f"doctor {word}"] = (doctor, [TABLE5, word], "no option")


@pytest.mark.parametrize(("verb", "words", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_a_verb_refuses(
    verb: Verb, words: Sequence[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "make_steps", None)  # would fail
    given = [word.replace("FOLDER", str(tmp_path)) for word in words]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        verb(given)
    assert list(tmp_path.iterdir()) == []
