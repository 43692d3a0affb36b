"""Removes known secrets, in any encoding, from every text that leaves a link.

What only looks like a secret, `multitap.config.secrets` recognises and masks where it is shown.
"""

import base64
import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

MARK = "***"
"""Replaces a secret."""
CUT = "…"
"""The end of a shortened text, where a secret may have been cut."""
SHORTEST = 6
"""Characters; many texts contain anything shorter by chance."""

_PIECE = 128  # characters of one part of a long secret, which may arrive in parts
_LONGEST = 8 * 1024  # characters of a secret that are searched for; keys are shorter
_LINE = 16  # characters of a line that counts as a secret of its own
_SHOWN = 3  # characters of a secret that may remain where a text is cut
_MOST_CUTS = 32  # candidate places that are checked in one text
_OVERLAPS = 4  # overlapping secrets at the end of a stream's data so far
_HEX = re.compile(r"%[0-9A-F]{2}")
_LEFT_BY_ENCODERS = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")
"""Characters that URL encoders keep: `quote`, `encodeURIComponent` and `encodeURI`."""
_MARKUP = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"}


class Redactor:
    """Knows the secrets that are in use with one server.

    Most texts contain none, and every text is searched, so each form costs one search in C.

    Args:
        secrets: Their values; short ones are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self._forms: tuple[str, ...] = ()
        self._beginnings: frozenset[str] = frozenset()
        self._longest = 0
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Redact these as well from now on."""
        new = {piece for secret in secrets for piece in _pieces(secret)} - self._known
        if not new:
            return
        self._known |= new
        forms = {form for secret in self._known for form in forms_of(secret)}
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._beginnings = frozenset(form[:size] for form in forms for size in (1, 2, 3))
        self._longest = len(self._forms[0])

    def __call__(self, text: str) -> str:
        """`text` without the secrets, even those that are cut off at its end or at a `CUT`."""
        if not self._forms:
            return text
        parts = self.replace_whole(text).split(CUT, _MOST_CUTS)
        return CUT.join(map(self._without_stump, parts))

    def replace_whole(self, text: str) -> str:
        """`text` without the secrets that it contains in full."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MARK)
        return text

    def with_values(self, values: Iterable[str]) -> Callable[[str], str]:
        """Redacts other values as well, such as those of one call; short ones as whole words."""
        secrets = {*values}
        if not secrets:
            return self
        long = Redactor(secrets)
        short = [re.escape(value) for value in secrets if len(value) < SHORTEST]
        whole_words = re.compile(rf"(?<!\w)(?:{'|'.join(short)})(?!\w)") if short else None

        def redact(text: str) -> str:
            text = long(self(text))
            return whole_words.sub(MARK, text) if whole_words else text

        return redact

    def data(self, value: Any) -> Any:
        """Plain data without the secrets; the same object if it contains none."""
        if value is None or not self._forms:
            return value
        try:
            text = msgspec.json.encode(value, enc_hook=repr).decode()
            if not any(form in text for form in self._forms):
                return value
            return self._plain(value)
        except (ValueError, RecursionError):  # not JSON, or nested too deeply
            return MARK

    def raw(self, message: msgspec.Raw) -> msgspec.Raw:
        """JSON without the secrets; the same object if it contains none."""
        if not self._forms or not message:
            return message
        try:
            value = msgspec.json.decode(message)
        except (ValueError, RecursionError):
            return msgspec.Raw(msgspec.json.encode(MARK))
        redacted = self.data(value)
        return message if redacted is value else msgspec.Raw(msgspec.json.encode(redacted))

    def tail(self, text: str, size: int) -> str:
        """The last `size` characters, without a secret that begins before them."""
        start = max(0, len(text) - size)
        for form in self._forms:
            at = text.find(form, max(0, start - len(form) + 1), start + len(form) - 1)
            if at >= 0:
                start = max(start, at + len(form))
        return self(text[start:])

    @property
    def reach(self) -> int:
        """Characters before a text that are needed to find a secret that extends into it."""
        return self._longest

    def settled_length(self, text: str) -> int:
        """How much of a stream's beginning is safe: nothing that follows can make it a secret."""
        at = self._stump(text, least=1)
        for _ in range(_OVERLAPS):
            spanning = [begin for form in self._forms if (begin := _spans(text, form, at)) >= 0]
            if not spanning:
                break
            at = min(spanning)
        return at

    def _without_stump(self, text: str) -> str:
        at = self._stump(text, least=_SHOWN + 1)
        return text if at == len(text) else text[:at] + MARK

    def _stump(self, text: str, *, least: int) -> int:
        """Where a secret begins that ends with the text or after it; its length if none does."""
        window = text[-self._longest :]
        start = len(window)
        for form in self._forms:
            at = window.find(form[: _SHOWN + 1], -len(form))
            while 0 <= at < start:
                if form.startswith(window[at:]):
                    start = at
                at = window.find(form[: _SHOWN + 1], at + 1)
        if start == len(window):
            short = (size for size in range(_SHOWN, least - 1, -1) if len(window) >= size)
            start -= next((size for size in short if window[-size:] in self._beginnings), 0)
        return len(text) - len(window) + start

    def _plain(self, value: Any) -> Any:
        match value:
            case str():
                return self(value)
            case dict():
                return {self(str(key)): self._plain(member) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            case list():
                return [self._plain(member) for member in value]  # pyright: ignore[reportUnknownVariableType]
            case bool() | None:
                return value
            case _:
                return value if self(str(value)) == str(value) else MARK


class RedactedStream:
    """Redacts a stream of text, even if a secret arrives in two pieces.

    The possible beginning of a secret is held back until the text shows that it is none.
    """

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""

    def feed(self, data: bytes) -> str:
        """Add a piece; returns the text that can be shown now."""
        text = self._held + self._decode(data)
        settled = self._redact.settled_length(text)
        self._held = text[settled:]
        return self._redact.replace_whole(text[:settled])

    def end(self) -> str:
        """The text that was held back; the beginning of a secret is redacted, too."""
        text, self._held = self._held + self._decode(b"", final=True), ""
        return self._redact(text)


def forms_of(secret: str) -> frozenset[str]:
    """The secret as it is, and as URLs, JSON, Python, HTML, base64 and hex write it."""
    raw = secret.encode("utf-8", "replace")
    spelled = {secret, *_escape(secret), *_in_urls(secret), raw.hex(), raw.hex().upper()}
    for text in _in_base64(raw):
        spelled |= {text, text.replace("/", r"\/"), *_in_urls(text)}
    return frozenset(form for form in spelled if len(form) >= SHORTEST)


def _pieces(secret: str) -> Iterator[str]:
    """The texts to search for: the secret, its lines, and a long one in parts."""
    secret = secret[:_LONGEST]
    lines = (line.strip() for line in secret.splitlines())
    telling = (line for line in lines if len(line) >= _LINE and not line.startswith("-----"))
    for text in (secret.strip(), *telling):
        for at in range(0, len(text), _PIECE):
            if len(piece := text[at : at + _PIECE]) >= SHORTEST:
                yield piece


def _escape(secret: str) -> Iterator[str]:
    from html import escape  # noqa: PLC0415 - its tables of entities take a while

    for plain in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        yield plain
        yield plain.replace("/", r"\/")
        yield "".join(_MARKUP.get(char, char) for char in plain)
        yield json.dumps(plain)[1:-1]  # JSON in JSON
    yield repr(secret)[1:-1]
    yield repr(f"{secret}'\"")[1:-4]  # in a text whose quotes `repr` has to escape
    yield repr(secret.encode("utf-8", "replace"))[2:-1]
    yield escape(secret)


def _in_urls(secret: str) -> Iterator[str]:
    for left in _LEFT_BY_ENCODERS:
        encoded = quote(secret, safe=left, errors="replace")
        yield encoded
        yield _HEX.sub(lambda match: match[0].lower(), encoded)
    encoded = quote_plus(secret, errors="replace")
    yield encoded
    yield _HEX.sub(lambda match: match[0].lower(), encoded)


def _in_base64(raw: bytes) -> Iterator[str]:
    """The part of the encoded text that is the same whatever precedes and follows the bytes."""
    for before in range(3):
        padded = bytes(before) + raw
        first, last = -(-before * 8 // 6), len(padded) * 8 // 6
        yield base64.b64encode(padded).decode()[first:last]
        yield base64.urlsafe_b64encode(padded).decode()[first:last]


def _spans(text: str, form: str, at: int) -> int:
    """Where `form` begins if it spans `at`; otherwise -1."""
    return text.find(form, max(0, at - len(form) + 1), at + len(form) - 1)
