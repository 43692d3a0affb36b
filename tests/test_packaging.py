"""What is shipped: the wheel, and the files for those who run it as a service."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import urllib.error
import urllib.request
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from multitap.cli.app import COMMANDS
from multitap.version import VERSION

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PYTHON = sys.executable


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_what_it_takes_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = archive.read(f"multitap-{VERSION}.dist-info/METADATA").decode()
        entries = archive.read(f"multitap-{VERSION}.dist-info/entry_points.txt").decode()
    tops = {name.partition("/")[0] for name in names}
    metadata = Parser().parsestr(about)

    assert tops == {"multitap", "_multitap.py", f"multitap-{VERSION}.dist-info"}
    assert {"multitap/py.typed", "multitap/published/catalog.toml"} <= {*names}
    assert "multitap = _multitap:main" in entries
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert {*metadata.get_all("Provides-Extra")} == {"chat", "code", "otel", "redis", "tui", "all"}


def test_an_extra_for_all_is_all():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    named = {one.partition("[")[2].rstrip("]") for one in extras["all"]}
    assert {part for one in named for part in one.split(",")} == {*extras} - {"all"}


def test_the_wheel_runs_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    place = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    # its dependencies come from here: a machine without a network has no others
    (place / "here.pth").write_text(sysconfig.get_path("purelib"))
    python = tmp_path / "venv" / "bin" / "python"

    ran = subprocess.run(
        [python, "-I", "-c", "import multitap; print(multitap.__file__)"],
        check=True,
        capture_output=True,
        text=True,
    )
    version = subprocess.check_output([python, "-I", "-m", "multitap", "--version"], text=True)

    assert ran.stdout.startswith(str(tmp_path))
    assert version == f"multitap {VERSION}\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
@pytest.mark.parametrize("name", ["multitap.service", "multitap@.service"])
def test_systemd_understands_the_unit(tmp_path, name):
    program = tmp_path / "multitap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (DEPLOY / name).read_text()
    unit = tmp_path / name.replace("@", "@3001")
    unit.write_text(text.replace("%h/.local/bin/multitap", str(program)))

    checked = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", unit],
        check=False,
        capture_output=True,
        text=True,
    )

    assert checked.returncode == 0, checked.stderr
    assert str(unit.name) not in checked.stderr


def test_the_container_runs_without_root_and_asks_for_a_token():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    words = [line.split(maxsplit=1)[0] for line in lines if line[:1].isupper()]
    command = next(line for line in lines if line.startswith("CMD"))

    assert words[0] == "FROM"
    assert {*words} <= DOCKERFILE_WORDS
    assert words.index("USER") < words.index("CMD")
    assert "--token-file" in command
    assert all((ROOT / name).exists() for name in _copied(lines))


DOCKERFILE_WORDS = {
    *("FROM", "WORKDIR", "COPY", "RUN", "ARG", "ENV", "USER", "VOLUME", "EXPOSE"),
    *("ENTRYPOINT", "CMD", "HEALTHCHECK"),
}


def _copied(lines):
    """What a Dockerfile takes from the repository."""
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    return [name for names in copies for name in names if not names[0].startswith("--from")]


@pytest.mark.wide
@pytest.mark.network
@pytest.mark.timeout(600)
def test_what_the_container_is_made_of_installs_and_serves(tmp_path):
    """The commands of the Dockerfile, in an empty folder that has only what it copies."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    source, target = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    for name in _copied(lines):
        place = source / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    (install,) = [line.removeprefix("RUN ") for line in lines if "pip install" in line]
    install = install.replace("/opt/multitap", str(target)).replace("python -m", f"{PYTHON} -m")
    subprocess.run(install, shell=True, cwd=source, check=True, capture_output=True)
    shutil.rmtree(source)  # it is in the first stage only
    (tmp_path / "multitap.toml").write_text("[servers]\n")
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("me=" + "t0ken" * 8 + "\n")
    tokens.chmod(0o600)
    (command,) = [json.loads(line[4:]) for line in lines if line.startswith("CMD")]
    command = [word.replace("/run/secrets/multitap-tokens", str(tokens)) for word in command]
    command = [word.replace("0.0.0.0:3000", "0.0.0.0:0") for word in command]
    env = {
        "PATH": f"{target / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "MULTITAP_CONFIG": str(tmp_path / "multitap.toml"),
    }

    with subprocess.Popen(
        [target / "bin" / "multitap", *command], env=env, stderr=subprocess.PIPE, text=True
    ) as serving:
        try:
            said = next(line for line in serving.stderr if "http://" in line)
            port = re.search(r":(\d+)/mcp", said)[1]
            refused = _status(f"http://127.0.0.1:{port}/mcp")
            healthy = subprocess.run(
                [target / "bin" / "multitap", "stats", "--json"],
                env=env,
                check=False,
                capture_output=True,
            )
        finally:
            serving.terminate()

    assert refused == 401
    assert healthy.returncode == 0, healthy.stderr
    assert serving.returncode == 0


def _status(url):
    request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as exc:
        return exc.code


def test_the_compose_file_builds_the_container_and_keeps_it_small():
    content = YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text())
    service = content["services"]["multitap"]

    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert {*service["secrets"]} == {*content["secrets"]}
    named = {volume.partition(":")[0] for volume in service["volumes"]}
    assert {name for name in named if not name.startswith(".")} == {*content["volumes"]}


def test_every_command_of_the_unit_is_one_of_ours():
    lines = (DEPLOY / "multitap.service").read_text().splitlines()
    run = [line.partition("=")[2].split()[1] for line in lines if line.startswith("Exec")]

    assert {*run} == {"serve", "reload"}
    assert {*run} <= {*COMMANDS}
