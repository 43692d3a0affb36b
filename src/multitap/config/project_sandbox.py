"""What a project's file may set for the sandbox and the limits of its servers."""

from collections.abc import Iterable
from pathlib import Path

from multitap.config.dialects.draft import Entry
from multitap.config.models import Limits, SandboxRules, ServerConfig, StdioServer
from multitap.config.problems import Problem, Severity
from multitap.config.project_bounds import leads_inside, objection

_HINT = "describe the server in your own configuration if it needs that"


def restrain(
    model: ServerConfig, entry: Entry, root: Path, folder: Path
) -> tuple[ServerConfig, tuple[Problem, ...]]:
    """The server restricted to what a project may allow: nothing outside its folder.

    Args:
        model: The server in the project's file.
        entry: Where it is written.
        root: The project's folder.
        folder: The current folder.
    """
    limits, problems = _within_usual(model.limits, entry)
    changes: dict[str, object] = {} if limits is model.limits else {"limits": limits}
    if isinstance(model, StdioServer):
        if model.sandbox == "off":
            changes["sandbox"] = "auto"
            message = "a project cannot switch the sandbox off"
            problems.append(_problem(entry, ("sandbox",), message))
        rules, refused = _restrain_rules(model.sandbox_rules, entry, root, folder)
        if refused:
            changes["sandbox_rules"] = rules
            problems += refused
    return (model.model_copy(update=changes) if changes else model), tuple(problems)


def _restrain_rules(
    rules: SandboxRules, entry: Entry, root: Path, folder: Path
) -> tuple[SandboxRules, list[Problem]]:
    usual, problems = SandboxRules(), list[Problem]()
    # A project may ask for less than usual, never for more.
    changes: dict[str, object] = {
        "processes": min(rules.processes, usual.processes),
        "memory": min(rules.memory, usual.memory),
    }
    for field in ("read", "write"):
        paths: tuple[Path, ...] = getattr(rules, field)
        # With folders expanded and links resolved, and again at each start with everything else.
        outside = [path for path in paths if objection(str(path), root, folder)]
        if outside:
            changes[field] = tuple(path for path in paths if path not in outside)
            message = f"a project cannot open what is outside its folder: {_list(outside)}"
            problems.append(_problem(entry, ("sandbox_rules", field), message))
    if inner := [host for host in rules.hosts if leads_inside(host)]:
        changes["hosts"] = tuple(host for host in rules.hosts if host not in inner)
        message = f"a project cannot open this machine or its own networks: {_list(inner)}"
        problems.append(_problem(entry, ("sandbox_rules", "hosts"), message))
    for field in ("processes", "memory"):
        if getattr(rules, field) > (most := getattr(usual, field)):
            message = f"a project's server may have at most {most:,}"
            problems.append(_problem(entry, ("sandbox_rules", field), message))
    return rules.model_copy(update=changes), problems


def _list(values: Iterable[object]) -> str:
    return ", ".join(f"`{value}`" for value in sorted(map(str, values)))


def _within_usual(limits: Limits, entry: Entry) -> tuple[Limits, list[Problem]]:
    """Limits that protect us from the server, which its own author can only lower."""
    usual, problems, lowered = Limits(), list[Problem](), dict[str, int]()
    for field in Limits.model_fields:
        most: int = getattr(usual, field)
        if getattr(limits, field) > most:
            lowered[field] = most
            message = f"a project's server may have at most {most:,}"
            problems.append(_problem(entry, ("limits", field), message))
    return (limits.model_copy(update=lowered) if lowered else limits), problems


def _problem(entry: Entry, path: tuple[str, ...], message: str) -> Problem:
    node = entry.fields.get(path, entry.node)
    return Problem(Severity.ERROR, message, node.key_place, node.dotted, entry.name, hint=_HINT)
