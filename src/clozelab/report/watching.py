"""A sweep while it runs: a view in the terminal, and a page, that refresh themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from claims.analysis.verdicts import run_interim_analysis
from claims.report.estimates import probability
from claims.report.wording import verdict_label
from claims.text.phrases import duration
from clozelab.files.atomic import atomic_open
from clozelab.report.page import templates
from clozelab.report.status_screen import format_seconds_left, jobs_at_once, print_status
from clozelab.results.experiment import Experiment, open_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find
from clozelab.runs.progress import is_launching, read_launches
from clozelab.runs.record import STAGE_NAMES
from clozelab.runs.status import ExperimentStatus
from clozelab.terminal import make_console, say
from clozelab.training.stopping import Interrupted

REFRESH_SECONDS = 5.0
# Single commands one after another, or a sweep that is about to be started: nothing runs so long.
IDLE_SECONDS = 60.0


@dataclass
class Watch:
    """Shows the experiments that run, until nothing does.

    Attributes:
        runs_dir: the folder with the runs of all experiments.
        read: how every experiment stands now.
        out: the page to write; None for none.
        shows_verdicts: also those of an interim analysis, which is then noted.
    """

    runs_dir: Path
    read: Callable[[], Sequence[ExperimentStatus]]
    out: Path | None
    shows_verdicts: bool
    # folders of the experiments that have run meanwhile, and when one of them last did
    _seen: set[Path] = field(default_factory=set)
    _last_active: float = field(default_factory=time.monotonic)

    def run(self) -> int:
        """Refresh until the sweep has ended or a signal comes; returns the exit status."""
        console = make_console()
        if not console.is_terminal and self.out is None:
            raise ValueError(
                "--watch needs a terminal: in a pipe, give out=FILE.html for a page that refreshes"
                " itself, or leave --watch out"
            )
        screen: Live | nullcontext[None] = nullcontext()
        if console.is_terminal:
            screen = Live(console=console, auto_refresh=False)
        try:
            with screen as live:
                while self.refresh(live):
                    time.sleep(REFRESH_SECONDS)
        except Interrupted as stopped:
            self.write_page(self._current(), is_live=False)
            return stopped.code
        return 0

    def refresh(self, live: Live | None) -> bool:
        """Show how things stand now; returns whether they go on."""
        statuses = self._current()
        goes_on = self._goes_on(statuses)
        if live is not None:
            # Another console: what is printed to that of a Live stands above it for ever.
            console = make_console()
            with console.capture() as captured:
                self._print(statuses, console)
            live.update(Text.from_ansi(captured.get().rstrip()), refresh=True)
        self.write_page(statuses, is_live=goes_on)
        return goes_on

    def _current(self) -> Sequence[ExperimentStatus]:
        """The experiments that have run since the watch began; all of them before any has."""
        statuses = self.read()
        self._seen |= {status.root for status in statuses if status.running}
        seen = [status for status in statuses if status.root in self._seen]
        if seen:
            return seen
        return statuses

    def _goes_on(self, statuses: Sequence[ExperimentStatus]) -> bool:
        now = time.monotonic()
        if any(status.running for status in statuses) or is_launching(self.runs_dir):
            self._last_active = now
        if self._seen and all(status.is_done for status in statuses):
            return False
        return now - self._last_active < IDLE_SECONDS

    def _print(self, statuses: Sequence[ExperimentStatus], console: Console) -> None:
        if not statuses:
            say("no run has begun", console=console)
        for status in statuses:
            print_status(status, console)
            for line in self._claims(status):
                say(line, wraps=True, console=console)

    def write_page(self, statuses: Sequence[ExperimentStatus], *, is_live: bool) -> None:
        """Write the page; while the sweep goes on, browsers load it again and again."""
        if self.out is None:
            return
        views = [(status, jobs_at_once(status), self._claims(status)) for status in statuses]
        html = (
            templates()
            .get_template("status.html.j2")
            .render(
                views=views,
                refresh_seconds=REFRESH_SECONDS if is_live else None,
                now=time.strftime("%Y-%m-%d %H:%M:%S"),
                stage_names=STAGE_NAMES,
                duration=duration,
                seconds_left=format_seconds_left,
            )
        )
        with atomic_open(self.out) as file:
            file.write(html.encode())

    def _claims(self, status: ExperimentStatus) -> Sequence[str]:
        num_complete = sum(sweep.counts["complete"] for sweep in status.sweeps)
        return claim_lines(status.experiment, status.root, num_complete, self.shows_verdicts)


@lru_cache
def claim_lines(name: str, root: Path, num_complete: int, shows_verdicts: bool) -> Sequence[str]:
    """Say which claims of an experiment can be tested; judged again once more runs are complete.

    Verdicts are shown where an analysis of the same seeds is noted. At other seeds they would be
    an interim analysis: with `shows_verdicts` it is noted, without it there are none.
    """
    experiment = _find_experiment(name, root)
    if experiment is None or not experiment.claims or not num_complete:
        return []
    table = build_table(experiment, find(root))
    analysed = run_interim_analysis(table, root, is_noted=shows_verdicts)
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
            line += f", {probability(judgement.corrected_p)}"
        lines.append(line)
    return lines


def _find_experiment(name: str, root: Path) -> Experiment | None:
    """Open the experiment of some runs: a word of the command line that began them, or its name."""
    names = [name]
    for launch in read_launches(root).values():
        names += [str(Path(launch.started_in, word)) for word in launch.words[1:]]
    # The words come first: an experiment of one's own may have the name of another one.
    for candidate in reversed(names):
        with suppress(ValueError):
            return open_experiment(candidate)
    return None
