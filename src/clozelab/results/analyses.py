"""Judge a table of runs and note the analysis beside them."""

from __future__ import annotations

from dataclasses import dataclass

from clozelab.analysis.history import (
    InterimAnalysis,
    append_to_log,
    now,
    read_log,
    rule_of,
    statements,
)
from clozelab.analysis.verdicts import Judgement, judge
from clozelab.results.table import ResultTable


@dataclass(frozen=True)
class AnalysedTable:
    """Judgements, and the analyses up to this one."""

    judgements: list[Judgement]
    analyses: list[InterimAnalysis]
    # why this one could not be noted; None: it was, or it is there already
    error: OSError | None = None


def run_interim_analysis(table: ResultTable) -> AnalysedTable:
    """Judge a table and note the analysis beside its runs, if its seeds are new."""
    folder = table.runs.root
    analyses = read_log(folder)
    judgements = judge(table, analyses)
    seeds: dict[str, str] = {}
    for judgement in judgements:
        seeds |= judgement.seeds
    rule = rule_of(table.spec.stopping)
    is_noted = any(analysis.seeds == seeds and analysis.rule == rule for analysis in analyses)
    if not seeds or is_noted:
        return AnalysedTable(judgements, analyses)

    analysis = InterimAnalysis(
        time=now(),
        seeds=seeds,
        verdicts={f"{one.claim.text} ({one.judged_on})": str(one.verdict) for one in judgements},
        rule=rule,
        claims=statements(one.claim for one in judgements if one.seeds),
    )
    analyses.append(analysis)
    try:
        append_to_log(folder, analysis)
    except OSError as error:
        return AnalysedTable(judgements, analyses, error)
    return AnalysedTable(judgements, analyses)
