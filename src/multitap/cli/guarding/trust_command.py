"""`multitap trust`: shows what a project would do, asks once, remembers the answer."""

import sys
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import click

from multitap.cli.configuration import problem_lines
from multitap.cli.exits import Exit
from multitap.cli.terminal.output import complain, note, say, say_json
from multitap.cli.terminal.tables import table
from multitap.config.problems import serious
from multitap.config.trust_gate import TrustState
from multitap.errors import UnknownName, counted
from multitap.records import dataclass
from multitap.trust.projects.project_parts import visible
from multitap.trust.projects.project_review import ProjectReview, review
from multitap.trust.projects.trusted_projects import Projects, TrustedParts

_WORDS = {TrustState.NEW: "new", TrustState.CHANGED: "changed", TrustState.TRUSTED: "trusted"}


@dataclass(frozen=True, slots=True)
class TrustAnswer:
    """The options of `trust`."""

    yes: bool = False
    granted: tuple[str, ...] = ()
    """Secrets to grant to servers that ask for them."""


def trust(
    path: Path,
    *,
    yes: bool,
    granted: tuple[str, ...],
    listing: bool,
    remove: bool,
    as_json: bool,
) -> int:
    """Show everything in a folder that is not trusted, and ask."""
    if listing and remove:
        raise click.UsageError("use either --list or --remove")
    if as_json and not listing:
        raise click.UsageError("--json goes with --list")
    if granted and not yes:
        raise click.UsageError("--grant goes with --yes")
    if listing:
        return list_trusted(as_json=as_json)
    return distrust(path) if remove else _review(path, TrustAnswer(yes=yes, granted=granted))


def _review(path: Path, answer: TrustAnswer) -> int:
    projects = Projects()
    folder = _folder(path)
    reviews, problems = review(folder, projects)
    problem_lines.show(serious(problems))
    if not reviews:
        note(f"{folder} has no configuration that needs to be trusted")
        return Exit.DONE
    _check_grants(answer.granted, reviews)
    outcomes = [_decided(projects, one, answer) for one in reviews]
    return Exit.DONE if all(outcomes) else Exit.FAILED


def list_trusted(*, as_json: bool) -> int:
    """List the trusted projects."""
    known = Projects().trusted()
    if as_json:
        say_json([_for_programs(root, parts) for root, parts in sorted(known.items())])
    elif not known:
        note("no project is trusted; `multitap trust` in its folder shows one and asks")
    else:
        rows = [
            (
                visible(str(root)),
                ", ".join(
                    sorted(visible(f"{part.kind} {part.name}".strip()) for part in parts.values())
                ),
                ", ".join(sorted({name for part in parts.values() for name in part.granted})),
                _date(parts) if root.is_dir() else "gone",
            )
            for root, parts in sorted(known.items())
        ]
        table(("PROJECT", "TRUSTED", "SECRETS", "SINCE"), rows)
    return Exit.DONE


def distrust(path: Path) -> int:
    """Withdraw the trust in a project."""
    projects = Projects()
    known = projects.trusted()
    here = path.expanduser().absolute().resolve()
    # also works in a folder below the project, like `multitap trust`
    root = next((one for one in (here, *here.parents) if one in known), here)
    projects.distrust(root)
    note(f"{root} is no longer trusted; running gateways stop its servers")
    return Exit.DONE


def _folder(path: Path) -> Path:
    folder = path.expanduser().absolute()
    if not folder.is_dir():
        raise UnknownName(f"{folder} is not a folder", hint="name the folder of a project")
    return folder


def _decided(projects: Projects, project: ProjectReview, answer: TrustAnswer) -> bool:
    if not project.news and not project.gone:
        note(f"{project.root} is already trusted in its current state")
        return True
    _show(project)
    granted = _ask(project, answer)
    if granted is None:
        # the audit log records every decision, also a refusal
        projects.refuse(project.root)
        note(f"{project.root} is not trusted; none of this is used")
        return False
    projects.trust(project.root, [one.part for one in project.parts], granted)
    note(f"trusted {project.root} as it is; if it changes, you are asked again")
    return True


def _ask(project: ProjectReview, answer: TrustAnswer) -> Collection[str] | None:
    """The secrets to grant; None if the user refuses."""
    if answer.yes:
        return answer.granted
    if not sys.stdin.isatty():
        complain("there is no terminal to ask at", "in a script, use `multitap trust --yes`")
        return None
    wanted = {name for one in project.news for name in one.wants}
    if not wanted:
        return () if click.confirm("Trust it?", default=False, err=True) else None
    text = "Trust it? [y]es, with the secrets; [w]ithout them; [N]o"
    said: str = click.prompt(text, default="n", show_default=False, err=True)
    match said.strip().lower():
        case "y" | "yes":
            return wanted
        case "w" | "without":
            return answer.granted
        case _:
            return None


def _show(project: ProjectReview) -> None:
    say(f"project {visible(str(project.root))}")
    for one in project.news:
        say(f"\n{one.part.title}: {_WORDS[one.standing]}")
        for line in one.lines():
            say(f"  {line}")
        for name in one.wants:
            say(f"    wants the secret {visible(name)}")
    for gone in project.gone:
        say(f"\n{visible(gone.key)}: no longer there")
    if known := len(project.parts) - len(project.news):
        say(f"\n{counted(known, 'other part')} of it: trusted and unchanged")
    say("")


def _check_grants(granted: Iterable[str], reviews: Sequence[ProjectReview]) -> None:
    wanted = {name for one in reviews for part in one.parts for name in part.part.wants}
    for name in granted:
        if name not in wanted:
            known = ", ".join(sorted(wanted)) or "none"
            raise UnknownName(f"nothing here wants the secret {name!r}", hint=f"wanted: {known}")


def _date(parts: TrustedParts) -> str:
    return time.strftime(
        "%Y-%m-%d", time.localtime(min((one.at for one in parts.values()), default=0))
    )


def _for_programs(root: Path, parts: TrustedParts) -> dict[str, object]:
    return {
        "project": str(root),
        "parts": [
            {
                "kind": part.kind,
                "name": part.name,
                "file": part.file,
                "digest": part.digest,
                "secrets": part.granted,
                "at": part.at,
            }
            for part in parts.values()
        ],
    }
