"""A sweep while it runs: a view in the terminal, and a page, that refresh themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO
from itertools import chain
from pathlib import Path

from rich.live import Live
from rich.text import Text

from claims.analysis.verdicts import run_interim_analysis
from claims.report.estimates import probability
from claims.report.wording import verdict_label
from claims.text.phrases import duration
from claims.text.terminal import make_console
from clozelab.files.atomic import atomic_open
from clozelab.modules.answering import parse_output
from clozelab.report.page import templates
from clozelab.report.standing import reason_of, refusal
from clozelab.results.experiment import open_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find
from clozelab.runs.record import STAGE_NAMES, Record
from clozelab.runs.status import ExperimentStatus, experiment_statuses
from clozelab.terminal import ParsedArgs, say
from clozelab.training.stopping import Interrupted

REFRESH_SECONDS = 5.0
# Nothing runs for a while where a corpus is prepared, between two stages and after a failure.
IDLE_SECONDS = 600.0
GAP_SECONDS = 30.0  # at most between two launches


class _Frame(StringIO):
    """Text for a terminal, and of its width."""

    def isatty(self) -> bool:
        return True


@dataclass
class SweepWatch:
    """Shows the experiments that run, until all their jobs are complete or nothing runs for long.

    Attributes:
        read_records: the runs as they are now; ValueError where there are none yet.
        show: prints how an experiment stands.
        out: the page to write; None for none.
        shows_verdicts: also those of an interim analysis, which is then noted.
    """

    read_records: Callable[[], Sequence[Record]]
    show: Callable[[ExperimentStatus], None]
    out: Path | None
    shows_verdicts: bool
    # folders of the experiments that have run meanwhile, and when one of them last did
    _seen: set[Path] = field(default_factory=set)
    _last_active: float = field(default_factory=time.monotonic)

    def run(self) -> int:
        """Refresh until the end or a signal; returns the exit status."""
        console = make_console()
        if not console.is_terminal and self.out is None:
            raise ValueError(
                "--watch needs a terminal: in a pipe, give out=FILE.html for a page that refreshes"
                " itself, or leave --watch out"
            )
        try:
            with Live(console=console, auto_refresh=False) as live:
                while self.refresh(live):
                    time.sleep(REFRESH_SECONDS)
        except Interrupted as stopped:
            self.write_page(self._current(), is_live=False)
            return stopped.code
        return 0

    def refresh(self, live: Live) -> bool:
        """Show how things stand now; returns whether they go on."""
        statuses = self._current()
        now = time.monotonic()
        if any(status.running for status in statuses):
            self._last_active = now
        goes_on = now - self._last_active < IDLE_SECONDS
        if self._seen and all(status.is_done for status in statuses):
            sweeps = chain.from_iterable(status.sweeps for status in statuses)
            # Where no launch has noted its jobs, another one may follow soon.
            may_follow = any(sweep.planned is None for sweep in sweeps)
            goes_on = may_follow and now - self._last_active < GAP_SECONDS
        live.update(Text.from_ansi(self.frame(statuses)), refresh=True)
        self.write_page(statuses, is_live=goes_on)
        return goes_on

    def _current(self) -> list[ExperimentStatus]:
        """The experiments that have run since the watch began; all of them before any has."""
        statuses = []
        # A sweep that is being started has no run yet.
        with suppress(ValueError):
            statuses = list(experiment_statuses(self.read_records()))
        self._seen |= {status.root for status in statuses if status.running}
        seen = [status for status in statuses if status.root in self._seen]
        if seen:
            return seen
        return statuses

    def frame(self, statuses: Sequence[ExperimentStatus]) -> str:
        """What the terminal shows, with its colours."""
        with redirect_stdout(_Frame()) as text:
            if not statuses:
                say("no run has begun")
            for status in statuses:
                self.show(status)
                for line in self._claims(status):
                    say(line, wraps=True)
        return text.getvalue().rstrip()

    def write_page(self, statuses: Sequence[ExperimentStatus], *, is_live: bool) -> None:
        """Write the page; while the sweep goes on, browsers load it again and again."""
        if self.out is None:
            return
        views = [(status, self._claims(status)) for status in statuses]
        template = templates().get_template("status.html.j2")
        html = template.render(
            views=views,
            refresh_seconds=REFRESH_SECONDS if is_live else None,
            now=time.strftime("%Y-%m-%d %H:%M:%S"),
            stage_names=STAGE_NAMES,
            duration=duration,
            reason_of=reason_of,
            refusal=refusal,
        )
        with atomic_open(self.out) as file:
            file.write(html.encode())

    def _claims(self, status: ExperimentStatus) -> Sequence[str]:
        num_complete = sum(sweep.counts["complete"] for sweep in status.sweeps)
        return claim_lines(status.experiment, status.root, num_complete, self.shows_verdicts)


def watch(
    args: ParsedArgs,
    show: Callable[[ExperimentStatus], None],
    read_records: Callable[[], Sequence[Record]],
) -> int:
    """Watch the experiments of some records; returns the exit status."""
    out = None
    if "out" in args.values:
        out = parse_output("out", args.values["out"], (".html",))
    return SweepWatch(read_records, show, out, "verdicts" in args.flags).run()


@lru_cache
def claim_lines(name: str, root: Path, num_complete: int, shows_verdicts: bool) -> Sequence[str]:
    """Say which claims of an experiment can be tested; judged again once more runs are complete.

    Verdicts are shown where an analysis of the same seeds is noted. At other seeds they would be
    an interim analysis: with `shows_verdicts` it is noted, without it there are none.
    """
    if not num_complete or root == Path():
        return []
    runs = find(root)
    folders = [Path(run.started_in, run.config_dir) for run in runs.runs]
    own = [str(folder) for folder in folders if (folder / "paper.yaml").is_file()]
    try:
        experiment = open_experiment([*own, name][0])
    except ValueError:
        return []  # runs of no experiment: nothing is claimed of them
    if not experiment.claims:
        return []
    analysed = run_interim_analysis(build_table(experiment, runs), root, is_noted=shows_verdicts)
    tested = [judgement for judgement in analysed.judgements if judgement.seeds]
    count = f"{len(tested)} of {len(analysed.judgements)} claims can be tested"
    if not tested:
        return [f"{count}: a test needs two pre-training seeds of all its rows"]
    if analysed.is_unnoted:
        warning = (
            "to see verdicts before the last seed is an interim analysis: later ones are then"
            " exploratory, unless a stopping rule plans it. --verdicts shows and notes them"
        )
        return [f"{count}; {warning}"]
    lines = [f"{count}. Verdicts at these seeds, noted as an analysis in looks.jsonl:"]
    for judgement in tested:
        line = f"{verdict_label(judgement)}: {judgement.claim.text} ({judgement.judged_on})"
        if shows_verdicts:
            line += f", corrected {probability(judgement.corrected_p)}"
        lines.append(line)
    return lines
