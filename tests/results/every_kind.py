"""An experiment with a claim of every kind, on every kind of column."""

from __future__ import annotations

import re

from clozelab.results.experiment import find_experiment

CLAIMS = """
  - {id: chain, text: chain, paper_delta: null,
     rows: [mlm_nsp, mlm, ltr], column: SST-2, direction: decreasing}
  - {id: alike, text: alike, paper_delta: null,
     rows: [mlm_nsp, mlm], column: ALIKE, direction: within, points: 1.0}
  - id: more
    text: more
    paper_delta: -3.3
    compare: [mlm, mlm_nsp, QNLI]
    against: [mlm, mlm_nsp, MRPC]
    direction: lower
  - {id: perplexity, text: perplexity, paper_delta: -0.5,
     compare: [mlm_nsp, mlm, perplexity], direction: lower}
  - {id: each, text: each, paper_delta: null,
     compare: [mlm, [ltr, ltr_bilstm], SST-2], direction: higher}
  - {id: average, text: average, paper_delta: -1, compare: [ltr, mlm, Average], direction: lower}
"""
COLUMNS = """  - {name: perplexity, from: pretrain, metric: validation/perplexity}
  - {name: Average, mean_of: [MNLI-m, QNLI, MRPC, SST-2]}
"""


def paper_of_every_kind(alike_on: str, more_columns: str = "") -> str:
    """Table 5 and the claims above; that of equality is about the column `alike_on`."""
    text = (find_experiment("table5_pretraining_tasks") / "paper.yaml").read_text()
    text = text.replace("primary: true, ", "").rstrip() + CLAIMS.replace("ALIKE", alike_on)
    columns = more_columns + COLUMNS
    text = text.replace("arms:\n", f"{columns}arms:\n", 1)
    cells = ", null" * columns.count("name:")
    return re.sub(r"cells: \[(.*?)\]", rf"cells: [\1{cells}]", text)
