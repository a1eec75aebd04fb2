"""`clozelab curves`: is the loss of a pre-training usual?"""

from __future__ import annotations

from pathlib import Path

from clozelab.files.atomic import atomic_open
from clozelab.modules.answering import parse_output
from clozelab.report.curves import draw, print_curve
from clozelab.runs.find import find
from clozelab.terminal import ParsedArgs, say, verb

HELP = """clozelab curves RUN [out=FILE]

Shows the held-out losses of a pre-training beside those of published runs of
its kind: equal text, vocabulary, objective and encoder. RUN is a run's folder,
or one with several. "expected" is where another seed is with 95 %; a run
outside of it is unusual, and settings that may be the cause are named, each
with a check. A run of another kind gets the nearest kinds, and no verdict.

  out=FILE   also writes the curves in their bands: .html, .png or .svg

docs/loss-curves.md says which kinds are known, and how sure a band is.

  clozelab curves runs/adhoc/demo/pretrain/mlm/seed-1 out=curves.html"""


@verb("curves", HELP, names=(1, 1), keys=("out",))
def main(args: ParsedArgs) -> int:
    """Print a table and sentences for each pre-training; returns the exit status."""
    root = Path(args.names[0])
    runs = find(root).pretrain
    if not runs:
        raise ValueError(f"no run below {root} is a pre-training; `clozelab runs` lists all")
    out = None
    if "out" in args.values:
        out = parse_output("out", args.values["out"], (".html", ".png", ".svg"))
    for run in runs:
        print_curve(run)
    if out is not None:
        with atomic_open(out) as file:
            file.write(draw(root, out.suffix))
        say(str(out))
    return 0
