"""Keeps a project trusted when the person who trusts it edits its files."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path

from multitap.config.trust_gate import TrustState
from multitap.trust.projects.project_review import ProjectReview, review
from multitap.trust.projects.trusted_projects import Projects


@contextmanager
def trusting_own_edits(
    added: Collection[str] = (), *, folders: Collection[Path] = ()
) -> Generator[None]:
    """Within the block, the user changes files with one of our commands.

    Trusted parts of a project stay trusted after the change; changed ones lose their granted
    secrets. Untrusted parts stay untrusted.

    Args:
        added: New servers in the project's file, which become trusted.
        folders: The folders of the files; by default, the current one.
    """
    projects = Projects()
    wanted = {*folders} or {Path.cwd()}
    before = {
        (project.root, one.part.key)
        for project in _projects(wanted, projects)
        for one in project.parts
        if one.standing is TrustState.TRUSTED
    }
    yield
    # a failed edit raises, and trust stays as it was
    if not before and not added:
        return
    for project in _projects(wanted, projects):
        accepted = [
            one
            for one in project.parts
            if (project.root, one.part.key) in before or one.part.name in added
        ]
        if any(one.standing is not TrustState.TRUSTED for one in accepted):
            projects.trust(project.root, [one.part for one in accepted])


def _projects(folders: Collection[Path], projects: Projects) -> list[ProjectReview]:
    found = (one for folder in folders if folder.is_dir() for one in review(folder, projects)[0])
    return [*{one.root: one for one in found}.values()]
