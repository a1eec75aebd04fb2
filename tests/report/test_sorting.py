"""The HTML's tables: readable without JavaScript, sorted by buttons with it, and open to the scores
behind a mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.writing import needs_browser, seen_in_browser, written

SCORES = {"mlm_nsp": 9.5, "mlm": 70.0, "ltr": 60.0, "random": 50.0}


@pytest.fixture
def page(make_runs: Callable[..., Path], writers: Any, no_pictures: None) -> Path:
    means = {(row, "mrpc"): mean for row, mean in SCORES.items()}
    root = make_runs(means, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    writers.finetune(root, "ltr", "sst2", (1, 1), 60.0, majority_baseline=0.5)
    return written(root).folder / "report.html"


def test_every_cell_stands_under_its_heading(page: Path) -> None:
    for table in re.findall(r"<table.*?</table>", page.read_text(), re.DOTALL):
        rows = re.findall(r"<tr.*?</tr>", table.split("<tbody>")[1], re.DOTALL)
        last = re.findall(r"<tr.*?</tr>", table.split("</thead>")[0], re.DOTALL)[-1]
        columns = len(re.findall(r"<th[ >]", last))
        assert rows and {len(re.findall(r"<t[hd][ >]", row)) for row in rows} == {columns}
        assert "data-sort" in last and "button" not in table  # the script makes them


def test_a_mean_opens_to_its_scores(page: Path) -> None:
    html = page.read_text()
    found = re.search(
        r'<td data-label="MRPC" title="([^"]+)"><details><summary><span'
        r' class="mean">(?:69|70)\.\d<.*?</summary>'
        r"<small>(.*?)</small>",
        html,
    )
    assert (
        found is not None
        and found[1] == found[2]
        and re.fullmatch(r"1/1: \d\d\.\d, 2/1: \d\d\.\d", found[1])
    )
    assert 'title=""' not in html and "A mean opens to the scores behind it" in html


CLICKS = """<pre id="seen"></pre><script>
const button = document.querySelector('th[data-sort="MRPC, ours"] button');
const table = button.closest("table");
const seen = Array.from("123", () => {
  button.click();
  const labels = Array.from(table.tBodies[0].rows, (row) => row.cells[0].textContent);
  return [button.parentNode.getAttribute("aria-sort"), labels];
});
document.querySelector("#seen").textContent =
  JSON.stringify([button.getAttribute("aria-label"), ...seen]);
</script></body>"""


@pytest.mark.browser
@needs_browser
def test_clicks_sort(page: Path) -> None:
    """By the number, so that 9.5 is less than 60; what is missing stays below, and baselines below
    all.
    """
    page.write_text(page.read_text().replace("</body>", CLICKS))
    name, *seen = seen_in_browser(page, "--disable-extensions")
    absent, baselines = ["+ BiLSTM", "No pre-training + BiLSTM"], ["most frequent label"]
    down = ["No NSP", "LTR & No NSP", "No pre-training", "MLM & NSP"]
    asmade = [
        "MLM & NSP",
        "No NSP",
        "LTR & No NSP",
        "+ BiLSTM",
        "No pre-training",
        "No pre-training + BiLSTM",
    ]
    assert name == "sort by MRPC, ours"
    assert seen == [
        ["descending", [*down, *absent, *baselines]],
        ["ascending", [*down[::-1], *absent, *baselines]],
        [None, [*asmade, *baselines]],
    ]
