"""What a container would get of this machine, by the command line of its engine."""

import shlex

import pytest

from multitap.config import StdioServer
from multitap.config.models import ServerHome
from multitap.files import bundles_folder
from multitap.sandbox.containers import is_real_client, objections, parse_container_run
from multitap.sandbox.levels import decide


def judge(line, workspace=None, env=()):
    return objections(parse_container_run(shlex.split(line)), workspace, env)


@pytest.mark.parametrize(
    "line",
    [
        "docker run image",
        "docker run -i --rm image",
        "docker run -it --rm -e KEY -eOTHER=1 --env=THIRD ghcr.io/x/y:1 --privileged -v /:/h",
        "docker --debug -l info container run --init image",
        "podman run -i --rm --network=none --read-only --cap-drop ALL image",
        "nerdctl run --net bridge --security-opt no-new-privileges image",
        "docker run -v data:/data --mount type=volume,src=data,dst=/x image",
        "docker run --mount type=tmpfs,dst=/x --tmpfs /y -v /only/inside image",
        "docker run --privileged=false -i -- image --device x",
        "docker run -w /x -u 1000 -m 1g -p 127.0.0.1:80:80 --name a image",
    ],
)
def test_a_closed_container_gets_nothing(line):
    run = parse_container_run(shlex.split(line))

    assert run.image in {"image", "ghcr.io/x/y:1"}
    assert judge(line) == ()


@pytest.mark.parametrize(
    ("options", "objection"),
    [
        ("-v/:/h", "it may use / of this machine"),
        ("-v /:/h", "it may use / of this machine"),
        ("-v=/:/h", "it may use / of this machine"),
        ("-itv/:/h", "it may use / of this machine"),
        ("-itv /etc:/h:ro", "it may use /etc of this machine"),
        ("--volume=/:/h", "it may use / of this machine"),
        ("--volume /etc/../:/h", "it may use / of this machine"),
        ("-v ../..:/h", "of this machine"),
        ("--mount type=bind,src=/,dst=/h", "it may use / of this machine"),
        ("--mount source=/etc,type=bind,target=/h", "it may use /etc of this machine"),
        ("--mount=TYPE=bind,Source=/,dst=/h", "it may use / of this machine"),
        ("--mount type=bind,src=.,src=/,dst=/h", "is not understood"),
        ("--mount 'type=bind,\"src=/\",dst=/h'", "is not understood"),
        ("--mount type=volume,dst=/h,volume-opt=device=/,volume-opt=o=bind", "not understood"),
        ("--mount type=image,src=x,dst=/h", "is not understood"),
        ("-v /var/run/docker.sock:/s", "docker.sock of this machine"),
        ("--volumes-from other", "the volumes of the container other"),
        ("--volume-driver evil", "its volumes come from evil"),
        ("--net=host", "shares a namespace"),
        ("--network host", "shares a namespace"),
        ("--network container:x", "shares a namespace"),
        ("--network slirp4netns:allow_host_loopback=true", "shares a namespace"),
        ("--network=pasta:-T,auto", "shares a namespace"),
        ("--pid=host", "shares a namespace"),
        ("--ipc host", "shares a namespace"),
        ("--uts=host", "shares a namespace"),
        ("--userns=host", "shares a namespace"),
        ("--cgroupns=host", "shares a namespace"),
        ("--privileged", "all rights of this machine"),
        ("--privileged=true", "all rights of this machine"),
        ("--cap-add SYS_ADMIN", "the privilege SYS_ADMIN"),
        ("--device=/dev/sda", "the device /dev/sda"),
        ("--gpus all", "graphics card"),
        ("--security-opt seccomp=unconfined", "changes how it is confined"),
        ("--env-file ~/.env", "variables in the file"),
        ("--cidfile /tmp/x", "it writes the file"),
        ("--use-api-socket", "controls the container engine"),
        ("--runtime evil", "it runs under evil"),
        ("--rootfs", "instead of an image"),
        ("--some-new-option x", "`--some-new-option` is not understood"),
        ("-Z", "`-Z` is not understood"),
        ("-iZ", "`-iZ` is not understood"),
    ],
)
def test_what_opens_this_machine_is_an_objection(options, objection, tmp_path):
    reasons = judge(f"docker run {options} image", tmp_path)

    assert any(objection in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("line", "objection"),
    [
        ("docker -H tcp://evil:1 run image", "`-H tcp://evil:1` chooses another engine"),
        ("docker --context=x run image", "another engine"),
        ("docker --config ./x run image", "another engine"),
        ("docker --odd run image", "`--odd` is not understood"),
        ("docker compose up", "`compose` is not `run`"),
        ("docker exec -i x sh", "`exec` is not `run`"),
        ("docker", "not `run`"),
        ("docker run -i", "it names no image"),
    ],
)
def test_everything_else_that_an_engine_does_is_an_objection(line, objection):
    assert any(objection in reason for reason in judge(line))


def test_the_workspace_is_the_container_s(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "out").symlink_to("/")

    assert judge("docker run -v .:/w -v ./sub:/s image", tmp_path) == ()
    assert judge(f"docker run -v {tmp_path}:/w image", tmp_path) == ()
    assert judge("docker run -v ./out:/w image", tmp_path) == ("it may use / of this machine",)
    assert judge(f"docker run -v {tmp_path}-other:/w image", tmp_path)
    assert judge(f"docker run -v {tmp_path}:/w image")


@pytest.mark.parametrize("name", ["DOCKER_HOST", "DOCKER_CONFIG", "LD_PRELOAD", "PATH", "HOME"])
def test_variables_that_steer_the_client_are_objections(name):
    assert judge("docker run image", env=[name]) == (f"the variable {name} steers its client",)
    assert judge("docker run -e KEY image", env=["KEY"]) == ()


def test_other_programs_are_no_engines():
    assert parse_container_run(["npx", "run", "image"]) is None
    assert parse_container_run([]) is None


@pytest.fixture
def engine(tmp_path):
    """A client of a container engine that is installed on this machine."""
    path = tmp_path / "bin" / "docker"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def level(project, program, *args, **more):
    config = StdioServer(command=str(program), args=args, provenance="project", **more)
    return decide(
        config.at_home(ServerHome(paths=project, start=project)), None, program=str(program)
    ).level


def test_a_closed_container_has_a_level_of_its_own(engine, project):
    assert level(project, engine, "run", "-i", "--rm", "image") == "container"
    assert level(project, engine, "run", "-v", ".:/w", "image") == "container"


def test_an_open_container_is_confined_like_any_other_program(engine, project):
    assert level(project, engine, "run", "-v", "/:/h", "image") == "guard"
    assert level(project, engine, "compose", "up") == "guard"
    assert level(project, engine, "run", "image", env={"DOCKER_HOST": "tcp://evil"}) == "guard"
    assert level(project, engine, "run", "image", sandbox="strict") == "strict"


def test_nobody_s_own_docker_is_the_engine(engine, project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    own = project / "docker"
    own.write_bytes(engine.read_bytes())
    own.chmod(0o755)
    link = tmp_path / "docker"
    link.symlink_to(own)
    renamed = tmp_path / "bin" / "evil"
    renamed.write_bytes(engine.read_bytes())
    renamed.chmod(0o755)
    alias = tmp_path / "bin" / "podman"
    alias.symlink_to(renamed)

    for program in (own, link, renamed, alias):
        assert level(project, program, "run", "image") == "guard"
    assert not is_real_client(str(tmp_path / "nothing" / "docker"), [])


def test_a_workspace_around_the_home_folder_is_not_one(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "a" / "home"))
    (tmp_path / "a" / "home").mkdir(parents=True)

    assert level(tmp_path / "a", engine, "run", "-v", ".:/w", "image") == "guard"


def test_a_bundle_s_own_docker_is_not_the_engine(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    own = bundles_folder() / ("0" * 64) / "docker"
    own.parent.mkdir(parents=True)
    own.write_bytes(engine.read_bytes())
    own.chmod(0o755)

    def level_of(program, **more):
        config = StdioServer(command=str(program), args=["run", "image"], **more)
        return decide(config, None, program=str(program)).level

    assert level_of(own, provenance="bundle") == "guard"
    assert level_of(engine, provenance="bundle") == "container"
    assert level_of(engine) == "off"
