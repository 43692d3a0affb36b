"""The rules that map the keys of a dialect to our fields, and back."""

import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from multitap.config.dialects.draft import Draft, FieldPath, UnwrittenFields, literal
from multitap.config.documents import Node, is_list, is_table
from multitap.config.durations import EXAMPLES, Unit, expectation, seconds, spell
from multitap.config.problems import Severity, did_you_mean

Rule = Callable[[Draft, Node], None]
"""Reads the value of a key."""
Rules = Mapping[str, Rule]


class TwoWay(msgspec.Struct, frozen=True):
    """A rule that also writes: converts our fields to the value of its key."""

    read: Rule
    write: Callable[[UnwrittenFields], Any]
    """Takes its fields and returns the value; None if there are none."""

    def __call__(self, draft: Draft, node: Node) -> None:
        self.read(draft, node)


def write_table(fields: UnwrittenFields, rules: Rules) -> dict[str, Any]:
    """A table of the fields that these rules can express; the others stay in `fields`."""
    table: dict[str, Any] = {}
    for name, rule in rules.items():
        value = rule.write(fields) if isinstance(rule, TwoWay) else None
        if value is not None:
            table[name] = value
    return table


def pick(rules: Rules, *names: str) -> Rules:
    """Some of the rules, in this order."""
    return {name: rules[name] for name in names}


TRANSPORTS = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "remote": "http",
    "streamable-http": "streamable-http",
    "streamable_http": "streamable-http",
    "streamableHttp": "streamable-http",
    "sse": "sse",
}
# A table that is not a server may have any number of keys: that many warnings would hide the one
# that matters.
MOST_UNKNOWN = 20
"""How many unknown keys of one table are reported individually."""
WEB_SOCKETS = frozenset({"ws", "websocket", "tcp"})


def apply(draft: Draft, node: Node, rules: Rules) -> None:
    """Read every member of a table by its rule; unknown ones are kept and reported."""
    if not is_table(node.value):
        draft.wrong(node, "a table")
        return
    unknown = 0
    unused = rules.keys() - node.value.keys()
    for name, member in node.members():
        if rule := rules.get(name):
            rule(draft, member)
            continue
        draft.keep(member)
        unknown += 1
        if unknown <= MOST_UNKNOWN:
            hint = did_you_mean(name, unused)
            draft.add(Severity.WARNING, member, "unknown key; kept, but without effect", hint=hint)
    if unknown > MOST_UNKNOWN:
        message = f"has {unknown - MOST_UNKNOWN} more unknown keys"
        draft.add(Severity.WARNING, node, message)


def members(rules: Rules) -> TwoWay:
    """A table within the entry."""
    return TwoWay(
        lambda draft, node: apply(draft, node, rules),
        lambda fields: write_table(fields, rules) or None,
    )


def nothing(_draft: Draft, _node: Node) -> None:
    """A key that is read elsewhere."""


def flag(*field: str, inverse: bool = False) -> TwoWay:
    def rule(draft: Draft, node: Node) -> None:
        if isinstance(node.value, bool):
            draft.set(field, node, node.value is not inverse)
        else:
            draft.wrong(node, "`true` or `false`")

    def write(fields: UnwrittenFields) -> bool | None:
        value = fields.take(*field)
        return None if value is None else value is not inverse

    return TwoWay(rule, write)


def string(*field: str) -> TwoWay:
    def rule(draft: Draft, node: Node) -> None:
        if (text := draft.text(node)) is not None:
            draft.set(field, node, text)

    return TwoWay(rule, lambda fields: fields.text(*field))


def integer(*field: str) -> TwoWay:
    def rule(draft: Draft, node: Node) -> None:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            draft.set(field, node, node.value)
        else:
            draft.wrong(node, "a whole number")

    return TwoWay(rule, lambda fields: fields.take(*field))


def number(*field: str) -> TwoWay:
    def rule(draft: Draft, node: Node) -> None:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            draft.set(field, node, float(node.value))
        else:
            draft.wrong(node, "a number")

    return TwoWay(rule, lambda fields: fields.take(*field))


def strings(*field: str) -> TwoWay:
    def rule(draft: Draft, node: Node) -> None:
        if (values := texts(draft, node)) is not None:
            draft.set(field, node, values)

    return TwoWay(rule, lambda fields: fields.texts(*field))


def texts(draft: Draft, node: Node) -> list[str] | None:
    """The strings in a list; None, with problems, if it is not a list of strings."""
    if not is_list(node.value):
        draft.wrong(node, "a list of strings")
        return None
    values = [draft.text(element) for element in node.elements()]
    present = [value for value in values if value is not None]
    return present if len(present) == len(values) else None


def words(*field: str) -> TwoWay:
    """A list of words, or a string of them, stored as one string."""

    def rule(draft: Draft, node: Node) -> None:
        if isinstance(node.value, str):
            string(*field)(draft, node)
        elif (values := texts(draft, node)) is not None:
            draft.set(field, node, " ".join(values))

    def write(fields: UnwrittenFields) -> list[str] | None:
        text = fields.text(*field)
        return None if text is None else text.split(" ")

    return TwoWay(rule, write)


def each(field: FieldPath, rule_of: Callable[[str], Rule], expected: str) -> TwoWay:
    """A table with arbitrary names."""

    def rule(draft: Draft, node: Node) -> None:
        if not is_table(node.value):
            draft.wrong(node, expected)
        for name, member in node.members():
            rule_of(name)(draft, member)

    def write(fields: UnwrittenFields) -> dict[str, Any] | None:
        names = fields.names(*field)
        return write_table(fields, {name: rule_of(name) for name in names}) or None

    return TwoWay(rule, write)


def table(field: str) -> TwoWay:
    """A table of strings."""
    return each((field,), partial(string, field), "a table of strings")


def _env(draft: Draft, node: Node) -> None:
    """A table of values; whole numbers and booleans become text, null means not set."""
    if not is_table(node.value):
        draft.wrong(node, "a table of strings")
        return
    for name, member in node.members():
        match member.value:
            # VS Code takes a variable away with null
            case None:
                continue
            # before `int`: in Python, a bool is one
            case bool():
                draft.set(("env", name), member, str(member.value).lower())
            case int():
                draft.set(("env", name), member, str(member.value))
            # `1.10` would arrive as `1.1`: for a version or an amount that is another value.
            case float():
                draft.wrong(member, "a string", hint="put it in quotes")
            case _:
                string("env", name)(draft, member)


env = TwoWay(
    _env,
    lambda fields: (
        write_table(fields, {name: string("env", name) for name in fields.names("env")}) or None
    ),
)


def path(*field: str) -> TwoWay:
    def rule(draft: Draft, node: Node) -> None:
        if (text := draft.text(node)) is not None:
            draft.set(field, node, from_base(draft, text))

    return TwoWay(rule, lambda fields: fields.text(*field))


def paths(*field: str) -> TwoWay:
    def rule(draft: Draft, node: Node) -> None:
        if (values := texts(draft, node)) is not None:
            draft.set(field, node, [from_base(draft, value) for value in values])

    return TwoWay(rule, lambda fields: fields.texts(*field))


def from_base(draft: Draft, text: str) -> Path:
    """A path, relative to the base of the file's paths."""
    # the value of a variable is not known yet, and may be absolute
    rooted = text.startswith(("~", "${"))
    # a `${` in the name of the folder itself is text
    return Path(text) if rooted else Path(literal(str(draft.base)), text)


def duration(*field: str, bare: Unit | None) -> TwoWay:
    """A duration; `bare` is the unit of a number in this dialect."""

    def rule(draft: Draft, node: Node) -> None:
        try:
            draft.set(field, node, seconds(node.value, bare=bare))
        except ValueError:
            draft.wrong(node, expectation(bare))

    def write(fields: UnwrittenFields) -> float | str | None:
        span = fields.take(*field)
        return None if span is None else spell(span, bare=bare)

    return TwoWay(rule, write)


def unitless(field: str) -> Rule:
    """A duration in a file of an unknown host."""

    def rule(draft: Draft, node: Node) -> None:
        if isinstance(node.value, str):
            duration(field, bare=None)(draft, node)
            return
        draft.keep(node)
        message = "seconds or milliseconds? hosts differ, so it is not used"
        draft.add(Severity.WARNING, node, message, hint=f"name the dialect, or write {EXAMPLES}")

    return rule


def transport(draft: Draft, node: Node) -> None:
    if not isinstance(node.value, str):
        draft.wrong(node, "the name of a transport")
    elif transport_name := TRANSPORTS.get(node.value):
        draft.set("transport", node, transport_name)
    elif node.value in WEB_SOCKETS:
        draft.error(node, "WebSocket servers are not supported")
    else:
        hint = did_you_mean(node.value, TRANSPORTS)
        draft.error(node, f"no transport is named {node.value[:40]!r}", hint=hint)


def transport_as(**names: str) -> TwoWay:
    """A transport, written in the host's own words: `http="http"`."""
    return TwoWay(
        transport, _transport_word({key.replace("_", "-"): word for key, word in names.items()})
    )


def _transport_word(names: Mapping[str, str]) -> Callable[[UnwrittenFields], str | None]:
    """The word for a transport; for an unknown HTTP one, the newer or more general one."""

    def write(fields: UnwrittenFields) -> str | None:
        value = fields.look("transport")
        near = {"http": "streamable-http", "streamable-http": "http", "sse": "http"}
        word = names.get(value) or names.get(near.get(value, ""))
        return word if word is None else (fields.take("transport"), word)[1]

    return write


EVERY_TRANSPORT = transport_as(
    stdio="stdio", http="http", streamable_http="streamable-http", sse="sse"
)


def one_of(*choices: str) -> TwoWay:
    """A transport that must be one of these words."""

    def rule(draft: Draft, node: Node) -> None:
        if isinstance(node.value, str) and node.value in choices:
            draft.set("transport", node, TRANSPORTS[node.value])
        else:
            expected = " or ".join(f'"{word}"' for word in choices)
            hint = did_you_mean(node.value, choices) if isinstance(node.value, str) else None
            draft.error(node, f"expected {expected}", expected=expected, hint=hint)

    # reversed: of two words for one transport, the first one is written
    return TwoWay(rule, _transport_word({TRANSPORTS[word]: word for word in reversed(choices)}))


def _command(draft: Draft, node: Node) -> None:
    """A program, a command line if there are no `args`, or a list of words."""
    if is_list(node.value):
        _argv(draft, node)
    elif isinstance(node.value, str) and _is_line(node) and (split := _split(node.value)):
        draft.set("command", node, draft.rewrite(split[0]))
        draft.set("args", node, [draft.rewrite(word) for word in split[1:]])
    else:
        _program(draft, node)


def _program(draft: Draft, node: Node) -> None:
    if (text := draft.text(node)) is not None:
        if text:
            draft.set("command", node, text)
        else:
            draft.wrong(node, "the name of a program")


def _argv(draft: Draft, node: Node) -> None:
    """A program and its arguments in one list."""
    if node.value == []:
        draft.wrong(node, "a program and its arguments", hint="the list is empty")
    elif (values := texts(draft, node)) is not None:
        _program(draft, node.child(0))
        # keys come in the order of the file: `args` may have been read before
        beside = draft.fields.get(("args",))
        draft.set("args", node, [*values[1:], *(beside.value if beside else ())])


def _arguments(draft: Draft, node: Node) -> None:
    if (values := texts(draft, node)) is not None:
        beside = draft.fields.get(("args",))
        draft.set("args", node, [*(beside.value if beside else ()), *values])


def _whole_line(fields: UnwrittenFields) -> list[str] | None:
    """A program with its arguments, if all of them can be expressed."""
    rest = fields.texts("args") or []
    return [first, *rest] if (first := fields.text("command")) is not None else None


program = TwoWay(_program, lambda fields: fields.text("command"))
command = TwoWay(_command, lambda fields: fields.text("command"))
argv = TwoWay(_argv, _whole_line)
arguments = TwoWay(_arguments, lambda fields: fields.texts("args") or None)
all_arguments = TwoWay(_arguments, lambda fields: fields.texts("args"))
"""Written even if empty: some hosts require the list, and a command with spaces needs it."""


def _is_line(node: Node) -> bool:
    """Whether it is a command line such as `npx -y server`, not `/Applications/My Server/run`."""
    beside = node.document.root
    for step in node.key[:-1]:
        beside = beside.child(step)
    # Deep links of Cursor have the whole command line in `command`. With `args` beside it, or a
    # path first, a space is part of the name.
    return "args" not in beside.value and bool(re.match(r"[^\s/\\]+\s", node.value))


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # an unclosed quote: not a command line
        return []


def ignore(draft: Draft, node: Node) -> None:
    """A valid key of its host that has no meaning here."""
    draft.keep(node)
    draft.add(Severity.NOTE, node, "has no effect here; kept")


def unsupported(reason: str) -> Rule:
    """A valid key of its host whose effect is missing here."""

    def rule(draft: Draft, node: Node) -> None:
        draft.keep(node)
        draft.add(Severity.WARNING, node, reason)

    return rule


def forget(draft: Draft, node: Node) -> None:
    """The host's own state, which may be secret: not kept."""
    draft.add(Severity.NOTE, node, "is the host's own state; left there")


def oauth(rules: Rules) -> TwoWay:
    """How to log in: a table of `rules`, which may be empty, or `false`."""

    def rule(draft: Draft, node: Node) -> None:
        if node.value is False:
            draft.set("oauth", node, value=False)
        elif is_table(node.value):
            draft.set("oauth", node, {})
            apply(draft, node, rules)
        else:
            draft.wrong(node, "a table or `false`")

    def write(fields: UnwrittenFields) -> Any:
        there = fields.take("oauth")
        return False if there is False else write_table(fields, rules) or there

    return TwoWay(rule, write)
