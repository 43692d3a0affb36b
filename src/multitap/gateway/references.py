"""Rewrites the addresses in a server's results to those that clients know."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.address_directory import AddressDirectory
from multitap.gateway.client_message import parse_table, text_of
from multitap.wire.jsonrpc import envelope

_parse_list = msgspec.json.Decoder(list[Raw]).decode
_FLAT = "ui/resourceUri"
_SIGNS = (b'uri"', b'esourceUri"')
"""How the keys end whose values may be addresses."""


class References:
    """Rewrites the addresses of one server's renamed resources in its results.

    Only what MCP defines as an address is changed: links, embedded resources, contents, and the
    pages of MCP apps. Everything else stays undecoded.
    """

    def __init__(self, server: str, directory: AddressDirectory) -> None:
        self._server = server
        self._directory = directory

    def in_result(self, result: Raw | bytes) -> Raw | bytes:
        """Rewrite the addresses in the result of a call, a prompt or a read."""
        data = bytes(result)
        # most results have no references: searching bytes costs less than parsing them
        if not any(sign in data for sign in _SIGNS):
            return result
        return _change_values(
            Raw(data),
            {
                "content": self._blocks,
                "contents": self._contents,
                "messages": self._messages,
                "_meta": self._meta,
            },
        )

    def in_meta(self, meta: Any) -> Any:
        """Rewrite the addresses in the decoded `_meta` of a tool."""
        if not isinstance(meta, dict):
            return meta
        raw = Raw(envelope.encode(meta))
        return envelope.decode(self._meta(raw))

    def _contents(self, contents: Raw) -> Raw:
        return _each(contents, self._resource)

    def _messages(self, messages: Raw) -> Raw:
        return _each(messages, lambda one: _change_values(one, {"content": self._blocks}))

    def _blocks(self, blocks: Raw) -> Raw:
        if bytes(memoryview(blocks)[:1]) == b"[":
            return _each(blocks, self._block)
        return self._block(blocks)

    def _block(self, block: Raw) -> Raw:
        if not any(sign in bytes(block) for sign in _SIGNS):
            return block
        return _change_values(
            block, {"uri": self._address, "resource": self._resource, "_meta": self._meta}
        )

    def _resource(self, resource: Raw) -> Raw:
        return _change_values(resource, {"uri": self._address, "_meta": self._meta})

    def _meta(self, meta: Raw) -> Raw:
        ui: Callable[[Raw], Raw] = lambda raw: _change_values(raw, {"resourceUri": self._address})  # noqa: E731
        return _change_values(meta, {"ui": ui, _FLAT: self._address})

    def _address(self, uri: Raw) -> Raw:
        text = text_of(uri)
        if text is None:
            return uri
        address = self._directory.expose(self._server, text)
        return uri if address == text else Raw(envelope.encode(address))


def _change_values(value: Raw, changes: dict[str, Callable[[Raw], Raw]]) -> Raw:
    """A JSON object with some values changed; any other value unchanged."""
    if bytes(memoryview(value)[:1]) != b"{":
        return value
    table = parse_table(value)
    new = {key: change(table[key]) for key, change in changes.items() if key in table}
    if all(new[key] is table[key] for key in new):
        return value
    return Raw(envelope.encode({**table, **new}))


def _each(values: Raw, change: Callable[[Raw], Raw]) -> Raw:
    """A JSON list with each value changed; any other value unchanged."""
    if bytes(memoryview(values)[:1]) != b"[":
        return values
    old = _parse_list(values)
    new = [change(value) for value in old]
    if all(one is other for one, other in zip(new, old, strict=True)):
        return values
    return Raw(envelope.encode(new))
