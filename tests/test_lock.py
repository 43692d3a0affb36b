import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(requirement):
    return re.sub(r"[-_.]+", "-", NAME.match(requirement)[0]).lower()


@pytest.mark.parametrize("group", ["dev", "docs"])
def test_every_dependency_is_locked(group):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["dependency-groups"][group]]
    if group == "dev":
        wanted += project["project"]["dependencies"]
    lines = (ROOT / "requirements" / f"{group}.txt").read_text().splitlines()
    locked = {normal(line) for line in lines if "==" in line}

    missing = {normal(requirement) for requirement in wanted} - locked

    assert not missing, "run `make lock`"
