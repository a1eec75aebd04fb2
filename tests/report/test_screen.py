"""report.html in a real browser: at three widths no element is wider than its box, and the first screen answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from clozelab.report.render import Report, write_report
from clozelab.verdicts.experiment import find_experiment, load_experiment

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
EVERY = ("mnli", "qnli", "mrpc", "sst2", "squad_v1", "snli_95k", "qnli_derived")
ROWS = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm", "random", "random_bilstm")
WIDTHS = 420, 1400, 1920
MEASURE = """<!doctype html><body>%s<pre id="seen"></pre><script>
addEventListener("load", () => {
  const found = Array.from(document.querySelectorAll("iframe"), (frame) => {
    const page = frame.contentDocument, wide = [];
    for (const summary of page.querySelectorAll("details")) summary.open = true;
    for (const one of page.body.querySelectorAll("*")) {
      const box = one.getBoundingClientRect();
      const isWide = one.clientWidth && one.scrollWidth > one.clientWidth + 1 && !one.matches(".axis");
      if (isWide || box.right > page.documentElement.clientWidth + 1)
        wide.push(`${one.tagName}.${one.className} ${one.textContent.trim().slice(0, 40)}`);
    }
    const last = page.querySelector(".answers").getBoundingClientRect();
    return { wide, answered: last.bottom };
  });
  document.querySelector("#seen").textContent = JSON.stringify(found);
});
</script></body>"""


def written(root: Path, name: str = "table5_pretraining_tasks") -> Report:
    return write_report(load_experiment(find_experiment(name)), root, root / "report", scale="demo")


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
def test_nothing_is_wider_than_its_box(make_runs: Callable[..., Path], tmp_path: Path) -> None:
    means = {(row, task): 50.0 + 3.0 * place for place, row in enumerate(ROWS) for task in EVERY}
    report = written(make_runs(means, pretrain_seeds=(1, 2, 3), finetune_seeds=(1,)))
    frames = (f'<iframe src="{report.folder / "report.html"}" width="{one}" height="900"></iframe>' for one in WIDTHS)
    (tmp_path / "measure.html").write_text(MEASURE % "".join(frames))
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--no-first-run"]
    switches += ["--disable-background-networking", f"--user-data-dir={tmp_path / 'browser'}"]
    command = [str(BROWSER), *switches, "--dump-dom", (tmp_path / "measure.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'<pre id="seen">(.*?)</pre>', shown)
    assert found is not None
    seen = dict(zip(WIDTHS, json.loads(unescape(found[1])), strict=True))
    assert {width: one["wide"] for width, one in seen.items()} == {width: [] for width in WIDTHS}
    assert seen[1400]["answered"] < 900 and seen[1920]["answered"] < 900, "the verdicts are on the first screen"


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozelab.report.render._plots", lambda *_: {})


@pytest.mark.usefixtures("without_plots")
def test_the_first_screen_answers(make_runs: Callable[..., Path]) -> None:
    """One sentence a verdict that leads to its row, and what was not learnt with the claims that rest on it."""
    means = {("mlm", "squad_v1"): 40.0, ("ltr", "squad_v1"): 76.0, ("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 70.0}
    root = make_runs(means)
    for record in root.glob("pretrain/ltr/*/run.json"):
        known = json.loads(record.read_text())
        known["facts"]["validation/loss"] = 6.36
        record.write_text(json.dumps(known))
    report = written(root)
    html, markdown = ((report.folder / f"report.{kind}").read_text() for kind in ("html", "md"))
    sentence = (
        r"Left-to-right costs SQuAD: contradicted here, \+3\d\.\d F1 \[\+3\d\.\d, \+3\d\.\d\]; the paper \u221210\.1\."
    )
    above = html.partition("<h2>The table")[0]
    assert re.search(r'<a class="badge contradicted" href="#claim-1" title="contradicted"></a>' + sentence, above)
    assert re.search(r"- \*\*contradicted\*\*: " + sentence, markdown)
    places = re.findall(r'href="#(claim-\d+)"', above)
    assert len(places) == len(report.judgements) and all(f'<tr id="{one}">' in html for one in places)
    assert "LTR &amp; No NSP (ltr): a held-out loss of 6.36 nats, where 6.20 takes no context" in above
    assert "cannot be said from here: left-to-right costs SQuAD" in above


@pytest.mark.usefixtures("without_plots")
def test_two_seeds_show_their_values_and_a_size_is_ours(make_runs: Callable[..., Path], writers: Any) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    (cell,) = (row["cells"] for row in written(root).page["groups"][0]["rows"] if row["name"] == "mlm")
    half = next(one["half"] for one in cell if one["seeds"])
    assert re.fullmatch(r"\((\d\d\.\d), (\d\d\.\d)\)", half) and "\u00b1" not in half
    sizes = root.parent.parent / "table6_model_size" / "demo"
    shapes = {"depth_quarter": (3, 64), "base": (8, 128), "deep_wide": (8, 128)}
    for arm, (layers, width) in shapes.items():
        shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": 2}
        for seed in (1, 2):
            writers.pretrain(sizes, arm, seed, model=shape, known={"validation/perplexity": 9.0 + seed})
    report = written(sizes, "table6_model_size")
    labels = {row["name"]: row["label"] for row in report.page["groups"][-1]["rows"]}
    assert labels["depth_quarter"] == "L=3, H=64, A=2" and labels["base"] == "L=8, H=128, A=2"
    assert labels["deep_wide"] == "L=8, H=128, A=2 (L=24, H=1024, A=16)", "two rows of one size stay apart"
    assert labels["wide"] == "L=12, H=1024, A=16", "no run says what it is here"
    assert "(the paper's L=3, H=768, A=12)" in (report.folder / "report.md").read_text()
