"""`multitap trust`: shows what a project would do, asks once, remembers the answer."""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import click
import msgspec

from multitap.cli import configuration
from multitap.cli.options import FILE, json_option
from multitap.cli.terminal import Exit, complain, note, say, say_json, table
from multitap.config import Loaded
from multitap.config.problems import serious
from multitap.errors import UnknownName
from multitap.trust.project_parts import visible
from multitap.trust.project_review import ProjectReview, review
from multitap.trust.projects import Projects, TrustedParts

_FOLLOWS = (
    "Following it: later changes of its code and of these entries are trusted without a question.",
    "You are still asked about a lower level of confinement, new servers, rules, hosts, variables,",
    "secrets or folders to write to, and about another program or one outside the project.",
    "A confined server may write in the project, so it can make such changes itself.",
)


class TrustAnswer(msgspec.Struct, frozen=True):
    """The options of `trust`."""

    yes: bool = False
    granted: tuple[str, ...] = ()
    """Secrets to grant to servers that ask for them."""
    follow: bool | None = False
    """Whether to trust future changes, too; None leaves that as it is."""


@click.command()
@click.argument("path", type=FILE, default=Path())
@click.option("-y", "--yes", is_flag=True, help="Do not ask (for CI)")
@click.option(
    "--grant",
    "granted",
    multiple=True,
    metavar="NAME",
    help="With --yes, also let the project's servers use this secret (repeatable)",
)
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Also trust later changes of its code and entries; --no-follow ends that",
)
@click.option("--list", "listing", is_flag=True, help="List the trusted projects")
@click.option("--remove", is_flag=True, help="Stop trusting the project")
@json_option
def trust(
    path: Path,
    *,
    yes: bool,
    granted: tuple[str, ...],
    follow: bool | None,
    listing: bool,
    remove: bool,
    as_json: bool,
) -> int:
    """Review what the project in PATH would run and send, and trust it

    Nothing of a project is used before that. Your answer applies to the content that is shown: when
    it changes, you are asked again, unless you --follow a project of your own. Files that you name
    with --config need no trust.
    """
    if listing and remove:
        raise click.UsageError("use either --list or --remove")
    if as_json and not listing:
        raise click.UsageError("--json goes with --list")
    if granted and not yes:
        raise click.UsageError("--grant goes with --yes")
    if follow is not None and (listing or remove):
        raise click.UsageError("--follow and --no-follow are for trusting")
    if listing:
        return list_trusted(as_json=as_json)
    return distrust(path) if remove else _review(path, yes, granted, follow)


def ask_in_place(loaded: Loaded) -> bool:
    """Show what a command would use if it were trusted, and ask; returns whether anything was.

    A person who has seen it as it is and said no is not asked again.

    Raises:
        ProjectsError: The record of trusted projects cannot be used.
    """
    projects = Projects()
    roots = {part.root for part in loaded.pending}
    reviews, _ = review(loaded.search.folder, projects)
    trusted = False
    for project in reviews:
        parts = [reviewed.part for reviewed in project.news]
        if project.root in roots and not projects.has_refused(project.root, parts):
            trusted |= _decide(projects, project, TrustAnswer(follow=None), note)
    return trusted


def _review(path: Path, yes: bool, granted: tuple[str, ...], follow: bool | None) -> int:  # noqa: FBT001 - as they are typed
    projects = Projects()
    folder = _folder(path)
    reviews, problems = review(folder, projects)
    configuration.show_problems(serious(problems))
    if not reviews:
        note(f"{folder} has no configuration that needs to be trusted")
        return Exit.DONE
    _check_grants(granted, reviews)
    outcomes = [
        _trust_project(projects, project, TrustAnswer(yes, granted, follow)) for project in reviews
    ]
    return Exit.DONE if all(outcomes) else Exit.FAILED


def _trust_project(projects: Projects, project: ProjectReview, answer: TrustAnswer) -> bool:
    """Trust one project as the options say; returns whether it is trusted now."""
    if project.followed and answer.follow is False:
        projects.unfollow(project.root)
        note(f"{project.root} is no longer followed")
        project = project.unfollow()
    if project.news and project.followed and not answer.follow:
        note("it is no longer followed if you trust it without `--follow`")
        project = project.unfollow()
    if not project.news and not project.gone and (project.followed or not answer.follow):
        note(f"{project.root} is already trusted {_how(followed=project.followed)}")
        return True
    if _decide(projects, project, msgspec.structs.replace(answer, follow=bool(answer.follow)), say):
        return True
    note(f"{project.root} is not trusted; none of this is used")
    return False


def list_trusted(*, as_json: bool) -> int:
    """List the trusted projects."""
    projects = Projects()
    trusted = projects.trusted()
    if as_json:
        say_json(
            [
                _for_programs(root, parts, followed=projects.follows(root))
                for root, parts in sorted(trusted.items())
            ]
        )
    elif not trusted:
        note("no project is trusted; `multitap trust` in its folder shows one and asks")
    else:
        rows = [
            (
                # the authors of the project chose these names
                visible(str(root)),
                ", ".join(
                    sorted(visible(f"{part.kind} {part.name}".strip()) for part in parts.values())
                ),
                ", ".join(sorted({name for part in parts.values() for name in part.granted})),
                "followed" if projects.follows(root) else "ask",
                _date(parts) if root.is_dir() else "gone",
            )
            for root, parts in sorted(trusted.items())
        ]
        table(("PROJECT", "TRUSTED", "SECRETS", "CHANGES", "SINCE"), rows)
    return Exit.DONE


def distrust(path: Path) -> int:
    """Withdraw the trust in a project."""
    projects = Projects()
    trusted = projects.trusted()
    here = path.expanduser().absolute().resolve()
    # also works in a folder below the project, like `multitap trust`
    root = next((folder for folder in (here, *here.parents) if folder in trusted), None)
    if root is None:
        raise UnknownName(
            f"{here} is not trusted", hint="`multitap trust --list` lists the trusted projects"
        )
    projects.distrust(root)
    note(f"{root} is no longer trusted; running gateways stop its servers")
    return Exit.DONE


def _folder(path: Path) -> Path:
    folder = path.expanduser().absolute()
    if not folder.is_dir():
        raise UnknownName(f"{folder} is not a folder", hint="name the folder of a project")
    return folder


def _decide(
    projects: Projects, project: ProjectReview, answer: TrustAnswer, write: Callable[[str], None]
) -> bool:
    """Show a project and ask; returns whether it is trusted now."""
    for line in project.lines():
        write(line)
    if answer.follow:
        for line in ("", *_FOLLOWS):
            write(line)
    write("")
    granted = _ask(project, answer)
    if granted is None:
        # the audit log records every decision, also a refusal
        parts_ = [reviewed.part for reviewed in project.news]
        # without a terminal nobody has seen it, so the next command at one asks again
        projects.refuse(project.root, parts_ if sys.stdin.isatty() else ())
        return False
    parts = [reviewed.part for reviewed in project.parts]
    projects.trust(project.root, parts, granted, follow=answer.follow)
    followed = project.followed if answer.follow is None else answer.follow
    note(f"trusted {project.root} {_how(followed=followed)}")
    return True


def _how(*, followed: bool) -> str:
    if followed:
        return "with its future changes; `multitap trust --no-follow` ends that"
    return "as it is; if it changes, you are asked again"


def _ask(project: ProjectReview, answer: TrustAnswer) -> Collection[str] | None:
    """The secrets to grant; None if the user refuses."""
    if answer.yes:
        return answer.granted
    if not sys.stdin.isatty():
        complain("there is no terminal to ask at", "in a script, use `multitap trust --yes`")
        return None
    secrets = {name for reviewed in project.news for name in reviewed.wants}
    if not secrets:
        return () if click.confirm("Trust it?", default=False, err=True) else None
    text = "Trust it? [y]es, with the secrets; [w]ithout them; [N]o"
    typed: str = click.prompt(text, default="n", show_default=False, err=True)
    match typed.strip().lower():
        case "y" | "yes":
            return secrets
        case "w" | "without":
            return answer.granted
        case _:
            return None


def _check_grants(granted: Iterable[str], reviews: Sequence[ProjectReview]) -> None:
    secrets = {
        name for project in reviews for reviewed in project.parts for name in reviewed.part.wants
    }
    for name in granted:
        if name not in secrets:
            names = ", ".join(sorted(secrets)) or "none"
            raise UnknownName(f"nothing here wants the secret {name!r}", hint=f"wanted: {names}")


def _date(parts: TrustedParts) -> str:
    return time.strftime(
        "%Y-%m-%d", time.localtime(min((part.at for part in parts.values()), default=0))
    )


def _for_programs(root: Path, parts: TrustedParts, *, followed: bool) -> dict[str, object]:
    return {
        "project": str(root),
        "followed": followed,
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
