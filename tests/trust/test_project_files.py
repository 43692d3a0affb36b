"""Which changes of a project's files are noticed."""

import json
import os

import pytest

from multitap.config import StdioServer
from multitap.config.projects import TrustState
from multitap.trust import project_files
from multitap.trust.project_files import SourceWalk, digest_sources, of_server
from multitap.trust.project_review import review
from multitap.trust.projects import Projects, load_trusted
from tests.trusting import trust


@pytest.fixture
def project(own_project):
    return own_project


NODE = ("package.json", "package-lock.json", "npm-shrinkwrap.json", ".npmrc")
YARN = ("yarn.lock", ".yarnrc", ".yarnrc.yml", ".pnp.cjs", ".pnp.loader.mjs")
PNPM = ("pnpm-lock.yaml", "pnpm-workspace.yaml", ".pnpmfile.cjs")
PYTHON = ("pyproject.toml", "uv.lock", "uv.toml", ".python-version")
WAYS = {
    "npx -y server": (*NODE, *YARN, *PNPM, "node_modules/.bin/server", "node_modules/server/x.js"),
    "npm exec server": (*NODE, "node_modules/server/x.js"),
    "npm start": (*NODE, "src/a.js", "lib/b.ts", "node_modules/x/index.js"),
    "npm run --prefix sub start": ("sub/package.json", "sub/a.js"),
    "pnpm start": (*NODE, *PNPM, "a.mjs", "node_modules/x/index.js"),
    "pnpm dlx server": (*NODE, *PNPM),
    "yarn server": (
        "package.json",
        *YARN,
        ".yarn/releases/yarn.cjs",
        ".yarn/plugins/x.cjs",
        "a.js",
    ),
    "yarn dlx server": ("package.json", *YARN),
    "bunx server": ("package.json", "bunfig.toml", "bun.lock", "bun.lockb", ".env"),
    "bun run server.ts": ("server.ts", "lib/a.ts", "bunfig.toml", "tsconfig.json", ".env"),
    "node server.js": ("server.js", "lib/a.js", "package.json", "node_modules/x/a.js", "x.node"),
    "node sub/server.js": ("sub/lib/a.js", "node_modules/x/a.js"),
    "deno run server.ts": ("server.ts", "lib/a.ts", "deno.json", "deno.jsonc", "import_map.json"),
    "tsx src/server.ts": ("src/server.ts", "src/a.ts", "tsconfig.json"),
    "uvx server": PYTHON,
    "uvx --from . server": (*PYTHON, "src/a.py"),
    "uv run server": (*PYTHON, "src/a.py", "conf/x.toml"),
    "uv run server.py": ("server.py", "a.py", "uv.lock"),
    "poetry run server": ("pyproject.toml", "poetry.lock", "src/a.py"),
    "pdm run server": ("pyproject.toml", "pdm.lock", "src/a.py"),
    "pipenv run server": ("Pipfile", "Pipfile.lock", "a.py"),
    "pipx run --spec ./tool server": ("tool/a.py",),
    "python server.py": ("server.py", "a.py", "package/__init__.py", "package/a.so"),
    "python -m package.module": ("package/module.py", "package/__init__.py", "other.py"),
    "python -c import,a": ("a.py",),
    ".venv/bin/python server.py": (
        *(".venv/pyvenv.cfg", ".venv/lib/python3.11/site-packages/a.pth", "server.py"),
        ".venv/lib/python3.11/site-packages/a/b.py",
    ),
    ".venv/bin/server": (".venv/bin/server", ".venv/lib/python3.11/site-packages/a.py", "a.py"),
    "go run .": ("go.mod", "go.sum", "go.work", "main.go", "internal/a.go"),
    "cargo run": (
        *("Cargo.toml", "Cargo.lock", "build.rs", "src/main.rs", ".cargo/config.toml"),
        "rust-toolchain",
    ),
    "docker compose up": (
        *("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml", ".env"),
        *("compose.override.yaml", "docker-compose.override.yml", "Dockerfile", "a.py"),
    ),
    "docker run -v ./src:/app image": ("src/a.py",),
    "docker build .": ("Dockerfile", "Containerfile", "entry.sh"),
    "make serve": ("Makefile", "GNUmakefile", "rules.mk", "a.c"),
    "just serve": ("justfile", ".justfile", "a.sh"),
    "task serve": ("Taskfile.yml", "a.sh"),
    "gradle run": ("build.gradle", "settings.gradle.kts", "gradle.properties", "src/A.java"),
    "./gradlew run": ("gradlew", "gradle/wrapper/gradle-wrapper.jar", "src/A.kt"),
    "mvn exec:java": ("pom.xml", ".mvn/jvm.config", ".mvn/maven.config", "src/A.java"),
    "dotnet run": ("a.csproj", "Directory.Build.props", "Program.cs"),
    "ruby server.rb": ("server.rb", "lib/a.rb", "Gemfile", "Gemfile.lock"),
    "bundle exec server": ("Gemfile", "Gemfile.lock", "a.rb"),
    "php server.php": ("server.php", "vendor/autoload.php", "composer.json", "composer.lock"),
    "perl server.pl": ("server.pl", "lib/A.pm"),
    "java -jar server.jar": ("server.jar", "lib/a.jar"),
    "sh -c true&&./x.sh": ("x.sh", "lib.sh"),
    "bash -lc ./x.sh;./y": ("x.sh", "y"),
    "bash run.sh": ("run.sh", "lib/a.sh", "a.py"),
    "env A=1 ./x": ("x", "a.py"),
    "direnv exec . server": (".envrc",),
    "mise exec server": ("mise.toml", ".tool-versions"),
    "some-program": ("a.py", "bin/x.sh"),
}


def put(project, name, text):
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if name.endswith((".sh", "gradlew")) or "." not in path.name:
        path.chmod(0o755)


def write(project, line):
    command, *args = line.split()
    (project / "multitap.toml").write_text(
        f"[servers.a]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
    )


def standing():
    return {one.name: one.standing for one in load_trusted().pending}


def test_there_are_more_ways_than_anybody_remembers():
    assert len(WAYS) > 38


@pytest.mark.parametrize("line", WAYS)
def test_a_change_after_trust_asks_again(project, line):
    for name in WAYS[line]:
        put(project, name, "1")
    write(project, line)
    trust(project)
    for name in WAYS[line]:
        put(project, name, "2")

        assert standing() == {"a": TrustState.CHANGED}, name
        trust(project)
    assert standing() == {}


@pytest.mark.parametrize("line", WAYS)
def test_a_file_that_appears_after_trust_asks_again(project, line):
    write(project, line)
    for name in WAYS[line]:
        put(project, name, "1")
    for name in WAYS[line]:
        (project / name).unlink()
    trust(project)
    for name in WAYS[line]:
        put(project, name, "1")
        appeared = standing()
        (project / name).unlink()

        assert appeared == {"a": TrustState.CHANGED}, name
    assert standing() == {}


@pytest.mark.parametrize(
    ("line", "inside", "name", "text"),
    [
        ("make serve", "Makefile", "settings", "include settings"),
        ("sh run.sh", "run.sh", "values.txt", ". ./values.txt"),
        ("npm start", "package.json", "dist/data.bin", '{"scripts": {"start": "x dist/data.bin"}}'),
        ("docker compose up", "compose.yaml", "web.conf", "env_file: web.conf"),
    ],
)
def test_what_a_script_or_manifest_names_counts_whatever_it_is_called(
    project, line, inside, name, text
):
    put(project, inside, text)
    put(project, name, "1")
    write(project, line)
    trust(project)
    put(project, name, "2")

    assert standing() == {"a": TrustState.CHANGED}


@pytest.mark.parametrize(
    "line", ["python server.py", "npx -y server .", "sh -c ./x.sh", "uv run x"]
)
@pytest.mark.parametrize(
    "name", ["notes.md", "memory.json", "data.db", ".git/HEAD", "__pycache__/a.pyc", "log.txt"]
)
def test_data_that_a_server_writes_does_not_ask_again(project, line, name):
    put(project, "server.py", "1")
    put(project, "x.sh", "1")
    write(project, line)
    trust(project)
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("1")

    assert standing() == {}


@pytest.mark.parametrize("name", ["src/a.py", "a.js", "Makefile", "x.sh"])
def test_a_package_that_is_downloaded_does_not_depend_on_the_sources(project, name):
    write(project, "npx -y @modelcontextprotocol/server-filesystem .")
    trust(project)
    put(project, name, "1")

    assert standing() == {}


@pytest.mark.parametrize(
    ("line", "folder", "words"),
    [
        ("cargo run", "target", "target, which its build makes"),
        ("uv run server", ".venv", ".venv, which its build makes"),
        ("npx -y server", "src", "the package server, which npx downloads"),
        ("python sub/server.py", "sub", "files of the project that are not beside its script"),
    ],
)
def test_the_review_says_what_is_not_watched(project, line, folder, words):
    (project / folder).mkdir()
    put(project, "sub/server.py", "1")
    write(project, line)
    [found], _ = review(project, Projects())

    assert f"note      not watched: {words}" in found.parts[0].part.lines


def test_too_many_files_are_said_not_to_be_watched(project, monkeypatch):
    monkeypatch.setattr(project_files, "MOST_FILES", 3)
    put(project, "a.py", "1")
    for number in range(5):
        put(project, f"lib/{number}.py", "1")
    watched = of_server(StdioServer(command="sh"), project, project)

    assert watched.gaps == ("files below the project, which has more than 3",)
    assert [*watched.files] == ["a.py"]


@pytest.mark.parametrize("number", [0, 3, 5], ids=["listed", "last that is listed", "beyond"])
@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_LISTED"])
def test_a_change_of_any_source_is_noticed(project, monkeypatch, bound, number):
    monkeypatch.setattr(project_files, bound, 4)
    for one in range(6):
        put(project, f"{one}.py", "1")

    def digest():
        return digest_sources(SourceWalk(str(project)).below(project), str(project))

    before = digest()
    same = digest()
    put(project, f"{number}.py", "2")

    assert before == same
    assert digest() != before


def test_a_change_with_the_old_times_is_noticed(project):
    put(project, "node_modules/x/a.js", "1")
    path = project / "node_modules" / "x" / "a.js"
    times = path.stat()
    write(project, "node server.js")
    trust(project)
    path.write_text("2")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert standing() == {"a": TrustState.CHANGED}


def test_a_package_that_is_linked_into_another_project_is_unchanged(project, tmp_path):
    put(project, "node_modules/x/a.js", "1")
    path = project / "node_modules" / "x" / "a.js"
    os.link(path, tmp_path / "store.js")
    write(project, "node server.js")
    trust(project)
    os.link(path, tmp_path / "other.js")
    linked = standing()
    (tmp_path / "store.js").write_text("2")

    assert linked == {}
    assert standing() == {"a": TrustState.CHANGED}


def test_a_source_that_others_can_change_is_marked(project):
    put(project, "a.py", "1")
    (project / "a.py").chmod(0o666)
    watched = of_server(StdioServer(command="sh"), project, project)

    assert watched.files["a.py"].endswith("others can change it")
