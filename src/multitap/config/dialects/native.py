"""Our own file, `multitap.toml`: its keys are the fields of our models."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from multitap.config.dialects.dialect import (
    Dialect,
    Spelling,
    Transcript,
    Writing,
    as_is,
    within,
)
from multitap.config.dialects.draft import Draft, Reading
from multitap.config.dialects.rules import (
    Rule,
    Rules,
    TwoWay,
    arguments,
    argv,
    based,
    duration,
    each,
    env,
    flag,
    integer,
    members,
    nothing,
    number,
    oauth,
    one_of,
    path,
    paths,
    picked,
    program,
    string,
    strings,
    texts,
)
from multitap.config.documents import Document, Node, is_list, is_table
from multitap.config.frozen_model import FrozenModel
from multitap.config.models import (
    WRITTEN_SPAN,
    Duration,
    Environment,
    HttpServer,
    OAuth,
    Settings,
    StdioServer,
)
from multitap.names import Naming

_SCALARS: Mapping[Any, Callable[..., Rule]] = {
    bool: flag,
    int: integer,
    float: number,
    Duration: partial(duration, bare="s"),
    Path: path,
    tuple[str, ...]: strings,
    tuple[Path, ...]: paths,
}


def rules_of(model: type[FrozenModel], *within: str) -> Rules:
    """A rule for every field of a model."""
    return {
        name: rule_for(declared, *within, name) for name, declared in model.model_fields.items()
    }


def rule_for(annotation: Any, *field: str) -> Rule:
    """The rule that reads a field of this type; texts and choices are strings to it."""
    kind = bare_type(annotation)
    if get_origin(kind) is Mapping:
        _, member = get_args(kind)
        return each(field, lambda name: rule_for(member, *field, name), "a table")
    if isinstance(kind, type) and issubclass(kind, FrozenModel):
        return _table(rules_of(kind, *field), *field)
    return _SCALARS.get(kind, string)(*field)


def _table(rules: Rules, *field: str) -> Rule:
    """A table of these keys; an empty one says something too: that it is there."""

    def rule(draft: Draft, node: Node) -> None:
        if is_table(node.value) and not node.value:
            draft.set(field, node, {})
        members(rules)(draft, node)

    return TwoWay(rule, members(rules).write)


def bare_type(annotation: Any) -> Any:
    """A type without None, and without its constraints but that a number is a span of time."""
    if get_origin(annotation) is Annotated:
        kind, *said = get_args(annotation)
        return Duration if any(one.written is WRITTEN_SPAN for one in said) else bare_type(kind)
    if get_origin(annotation) in (Union, UnionType):
        return bare_type(next(kind for kind in get_args(annotation) if kind is not NoneType))
    return annotation


def _read_command(draft: Draft, node: Node) -> None:
    (argv if is_list(node.value) else program)(draft, node)


def _naming(draft: Draft, node: Node) -> None:
    named = {naming.name.lower(): naming.value for naming in Naming}
    if (text := draft.text(node)) is not None:
        draft.set("naming", node, named.get(text, text))


def _functions(draft: Draft, node: Node) -> None:
    """Python functions; one in a file is meant from where the file's paths start."""
    if (values := texts(draft, node)) is not None:
        split = [value.rpartition(":") for value in values]
        rooted = [
            f"{based(draft, where)}:{name}" if where.endswith(".py") else f"{where}{colon}{name}"
            for where, colon, name in split
        ]
        draft.set(("environment", "tools"), node, rooted)


SERVER: Rules = {
    **rules_of(StdioServer),
    **rules_of(HttpServer),
    "transport": one_of("stdio", "http", "streamable-http", "sse"),
    "command": TwoWay(_read_command, program.write),
    "args": arguments,
    "env": env,
    "oauth": oauth(rules_of(OAuth, "oauth")),
}
GENERAL: Rules = {
    **rules_of(Settings),
    "environment": members({**rules_of(Environment, "environment"), "tools": _functions}),
    "naming": _naming,
    "servers": nothing,
    "$schema": nothing,
}
SPELLING = Spelling(SERVER, beside_file=True)


def read(document: Document, folder: Path) -> Reading:
    transcript = Transcript("multitap", document, folder, SPELLING)
    transcript.general(transcript.root, GENERAL)
    transcript.table(transcript.root.find("servers"))
    return transcript.reading()


def matches(document: Document) -> bool:
    if document.format != "toml":
        return False
    servers = document.root.find("servers")
    return is_table(servers.value) if servers else bool(GENERAL.keys() & document.data.keys())


_FIRST = ("command", "args", "env", "url", "transport", "headers")
WRITING = Writing({**picked(SERVER, *_FIRST), **SERVER}, as_is, within("servers"), suffix=".toml")
MULTITAP = Dialect("multitap", "Multitap", read, matches, WRITING, ("multitap.toml",))
