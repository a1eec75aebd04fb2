"""`clozelab explain`: attention and token attribution of one text, as a page that needs nothing
else, or a picture.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.corpus.files import whole_file
from clozelab.stages.predict import OF_TASK, PLACED, predictor_of
from clozelab.terminal import Words, verb

if TYPE_CHECKING:
    from clozelab.modules.explaining import Attribution

HELP = """clozelab explain MODEL text=TEXT [pair=TEXT] out=PAGE.html|PICTURE.png
clozelab explain MODEL question=TEXT text=PASSAGE out=PAGE.html

Shows for one text where attention looks, and which tokens the answer rests on: integrated gradients of its logit, from
the text with every token masked. Their sum is what the text adds to the logit, and the page says how nearly.

  layers=1,2  heads=1,2  whose attention (all heads of the last layer)
  target=LABEL           another class than the best one; of a text with a mask another token
  steps=N                points on the way (64): more, where the sum is not near

device=, precision= and hub=true are as for `predict`."""
KEYS = ("text", "pair", "question", "out", "layers", "heads", "target", "steps", *PLACED)
ACROSS, INCHES = 4, 3.6  # attention maps side by side, and how wide one is


@verb("explain", HELP, names=(1, 1), keys=KEYS)
def main(said: Words) -> int:
    """Write the page or the picture; returns the exit status."""
    values = said.values
    if "text" not in values or Path(values.get("out", "")).suffix not in (".html", ".png"):
        raise ValueError("explain needs text=TEXT and out=PAGE.html or out=PICTURE.png; see --help")
    if (out := Path(values["out"])).is_dir() or not out.parent.is_dir():
        raise ValueError(f"out={out}: give a file, in a folder that is there")
    steps = _numbers("steps", values.get("steps", "64"), 4096)[0]
    predictor = predictor_of(said)
    from clozelab.modules import explaining
    from clozelab.report.page import templates

    text: Any = (values["text"], values["pair"]) if "pair" in values else values["text"]
    text = (values["question"], values["text"]) if "question" in values else text
    has_mask = (
        isinstance(text, str) and "lm" in predictor.heads and predictor.tokenizer.has_mask(text)
    )
    act = OF_TASK.get(predictor.model.task or "", "fill" if has_mask else "")
    if ("question" in values) != (act == "answer"):
        raise ValueError(
            "question= belongs to a model that answers questions, and such a one needs it"
        )
    found = None
    if explaining.HEADS.get(act, "") in predictor.heads:
        found = explaining.attribute(predictor, act, text, target=values.get("target"), steps=steps)
    elif "target" in values:
        needs = "give a text with a mask, or a model with a trained head"
        raise ValueError(f"target={values['target']}: there is no choice to explain: {needs}")
    maps = predictor.attention(text)
    layers = _numbers("layers", values.get("layers", str(len(maps))), len(maps))
    heads = _numbers("heads", values.get("heads", "all"), maps.shape[1])
    chosen, is_page = [(layer, head) for layer in layers for head in heads], out.suffix == ".html"
    picture = draw(explaining.tokens_of(predictor, text), None if is_page else found, maps, chosen)
    shown: Any = {
        "name": said.names[0],
        "found": found,
        "picture": base64.b64encode(picture).decode(),
    }
    shown |= {"which": ", ".join(f"layer {layer} head {head}" for layer, head in chosen)}
    if found:
        pairs = [*zip(found.tokens, found.shares, strict=True)]
        shown |= {"most": max(map(abs, found.shares)) or 1.0, "pairs": pairs}
    with whole_file(out) as file:
        file.write(
            templates().get_template("explain.html.j2").render(shown).encode()
            if is_page
            else picture
        )
    print(out)
    return 0


def _numbers(key: str, said: str, most: int) -> list[int]:
    """Whole numbers from 1 to `most`, between commas."""
    found = (
        [*range(1, most + 1)]
        if said == "all"
        else [int(one) if one.isdecimal() else 0 for one in said.split(",")]
    )
    if not all(1 <= one <= most for one in found):
        raise ValueError(f"{key}={said}: give numbers from 1 to {most}, between commas")
    return found


def draw(tokens: Any, found: Attribution | None, maps: Any, chosen: list[tuple[int, int]]) -> bytes:
    """A PNG of the chosen maps, below bars of the tokens' shares where there are any."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    columns, top, every = min(ACROSS, len(chosen)), int(found is not None), range(len(tokens))
    rows, size = -(-len(chosen) // columns) + top, max(3.0, min(9.0, 200 / len(tokens)))
    figure = plt.figure(
        figsize=(INCHES * max(2, columns), INCHES * rows), layout="constrained", dpi=110
    )
    grid: Any = figure.add_gridspec(rows, columns)
    plain: Any = {"fontsize": size, "parse_math": False}
    if found is not None:
        axes = figure.add_subplot(grid[0, :])
        axes.bar(
            every, found.shares, color=["#2166ac" if one > 0 else "#b2182b" for one in found.shares]
        )
        axes.set_xticks(every, tokens, rotation=90, **plain)
        said = (
            f"{found.answer}: logit {found.without:.3f} without the text, {found.logit:.3f} with it"
        )
        axes.set_title(said, fontsize=10, parse_math=False)
    for place, (layer, head) in enumerate(chosen):
        axes = figure.add_subplot(grid[place // columns + top, place % columns])
        axes.imshow(maps[layer - 1, head - 1], cmap="Blues", vmin=0.0, vmax=1.0)
        axes.set_title(f"layer {layer}, head {head}", fontsize=10)
        axes.set_xticks(every, tokens, rotation=90, **plain)
        axes.set_yticks(every, tokens, **plain)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    plt.close(figure)
    return file.getvalue()
