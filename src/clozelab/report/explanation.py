"""Attention and token attribution of one text, as a page or a picture.

Letters: L layers, N heads, T tokens.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from clozelab.text.plain import JsonObject, PlainDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from clozelab.modules.explaining import Attribution


MAPS_A_ROW = 4
MAP_INCHES = 3.6
COLOURS = {True: "#2166ac", False: "#b2182b"}  # of a token that raises a logit, or lowers it


def render_page(
    model_name: str,
    attribution: Attribution | None,
    picture: bytes,
    layer_heads: list[tuple[int, int]],
) -> bytes:
    """The page, with its picture inside."""
    from clozelab.report.page import templates

    captions = [f"layer {layer} head {head}" for layer, head in layer_heads]
    context: PlainDict = {
        "name": model_name,
        "found": attribution,
        "picture": base64.b64encode(picture).decode(),
        "which": ", ".join(captions),
    }
    if attribution:
        context["pairs"] = list(zip(attribution.tokens, attribution.shares, strict=True))
        # The page divides by it: 1 where no token has a share.
        context["most"] = max(map(abs, attribution.shares)) or 1.0
    return templates().get_template("explain.html.j2").render(context).encode()


def draw(
    tokens: Sequence[str],
    attribution: Attribution | None,
    maps: NDArray[np.floating],
    layer_heads: list[tuple[int, int]],
) -> bytes:
    """A PNG of some attention maps [L, N, T, T], below bars of the tokens' shares if there are any.

    Layers and heads count from 1.
    """
    import matplotlib

    # Draws into memory, also where there is no screen.
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    columns = min(MAPS_A_ROW, len(layer_heads))
    map_rows = -(-len(layer_heads) // columns)  # rounded up
    bar_rows = int(attribution is not None)
    rows = bar_rows + map_rows
    figure = plt.figure(
        figsize=(MAP_INCHES * max(2, columns), MAP_INCHES * rows), layout="constrained", dpi=110
    )
    # The bars fill the first row, if there are any; the maps follow row by row.
    grid = figure.add_gridspec(rows, columns)
    positions = range(len(tokens))
    # A token may hold what matplotlib would read as a formula.
    label_style: JsonObject = {
        "fontsize": max(3.0, min(9.0, 200 / len(tokens))),
        "parse_math": False,
    }
    if attribution is not None:
        axes = figure.add_subplot(grid[0, :])
        # Whether a token raises the answer's logit or lowers it.
        colours = [COLOURS[share > 0] for share in attribution.shares]
        axes.bar(positions, attribution.shares, color=colours)
        axes.set_xticks(positions, tokens, rotation=90, **label_style)
        title = (
            f"{attribution.answer}: logit {attribution.without:.3f} without the text,"
            f" {attribution.logit:.3f} with it"
        )
        axes.set_title(title, fontsize=10, parse_math=False)
    for index, (layer, head) in enumerate(layer_heads):
        axes = figure.add_subplot(grid[bar_rows + index // columns, index % columns])
        axes.imshow(maps[layer - 1, head - 1], cmap="Blues", vmin=0.0, vmax=1.0)
        axes.set_title(f"layer {layer}, head {head}", fontsize=10)
        axes.set_xticks(positions, tokens, rotation=90, **label_style)
        axes.set_yticks(positions, tokens, **label_style)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    plt.close(figure)
    return file.getvalue()
