"""What is shipped: the wheel."""

import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from multitap.version import VERSION

ROOT = Path(__file__).parent.parent


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
    assert {*metadata.get_all("Provides-Extra")} == {
        "chat",
        "code",
        "embed",
        "jq",
        "otel",
        "redis",
        "tui",
        "all",
    }


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
