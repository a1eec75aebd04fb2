"""`clozelab serve`: a model behind a small HTTP endpoint of this machine (starlette, uvicorn)."""

from __future__ import annotations

from contextlib import suppress

from clozelab.modules import answering
from clozelab.modules.serving import build_app
from clozelab.terminal import SWITCH, ParsedArgs, verb

HELP = """\
clozelab serve MODEL [host=127.0.0.1] [port=8000] [max_bytes=1000000]    (pip
        install 'clozelab[serve]')

Answers over HTTP until it is stopped. MODEL, device=, precision= and hub=true
are as for `predict`.

  POST /predict   {"text": "a film to remember"}, or {"records": [{"text": ...},
                  ...]}: objects with text, pair, question, words, passages; do,
                  top_k, pooling, layer, stride, prompt, size beside them. Answers
                  {"predictions": [...]} in their order; {"error": "..."} stands
                  for a record that cannot be read ("errors": "raise" beside
                  them refuses the request instead). "cut": [1, 3] beside the
                  predictions: the first and the third record are longer than the
                  fine-tuning's texts, so their end was not read
  GET  /health    what the model is, and how many requests wait

What is wrong is {"error": "..."} with status 400 (what was asked), 413 (more
than max_bytes) or 503 (too many wait). There is no password: whoever reaches
host and port may ask. 127.0.0.1 is this machine alone."""


@verb(
    "serve",
    HELP,
    names=(1, 1),
    keys=("host", "port", "max_bytes", *answering.MODEL_KEYS),
    choices={"hub": SWITCH},
)
def main(args: ParsedArgs) -> int:
    """Serve until a signal comes."""
    values = {"host": "127.0.0.1", "port": "8000", "max_bytes": "1000000"} | args.values
    for key, limit in (("port", 1 << 16), ("max_bytes", 1 << 31)):
        if not values[key].isdecimal() or not 0 < int(values[key]) < limit:
            raise ValueError(f"{key}={values[key]}: give a whole number above 0")
    try:
        import uvicorn
    except ImportError as error:
        raise ValueError(f"serve needs {error.name}: pip install 'clozelab[serve]'") from None
    app = build_app(
        answering.load_predictor(args.names[0], args.values), max_bytes=int(values["max_bytes"])
    )
    # uvicorn raises the signal again that it has ended for
    with suppress(KeyboardInterrupt, SystemExit):
        uvicorn.run(app, host=values["host"], port=int(values["port"]))
    return 0
