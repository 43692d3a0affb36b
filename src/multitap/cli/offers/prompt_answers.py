"""Lets the user at the terminal answer servers' questions."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import mcp_types as types
from anyio import from_thread, to_thread
from pydantic import BaseModel

from multitap.cli.offers.server_questions import Declined, ServerQuestions
from multitap.cli.terminal.typed_lines import TypedLines, is_somebody_there
from multitap.upstream.handlers import Handlers, Permission, PermitRequest, RequestOrigin


def prompt_handlers(
    lines: TypedLines | None = None, turn: AbstractAsyncContextManager[object] | None = None
) -> Handlers:
    """Handlers that ask the user, one question at a time, while the hub continues.

    Args:
        lines: The user's input, for a program that asks other questions, too.
        turn: Held during a question, so that two never read the same line.
    """
    questions, turn = ServerQuestions(lines), turn or anyio.Lock()

    async def ask(asked: RequestOrigin, method: str, params: BaseModel) -> dict[str, Any]:
        told = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        async with turn:
            # in a thread, because people take their time; it checks periodically whether the call
            # was cancelled, so that nothing waits for an answer that is no longer needed
            return await to_thread.run_sync(
                questions.answer, asked.server, method, told, from_thread.check_cancelled
            )

    async def elicit(
        asked: RequestOrigin, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        return types.ElicitResult.model_validate(await ask(asked, "elicitation/create", params))

    async def sample(
        asked: RequestOrigin, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        try:
            answer = await ask(asked, "sampling/createMessage", params)
        except Declined as exc:
            return types.ErrorData(code=types.INVALID_REQUEST, message=str(exc))
        return types.CreateMessageResult.model_validate(answer)

    async def permit(request: PermitRequest) -> Permission | None:
        if not is_somebody_there():
            return None
        async with turn:
            return await to_thread.run_sync(
                questions.permission, request, from_thread.check_cancelled
            )

    return Handlers(elicit=elicit, sample=sample, permit=permit)
