"""report.html in a real browser, light and dark: at three widths no element is wider than its box,
all text can be read, and the first screen answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.records import change
from tests.report.writing import needs_browser, seen_in_browser, written
from tests.screens import shows

EVERY = ("mnli", "qnli", "mrpc", "sst2", "squad_v1", "snli_95k", "qnli_derived")
ROWS = ("mlm_nsp", "mlm", "ltr", "ltr_bilstm", "random", "random_bilstm")
WIDTHS = 420, 1400, 1920
SCHEMES = "light", "dark"
# of text against what lies behind it, by WCAG 2 (AA); 3 where the text is large
LEAST_CONTRAST = 4.5
MEASURE = """<!doctype html><body>%s<pre id="seen"></pre><script>
const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
function over(colour, below, opacity) {  // any colour that CSS can say, on an opaque one
  pixel.globalAlpha = 1;
  pixel.fillStyle = below;
  pixel.fillRect(0, 0, 1, 1);
  pixel.globalAlpha = opacity;
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  return Array.from(pixel.getImageData(0, 0, 1, 1).data).slice(0, 3);
}
function luminance(rgb) {
  const linear = (one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = rgb.map((one) => linear(one / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(one, view) {
  const above = [];
  for (let place = one; place; place = place.parentElement) {
    above.unshift(view.getComputedStyle(place));
  }
  const isDark = view.matchMedia("(prefers-color-scheme: dark)").matches;
  let below = isDark ? [18, 18, 18] : [255, 255, 255], opacity = 1;
  for (const style of above) {
    opacity *= style.opacity;
    below = over(style.backgroundColor, `rgb(${below})`, opacity);
  }
  const ink = over(above.at(-1).color, `rgb(${below})`, opacity);
  const [a, b] = [luminance(ink), luminance(below)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
addEventListener("load", () => {
  const found = Array.from(document.querySelectorAll("iframe"), (frame) => {
    const page = frame.contentDocument, view = frame.contentWindow, wide = [], faint = [];
    const forest = page.querySelector(".forest").getBoundingClientRect();
    for (const summary of page.querySelectorAll("details")) summary.open = true;
    for (const one of page.body.querySelectorAll("*")) {
      const box = one.getBoundingClientRect();
      const isWider = one.clientWidth && one.scrollWidth > one.clientWidth + 1;
      const isWide = isWider && !one.matches(".ticks");
      if (isWide || box.right > page.documentElement.clientWidth + 1)
        wide.push(`${one.tagName}.${one.className} ${one.textContent.trim().slice(0, 40)}`);
      const textOf = (node) => node.nodeType === 3 ? node.data.trim() : "";
      const says = Array.from(one.childNodes, textOf).join("");
      const style = view.getComputedStyle(one), size = parseFloat(style.fontSize);
      const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
      const least = isLarge ? LEAST * 2 / 3 : LEAST;
      const isSeen = says && box.width && style.visibility === "visible";
      if (isSeen && contrast(one, view) < least) {
        const ratio = contrast(one, view).toFixed(2);
        faint.push(`${one.tagName}.${one.className} ${ratio} ${says.slice(0, 40)}`);
      }
    }
    const isDark = view.matchMedia("(prefers-color-scheme: dark)").matches;
    return { wide, faint, isDark, answered: forest.bottom };
  });
  document.querySelector("#seen").textContent = JSON.stringify(found);
});
</script></body>"""


@pytest.mark.browser
@needs_browser
def test_nothing_is_wider_than_its_box_or_too_faint_to_read(
    make_runs: Callable[..., Path], tmp_path: Path
) -> None:
    means: dict[tuple[str, str], float] = {}
    for place, row in enumerate(ROWS):
        means |= {(row, task): 50.0 + 3.0 * place for task in EVERY}
    page = (
        written(make_runs(means, pretrain_seeds=(1, 2, 3), finetune_seeds=(1,))).folder
        / "report.html"
    )
    # The control: a page on which one line can hardly be read, and one element is wider than all
    # screens.
    planted = (
        '<p class="pale" style="color: var(--line)">pale</p><p class="broad" style="min-width:'
        ' 3000px">broad</p>'
    )
    spoilt = page.with_name("spoilt.html")
    spoilt.write_text(page.read_text().replace("</body>", f"{planted}</body>"))
    cases = list(product((page, spoilt), WIDTHS, SCHEMES))
    frames = (
        f'<iframe src="{one}" width="{width}" height="900" style="color-scheme: {scheme}"></iframe>'
        for one, width, scheme in cases
    )
    said = MEASURE.replace("LEAST", str(LEAST_CONTRAST)).replace("%s", "".join(frames))
    (tmp_path / "measure.html").write_text(said)
    measured = seen_in_browser(tmp_path / "measure.html", "--allow-file-access-from-files")
    seen = dict(zip(cases, measured, strict=True))
    for (one, width, scheme), there in seen.items():
        assert there["isDark"] == (scheme == "dark")
        if one == page:
            assert not there["wide"] and not there["faint"], (width, scheme)
            assert width == min(WIDTHS) or there["answered"] < 900, (
                "the verdicts are on the first screen"
            )
        else:
            assert any("pale" in line for line in there["faint"]) and any(
                "broad" in line for line in there["wide"]
            )


@pytest.mark.usefixtures("no_pictures")
def test_the_first_screen_answers(make_runs: Callable[..., Path]) -> None:
    """One sentence a verdict that leads to its row, and what was not learnt with the claims that
    rest on it.
    """
    means = {
        ("mlm", "squad_v1"): 40.0,
        ("ltr", "squad_v1"): 76.0,
        ("mlm", "mrpc"): 70.0,
        ("ltr", "mrpc"): 70.0,
    }
    root = make_runs(means)
    change(root, "pretrain/ltr/*", **{"facts__validation/loss": 6.36})
    report = written(root)
    html, markdown = ((report.folder / f"report.{kind}").read_text() for kind in ("html", "md"))
    sentence = (
        r"Left-to-right costs SQuAD: contradicted here, \+3\d\.\d F1 \[\+3\d\.\d, \+3\d\.\d\]; the"
        r" paper \u221210\.1\."
    )
    above = html.partition("<h2>The table")[0]
    assert re.search(
        r'<a class="badge contradicted" href="#claim-2" title="contradicted"></a>' + sentence, above
    )
    assert re.search(r"- \*\*contradicted\*\*: " + sentence, markdown)
    answers = above.partition('<ul class="answers">')[2]
    places = re.findall(r'href="#(claim-\d+)"', answers)
    assert len(places) == len(report.judgements) and all(
        f'<tr id="{one}">' in html for one in places
    )
    (unlearnt,) = re.findall("[^<>]*a held-out loss of[^<>]*", above)
    shows(unlearnt, "LTR &amp; No NSP (ltr): a held-out loss of 6.36 nats, where 6.20 takes")
    assert re.search(r"cannot be said from here: [^<]*left-to-right costs SQuAD", above)


@pytest.mark.usefixtures("no_pictures")
def test_two_seeds_show_their_values_and_a_size_is_ours(
    make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    (cell,) = (row.cells for row in written(root).page.table.groups[0].rows if row.name == "mlm")
    half = next(one.half for one in cell if one.seeds)
    assert re.fullmatch(r"\((\d\d\.\d), (\d\d\.\d)\)", half) and "\u00b1" not in half
    sizes = root.parent.parent / "table6_model_size" / "demo"
    shapes = {"depth_quarter": (3, 64), "base": (8, 128), "deep_wide": (8, 128)}
    for arm, (layers, width) in shapes.items():
        shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": 2}
        for seed in (1, 2):
            writers.pretrain(
                sizes, arm, seed, model=shape, known={"validation/perplexity": 9.0 + seed}
            )
    report = written(sizes, "table6_model_size")
    labels = {row.name: row.label for row in report.page.table.groups[-1].rows}
    assert labels["depth_quarter"] == "L=3, H=64, A=2" and labels["base"] == "L=8, H=128, A=2"
    assert labels["deep_wide"] == "L=8, H=128, A=2 (L=24, H=1024, A=16)", (
        "two rows of one size stay apart"
    )
    assert labels["wide"] == "L=12, H=1024, A=16", "no run says what it is here"
    assert "(the paper's L=3, H=768, A=12)" in (report.folder / "report.md").read_text()
