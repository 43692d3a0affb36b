"""What is shipped: the wheel, and the files for those who run it as a service."""

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from multitap.version import VERSION

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


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

    assert tops == {"multitap", f"multitap-{VERSION}.dist-info"}
    assert {"multitap/py.typed", "multitap/published/catalog.toml"} <= {*names}
    assert "multitap = multitap.cli:main" in entries
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert {"chat", "all"} <= {*metadata.get_all("Provides-Extra")}


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
def test_systemd_understands_the_unit(tmp_path):
    program = tmp_path / "multitap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (DEPLOY / "multitap.service").read_text()
    unit = tmp_path / "multitap.service"
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
    assert words.index("USER") < words.index("CMD")
    assert "--token-file" in command
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--" not in line]
    assert all((ROOT / name).exists() for names in copied for name in names)


def test_the_compose_file_builds_the_container_and_keeps_it_small():
    service = YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text())["services"]["multitap"]

    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
