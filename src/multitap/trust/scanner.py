"""Finds prompt attacks in tool definitions and results."""

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from multitap.config.models import ServerConfig
from multitap.config.provenance import STANDINGS
from multitap.errors import quoted, shortened
from multitap.printable import is_deceptive, is_seen, mixes_scripts, plain_letters
from multitap.trust.lock_file import pinned_part
from multitap.trust.scanner_rules import (
    ENOUGH,
    HIDDEN,
    INSTRUCTIONS,
    LOOK_ALIKE,
    NEAR,
    PARAMETERS,
    RULES,
    SECRET,
    SECRETS,
    Rule,
)

_TAGS = re.compile("(?<![\U000e0020-\U000e007f\U0001f3f4])[\U000e0000-\U000e007f]+")
"""Invisible letters; after a black flag, they form the flag of a region."""
_OVERRIDES = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}")
_BLANK_LETTERS = re.compile("[\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800\u034f\u180b-\u180e]")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_NOTHING = re.compile(
    "[\u200b\u2060-\u2064\ufeff\u206a-\u206f\ufff9-\ufffb]"
    # joiners belong between letters of scripts that need them, and in emoji
    "|[\u200c\u200d](?=[\x00-\x7f\u200b-\u200d])|(?<=[\x00-\x7f])[\u200c\u200d]"
)
FEW = 2
"""Zero-width characters that editors and web pages leave behind."""

_KINDS = (
    ("invisible letters (Unicode tags)", _TAGS, 1),
    ("text whose direction is overridden", _OVERRIDES, 1),
    ("a run of variation selectors", _SELECTORS, 1),
    ("blank letters", _BLANK_LETTERS, 1),
    ("control characters", _CONTROLS, 1),
    ("zero-width characters", _NOTHING, FEW + 1),
)


def find_hidden(text: str, *, is_name: bool = False) -> tuple[str, int] | None:
    """What is hidden in a text, and where; None if nothing is.

    Args:
        text: The text.
        is_name: Whether it is a name, in which even one such character is suspicious.
    """
    if text.isascii() and not _CONTROLS.search(text):
        return None
    for kind, pattern, least in _KINDS:
        matches = pattern.finditer(text)
        first = next(matches, None)
        if first and (is_name or least == 1 or sum(1 for _ in matches) + 1 >= least):
            return kind, first.start()
    return None


def visible(text: str) -> str:
    """`text` with invisible characters as escapes."""
    return "".join(char if is_seen(char) else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - two spellings


ScanMode = Literal["block", "report", "off"]

_SNIPPET = 60  # characters that are quoted on each side of a finding
_DEPTH = 64
_BLANKS = re.compile(r"[ \t\r\n]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_.\-]+")
_NAMED = frozenset({"properties", "patternProperties"})
_MUTE = frozenset({"$schema", "$ref", "$id", "type", "format", "required", "name", "icons"})
"""Members that models do not read, as icons are pictures; names of tools are scanned separately."""
_SAMPLE = re.compile(r"example|x{6}|\*{4}|\.{4}|your", re.IGNORECASE)
_FEW_LETTERS = 3
# Bounds the work for a text that repeats one phrase.
_MATCHES = 8


class Finding(msgspec.Struct, frozen=True):
    """One passage that looks like an attack."""

    kind: str
    """`instructions`, `hidden text`, `look-alike name`, `exfiltration` or `secret`."""
    what: str
    snippet: str
    """The passage, with hidden characters made visible."""

    @property
    def words(self) -> str:
        return f'{self.kind}: {self.what}: "{self.snippet}"'


def scan_mode(config: ServerConfig) -> ScanMode:
    """How to treat a tool that looks like an attack; a project cannot turn it off."""
    if config.transport == "local":
        return "off"
    mode = config.scan or "report"
    return "report" if mode == "off" and not STANDINGS[config.provenance].may_loosen else mode


def scan(definition: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The findings in a tool's definition."""
    names: list[str] = []
    texts: list[str] = []
    for text, is_name in _texts(pinned_part(definition), 0, is_table=False):
        (names if is_name else texts).append(text)
    name = definition.get("name")
    findings = [*_in_name(name if isinstance(name, str) else ""), *_in_parameters(names)]
    findings += _in_lines("\n".join(_BLANKS.sub(" ", text) for text in texts))
    return tuple(findings)


def scan_other(part: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The findings in a prompt, a resource, a template, or a server's instructions."""
    texts = "\n".join(_BLANKS.sub(" ", text) for text in texts_in(part))
    name = part.get("name")
    return (*_in_name(name if isinstance(name, str) else ""), *_in_lines(texts))


def scan_text(text: str) -> tuple[Finding, ...]:
    """The findings in a text, such as a result."""
    return tuple(_in_lines(_BLANKS.sub(" ", text)))


def texts_in(value: Any) -> Iterator[str]:
    """All texts in plain data, such as a structured result, without member names."""
    return (text for text, is_name in _texts(value, 0, is_table=False) if not is_name)


def _texts(value: Any, depth: int, *, is_table: bool) -> Iterator[tuple[str, bool]]:
    """All texts in a definition, and whether each is the name of a parameter."""
    if depth > _DEPTH:
        return
    match value:
        case str():
            yield value, False
        case dict():
            for key, member in value.items():  # pyright: ignore[reportUnknownVariableType]
                if is_table:
                    yield str(key), True  # pyright: ignore[reportUnknownArgumentType]
                if is_table or key not in _MUTE:
                    is_next = key in _NAMED and not is_table
                    yield from _texts(member, depth + 1, is_table=is_next)
        case list() | tuple():
            for member in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _texts(member, depth + 1, is_table=False)
        case _:
            pass


def _in_name(name: str) -> Iterator[Finding]:
    if hidden := find_hidden(name, is_name=True):
        yield Finding(HIDDEN, f"the name has {hidden[0]}", visible(shortened(name, _SNIPPET)))
    elif is_deceptive(name):
        what = f"the name looks like {quoted(plain_letters(name))}"
        yield Finding(LOOK_ALIKE, what, visible(shortened(name, _SNIPPET)))


def _in_parameters(names: list[str]) -> Iterator[Finding]:
    weight = 0
    for name in names:
        if hidden := find_hidden(name, is_name=True):
            what = f"the name of a parameter has {hidden[0]}"
            yield Finding(HIDDEN, what, visible(shortened(name, _SNIPPET)))
        elif mixes_scripts(name):
            what = "the name of a parameter mixes scripts"
            yield Finding(LOOK_ALIKE, what, visible(shortened(name, _SNIPPET)))
        spelled_out = _CAMEL.sub(" ", name).lower() if len(name) > len("id_rsa") - 1 else ""
        weight += len({*re.findall(PARAMETERS, spelled_out)})
        if weight >= ENOUGH:
            yield Finding(
                INSTRUCTIONS, "parameters ask for data that the tool does not need", visible(name)
            )
            return


def _in_lines(text: str) -> Iterator[Finding]:
    """The findings in several texts, each on its own line."""
    yield from _find_hidden(text)
    yield from _instructions(text)
    yield from _secrets(text)


def _find_hidden(text: str) -> Iterator[Finding]:
    if hidden := find_hidden(text):
        what, at = hidden
        yield Finding(HIDDEN, what, _snippet(text, at, at + 1))


def _instructions(text: str) -> Iterator[Finding]:
    plain = plain_letters(text)
    if "&" in plain:
        from html import unescape  # noqa: PLC0415 - its tables of entities take a while

        plain = unescape(plain)
    # Look-alike letters, entities and base64 hide a sentence from a pattern, not from a model.
    for reading in (plain, *_decode_base64(text)):
        matches = sorted(_matches(reading), key=lambda match: match[0].start())
        for match, rule in _heaviest(reading, matches):
            yield Finding(rule.kind, rule.name, _snippet(reading, match.start(), match.end()))


def _matches(text: str) -> Iterator[tuple[re.Match[str], Rule]]:
    for rule in RULES:
        if _may_match(rule, text):
            # a few of each: the first one must not hide a later one that is close to others
            for match in islice(re.finditer(rule.pattern, text, re.MULTILINE), _MATCHES):
                yield match, rule


def _may_match(rule: Rule, text: str) -> bool:
    # plain loops: this runs for every rule of every definition, and rarely matches
    for group in rule.needles:
        for word in group:
            if word in text:
                break
        else:
            return False
    return True


def _heaviest(
    text: str, matches: list[tuple[re.Match[str], Rule]]
) -> list[tuple[re.Match[str], Rule]]:
    """The first group of hits that are close together and heavy enough, one of each name."""
    for first, (start, _) in enumerate(matches):
        near: dict[str, tuple[re.Match[str], Rule]] = {}
        end = text.find("\n", start.start(), start.start() + NEAR)
        reach = start.start() + NEAR if end < 0 else end
        for match, rule in matches[first:]:
            if match.start() > reach:
                break
            heaviest = near.get(rule.name)
            if heaviest is None or heaviest[1].weight < rule.weight:
                near[rule.name] = (match, rule)
        if sum(rule.weight for _, rule in near.values()) >= ENOUGH:
            return sorted(near.values(), key=lambda match: -match[1].weight)
    return []


def _decode_base64(text: str) -> Iterator[str]:
    """Decoded base64 in a text: models read that as well."""
    for match in _BASE64.finditer(text):
        piece = match[0].rstrip("=").replace("-", "+").replace("_", "/")
        try:
            # base64 comes in groups of four, and the last one may be cut off
            read = b64decode(piece[: len(piece) // 4 * 4], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
        if read.isprintable() and " " in read:
            yield plain_letters(read)


def _secrets(text: str) -> Iterator[Finding]:
    for what, beginnings, pattern in SECRETS:
        for beginning in beginnings:
            if beginning in text:
                break
        else:
            continue
        for match in re.finditer(pattern, text):
            secret = match[0]
            if len({*secret[4:]}) > _FEW_LETTERS and not _SAMPLE.search(secret):
                # Never the secret itself: findings go to logs and screens.
                yield Finding(SECRET, what, f"{secret[:6]}…")
                break


def _snippet(text: str, start: int, end: int) -> str:
    begin = max(0, start - _SNIPPET // 3)
    around = text[begin : max(end, start + _SNIPPET)]
    snippet = shortened(visible(_BLANKS.sub(" ", around).strip()), 2 * _SNIPPET)
    return f"…{snippet}" if begin else snippet
