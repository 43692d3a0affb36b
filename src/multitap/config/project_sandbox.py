"""What a project's file may set for the sandbox and the limits of its servers."""

import os
from pathlib import Path

from multitap.config.dialects.draft import Entry
from multitap.config.models import HttpServer, Limits, SandboxRules, StdioServer
from multitap.config.problems import Problem, Severity

_HINT = "describe the server in your own configuration if it needs that"


def restrain(
    model: StdioServer | HttpServer, entry: Entry
) -> tuple[StdioServer | HttpServer, tuple[Problem, ...]]:
    """The server restricted to what a project may allow: nothing outside its folder.

    Args:
        model: The server in the project's file.
        entry: Where it is written.
    """
    limits, problems = _within_usual(model.limits, entry)
    changes: dict[str, object] = {} if limits is model.limits else {"limits": limits}
    if not isinstance(model, StdioServer):
        return (model.model_copy(update=changes) if changes else model), tuple(problems)
    if model.sandbox == "off":
        changes["sandbox"] = "auto"
        message = "a project cannot switch the sandbox off"
        problems.append(_problem(entry, ("sandbox",), message))
    rules = model.sandbox_rules
    usual = SandboxRules()
    kept = SandboxRules(
        read=_inside(rules.read, entry),
        write=_inside(rules.write, entry),
        hosts=rules.hosts,
        # A project may ask for less than usual, never for more.
        processes=min(rules.processes, usual.processes),
        memory=min(rules.memory, usual.memory),
        proc=rules.proc,
    )
    for field in ("read", "write"):
        if lost := [*{*getattr(rules, field)} - {*getattr(kept, field)}]:
            named = ", ".join(f"`{path}`" for path in sorted(lost))
            message = f"a project cannot open what is outside its folder: {named}"
            problems.append(_problem(entry, ("sandbox_rules", field), message))
            changes["sandbox_rules"] = kept
    for field in ("processes", "memory"):
        if getattr(rules, field) > (most := getattr(kept, field)):
            message = f"a project's server may have at most {most:,}"
            problems.append(_problem(entry, ("sandbox_rules", field), message))
            changes["sandbox_rules"] = kept
    return (model.model_copy(update=changes) if changes else model), tuple(problems)


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


def _inside(paths: tuple[Path, ...], entry: Entry) -> tuple[Path, ...]:
    folder = os.path.realpath(entry.node.document.path.parent)
    return tuple(path for path in paths if _is_inside(str(path), folder))


def _is_inside(path: str, folder: str) -> bool:
    if path.startswith(("~", "$")):  # its value is not under our control
        return False
    # A link in the repository may lead to anywhere.
    real = os.path.realpath(path)
    return real == folder or real.startswith(f"{folder}/")


def _problem(entry: Entry, path: tuple[str, ...], message: str) -> Problem:
    node = entry.fields.get(path, entry.node)
    return Problem(Severity.ERROR, message, node.key_place, node.dotted, entry.name, hint=_HINT)
