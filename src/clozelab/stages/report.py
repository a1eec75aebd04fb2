"""`clozelab report`: judge an experiment from its runs, or make a table of any sweep's."""

from __future__ import annotations

from clozelab.report.judging import make
from clozelab.terminal import ParsedArgs, say, verb

HELP = """clozelab report EXPERIMENT [scale=NAME] [runs_dir=FOLDER]
        [report_dir=FOLDER] [logger=wandb] [--latex]
clozelab report FOLDER [report_dir=FOLDER] [fixed_encoder=ROW] [--latex]

Judges an experiment from its run folders: report.html, report.md, plots and
results.csv. With logger=wandb they also go to Weights & Biases, as an artifact.
Of a FOLDER with any sweep's runs it makes the same page without an experiment:
a row for whatever differs, means over seeds, paired differences. Rows of one
given encoder have seeds of fine-tuning alone; fixed_encoder=ROW says so of
another row.

  --latex    also report.tex: scores and verdicts as tables to \\input (needs the
             package booktabs)"""


@verb("report", HELP, names=(1, 1), keys=("report_dir",), flags=("latex",), takes_overrides=True)
def main(args: ParsedArgs) -> int:
    """Write the report and print its table; returns the exit status."""
    report = make(args.names[0], args.overrides, args.values.get("report_dir"))
    if "latex" in args.flags:
        from clozelab.report import render  # matplotlib and scipy: not for --help

        file = render.write_latex(report.page, report.folder / "report.tex")
        say(f"LaTeX: {file.resolve()}")
    return 0
