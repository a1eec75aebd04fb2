"""`clozelab submit glue RUNS...`: the zip that the GLUE server takes, from runs with predict_test=true.

Of several runs with predictions for the same test set, the one that is best on its validation split is taken, as the
paper selects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clozelab.metrics.glue import TEST_SETS, placeholder, write_submission
from clozelab.terminal import Words, verb

HELP = """clozelab submit glue RUNS... [out=FILE] [--placeholders]

Packs the test predictions of fine-tuning runs (predict_test=true) into a GLUE submission. RUNS are run folders, or
folders above them; of several runs on one test set the best on its validation split is taken.

  out=FILE          where the zip goes (glue_submission.zip)
  --placeholders    fill test sets that no run has predicted with one constant answer

What the server would turn away is refused, and nothing is written then."""


class Candidate(NamedTuple):
    """One run's predictions for one test set."""

    path: Path
    run: Path
    metric: str
    score: float
    stand_in_for: str | None
    task: str


@verb("submit", HELP, names=(0, None), keys=("out",), flags=("placeholders",))
def main(said: Words) -> int:
    """Write a submission; returns the exit status."""
    if said.names[:1] != ["glue"]:
        raise ValueError(
            f"submit knows one benchmark: `clozelab submit glue RUNS...`, not {said.names[:1] or 'nothing'}"
        )
    out = Path(said.values.get("out", "glue_submission.zip"))
    best: dict[str, Candidate] = {}
    for name, found in find_predictions([*map(Path, said.names[1:])]).items():
        # A model trained on a stand-in is scored on another validation set: only where there is no other.
        own = [one for one in found if one.stand_in_for is None] or found
        if len({(one.metric, one.task) for one in own}) > 1:
            runs = ", ".join(f"{one.run} ({one.task}, {one.metric})" for one in own)
            raise ValueError(f"{name}: nobody can say which is best of {runs}; give only the run that you mean")
        best[name] = max(own, key=lambda one: one.score)
    missing = [name for name in TEST_SETS if name not in best]
    if missing and "placeholders" not in said.flags:
        raise ValueError(
            f"no predictions for {', '.join(missing)}: fine-tune those tasks with predict_test=true, or add "
            "--placeholders to fill them with one constant answer (their scores then mean nothing)"
        )
    contents = {name: one.path.read_bytes() for name, one in best.items()}
    write_submission(out, contents | {name: placeholder(name).encode() for name in missing})
    for name in TEST_SETS:
        if name in missing:
            print(f"  {name:<8} placeholder: one constant answer")
        else:
            one = best[name]
            note = f"  (trained on a stand-in for {one.stand_in_for})" if one.stand_in_for else ""
            print(f"  {name:<8} {one.metric} {one.score:.4f}  {one.run}{note}")
    print(f"Submission: {out.resolve()}")
    return 0


def find_predictions(runs: Sequence[Path]) -> dict[str, list[Candidate]]:
    """Test set -> the predictions for it in or below the given folders.

    ValueError: a folder does not exist, none holds predictions, or a run has no score beside them.
    """
    found: dict[str, list[Candidate]] = {}
    for folder in runs:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; give run folders of `clozelab finetune ... predict_test=true`")
        for path in sorted(path for path in folder.rglob("test_predictions/*.tsv") if path.stem in TEST_SETS):
            run = path.parents[1]
            try:
                saved = json.loads((run / "scores.json").read_text(encoding="utf-8"))
                metric, task, stand_in = str(saved["metric"]), str(saved["name"]), saved.get("stand_in_for")
                candidate = Candidate(path, run, metric, float(saved["scores"][metric]), stand_in, task)
            except (OSError, ValueError, KeyError) as error:
                raise ValueError(f"{run}: no readable scores.json beside its predictions ({error})") from error
            found.setdefault(path.stem, []).append(candidate)
    if not found:
        named = ", ".join(map(str, runs)) or "(no folder given)"
        raise ValueError(f"no test predictions in {named}; fine-tune with predict_test=true first")
    return found
