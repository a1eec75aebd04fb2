"""`clozelab report`: judge an experiment from its runs, or make a table of any sweep's."""

from __future__ import annotations

from clozelab.report.judging import make
from clozelab.terminal import ParsedArgs, say, verb

HELP = """clozelab report EXPERIMENT [scale=NAME] [runs_dir=FOLDER]
        [report_dir=FOLDER] [logger=wandb] [--paper]
clozelab report FOLDER [report_dir=FOLDER] [fixed_encoder=ROW] [--paper]

Judges an experiment from its run folders: report.html, report.md, plots and
results.csv. With logger=wandb they also go to Weights & Biases, as an artifact.
Of a FOLDER with any sweep's runs it makes the same page without an experiment:
a row for whatever differs, means over seeds, paired differences. Rows of one
given encoder have seeds of fine-tuning alone; fixed_encoder=ROW says so of
another row.

  --paper    also report.tex, the scores and verdicts as tables to \\input (needs
             the package booktabs), and the claims as report.pdf, .svg and .png"""


@verb("report", HELP, names=(1, 1), keys=("report_dir",), flags=("paper",), takes_overrides=True)
def main(args: ParsedArgs) -> int:
    """Write the report and print its table; returns the exit status."""
    report = make(args.names[0], args.overrides, args.values.get("report_dir"))
    if "paper" in args.flags:
        from clozelab.report import render  # matplotlib and scipy: not for --help

        for file in render.write_for_paper(report.page, report.folder):
            say(f"For a paper: {file.resolve()}")
    return 0
