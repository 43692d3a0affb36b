"""Translates the exceptions of providers' client libraries into our errors."""

import json
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import anyio
import msgspec

from multitap.config import ModelConfig
from multitap.config.secrets import masked_url
from multitap.errors import ModelError, shortened

_LONGEST = 500
_ERROR = 400
_SERVER_ERROR = 500
_ADDRESS = "check the model's `base_url`: does it speak the provider's protocol?"
# Raised by reading an attribute of an answer of the wrong shape.
_SHAPELESS = (json.JSONDecodeError, AttributeError, TypeError, LookupError)
_T = TypeVar("_T")


@contextmanager
def translate_failures(config: ModelConfig, *foreign: type[Exception]) -> Generator[None]:
    """Raise `ModelError` for every failure of a request to a provider."""
    try:
        yield
    except TimeoutError:
        raise _late(config) from None
    except foreign as exc:
        raise _translate(exc, config) from None  # theirs contains the request with the key


@contextmanager
def readable(config: ModelConfig) -> Generator[None]:
    """Raise `ModelError` for an answer of the wrong shape.

    The client libraries do not check: a missing field shows only when it is read.
    """
    try:
        yield
    except _SHAPELESS as exc:
        raise _error(config, f"the answer cannot be read: {exc}", hint=_ADDRESS) from None


async def limit_gaps(events: AsyncIterator[_T], timeout: float) -> AsyncIterator[_T]:
    """The events, each within `timeout` seconds of the previous one.

    A provider that keeps the connection alive with pings would otherwise be waited for forever.
    """
    while True:
        with anyio.fail_after(timeout):
            try:
                event = await anext(events)
            except StopAsyncIteration:
                return
        yield event


def cut(config: ModelConfig) -> ModelError:
    """The error for an incomplete answer."""
    return _error(config, "the connection was lost in the middle of the answer", hint="ask again")


def no_key(config: ModelConfig) -> ModelError:
    """The error for a missing API key."""
    return _error(config, "there is no API key", hint=_key_hint(config))


def _key_hint(config: ModelConfig) -> str:
    return f"set the model's `api_key`, or {config.provider.upper()}_API_KEY"


def _error(
    config: ModelConfig, message: str, *, hint: str | None = None, status: int | None = None
) -> ModelError:
    return ModelError(f"{config.name}: {config.redact(message)}", hint=hint, status=status)


def _translate(exc: Exception, config: ModelConfig) -> ModelError:
    status = getattr(exc, "status_code", 0)
    if status >= _ERROR:
        message, hint = _explain(status, _words(exc, config), config)
        return _error(config, message, hint=hint, status=status)
    if getattr(exc, "body", None) is not None:  # reported in the middle of a stream
        message = f"the provider broke off its answer: {_words(exc, config)}"
        return _error(config, message, hint="ask again")
    # by name: each library has its own classes, and neither is imported here
    if "Timeout" in type(exc).__name__:
        return _late(config)
    if "Connect" in type(exc.__cause__).__name__:
        message = f"{masked_url(config.base_url or 'the provider')} cannot be reached"
        hint = "is it running? check the model's `base_url`, and the network"
        return _error(config, message, hint=hint)
    return cut(config)


def _late(config: ModelConfig) -> ModelError:
    message = f"no data for {config.timeout:g} s"
    return _error(config, message, hint="raise the model's `timeout`, or ask again")


def _explain(status: int, message: str, config: ModelConfig) -> tuple[str, str | None]:
    match status:
        case 401 | 403:  # the provider's words may repeat a part of the key
            return "the API key is not accepted", _key_hint(config)
        case 404:
            return f"not found: {message}", "check the model's `name` and `base_url`"
        case 429:
            return f"too many requests: {message}", "wait a while, or use another model"
        case _ if status >= _SERVER_ERROR:
            return f"the provider has a problem: {message}", "ask again later"
        case _:
            return f"the provider refuses the request: {message}", None


def _words(exc: Exception, config: ModelConfig) -> str:
    """The provider's message, in one line and without the key."""
    text = " ".join((_message(getattr(exc, "body", None)) or str(exc)).split())
    return shortened(config.redact(text), _LONGEST)


class _Said(msgspec.Struct):
    message: str


def _message(body: object) -> str:
    """The message in an error's body, wherever this provider has it."""
    inner = body.get("error", body) if isinstance(body, Mapping) else body  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    try:
        return msgspec.convert(inner, _Said).message
    except msgspec.ValidationError:
        return inner if isinstance(inner, str) else ""
