"""An ordinary user of this machine, who has none of root's powers."""

import os
import pwd
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
SEARCH = os.pathsep.join((str(REPOSITORY / "src"), *(path for path in sys.path if path)))
"""Where that user's interpreter finds our packages."""


def as_user(user):
    """How `subprocess` starts a program of a user."""
    return {
        "user": user.pw_uid,
        "group": user.pw_gid,
        "extra_groups": [],
        "cwd": REPOSITORY,
        "env": {"PATH": os.defpath, "PYTHONPATH": SEARCH, "PYTHONDONTWRITEBYTECODE": "1"},
    }


@cache
def ordinary_python():
    """An interpreter that `nobody` may run, with our packages."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            check = subprocess.run(
                [python, "-c", "import anyio, multitap, tests.attacks.sandbox_world"],
                **as_user(pwd.getpwnam("nobody")),
                capture_output=True,
                check=False,
            )
        except PermissionError:
            continue
        if check.returncode == 0:
            return python
    pytest.skip("no interpreter here that another user may run")
