"""`clozelab explain`: attention and token attribution of one text.

They become a page that needs nothing else, or a picture.

Letters: L layers, N heads, T tokens.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING

from clozelab.files.atomic import atomic_open
from clozelab.modules.answering import MODEL_KEYS, load_predictor, parse_output
from clozelab.modules.model_tasks import meaning_of
from clozelab.report.explanation import draw, render_page
from clozelab.terminal import SWITCH, ParsedArgs, verb

if TYPE_CHECKING:
    from clozelab.modules.explaining import Attribution
    from clozelab.modules.predictor import Predictor

HELP = """\
clozelab explain MODEL text=TEXT [pair=TEXT] out=PAGE.html|PICTURE.png
clozelab explain MODEL question=TEXT text=PASSAGE out=PAGE.html

Shows for one text where attention looks, and which tokens the answer rests on:
integrated gradients of its logit, from the text with every token masked. Their
sum is what the text adds to the logit, and the page says how nearly.

  layers=1,2  heads=1,2  whose attention (all heads of the last layer)
  target=LABEL           another class than the best one; of a text with a mask
                         another token
  steps=N                points on the way (64): more, where the sum is not near

device=, precision= and hub=true are as for `predict`."""
KEYS = ("text", "pair", "question", "out", "layers", "heads", "target", "steps", *MODEL_KEYS)
MAX_STEPS = 4096


@verb("explain", HELP, names=(1, 1), keys=KEYS, choices={"hub": SWITCH})
def main(args: ParsedArgs) -> int:
    """Write the page or the picture; returns the exit status."""
    values = args.values
    if "text" not in values:
        raise ValueError("explain needs text=TEXT; see --help")
    if "out" not in values:
        raise ValueError("explain needs out=PAGE.html or out=PICTURE.png; see --help")
    out = parse_output("out", values["out"], (".html", ".png"))
    steps = parse_numbers("steps", values.get("steps", "64"), MAX_STEPS)[0]
    predictor = load_predictor(args.names[0], args.values)
    from clozelab.modules import explaining

    # One text, or two: (question, passage) and (first, second).
    text: str | tuple[str, str] = values["text"]
    if "question" in values:
        text = (values["question"], values["text"])
    elif "pair" in values:
        text = (values["text"], values["pair"])
    attribution = attribute(predictor, text, values, steps)
    is_classifier = "classification" in predictor.heads
    maps = predictor.attention(text, as_trained=is_classifier)  # [L, N, T, T]
    layers = parse_numbers("layers", values.get("layers", str(len(maps))), len(maps))
    heads = parse_numbers("heads", values.get("heads", "all"), maps.shape[1])
    layer_heads = list(product(layers, heads))
    tokens = explaining.tokens_of(predictor, text)
    if out.suffix == ".html":
        # The page shows the tokens' shares beside the picture, as text.
        picture = draw(tokens, None, maps, layer_heads)
        content = render_page(args.names[0], attribution, picture, layer_heads)
    else:
        content = draw(tokens, attribution, maps, layer_heads)
    with atomic_open(out) as file:
        file.write(content)
    if predictor.num_cut:
        print(
            f"the text was cut at the {predictor.model.window_length} tokens of the fine-tuning:"
            " the rest was neither read nor explained",
            file=sys.stderr,
        )
    print(out)
    return 0


def attribute(
    predictor: Predictor, text: str | tuple[str, str], values: dict[str, str], steps: int
) -> Attribution | None:
    """Which tokens the model's answer rests on; None for a model that answers nothing.

    ValueError where the arguments do not fit what the model does.
    """
    from clozelab.modules import explaining

    act = meaning_of(predictor.model.task).act
    if act == "fill":
        has_mask = isinstance(text, str) and predictor.tokenizer.has_mask(text)
        if has_mask and "lm" in predictor.heads:
            predictor.head("lm", "fill a mask")
        else:
            act = ""
    if ("question" in values) != (act == "answer"):
        raise ValueError(
            "question= belongs to a model that answers questions, and such a one needs it"
        )
    if explaining.HEADS.get(act, "") in predictor.heads:
        return explaining.attribute(predictor, act, text, target=values.get("target"), steps=steps)
    if "target" in values:
        raise ValueError(
            f"target={values['target']}: there is no choice to explain: give a text with a mask, or"
            " a model with a trained head"
        )
    return None


def parse_numbers(key: str, text: str, largest: int) -> list[int]:
    """Whole numbers from 1 to `largest`, between commas, or all of them."""
    if text == "all":
        return list(range(1, largest + 1))
    numbers = []
    for word in text.split(","):
        if not word.isdecimal() or not 1 <= int(word) <= largest:
            raise ValueError(f"{key}={text}: give numbers from 1 to {largest}, between commas")
        numbers.append(int(word))
    return numbers
