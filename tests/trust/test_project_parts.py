"""What a person is shown of a project's server before it is trusted."""

import pytest

from multitap.config.models import ServerHome, StdioServer
from multitap.trust.project_parts import server_part


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A container engine's client on the PATH, outside the project."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text("#!/bin/sh\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def lines_of(tmp_path, command, *args):
    project = tmp_path / "project"
    project.mkdir(exist_ok=True)
    config = StdioServer(command=command, args=args, provenance="project")
    config = config.at_home(ServerHome(paths=project, start=project))
    return server_part("s", config, project, project).lines


@pytest.mark.usefixtures("engine")
def test_a_container_that_gets_nothing_of_this_machine_is_shown_as_one(tmp_path):
    lines = lines_of(tmp_path, "docker", "run", "-i", "--rm", "example/server")

    assert any(line.startswith("level") and " container: " in line for line in lines)
    assert not any(line.startswith("warning") for line in lines)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("options", [["-v/:/h"], ["--mount", "type=bind,src=/,dst=/h"]])
def test_what_a_container_gets_of_this_machine_is_a_warning(tmp_path, options):
    lines = lines_of(tmp_path, "docker", "run", *options, "example/server")

    assert any(line.startswith("level") and " guard: " in line for line in lines)
    assert any(line.startswith("warning") for line in lines)


def test_a_program_of_the_project_is_no_engine_whatever_its_name(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "docker").write_text("#!/bin/sh\n")
    (project / "docker").chmod(0o755)

    lines = lines_of(tmp_path, "./docker", "run", "-i", "example/server")

    assert any(line.startswith("level") and " guard: " in line for line in lines)


def test_folders_among_the_arguments_are_shown_as_writable(tmp_path):
    data = tmp_path / "data"
    data.mkdir()

    lines = lines_of(tmp_path, "program", str(data), "${HOME}", f"-c{data}")

    assert [line.split()[-1] for line in lines if line.startswith("may write")] == [str(data)]
