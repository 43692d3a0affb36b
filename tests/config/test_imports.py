import subprocess
import sys
from pathlib import Path

import multitap.config
from tests.waiting import PATIENCE

HEAVY = ("mcp", "mcp_types", "ruamel", "watchfiles", "pydantic", "anyio", "tomllib", "platformdirs")


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return set(done.stdout.split())


def test_the_package_itself_loads_nothing():
    assert not modules_after("import multitap.config") & set(HEAVY)


def test_loading_a_configuration_loads_neither_the_sdk_nor_yaml_nor_a_watcher():
    loaded = modules_after("from multitap.config import load, Search; load(Search(()))")

    assert not loaded & {"mcp", "mcp_types", "ruamel.yaml", "watchfiles", "anyio"}


def test_every_public_name_is_where_the_table_says():
    for name in multitap.config.__all__:
        assert getattr(multitap.config, name) is not None


def test_no_public_name_is_hidden_by_a_module():
    modules = {path.stem for path in Path(multitap.config.__file__).parent.iterdir()}

    assert not modules & {*multitap.config.__all__}


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(multitap.config, "nonsense")
