"""Answers a server's requests in the SDK's types, imported on first use."""

import logging
from collections.abc import Mapping
from typing import Any

import anyio
import mcp_types as types
from mcp_types import methods
from msgspec import Raw
from pydantic import BaseModel, ValidationError

from multitap.errors import AnswerInvalid, counted, ungrouped
from multitap.upstream.questions import CallContext, Handlers, OnQuestion, RequestOrigin
from multitap.wire.jsonrpc import RpcError

logger = logging.getLogger(__name__)


async def answer(
    handlers: Handlers,
    origin: RequestOrigin,
    method: str,
    params: Mapping[str, Any] | None,
    *,
    version: str,
) -> dict[str, Any]:
    """The host's answer to a request of a server that speaks a protocol version.

    Raises:
        RpcError: There is none, and why.
    """
    try:
        request = methods.parse_server_request(method, version, params)
    except KeyError:
        raise RpcError(types.METHOD_NOT_FOUND, "Method not found", method) from None
    except ValidationError:
        raise RpcError(types.INVALID_PARAMS, "Invalid request parameters") from None
    result = await _handle(handlers, origin, request)
    try:
        # handlers belong to the host: an invalid answer must not reach the server
        methods.validate_client_result(method, version, result)
    except ValidationError:
        logger.exception("%s: the answer to %r is invalid", origin.server, method)
        message = "the answer of the client is invalid"
        raise RpcError(types.INTERNAL_ERROR, message) from None
    return result


def questions(result: Raw) -> types.InputRequiredResult:
    """The questions in an `input_required` result of a stateless server.

    Raises:
        AnswerInvalid: It cannot be read.
    """
    try:
        return types.InputRequiredResult.model_validate_json(bytes(result))
    except ValidationError as exc:
        raise AnswerInvalid(
            f"its request for input cannot be read ({counted(exc.error_count(), 'error')})",
            sent=True,
        ) from None


async def fulfil(
    handlers: Handlers, origin: RequestOrigin, requests: Mapping[str, types.InputRequest]
) -> dict[str, Any]:
    """The host's answers to all questions, by key.

    Raises:
        RpcError: One is refused.
    """
    answers: dict[str, Any] = {}

    async def answer_one(key: str, request: types.InputRequest) -> None:
        answers[key] = await _handle(handlers, origin, request)

    with ungrouped():
        # side by side: each may have to wait for a person
        async with anyio.create_task_group() as tasks:
            for key, request in requests.items():
                tasks.start_soon(answer_one, key, request)
    return answers


async def _handle(handlers: Handlers, origin: RequestOrigin, request: BaseModel) -> dict[str, Any]:
    result: BaseModel
    within, call = handlers.callers_answer_within, origin.call
    match request:
        case types.CreateMessageRequest() | types.ElicitRequest() if (
            within is not None and isinstance(call, CallContext) and call.on_question is not None
        ):
            result = await _ask_caller(call.on_question, request, within)
        case types.CreateMessageRequest(params=params) if handlers.sample is not None:
            result = await handlers.sample(origin, params)
        case types.ElicitRequest(params=params) if handlers.elicit is not None:
            result = await handlers.elicit(origin, params)
        case types.ListRootsRequest() if handlers.roots is not None:
            result = await handlers.roots(origin)
        case types.CreateMessageRequest() | types.ElicitRequest() if within is not None:
            message = "nobody answers for this call, or it is not certain which call asks"
            raise RpcError(types.INVALID_REQUEST, message)
        case _:
            raise RpcError(types.INVALID_REQUEST, f"{type(request).__name__} not supported")
    if isinstance(result, types.ErrorData):
        raise RpcError(result.code, result.message, result.data)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def _ask_caller(
    on_question: OnQuestion,
    request: types.CreateMessageRequest | types.ElicitRequest,
    within: float,
) -> BaseModel:
    params = request.params.model_dump(by_alias=True, mode="json", exclude_none=True)
    try:
        with anyio.fail_after(within):
            answer = bytes(await on_question(request.method, params))
    except TimeoutError:
        message = f"nobody answered the question in {within:g} seconds"
        raise RpcError(types.INVALID_REQUEST, message) from None
    try:
        if isinstance(request, types.ElicitRequest):
            return types.ElicitResult.model_validate_json(answer)
        return types.CreateMessageResultWithTools.model_validate_json(answer)
    except ValidationError as exc:
        message = f"the answer to the question is invalid ({counted(exc.error_count(), 'error')})"
        raise RpcError(types.INTERNAL_ERROR, message) from None
