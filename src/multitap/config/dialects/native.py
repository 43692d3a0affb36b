"""Our own file, `multitap.toml`: its keys are the fields of our models."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from multitap.config.access import UNUSABLE, AccessRule, AccessSettings
from multitap.config.checks import ConfigModel, Mistake, build, fields_of
from multitap.config.dialects.draft import Draft, Reading
from multitap.config.dialects.host_format import (
    Dialect,
    Spelling,
    Transcript,
    WritingRules,
    as_is,
    within,
)
from multitap.config.dialects.rules import (
    Rule,
    Rules,
    TwoWay,
    arguments,
    argv,
    duration,
    each,
    env,
    flag,
    from_base,
    integer,
    members,
    nothing,
    number,
    oauth,
    one_of,
    path,
    paths,
    pick,
    program,
    string,
    strings,
    texts,
)
from multitap.config.documents import Document, Node, is_list, is_table
from multitap.config.models import (
    Duration,
    Environment,
    HttpServer,
    OAuth,
    Settings,
    StdioServer,
)
from multitap.config.policy_rules import PolicyRule
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


def rules_of(model: type[ConfigModel], *within: str) -> Rules:
    """A rule for every field of a model."""
    return {field.name: rule_for(field.type, *within, field.name) for field in fields_of(model)}


def rule_for(annotation: Any, *field: str) -> Rule:
    """The rule that reads a field of this type; texts and choices are strings."""
    kind = bare_type(annotation)
    if get_origin(kind) is Mapping:
        _, member = get_args(kind)
        return each(field, lambda name: rule_for(member, *field, name), "a table")
    if isinstance(kind, type) and issubclass(kind, ConfigModel):
        return _table(rules_of(kind, *field), *field)
    return _SCALARS.get(kind, string)(*field)


def _table(rules: Rules, *field: str) -> Rule:
    """A table of these keys; an empty one counts as present."""

    def rule(draft: Draft, node: Node) -> None:
        # `[environment]` alone already shows the environment to clients
        if is_table(node.value) and not node.value:
            draft.set(field, node, {})
        members(rules)(draft, node)

    return TwoWay(rule, members(rules).write)


def bare_type(annotation: Any) -> Any:
    """A type without None and without constraints, except that a number is a duration."""
    if get_origin(annotation) is Annotated:
        kind, *metas = get_args(annotation)
        is_duration = any(meta.extra and "duration" in meta.extra for meta in metas)
        return Duration if is_duration else bare_type(kind)
    if get_origin(annotation) in (Union, UnionType):
        return bare_type(next(kind for kind in get_args(annotation) if kind is not NoneType))
    return annotation


def _read_command(draft: Draft, node: Node) -> None:
    (argv if is_list(node.value) else program)(draft, node)


def _sandbox(draft: Draft, node: Node) -> None:
    rule = flag("sandbox") if isinstance(node.value, bool) else string("sandbox")
    rule(draft, node)


def _naming(draft: Draft, node: Node) -> None:
    # by name or as a template: the model reports an unknown one
    named = {naming.name.lower(): naming.value for naming in Naming}
    if (text := draft.text(node)) is not None:
        draft.set("naming", node, named.get(text, text))


def _functions(draft: Draft, node: Node) -> None:
    """Python functions; files are relative to the base of the configuration's paths."""
    if (values := texts(draft, node)) is not None:
        split = [value.rpartition(":") for value in values]
        rooted = [
            f"{from_base(draft, where)}:{name}"
            if where.endswith(".py")
            else f"{where}{colon}{name}"
            for where, colon, name in split
        ]
        draft.set(("environment", "tools"), node, rooted)


def policy(draft: Draft, node: Node) -> None:
    """A list of policy rules, with their places."""
    if not is_list(node.value):
        draft.wrong(node, "a list of rules", hint="write `[[policy]]` before each")
        return
    rules: list[PolicyRule] = []
    for element in node.elements():
        rule, mistakes = build(PolicyRule, _with_paths(draft, element.value))
        for mistake in mistakes:
            draft.error(*_complaint(element, mistake))
        if rule is None:
            # a rule that may have been meant to forbid something must not be lost
            rule = PolicyRule(decision="deny", reason="a rule of the policy cannot be used")
        rules.append(rule.at(element.key_place))
    draft.set("policy", node, rules)


def access_rules(draft: Draft, node: Node) -> None:
    """A list of access rules."""
    if not is_list(node.value):
        draft.wrong(node, "a list of rules", hint="write `[[access.rules]]` before each")
        return
    rules: list[AccessRule] = []
    for element in node.elements():
        rule, mistakes = build(AccessRule, element.value)
        for mistake in mistakes:
            draft.error(*_complaint(element, mistake))
        rules.append(UNUSABLE if rule is None else rule)
    draft.set(("access", "rules"), node, rules)


def _with_paths(draft: Draft, rule: Any) -> Any:
    """A rule with its folders relative to the base of the configuration's paths."""
    if not is_table(rule) or not is_table(arguments := rule.get("arguments")):
        return rule
    return {
        **rule,
        "arguments": {
            name: {key: _from_root(draft, key, value) for key, value in test.items()}
            if is_table(test)
            else test
            for name, test in arguments.items()
        },
    }


def _from_root(draft: Draft, key: str, value: Any) -> Any:
    if key not in {"inside", "outside"} or not is_list(value):
        return value
    return [from_base(draft, item) if isinstance(item, str) else item for item in value]


def _complaint(rule: Node, mistake: Mistake) -> tuple[Node, str]:
    """The problem of a rule, and the nearest node."""
    node = rule
    for step in mistake.path:
        if not (is_table(node.value) or is_list(node.value)) or step not in _steps(node.value):
            break
        node = node.child(step)
    is_inner = mistake.path and str(mistake.path[-1]) != node.name
    return node, f"`{mistake.path[-1]}`: {mistake.message}" if is_inner else mistake.message


def _steps(value: Mapping[str, Any] | list[Any]) -> Collection[int | str]:
    return value.keys() if is_table(value) else range(len(value))


SERVER: Rules = {
    # of both kinds: a key of the other one has no effect, but is not unknown
    **rules_of(StdioServer),
    **rules_of(HttpServer),
    "transport": one_of("stdio", "http", "streamable-http", "sse"),
    "command": TwoWay(_read_command, program.write),
    "args": arguments,
    "env": env,
    "oauth": oauth(rules_of(OAuth, "oauth")),
    "policy": policy,
    "sandbox": TwoWay(_sandbox, lambda fields: fields.take("sandbox")),
}
GENERAL: Rules = {
    **rules_of(Settings),
    "access": members({**rules_of(AccessSettings, "access"), "rules": access_rules}),
    "environment": members({**rules_of(Environment, "environment"), "tools": _functions}),
    "naming": _naming,
    "policy": policy,
    "servers": nothing,
    "$schema": nothing,
}
SPELLING = Spelling(keys=SERVER, beside_file=True)


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
WRITING = WritingRules(
    keys={**pick(SERVER, *_FIRST), **SERVER},
    respell=as_is,
    container=within("servers"),
    suffix=".toml",
)
MULTITAP = Dialect(
    name="multitap",
    title="Multitap",
    read=read,
    matches=matches,
    writing=WRITING,
    files=("multitap.toml",),
)
