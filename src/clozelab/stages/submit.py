"""`clozelab submit`: a benchmark's submission, packed from the test predictions of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clozelab.metrics.glue import TEST_SETS, placeholder, write_submission
from clozelab.results.submission import RunPredictions, best_candidate, find_predictions
from clozelab.terminal import ParsedArgs, verb

HELP = """\
clozelab submit glue RUNS... [out=FILE] [--placeholders]

Packs the test predictions of fine-tuning runs (predict_test=true) into a GLUE
submission. RUNS are run folders, or folders above them; of several runs on one
test set the best on its validation split is taken.

  out=FILE          where the zip goes (glue_submission.zip)
  --placeholders    fill test sets that no run has predicted with one constant
                    answer

What the server would turn away is refused, and nothing is written then."""


@verb("submit", HELP, names=(0, None), keys=("out",), flags=("placeholders",))
def main(args: ParsedArgs) -> int:
    """Write a submission; returns the exit status."""
    if args.names[:1] != ["glue"]:
        raise ValueError(
            "submit supports one benchmark: `clozelab submit glue RUNS...`, not"
            f" {args.names[:1] or 'nothing'}"
        )
    out = Path(args.values.get("out", "glue_submission.zip"))
    folders = [Path(name) for name in args.names[1:]]
    best = {}
    for test_set, candidates in find_predictions(folders).items():
        best[test_set] = best_candidate(test_set, candidates)
    # The server takes all test sets or none.
    missing = [test_set for test_set in TEST_SETS if test_set not in best]
    if missing and "placeholders" not in args.flags:
        raise ValueError(
            f"no predictions for {', '.join(missing)}: fine-tune those tasks with"
            " predict_test=true, or add --placeholders to fill them with one constant answer"
            " (their scores then mean nothing)"
        )
    contents = {test_set: candidate.path.read_bytes() for test_set, candidate in best.items()}
    for test_set in missing:
        contents[test_set] = placeholder(test_set).encode()
    write_submission(out, contents)
    print_contents(best)
    print(f"Submission: {out.resolve()}")
    return 0


def print_contents(best: Mapping[str, RunPredictions]) -> None:
    """A line for each test set: whose predictions go in."""
    for test_set in TEST_SETS:
        if test_set not in best:
            print(f"  {test_set:<8} placeholder: one constant answer")
            continue
        candidate = best[test_set]
        note = ""
        if candidate.stand_in_for:
            note = f"  (trained on a stand-in for {candidate.stand_in_for})"
        print(f"  {test_set:<8} {candidate.metric} {candidate.score:.4f}  {candidate.run}{note}")
