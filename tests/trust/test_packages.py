"""Which package a command line starts."""

import pytest

from multitap.trust.packages import LaunchedPackage, _of_pypi, launch_of, resolve


@pytest.mark.parametrize(
    ("line", "launch", "is_exact"),
    [
        ("npx -y @scope/pkg@1.2.3 /data", LaunchedPackage("npm", "@scope/pkg", "1.2.3"), True),
        ("npx -y @scope/pkg", LaunchedPackage("npm", "@scope/pkg", ""), False),
        ("npx --yes pkg@latest", LaunchedPackage("npm", "pkg", "latest"), False),
        ("npx pkg@^1.0.0", LaunchedPackage("npm", "pkg", "^1.0.0"), False),
        ("/usr/bin/npx -p pkg@1.0.0 other --flag", LaunchedPackage("npm", "pkg", "1.0.0"), True),
        ("npx --package=pkg -- other", LaunchedPackage("npm", "pkg", ""), False),
        ("npm exec pkg@2.0.0-beta.1", LaunchedPackage("npm", "pkg", "2.0.0-beta.1"), True),
        ("uvx mcp-server-time", LaunchedPackage("pypi", "mcp-server-time", ""), False),
        (
            "uvx mcp-server-time@2.1.0 --tz UTC",
            LaunchedPackage("pypi", "mcp-server-time", "2.1.0"),
            True,
        ),
        (
            "uvx --python 3.12 --from pkg[all]==1.0 tool",
            LaunchedPackage("pypi", "pkg", "1.0"),
            True,
        ),
        ("uv tool run pkg>=1", LaunchedPackage("pypi", "pkg", ""), False),
        (
            "docker run -i --rm -e TOKEN ghcr.io/a/b",
            LaunchedPackage("docker", "ghcr.io/a/b", ""),
            False,
        ),
        (
            "docker run -i --rm localhost:5000/b:1.2",
            LaunchedPackage("docker", "localhost:5000/b", "1.2"),
            False,
        ),
        ("docker run -i a/b@sha256:00ff", LaunchedPackage("docker", "a/b", "sha256:00ff"), True),
    ],
)
def test_a_package_is_read_from_the_command_line_of_its_launcher(line, launch, is_exact):
    command, *args = line.split()

    assert launch_of(command, args) == launch
    assert launch_of(command, args).is_exact is is_exact


@pytest.mark.parametrize("line", ["python server.py", "npx ./local", "node npx", "uvx", "npx -y"])
def test_what_starts_no_package_has_none(line):
    command, *args = line.split()

    assert launch_of(command, args) is None


def test_what_cannot_be_found_out_is_unknown():
    package = resolve(LaunchedPackage("npm", "pkg", ""), None)

    assert (package.name, package.version, package.integrity) == ("pkg", "unknown", "unknown")


def test_the_digest_of_a_python_package_does_not_depend_on_where_it_is_installed(tmp_path):
    found = []
    for place in ("one", "two"):
        folder = tmp_path / place / "lib/python3.12/site-packages/my_pkg-1.2.dist-info"
        folder.mkdir(parents=True)
        record = [f"../../../bin/tool,sha256={place},10", "my_pkg/a.py,sha256=x,1"]
        (folder / "RECORD").write_text("\n".join([*record, f"{folder.name}/INSTALLER,,{place}"]))
        found.append(_of_pypi(tmp_path / place, "My.Pkg"))

    assert found[0] == found[1]
    assert found[0].version == "1.2"
    assert found[0].integrity.startswith("sha256:")
