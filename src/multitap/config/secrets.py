"""Recognises secrets in variables, headers, URLs, arguments and calls, and masks them.

Secrets that are known by their value are removed by `multitap.redaction`.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import msgspec
from msgspec import Raw

from multitap.config.documents import is_list, is_table

_RISKS: Mapping[str, str] = {
    "decides where packages come from": r"""
        npm_config_.* | UV_(?:INDEX|DEFAULT_INDEX|EXTRA_INDEX|FIND_LINKS|INSECURE|CONFIG).* | PIP_.*
        | BUN_CONFIG_.* | YARN_.* | PNPM_.* | PIPX_.* """,
    "can make it run other code": r"""
        LD_.* | DYLD_.* | NODE_OPTIONS | NODE_PATH | PYTHON(?:PATH|STARTUP|HOME|INSPECT|WARNINGS)
        | BASH_ENV | ENV | PERL5.* | RUBY(?:OPT|LIB) | JAVA_TOOL_OPTIONS | _JAVA_OPTIONS | JDK_.*
        | GIT_.* | SHELL | EDITOR | DOTNET_.* | DENO_.* """,
    "decides which programs it runs": r"PATH",
    "decides which machine or agent it talks to": r"""
        DOCKER_.* | CONTAINER_HOST | KUBECONFIG | SSH_AUTH_SOCK | DBUS_.* """,
    "decides who can read what it sends": r"""
        (?:HTTPS?|ALL|FTP|NO)_PROXY | SSL_CERT_.* | .*_CA_(?:BUNDLE|CERTS|FILE) | CURL_.*
        | NODE_TLS_REJECT_UNAUTHORIZED | PYTHONHTTPSVERIFY """,
    "decides where it looks for its files": r"HOME | XDG_.* | TMPDIR",
}
"""Variables that change more than the program's own behaviour."""
_RISKY = tuple((re.compile(f"(?ix) {names}"), risk) for risk, names in _RISKS.items())


def risk_of(name: str) -> str:
    """What a variable changes besides the program's own behaviour; empty if it changes nothing."""
    return next((risk for names, risk in _RISKY if names.fullmatch(name)), "")


LEAST, LEAST_NEUTRAL = 6, 8
"""Minimum characters of a secret that is recognised by its name, and by its looks."""

# `auth`, but not `author` (unless it is `authorization`); `pass`, but not `passenger`
_TELLING = re.compile(
    r"(?i)key|token|secret|pass(?:w|phrase|[_-]|$)|pwd|credential|auth(?!or(?!i))|bearer|cookie"
    r"|signature|jwt|dsn|session|private|(?:^|[_-])(?:pat|pin|sig)(?:$|[_-])"
)
_HARMLESS = re.compile(
    r"(?i)key(?:word|board|stroke|frame|code)s?|(?:mon|tur|hoc|joc|don)keys?"
    r"|(?:max|min|num|total|input|output)[_-]?tokens|tokens?[_-]?(?:count|limit|budget|usage)"
)
"""Parts of names that look telling, and are not."""
_WORD = re.compile(
    r"(?i)access|anonymous|api[_-]?key|basic|bearer|default|development|disabled?|enabled?|example"
    r"|external|internal|local|localhost|manual|none|optional|password|production|public|required"
    r"|secret|service|staging|strict|system|test|testing|token|undefined|unknown|user|username"
)
"""Values under a telling name that are not secret."""
_ROOTS = (
    "Applications|Library|Users|Volumes|app|bin|data|dev|etc|home|lib|lib64|media|mnt|nix|opt|private"
    "|proc|root|run|sbin|snap|srv|tmp|usr|var|work|workspace|workspaces"
)
_PATH = re.compile(rf"(?:~|\.{{1,2}})(?:/.*)?|/(?:{_ROOTS})(?:/.*)?|[A-Za-z]:\\.*", re.DOTALL)
_MIXED = "[A-Za-z][0-9][A-Za-z0-9]?|[0-9][A-Za-z][A-Za-z0-9]?|[A-Za-z]{2}[0-9]|[0-9]{2}[A-Za-z]"
# mutually exclusive alternatives, which need no backtracking
_PART = f"(?:[A-Za-z]{{1,20}}|[0-9]{{1,8}}|{_MIXED})"
_ORDINARY = re.compile(rf"[@-]{{0,2}}{_PART}(?:[-_.:/@+,;= ]+{_PART})*")
"""Words and numbers with separators: names, versions, dates, hosts, options."""
_RANDOM = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[\w.~-]{16,}")
_TOKEN = re.compile(
    r"\b(?:sk|pk|rk)[-_][\w-]{16,}|\bgh[opsru]_\w{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bxox[a-z]-[\w-]{10,}|\bAKIA\w{16}|\bAIza[\w-]{30,}|\bhf_\w{16,}|\bnpm_\w{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*"
)
"""Tokens with a known prefix."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s'\"<>]+")
_NUMBERED = r"(?:[Bb]earer\s+)?\d+\|\w{16,}"  # a token of Laravel, and no pipe
_VALUE = r"(?:\"([^\"]+)\"|'([^']+)'|([^\s'\";&|]+))"
_NAMED = (
    re.compile(rf"(?<![^\s'\"(])(--?[A-Za-z][\w.-]{{0,60}})(?:\s+(?!-)|[=:](?!//)){_VALUE}"),
    re.compile(rf"(?<![\w.-])([A-Za-z_][\w.-]{{0,60}})={_VALUE}"),
    re.compile(r'"([^"\\]{1,60})"\s*:\s*"((?:[^"\\]|\\.)+)"'),
    re.compile(rf"(?:^|(?<=[\s'\"=]))([A-Za-z][\w-]{{0,60}}):[^\S\n]+({_NUMBERED}|[^'\"\r\n;|&]+)"),
)
"""Options, assignments, members of JSON and headers within a text: a name, and its value."""
_HEADER = re.compile(r"([A-Za-z][\w-]*):(?!//)\s*(\S.*)", re.DOTALL)
_NO_VALUE = re.compile(
    r"(?i)^-*(?:no|disable|skip|without)[_-]"
    r"|(?:file|path|dir|type|method|mode|env|var|host|port|ttl|timeout|header)s?$"
)
"""Names that look telling, and whose values say where a secret is, or what is done with it."""
_ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)=(.+)", re.DOTALL)
_CODE = re.compile(r"`|\$\(|<\(")
_OPERATOR = re.compile(rf"{_CODE.pattern}|[;|&]")
_SWITCH = re.compile(r"--.*|-[A-Za-z]", re.DOTALL)
_SCHEME = re.compile(r"(apikey|basic|bearer|token)\s+(\S.*)", re.DOTALL | re.IGNORECASE)


def is_telling(name: str) -> bool:
    """Whether a name suggests a secret value."""
    return _TELLING.search(_HARMLESS.sub("", name)) is not None


def in_value(value: str, *, telling: bool) -> Iterator[str]:
    """The secret parts of a value; `telling` says whether its name suggests a secret."""
    yield from in_text(value)
    is_url = _URL.fullmatch(value) is not None
    if not is_url and is_secret(value, LEAST if telling else LEAST_NEUTRAL, certain=telling):
        yield value


def in_variables(env: Mapping[str, str]) -> Iterator[str]:
    """The secrets in a program's environment."""
    for name, value in env.items():
        if not is_telling(name) and risk_of(name):
            # It decides what runs: a stranger must not hide it by making it look random.
            yield from in_text(value)
        else:
            yield from in_value(value, telling=is_telling(name))


def in_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """The secrets in a request's headers."""
    for name, value in headers.items():
        scheme = _SCHEME.fullmatch(value)
        credential = scheme[2] if scheme else value
        yield from in_value(credential, telling=scheme is not None or is_telling(name))
        if scheme and scheme[1].lower() == "basic":
            # decoded as well: an error message may quote the password itself
            yield from in_value(_password(scheme[2]), telling=True)
        if name.lower() == "cookie":
            for pair in value.split(";"):
                yield from in_value(pair.partition("=")[2].strip(), telling=True)


def in_url(url: str) -> Iterator[str]:
    """The secrets in a URL: its password, query values and random-looking parts of the path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    # Some servers take a token in place of the user, without a password.
    # logs have it encoded, error messages of the program often decoded
    for part in {password or user, unquote(password or user)}:
        if is_secret(part, LEAST, certain=True):
            yield part
    for name, value in parse_qsl(parts.query):
        if is_secret(value, LEAST, certain=is_telling(name)):
            yield value
    # Also in encoded form: logs and error messages quote the whole address.
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if is_secret(value, LEAST, certain=is_telling(name)):
            yield value  # as it is written
    for part in (*parts.path.split("/"), parts.fragment):
        if _RANDOM.fullmatch(part) and not _ORDINARY.fullmatch(part):
            yield part


def takes_secret(option: str, argument: str) -> bool:
    """Whether an argument is the secret of the option before it."""
    if not option.startswith("-") or "=" in option or _SWITCH.fullmatch(argument):
        return False
    return _is_secret_name(option)


def whole_value(option: str, argument: str) -> str | None:
    """The value of an argument that is a telling name and its value; None for any other.

    Args:
        option: The argument before it.
        argument: Such as `--password=a b`, or `PASSWORD=a b` after `-e`.
    """
    match = _ASSIGNMENT.fullmatch(argument)
    if match is None or not _is_secret_name(match[1]):
        return None
    return match[2] if argument.startswith("-") or option in {"-e", "--env"} else None


def in_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """The secrets in a program's arguments."""
    before = ""
    for argument in arguments:
        if takes_secret(before, argument):
            yield from in_value(argument, telling=True)
        elif (value := whole_value(before, argument)) is not None:
            yield from in_value(value, telling=True)
        elif _SWITCH.fullmatch(before) and not before.startswith("--"):
            yield from _after_letter(before, argument)
        yield from in_text(argument)
        before = argument


def named_values(text: str) -> Iterator[tuple[int, int]]:
    """Where the values behind telling names are within a text: their starts and ends.

    What a shell would run is none of them: it decides what a person is asked.
    """
    for pattern in _NAMED:
        for match in pattern.finditer(text):
            start, end = match.span(match.lastindex or 0)
            if _is_secret_name(match[1]) and not _CODE.search(text, start, end):
                yield start, end
    for match in _URL.finditer(text):
        yield from _named_in_url(match[0], match.start())


def _is_secret_name(name: str) -> bool:
    return is_telling(name) and not _NO_VALUE.search(name)


def _named_in_url(url: str, start: int) -> Iterator[tuple[int, int]]:
    place, _, query = url.partition("?")
    head, sign, _ = place.partition("://")[2].partition("/")[0].rpartition("@")
    if sign:
        user, _, password = head.partition(":")
        begin = start + place.index(head)
        yield begin + (len(user) + 1 if password else 0), begin + len(head)
    at = start + len(place) + 1
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if value and _is_secret_name(name):
            yield at + len(name) + 1, at + len(pair)
        at += len(pair) + 1


def _after_letter(letter: str, argument: str) -> Iterator[str]:
    """The secret after an option of one letter, which says little about its value."""
    if letter == "-u" and ":" in argument:  # as curl has it
        password = argument.partition(":")[2]
        if is_secret(password, LEAST, certain=True):
            yield password
    elif _RANDOM.fullmatch(argument) and is_secret(argument, LEAST_NEUTRAL, certain=False):
        yield argument


def in_text(text: str) -> Iterator[str]:
    """The recognisable secrets within an argument or a value."""
    yield from _TOKEN.findall(text)
    for url in _URL.findall(text):
        yield from in_url(url)
    for start, end in named_values(text):
        value = text[start:end]
        scheme = _SCHEME.fullmatch(value)
        if is_secret(value := scheme[2] if scheme else value, LEAST, certain=True):
            yield value
    if (header := _HEADER.fullmatch(text)) and is_telling(header[1]):
        if not _OPERATOR.search(header[2]) or re.fullmatch(_NUMBERED, header[2]):
            yield from in_headers({header[1]: header[2]})
        else:  # several cookies, or a script that begins like a header
            for value in re.findall(r"=([^\s;|&]+)", header[2]):
                yield from in_value(value, telling=True)
    if text.startswith("{"):
        yield from in_headers(_members(text))


def is_secret(value: str, least: int, *, certain: bool) -> bool:
    """Whether a value is secret by its looks or, if its name is `certain`, unless it is a word."""
    text = value.strip()
    if len(text) < least or len({*text}) <= 2:  # noqa: PLR2004 - `xxxxxx` stands for a secret
        return False
    if _WORD.fullmatch(text) or _PATH.fullmatch(text):
        return False
    return certain or not _ORDINARY.fullmatch(text)


def _members(text: str) -> Mapping[str, str]:
    """The texts of a JSON object, such as headers in a variable."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {str(name): value for name, value in table.items() if isinstance(value, str)}


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


MASK = "********"
SECRET_TABLES = ("env", "headers")
SECRET_FIELDS = (
    ".client_secret",
    "oauth.private_key",
    "oauth.assertion",
    "model.api_key",
)

_REFERENCE = re.compile(r"\$\{([^}]*)(\}?)")
_SCHEME_PREFIX = re.compile(r"(?:(?:Bearer|Basic|Token|ApiKey)\s+)?", re.IGNORECASE)


def masked(key: str, value: Any) -> Any:
    """The value of a field, by its dotted name, with possible secrets masked."""
    table, _, name = key.partition(".")
    if is_table(value):
        return {inner: masked(f"{key}.{inner}", member) for inner, member in value.items()}
    if key == "args":
        return masked_arguments(value)
    if not isinstance(value, str):
        return value
    if key == "command":
        return masked_words(value)
    if key.endswith(SECRET_FIELDS) or (table in SECRET_TABLES and name):
        return masked_text(value)
    return masked_url(value) if key.endswith("url") else value


def masked_text(text: str) -> str:
    """Variables stay visible, without their defaults; any other text is masked."""
    scheme = _SCHEME_PREFIX.match(text)
    start = scheme.end() if scheme else 0
    matches = [*_REFERENCE.finditer(text, start)]
    alone = sum(len(match[0]) for match in matches) == len(text) - start
    if not (matches and alone and all(map(_is_reference, matches))):
        return MASK if text else ""
    return text[:start] + "".join(map(_without_default, matches))


def masked_url(url: str) -> str:
    """A URL without its password, query values and random-looking parts of the path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    place = parts.netloc.rpartition("@")
    host = f"{MASK}@{place[2]}" if place[1] else parts.netloc
    query = re.sub(r"=[^&]+", f"={MASK}", parts.query)
    path = _without(parts.path, in_url(parts.path))
    # without the fragment, which is never sent, and may hold a token
    return urlunsplit((parts.scheme, host, path, query, ""))


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Arguments without the values of options with telling names."""
    texts: list[str] = []
    before = ""
    for argument in arguments:
        if takes_secret(before, argument):
            texts.append(masked_text(argument))
        elif (value := whole_value(before, argument)) is not None:
            texts.append(argument.removesuffix(value) + masked_text(value))
        else:
            texts.append(_without(masked_words(argument), in_arguments((before, argument))))
        before = argument
    return texts


def masked_words(text: str) -> str:
    """A text without the values of telling names in it, and without what looks like a secret."""
    last = len(text)
    # from the end: what is masked has another length
    for start, end in sorted({*named_values(text)}, reverse=True):
        if end <= last:  # otherwise it contains one that is masked
            text = f"{text[:start]}{masked_text(text[start:end])}{text[end:]}"
            last = start
    return _without(text, in_text(text))


def _without(text: str, secrets: Iterable[str]) -> str:
    # the longest first: one secret may be part of another
    for secret in sorted({*secrets}, key=len, reverse=True):
        if MASK not in secret:
            text = text.replace(secret, MASK)
    return text


def _is_reference(match: re.Match[str]) -> bool:
    name = match[1].partition(":-")[0]
    return bool(match[2]) and name.count(":") <= 1


def _without_default(match: re.Match[str]) -> str:
    name, sign, _ = match[1].partition(":-")
    return f"${{{name}{sign + MASK if sign else ''}}}"


LEAST_WORD = 3
"""Minimum characters of a secret; short ones are searched for as whole words."""
LARGEST = 64 * 1024
"""Bytes of an argument in which secrets are searched for."""
LONGEST_TEXT = 4096
"""Characters of a text under any other name that is searched for tokens."""
_DEEPEST = 32
_parse_outline = msgspec.json.Decoder(dict[str, Raw]).decode


def in_call(arguments: Mapping[str, Any] | bytes | Raw) -> Iterator[str]:
    """The secrets in the arguments of a call: values under telling names, at any depth.

    Args:
        arguments: The arguments, or their JSON.
    """
    members = arguments if isinstance(arguments, Mapping) else _outline(arguments)
    for name, value in members.items():
        if isinstance(value, Raw):
            value = _content(value)  # noqa: PLW2901 - decoded
        yield from _in_member(value, _DEEPEST, telling=is_telling(name))


def mask_members(value: Any, mask: str, depth: int = 64) -> Any:
    """Plain data with a mask in place of each value under a telling name."""
    if is_table(value) and depth:
        return {
            name: _hidden(member, mask, depth - 1)
            if is_telling(name)
            else mask_members(member, mask, depth - 1)
            for name, member in value.items()
        }
    if is_list(value) and depth:
        return [mask_members(member, mask, depth - 1) for member in value]
    # what is nested deeper is not looked at, and so not shown either
    return mask if is_table(value) or is_list(value) else value


def _outline(arguments: bytes | Raw) -> Mapping[str, Raw]:
    try:
        return _parse_outline(arguments)
    except (msgspec.DecodeError, RecursionError):  # refused, and never sent
        return {}


def _content(value: Raw) -> Any:
    """A member of the arguments; None if it is long, and so no secret."""
    try:
        return msgspec.json.decode(value) if len(value) <= LARGEST else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _in_member(value: Any, depth: int, *, telling: bool) -> Iterator[str]:
    if is_table(value) and depth:
        for name, member in value.items():
            yield from _in_member(member, depth - 1, telling=telling or is_telling(name))
    elif is_list(value) and depth:
        for member in value:
            yield from _in_member(member, depth - 1, telling=telling)
    elif telling and isinstance(value, str | int | float) and not isinstance(value, bool):
        if is_secret(text := str(value), LEAST_WORD, certain=True):
            yield text
    elif isinstance(value, str) and len(value) <= LONGEST_TEXT:
        yield from in_text(value)


def _hidden(value: Any, mask: str, depth: int) -> Any:
    """Whatever is under a telling name, without its values."""
    if is_table(value) and depth:
        return {name: _hidden(member, mask, depth - 1) for name, member in value.items()}
    if is_list(value) and depth:
        return [_hidden(member, mask, depth - 1) for member in value]
    return value if value is None or isinstance(value, bool) else mask
