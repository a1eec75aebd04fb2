"""`clozelab submit glue RUNS...`: the zip that the GLUE server takes, from runs with predict_test=true.

Of several runs with predictions for the same test set, the one that is best on its validation split is taken, as the
paper selects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from clozelab.metrics.glue import TEST_SETS, placeholder, submission_problems, write_submission
from clozelab.terminal import parse, wants_help

HELP = """clozelab submit glue RUNS... [out=FILE] [--placeholders]
clozelab submit --check FILE

Packs the test predictions of fine-tuning runs (predict_test=true) into a GLUE submission. RUNS are run folders, or
folders above them; of several runs on one test set the best on its validation split is taken.

  out=FILE          where the zip goes (glue_submission.zip)
  --placeholders    fill test sets that no run has predicted with one constant answer
  --check FILE      say everything that the server would turn a submission away for"""


@dataclass(frozen=True)
class Candidate:
    """One run's predictions for one test set."""

    path: Path
    run: Path
    metric: str
    score: float
    stand_in_for: str | None
    task: str


def main(words: Sequence[str]) -> int:
    """Write or check a submission; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    said = parse("submit", words, names=(0, None), keys=("out",), flags=("placeholders", "check"))
    if "check" in said.flags:
        return check([Path(name) for name in said.names])
    if said.names[:1] != ["glue"]:
        raise ValueError(
            f"submit knows one benchmark: `clozelab submit glue RUNS...`, not {said.names[:1] or 'nothing'}"
        )
    out = Path(said.values.get("out", "glue_submission.zip"))
    return submit([Path(name) for name in said.names[1:]], out, "placeholders" in said.flags)


def check(paths: Sequence[Path]) -> int:
    """Print what is wrong with each file; 1 if anything is."""
    if not paths:
        raise ValueError("submit --check needs a file: `clozelab submit --check glue_submission.zip`")
    found = {path: submission_problems(path) for path in paths}
    for path, problems in found.items():
        print(f"{path}: " + ("\n  ".join([f"{len(problems)} problem(s)", *problems]) if problems else "valid"))
    return 1 if any(found.values()) else 0


def submit(runs: Sequence[Path], out: Path, with_placeholders: bool) -> int:
    """Write the zip from the best run of each test set, and say which those were."""
    candidates = find_predictions(runs)
    best = {name: _best(name, found) for name, found in candidates.items()}
    missing = [name for name in TEST_SETS if name not in best]
    if missing and not with_placeholders:
        raise ValueError(
            f"no predictions for {', '.join(missing)}: fine-tune those tasks with predict_test=true, or add "
            "--placeholders to fill them with one constant answer (their scores then mean nothing)"
        )
    contents = {name: one.path.read_bytes() for name, one in best.items()}
    contents |= {name: placeholder(name).encode() for name in missing}
    write_submission(out, contents)
    _tell(best, missing, out)
    return 0


def find_predictions(runs: Sequence[Path]) -> dict[str, list[Candidate]]:
    """Test set -> the predictions for it in or below the given folders.

    Raises:
        ValueError: a folder does not exist, or none holds predictions.
    """
    found: dict[str, list[Candidate]] = {}
    for folder in runs:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; give run folders of `clozelab finetune ... predict_test=true`")
        for path in sorted(folder.rglob("test_predictions/*.tsv")):
            if path.stem in TEST_SETS:
                found.setdefault(path.stem, []).append(_candidate(path))
    if not found:
        named = ", ".join(map(str, runs)) or "(no folder given)"
        raise ValueError(f"no test predictions in {named}; fine-tune with predict_test=true first")
    return found


def _best(name: str, candidates: Sequence[Candidate]) -> Candidate:
    """The highest validation score; of a model trained on a stand-in only where there is no other, for its score is on
    another validation set.

    Raises:
        ValueError: the scores are of different metrics or stand-ins.
    """
    own = [one for one in candidates if one.stand_in_for is None] or candidates
    if len({(one.metric, one.task) for one in own}) > 1:
        said = ", ".join(f"{one.run} ({one.task}, {one.metric})" for one in own)
        raise ValueError(f"{name}: nobody can say which is best of {said}; give only the run that you mean")
    return max(own, key=lambda one: one.score)


def _candidate(path: Path) -> Candidate:
    run = path.parents[1]
    try:
        saved = json.loads((run / "scores.json").read_text(encoding="utf-8"))
        metric = str(saved["metric"])
        score = float(saved["scores"][metric])
        return Candidate(path, run, metric, score, saved.get("stand_in_for"), str(saved["name"]))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{run}: no readable scores.json beside its predictions ({error})") from error


def _tell(best: dict[str, Candidate], missing: Sequence[str], out: Path) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for name in TEST_SETS:
        if name in missing:
            console.print(f"  {name:<8} placeholder: one constant answer")
            continue
        one = best[name]
        note = f"  (trained on a stand-in for {one.stand_in_for})" if one.stand_in_for else ""
        console.print(f"  {name:<8} {one.metric} {one.score:.4f}  {one.run}{note}")
    console.print(f"Submission: {out.resolve()}")
