"""`clozelab serve`: a model behind a small HTTP endpoint of this machine (starlette, uvicorn).

While the model answers, further requests wait and are then answered together: batches form where
there is a crowd, and nobody waits where there is none. What is wrong with one of them is said to
that one alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from clozelab.corpus.lines import parse_json
from clozelab.corpus.rows import Row
from clozelab.datamodules.columns import refuse_unknown_keys
from clozelab.modules.answers import Unanswered
from clozelab.stages import predict
from clozelab.stages.outputs import plain
from clozelab.terminal import Words, verb

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor

HELP = """clozelab serve MODEL [host=127.0.0.1] [port=8000] [max_bytes=1000000]    (pip install 'clozelab[serve]')

Answers over HTTP until it is stopped. MODEL, device=, precision= and hub=true are as for `predict`.

  POST /predict   {"text": "a film to remember"}, or {"records": [{"text": ...}, ...]}: objects with text, pair,
                  question, words, passages; do, top_k, pooling, layer, stride beside them. Answers
                  {"predictions": [...]} in their order; {"error": "..."} stands for a record that cannot be read
                  ("errors": "raise" beside them refuses the request instead)
  GET  /health    what the model is, and how many requests wait

What is wrong is {"error": "..."} with status 400 (what was asked), 413 (more than max_bytes) or 503 (too many wait).
There is no password: whoever reaches host and port may ask. 127.0.0.1 is this machine alone."""
MAX_WAITING = 256


class Ask(NamedTuple):
    """A request that waits; those of equal `key` (act, options, pairs or not) may be answered
    together.
    """

    key: str
    act: str
    options: dict[str, Any]
    rows: list[Row]
    marks: bool  # whether a record that cannot be read leaves the others their answers
    answer: asyncio.Future[Any]


@verb("serve", HELP, names=(1, 1), keys=("host", "port", "max_bytes", *predict.PLACED))
def main(said: Words) -> int:
    """Serve until a signal comes."""
    values = {"host": "127.0.0.1", "port": "8000", "max_bytes": "1000000"} | said.values
    for key, most in (("port", 1 << 16), ("max_bytes", 1 << 31)):
        if not values[key].isdecimal() or not 0 < int(values[key]) < most:
            raise ValueError(f"{key}={values[key]}: give a whole number above 0")
    try:
        import uvicorn
    except ImportError as error:
        raise ValueError(f"serve needs {error.name}: pip install 'clozelab[serve]'") from None
    app = app_of(predict.predictor_of(said), max_bytes=int(values["max_bytes"]))
    # uvicorn raises the signal again that it has ended for
    with suppress(KeyboardInterrupt, SystemExit):
        uvicorn.run(app, host=values["host"], port=int(values["port"]))
    return 0


def app_of(predictor: Predictor, *, max_bytes: int) -> Any:
    """The application; the model runs in one thread, which takes what waits."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    waiting: asyncio.Queue[Ask] = asyncio.Queue(MAX_WAITING)

    async def answer(request: Request) -> JSONResponse:
        body = b""
        async for part in request.stream():
            if len(body := body + part) > max_bytes:
                raise HTTPException(413, f"a request has at most {max_bytes} bytes")
        try:
            waiting.put_nowait(ask := _ask(predictor, body))
            return JSONResponse({"predictions": await ask.answer})
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        except asyncio.QueueFull:
            raise HTTPException(
                503, f"{MAX_WAITING} requests wait already; ask again later"
            ) from None

    async def health(_: Request) -> JSONResponse:
        model = predictor.model
        about = {"architecture": model.architecture, "task": model.task, "labels": [*model.labels]}
        return JSONResponse({"status": "ok", "waiting": waiting.qsize(), **about})

    async def work() -> None:
        while True:
            asks = [await waiting.get()]
            asks += [waiting.get_nowait() for _ in range(waiting.qsize())]
            for _, same in groupby(sorted(asks, key=lambda ask: ask.key), key=lambda ask: ask.key):
                some = [*same]
                for ask, found in zip(
                    some, await asyncio.to_thread(_answers, predictor, some), strict=True
                ):
                    if not ask.answer.done():  # who asked may have gone
                        is_wrong = isinstance(found, Exception)
                        (
                            ask.answer.set_exception(found)
                            if is_wrong
                            else ask.answer.set_result(found)
                        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        task = asyncio.create_task(work())
        yield
        task.cancel()

    async def failed(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, error.status_code)
        return JSONResponse({"error": f"{type(error).__name__} in the model"}, 500)

    routes = [Route("/predict", answer, methods=["POST"]), Route("/health", health)]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: failed, Exception: failed},
    )


def _ask(predictor: Predictor, body: bytes) -> Ask:
    """ValueError for what is no request."""
    try:
        said = parse_json(body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise ValueError('send a JSON object: {"text": "..."}, or {"records": [{"text": "..."}]}')
    act = said.pop("do", None)
    if act is None:
        act = predict.OF_TASK.get(predictor.model.task or "", "fill")
    if act not in predict.ACTS:
        raise ValueError(f"do={act}: choose one of {', '.join(predict.ACTS)}")
    settings = {key: said.pop(key) for key in (*predict.SETTINGS, "errors") if key in said}
    options, errors = predict.options_of(act, settings), predict.choice_of("errors", settings)
    records = said.get("records", [said])
    if (
        not isinstance(records, list)
        or not records
        or not all(isinstance(one, dict) for one in records)
    ):
        raise ValueError("records is a list of objects, at least one")
    if other := next((key for key in said if key != "records" and "records" in said), None):
        raise ValueError(
            f"{other} stands beside records, and would be read of none: say it in each of them"
        )
    rows = [Row(f"record {number}", record) for number, record in enumerate(records, 1)]
    for row in rows:
        refuse_unknown_keys(row.record, act, row.place)
    key = json.dumps([act, options, "pair" in records[0]], sort_keys=True)
    marks = errors == "mark" and "records" in said
    return Ask(key, act, options, rows, marks, asyncio.get_running_loop().create_future())


def _answers(predictor: Predictor, asks: Sequence[Ask]) -> list[Any]:
    """What each is told, or the error that it is; where one spoils a batch, each is asked alone."""
    rows = [row for ask in asks for row in ask.rows]
    try:
        found = predict.predictions(predictor, asks[0].act, rows, asks[0].options)
        answered = list(found)
    except Exception as error:
        return [error] if len(asks) == 1 else [_answers(predictor, [ask])[0] for ask in asks]
    told, left = [], iter(answered)
    for ask in asks:
        told.append(_told(ask, list(islice(left, len(ask.rows)))))
    return told


def _told(ask: Ask, answered: Sequence[tuple[Row, Any]]) -> Any:
    """The answers of one request; the error that it is, where a record cannot be read and that is
    one, or none can."""
    problems = [(row, answer) for row, answer in answered if isinstance(answer, Unanswered)]
    if problems and (not ask.marks or len(problems) == len(answered)):
        row, answer = problems[0]
        return ValueError(f"{row.place} {answer.error}")
    return [plain(answer) for _, answer in answered]
