"""`clozelab serve`: a model behind a small HTTP endpoint of this machine (starlette, uvicorn).

While the model answers, further requests wait and are then answered together: batches form where
there is a crowd, and nobody waits where there is none. What is wrong with one of them is said to
that one alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from clozelab.datamodules.columns import refuse_unknown_keys
from clozelab.datamodules.texts import ERRORS
from clozelab.modules import answering
from clozelab.modules.answer_files import to_json_value
from clozelab.modules.answers import Cut, Unanswered
from clozelab.modules.model_tasks import meaning_of
from clozelab.readers.lines import parse_json
from clozelab.readers.records import PlacedRow
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import PlainDict, PlainMapping

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from clozelab.modules.predictor import Predictor


MAX_WAITING = 256


@dataclass(frozen=True)
class PendingRequest:
    """A request that waits for its answer.

    Those of equal `batch_key` (act, options, pairs or not) may be answered together.
    """

    batch_key: str
    act: str
    options: PlainDict
    rows: list[PlacedRow]
    marks_errors: bool  # whether a record that cannot be read leaves the others their answers
    answer: asyncio.Future[object]


def build_app(predictor: Predictor, *, max_bytes: int) -> Starlette:
    """The application; the model runs in one thread, which takes what waits."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    waiting: asyncio.Queue[PendingRequest] = asyncio.Queue(MAX_WAITING)

    async def predict(request: Request) -> JSONResponse:
        body = await read_body(request)
        try:
            pending = parse_request(predictor, body)
            waiting.put_nowait(pending)
            return JSONResponse(await pending.answer)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        except asyncio.QueueFull:
            raise HTTPException(
                503, f"{MAX_WAITING} requests wait already; ask again later"
            ) from None

    async def read_body(request: Request) -> bytes:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise HTTPException(413, f"a request has at most {max_bytes} bytes")
        return body

    async def health(_: Request) -> JSONResponse:
        model = predictor.model
        return JSONResponse(
            {
                "status": "ok",
                "waiting": waiting.qsize(),
                "architecture": model.architecture,
                "task": model.task,
                "labels": [*predictor.labels],
            }
        )

    async def fail(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, error.status_code)
        return JSONResponse({"error": f"{type(error).__name__} in the model"}, 500)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(answer_forever(predictor, waiting))
        yield
        worker.cancel()

    return Starlette(
        routes=[Route("/predict", predict, methods=["POST"]), Route("/health", health)],
        lifespan=lifespan,
        exception_handlers={HTTPException: fail, Exception: fail},
    )


async def answer_forever(predictor: Predictor, waiting: asyncio.Queue[PendingRequest]) -> None:
    """Take all that waits, and answer it in batches, again and again."""
    while True:
        requests = [await waiting.get()]
        for _ in range(waiting.qsize()):
            requests.append(waiting.get_nowait())
        # In order of arrival within a batch.
        batches: dict[str, list[PendingRequest]] = {}
        for request in requests:
            batches.setdefault(request.batch_key, []).append(request)
        for _, batch in sorted(batches.items()):
            # In a thread, so that requests are taken meanwhile.
            replies = await asyncio.to_thread(answer_batch, predictor, batch)
            for request, reply in zip(batch, replies, strict=True):
                deliver(request, reply)


def deliver(request: PendingRequest, reply: object) -> None:
    """Hand over the answers of a request, or the exception that it ends with."""
    if request.answer.done():  # who asked may have gone
        return
    if isinstance(reply, Exception):
        request.answer.set_exception(reply)
    else:
        request.answer.set_result(reply)


def parse_request(predictor: Predictor, body: bytes) -> PendingRequest:
    """A request's act, options and records; ValueError for what is no request."""
    try:
        content = parse_json(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError('send a JSON object: {"text": "..."}, or {"records": [{"text": "..."}]}')
    act = content.pop("do", None)
    if act is None:
        act = meaning_of(predictor.model.task).act
    check_choice("do", act, answering.ACTS)
    settings = {}
    for key in (*answering.OPTION_KEYS, "errors"):
        if key in content:
            settings[key] = content.pop(key)
    options = answering.parse_options(act, settings)
    errors = settings.get("errors", "mark")
    check_choice("errors", errors, ERRORS)
    # One record that cannot be read is the whole request.
    has_records = "records" in content
    records = records_of(content)
    is_paired = reads_pairs(predictor, act, records[0])
    rows = []
    for number, record in enumerate(records, 1):
        place = f"record {number}"
        refuse_unknown_keys(record, act, place)
        rows.append(PlacedRow(place, record, other_kind(record, act, is_paired=is_paired)))
    # Requests with one key may go through the model together.
    return PendingRequest(
        batch_key=json.dumps([act, options, is_paired], sort_keys=True),
        act=act,
        options=options,
        rows=rows,
        marks_errors=errors == "mark" and has_records,
        answer=asyncio.get_running_loop().create_future(),
    )


def records_of(content: PlainDict) -> list[PlainDict]:
    """The objects under `records`, or the one that the request is itself."""
    if "records" not in content:
        return [content]
    records: Any = content["records"]
    is_filled = isinstance(records, list) and len(records) > 0
    if not is_filled or not all(isinstance(record, dict) for record in records):
        raise ValueError("records is a list of objects, at least one")
    for key in content:
        if key != "records":
            raise ValueError(
                f"{key} stands beside records, and would be read of none: say it in each of them"
            )
    return records


def reads_pairs(predictor: Predictor, act: str, first: PlainMapping) -> bool:
    """Whether a request's records are pairs: as the model was trained, else as the first one is."""
    if act == "classify" and predictor.model.texts_per_example is not None:
        return predictor.model.texts_per_example == 2
    return act == "next" or "pair" in first


def other_kind(record: PlainMapping, act: str, *, is_paired: bool) -> str | None:
    """What is wrong with a single text among pairs, or a pair among single texts."""
    if act in answering.ROLES_BY_ROW or ("pair" in record) == is_paired:
        return None
    if is_paired:
        return "is a single text, and pairs are read here: give its pair, too"
    return "is a pair, and single texts are read here: give one text"


def answer_batch(predictor: Predictor, batch: Sequence[PendingRequest]) -> list[object]:
    """For each request its answers, or the exception that it ends with.

    Where one spoils the batch, each is asked alone.
    """
    rows = []
    for request in batch:
        rows += request.rows
    try:
        answers = answering.answer_rows(
            predictor, batch[0].act, rows, batch[0].options, marks_cut=True
        )
        answered = list(answers)
    except Exception as error:
        # Whatever the model raises is the reply: the server goes on.
        if len(batch) == 1:
            return [error]
        # One by one, so that only the request fails that is to blame.
        return [answer_batch(predictor, [request])[0] for request in batch]
    remaining = iter(answered)
    return [reply_to(request, list(islice(remaining, len(request.rows)))) for request in batch]


def reply_to(request: PendingRequest, answered: Sequence[tuple[PlacedRow, object]]) -> object:
    """The response to one request, or an error. `cut` counts its records from 1.

    It is an error where no record can be read, and where one cannot and the request wants it so.
    """
    problems = [(row, answer) for row, answer in answered if isinstance(answer, Unanswered)]
    if problems and (not request.marks_errors or len(problems) == len(answered)):
        row, answer = problems[0]
        return ValueError(f"{row.place} {answer.error}")
    predictions = []
    cut = []
    for number, (_, result) in enumerate(answered, 1):
        if isinstance(result, Cut):
            cut.append(number)
            result = result.answer
        predictions.append(to_json_value(result))
    if cut:
        return {"predictions": predictions, "cut": cut}
    return {"predictions": predictions}
