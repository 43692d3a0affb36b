"""Compiles the argument conditions of policy rules into functions.

A rule that denies or asks applies if its tests may hold; one that allows only if they certainly do.
A value that cannot be judged, such as a list instead of a text, therefore never allows a call.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from multitap.config.documents import is_list, is_table
from multitap.config.models import HttpServer, ServerConfig, StdioServer
from multitap.config.policy_rules import ArgumentTest, HostList, PolicyRule, Scalar, pattern_check
from multitap.config.provenance import STANDINGS
from multitap.config.variables import Scope, expand, locate
from multitap.errors import BadArguments, ConfigError
from multitap.sandbox.places import is_within
from multitap.trust.shown_arguments import ArgumentPlace

LONGEST = 4096
"""Characters; no system accepts a longer path."""

_ODD = frozenset("%~$\\\0 \t\r\n:")
"""Characters that are ambiguous, or do not occur in ordinary paths."""
_PER_PROCESS = ("/proc/", "/dev/fd/")
"""Folders in which a path means something else to each process."""
# Each layer may decode once: `%25252e` passes a check that decodes only once or twice.
_MOST_DECODINGS = 3


class Folders(msgspec.Struct, frozen=True):
    """Folders by their real paths, and the base of relative paths."""

    real: tuple[str, ...]
    cwd: str | None
    """None if unknown, because the server runs elsewhere."""
    is_clear: bool = True
    """Whether all of them are known."""

    @classmethod
    def of(cls, paths: Iterable[Path | None], cwd: Path | None) -> "Folders":
        """These folders; None stands for an unknown one."""
        folders = [*paths]
        real = tuple(os.path.realpath(path) for path in folders if path is not None)
        return cls(real, None if cwd is None else str(cwd), len(real) == len(folders))

    def possibly(self, value: object, *, is_inside: bool) -> bool:
        """Whether some reading of the path is inside (or outside, without `is_inside`)."""
        readings = self._readings(value)
        return readings is None or any(self._has(reading) is is_inside for reading in readings)

    def certainly(self, value: object, *, is_inside: bool) -> bool:
        """Whether every reading of the path is inside (or outside, without `is_inside`)."""
        readings = self._readings(value)
        return readings is not None and all(self._has(reading) is is_inside for reading in readings)

    def _readings(self, value: object) -> list[str] | None:
        """The absolute paths that a server may open for the value; None if unknown."""
        if not self.is_clear or not isinstance(value, str) or not 0 < len(value) <= LONGEST:
            return None
        if _ODD.isdisjoint(value) and value.isascii():
            texts: Iterable[str] = (value,)
        # C programs end the path at a NUL, others do not.
        elif "\0" in value:
            return None
        else:
            texts = set(_spellings(value))
        places: list[str] = []
        for text in texts:
            if not text.startswith("/"):
                if self.cwd is None:
                    return None
                text = f"{self.cwd}/{text}"  # noqa: PLW2901 - the same path
            places.append(text)
            if ".." in text:  # programs resolve `..` before or after following links
                places.append(os.path.normpath(text))
        return places

    def _has(self, path: str) -> bool:
        plain = os.path.normpath(path) if "/." in path or "//" in path else path
        # `/proc/self/root` is inside or outside depending on who opens it.
        if plain.startswith(_PER_PROCESS):
            return False
        if ".." not in path:
            for folder in self.real:
                if is_within(plain, folder) and not _has_link(plain, len(folder)):
                    return True
        resolved = os.path.realpath(path)
        return any(is_within(resolved, folder) for folder in self.real)


def _has_link(path: str, start: int) -> bool:
    """Whether the path has a link after its beginning, which is already resolved."""
    at = path.find("/", start + 1)
    while True:
        part = path if at < 0 else path[:at]
        try:
            if stat.S_ISLNK(os.lstat(part).st_mode):
                return True
        except OSError:
            return False  # it does not exist, so nothing below it is a link
        if at < 0:
            return False
        at = path.find("/", at + 1)


def _spellings(value: str) -> Iterator[str]:
    """The text, and its readings by programs that decode, expand or trim paths."""
    # full-width dots and slashes lead upwards in programs that normalize paths
    texts = {value, value.strip(), normalize("NFKC", value)}
    for text in [*texts]:
        decoded = text
        for _ in range(_MOST_DECODINGS):
            decoded = unquote(decoded)
            texts.add(decoded)
    for text in [*texts]:
        yield text
        if ":" in text:
            yield from _in_url(text)
        if "\\" in text:
            yield text.replace("\\", "/")
        if text.startswith("~"):
            yield os.path.expanduser(text)  # noqa: PTH111 - text of no known kind
        if "$" in text:
            yield os.path.expandvars(text)


def _in_url(text: str) -> Iterator[str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return
    if parts.scheme == "file":
        yield unquote(parts.path) or "/"


Arguments = Mapping[str, Any]
Test = Callable[[Arguments], bool]
Judge = Callable[[Any], bool]
"""A test of one value."""

_EACH = "[*]"


def decode_arguments(arguments: bytes | Raw) -> Arguments:
    """Parse arguments in the only way that every server's parser agrees on.

    Raises:
        BadArguments: Parsers differ about them, or they are not an object.
    """
    try:
        table: Any = _decode(str(arguments, "utf-8")) if len(arguments) else {}
    except _Ambiguous as exc:
        message = f"the argument {str(exc)!r:.100} is given twice"
        raise BadArguments(message, path="", hint="give each argument once") from None
    except (ValueError, RecursionError) as exc:
        raise BadArguments(f"the arguments cannot be read: {exc}", path="") from None
    if not isinstance(table, dict):
        raise BadArguments("the arguments must be an object", path="")
    return table  # pyright: ignore[reportUnknownVariableType]


class _Ambiguous(ValueError):
    """A duplicate key: parsers may use the first or the last."""


# With `{"path": "a", "path": "b"}`, we could judge one and the server could open the other.
def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Ambiguous(next(key for at, key in enumerate(keys) if key in keys[:at]))
    return table


# Python accepts NaN and Infinity, other parsers do not, and comparisons with NaN are false.
def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_table, parse_constant=_no_number).decode


def tests_of(rule: PolicyRule, config: ServerConfig) -> tuple[Test, ...]:
    """The tests of a rule for one server."""
    careful = rule.decision != "allow"
    return tuple(
        _test(_steps(name), judge, careful=careful)
        for name, test in rule.arguments.items()
        for judge in _judges(test, config, careful=careful)
    ) + tuple(
        _is_given(_steps(name), test.given, careful=careful)
        for name, test in rule.arguments.items()
        if test.given is not None
    )


def find_places(
    rule: PolicyRule, config: ServerConfig, arguments: Arguments
) -> list[ArgumentPlace]:
    """Where the values are that a rule tests; those that make it apply come first."""
    careful = rule.decision != "allow"
    decisive: list[ArgumentPlace] = []
    others: list[ArgumentPlace] = []
    for name, test in rule.arguments.items():
        judges = [*_judges(test, config, careful=careful)]
        for place, value in _places(arguments, _steps(name)):
            holds = all(judge(value) for judge in judges)
            (decisive if holds else others).append(place)
    return [*decisive, *others]


def _places(arguments: Any, steps: Iterable[str]) -> list[tuple[ArgumentPlace, Any]]:
    """The values at a path, in every reading that a server may have."""
    level: list[tuple[ArgumentPlace, Any]] = [((), arguments)]
    for step in steps:
        deeper: list[tuple[ArgumentPlace, Any]] = []
        for place, value in level:
            if is_table(value):
                deeper += [
                    ((*place, key), member)
                    for key, member in value.items()
                    if key.casefold() == step.casefold()
                ]
            elif is_list(value) and step == _EACH:
                deeper += [((*place, index), item) for index, item in enumerate(value)]
            else:
                deeper.append((place, value))  # not what the rule expects
        level = deeper
    return [(place, value) for place, value in level if place]


def _steps(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\[\*\]|[^.\[\]]+", name))


def _test(steps: tuple[str, ...], judge: Judge, *, careful: bool) -> Test:
    """One of several values is enough to deny; to allow, all must pass."""
    folded = tuple(step.casefold() for step in steps)

    def possibly(arguments: Arguments) -> bool:
        values = _values(arguments, steps, folded)
        return values is None or any(map(judge, values))

    def certainly(arguments: Arguments) -> bool:
        values = _values(arguments, steps, folded)
        return bool(values) and all(map(judge, values or ()))

    return possibly if careful else certainly


def _is_given(steps: tuple[str, ...], expected: bool, *, careful: bool) -> Test:  # noqa: FBT001 - a setting
    folded = tuple(step.casefold() for step in steps)

    def test(arguments: Arguments) -> bool:
        values = _values(arguments, steps, folded)
        return careful if values is None else bool(values) is expected

    return test


def _values(arguments: Any, steps: tuple[str, ...], folded: tuple[str, ...]) -> list[Any] | None:
    """The values at a path, without nulls; None if servers may read different ones."""
    level: list[Any] = [arguments]
    for step, fold in zip(steps, folded, strict=True):
        deeper: list[Any] = []
        for container in level:
            if container is None:
                continue
            if step == _EACH:
                if not isinstance(container, list):
                    return None
                deeper += container  # pyright: ignore[reportUnknownArgumentType]
                continue
            if not isinstance(container, dict):
                return None
            for key, value in container.items():  # pyright: ignore[reportUnknownVariableType]
                if key == step:
                    deeper.append(value)
                # some parsers ignore case: `PATH` is `path` to them
                elif key.casefold() == fold:  # pyright: ignore[reportUnknownMemberType]
                    return None
        level = deeper
    return [value for value in level if value is not None]


def _judges(test: ArgumentTest, config: ServerConfig, *, careful: bool) -> Iterator[Judge]:
    yield from _judges_of_places(test, config, careful=careful)
    yield from _judges_of_texts(test, careful=careful)
    if (most := test.longer_than) is not None:
        yield lambda value: _length(value) > most
    if (least := test.above) is not None:
        yield _of_number(lambda number: number > least, careful=careful)
    if (limit := test.below) is not None:
        yield _of_number(lambda number: number < limit, careful=careful)


def _judges_of_places(
    test: ArgumentTest, config: ServerConfig, *, careful: bool
) -> Iterator[Judge]:
    if test.inside is not None:
        yield _within(test.inside, config, is_inside=True, careful=careful)
    if test.outside is not None:
        yield _within(test.outside, config, is_inside=False, careful=careful)
    if test.host_in is not None:
        yield _host_judge(test.host_in, is_listed=True, careful=careful)
    if test.host_not_in is not None:
        yield _host_judge(test.host_not_in, is_listed=False, careful=careful)


def _judges_of_texts(test: ArgumentTest, *, careful: bool) -> Iterator[Judge]:
    if test.matches is not None:
        matches = pattern_check(test.matches)
        yield _of_text(matches, careful=careful)
    if test.one_of is not None:
        listed = frozenset(map(_text, test.one_of))
        yield _of_text(listed.__contains__, careful=careful)
    if test.none_of is not None:
        unlisted = frozenset(map(_text, test.none_of))
        yield _of_text(lambda text: text not in unlisted, careful=careful)


def _within(
    paths: Sequence[Path], config: ServerConfig, *, is_inside: bool, careful: bool
) -> Judge:
    folders = Folders.of(map(_locate, paths), _cwd(config))
    decide = folders.possibly if careful else folders.certainly
    return lambda value: decide(value, is_inside=is_inside)


def _cwd(config: ServerConfig) -> Path | None:
    """The base of a server's relative paths; None if unknown."""
    match config:
        case StdioServer():
            if config.cwd is not None:
                return _locate(config.cwd, config.home.paths)
            if _may_start_in_its_own_folder(config):
                return None
            return config.home.start or Path.cwd()
        case HttpServer():
            return None
        case _:
            return Path.cwd()


def _may_start_in_its_own_folder(config: StdioServer) -> bool:
    """Whether it starts in its own folder: confined servers do, except those of a project."""
    if config.provenance == "project" or config.sandbox == "off":
        return False
    return STANDINGS[config.provenance].is_confined or config.sandbox != "auto"


def _locate(path: Path, base: Path | None = None) -> Path | None:
    scope = replace(Scope.of_process(), base=base)
    try:
        return locate(expand(str(path), scope), scope).absolute()
    except ConfigError:
        return None


def _host_judge(hosts: Sequence[str], *, is_listed: bool, careful: bool) -> Judge:
    listed = HostList(tuple(hosts))

    def judge(value: Any) -> bool:
        is_in_list = listed.has(value)
        return careful if is_in_list is None else is_in_list is is_listed

    return judge


def _of_text(judge: Callable[[str], bool], *, careful: bool) -> Judge:
    return lambda value: judge(_text(value)) if isinstance(value, Scalar) else careful


def _of_number(judge: Callable[[float], bool], *, careful: bool) -> Judge:
    def judged(value: Any) -> bool:
        number = _number(value)
        return careful if number is None else judge(number)

    return judged


def _text(value: Scalar) -> str:
    """A plain value as JSON, and a text unchanged."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float() if math.isfinite(value) and value.is_integer():
            return str(int(value))
        case _:
            return str(value)


def _number(value: Any) -> float | None:
    """A number, or a text that servers may read as one."""
    if isinstance(value, bool) or not isinstance(value, Scalar):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _length(value: Any) -> int:
    if isinstance(value, list | dict):
        return len(value)  # pyright: ignore[reportUnknownArgumentType]
    return len(_text(value)) if isinstance(value, Scalar) else 0
