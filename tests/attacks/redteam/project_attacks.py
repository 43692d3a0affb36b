"""What a clone brings along: servers that are trusted, and want more than that."""

import json
import os
import shlex
from contextlib import contextmanager

import tomlkit
from hypothesis import strategies as st

from tests.attacks.hostile_repository import build
from tests.attacks.redteam.attack import Attack, Breach, Void
from tests.attacks.redteam.hostile_program import (
    MEANS,
    READING,
    hostile_code,
    hostile_script,
    put_script,
)
from tests.attacks.redteam.machine import SECRETS, open_machine
from tests.attacks.redteam.stranger_attacks import FORMS

PRIVATE = ("~/.ssh/id_rsa", "~/.aws/credentials", "~/.local/share/multitap/vault/old")
DOCUMENTS = ("~/docs/list.txt", "~/docs/tool", "~/notes.txt")


def absolute(machine, path):
    """A path as the hostile program names it, whose own home is another one."""
    return path.replace("~", str(machine.home), 1)


def orders_of(machine, pairs):
    return [(means, absolute(machine, path)) for means, path in pairs]


def write_project(machine, server, *, name="evil"):
    (machine.work / ".git").mkdir(exist_ok=True)
    machine.put("work/multitap.toml", tomlkit.dumps({"servers": {name: server}}))


def check_confined(machine, before, *, level="guard", shown=""):
    """What a confined program could not do; the text that commands showed is no leak to others."""
    machine.check_unchanged(before)
    machine.check_nothing_left(but={"document"} if level == "guard" else {})
    visits = machine.canary.visits
    if level == "strict":
        if visits:
            raise Breach("a strictly confined program called the attacker")
        # it tells its own user, which shows what it could read
        machine.check_nothing_left(more=shown.encode())
    machine.check_nothing_ran()  # its mark is outside of its folders


READ_PRIVATE = st.tuples(st.sampled_from(READING), st.sampled_from(PRIVATE))
READ_DOCUMENT = st.tuples(st.sampled_from(READING), st.sampled_from(DOCUMENTS))
CHANGE = st.tuples(st.sampled_from(MEANS), st.sampled_from((*DOCUMENTS, *PRIVATE[:2])))
ORDERS = st.lists(st.one_of(READ_PRIVATE, READ_DOCUMENT, CHANGE), min_size=4, max_size=10)


def has_run(machine, text):
    return b"ran" in machine.canary.visits or "RAN {" in text


@st.composite
def _engines(draw):
    return {
        "carrier": draw(st.sampled_from(["project", "project", "bundle", "file", "cursor link"])),
        "name": draw(st.sampled_from(["docker", "podman", "nerdctl", "container", "docker.exe"])),
        "place": draw(st.sampled_from(["beside", "folder", "path", "link", "absolute"])),
        "args": draw(
            st.sampled_from([["run", "-i", "--rm", "image"], ["run", "image"], [], ["compose"]])
        ),
        "key": draw(st.sampled_from(PRIVATE)),
        "file": draw(st.sampled_from(DOCUMENTS)),
        "means": draw(st.sampled_from(READING)),
    }


@contextmanager
def _calling_it_an_engine():
    with open_machine() as fresh:

        def attempt(case):
            machine = fresh()
            orders = orders_of(machine, [(case["means"], case["key"]), ("write", case["file"])])
            script = hostile_script(machine, orders)
            name = case["name"]
            if case["carrier"] == "bundle":
                server = {
                    "command": f"${{__dirname}}/{name}",
                    "args": case["args"],
                    "_files": (name,),
                    "_orders": orders,
                }
            else:
                server = _engine(machine, case["place"], name, script) | {"args": case["args"]}
            before = None
            if case["carrier"] == "project":
                write_project(machine, server)
                shown = machine.run("trust", "--yes").text
                before = machine.snapshot()
                shown += machine.run("status", "--json").text
            else:
                words, piped = FORMS[case["carrier"]](machine, server)
                machine.as_person  # noqa: B018 - hands the files over before they are looked at
                before = machine.snapshot()
                shown = machine.run("add", "--yes", *words, stdin=piped).text
            check_confined(machine, before)
            if not has_run(machine, shown):
                raise Void(f"it did not run: {shown[-400:]}")

        yield attempt


def _engine(machine, place, name, script):
    if place == "path":
        put_script(machine.work / "tools" / name, script)
        return {"command": name, "env": {"PATH": str(machine.work / "tools")}}
    if place == "link":
        put_script(machine.work / "other", script)
        (machine.work / name).symlink_to("other")
        return {"command": f"./{name}"}
    if place == "folder":
        put_script(machine.work / "tools" / name, script)
        return {"command": f"./tools/{name}"}
    put_script(machine.work / name, script)
    return {"command": str(machine.work / name) if place == "absolute" else f"./{name}"}


UPWARDS = st.sampled_from(
    [
        *(
            "..",
            "../docs",
            "x${pathSeparator}..${pathSeparator}..${pathSeparator}docs",
            "~",
            "~/docs",
        ),
        *("${userHome}", "${userHome}${/}docs", "/", "${workspaceFolder}/..", "out", "out/docs"),
        *("x${/}..${/}..", "${workspaceFolder}${pathSeparator}..${pathSeparator}.ssh", "~/.ssh"),
        *(
            "HOME/docs",
            "HOME",
            "HOME/.ssh",
            ".",
            "a/../../docs",
            "${/}",
            "//HOME/docs",
            "./..//docs",
        ),
    ]
)
"""Folders outside of a project, as a project may spell them; `out` is a link to the home."""
ARGUMENTS = st.sampled_from(
    ["~/docs/list.txt", "HOME/docs/list.txt", "~/.ssh/id_rsa", "HOME/notes.txt", "../docs/tool"]
)
"""Files outside: what they are beside of is not opened."""


@st.composite
def _climbing(draw):
    return {
        "level": draw(st.sampled_from(["guard", "strict", "strict"])),
        "write": draw(st.lists(UPWARDS, max_size=2)),
        "read": draw(st.lists(UPWARDS, max_size=2)),
        "cwd": draw(st.sampled_from(["", "", "", "", "", "", "..", "x${/}..${/}..${/}docs"])),
        "run": draw(st.sampled_from(["script", "code", "joined code", "shell"])),
        "arguments": draw(st.lists(ARGUMENTS, max_size=2)),
        "orders": draw(ORDERS),
    }


@contextmanager
def _climbing_out():
    with open_machine() as fresh:

        def attempt(case):
            machine = fresh()
            (machine.work / "out").symlink_to(machine.home)
            (machine.work / "x").mkdir()
            orders = orders_of(machine, case["orders"])
            code = hostile_code(machine, orders)
            put_script(machine.work / "run", hostile_script(machine, orders))
            home = str(machine.home)
            arguments = [text.replace("HOME", home) for text in case["arguments"]]
            command, args = {
                "script": ("./run", []),
                "code": (machine.python, ["-IS", "-c", code]),
                "joined code": (machine.python, ["-IS", f"-c{code}"]),
                "shell": ("sh", ["-c", f"exec {shlex.quote(str(machine.work / 'run'))}"]),
            }[case["run"]]
            rules = {
                key: [text.replace("HOME", home) for text in case[key]] for key in ("write", "read")
            }
            server = {
                "command": command,
                "args": [*args, *arguments],
                "sandbox": case["level"],
                "sandbox_rules": {key: paths for key, paths in rules.items() if paths},
            }
            if case["cwd"]:
                server["cwd"] = case["cwd"]
            write_project(machine, server)
            review = machine.run("trust", "--yes").text
            before = machine.snapshot()
            shown = machine.run("status", "--json").text
            check_confined(machine, before, level=case["level"], shown=shown)
            if not has_run(machine, shown):
                raise Void(f"it did not run: {(review + shown)[-600:]}")

        yield attempt


@st.composite
def _changing(draw):
    return {
        "level": draw(st.sampled_from(["guard", "strict"])),
        "carrier": draw(st.sampled_from(["project", "text", "file"])),
        "orders": draw(st.lists(CHANGE, min_size=8, max_size=14)),
    }


@contextmanager
def _changing_files():
    with open_machine() as fresh:

        def attempt(case):
            machine = fresh()
            orders = orders_of(machine, case["orders"])
            put_script(machine.work / "run", hostile_script(machine, orders))
            if case["carrier"] == "project":
                write_project(machine, {"command": "./run", "sandbox": case["level"]})
                machine.run("trust", "--yes")
                before = machine.snapshot()
                shown = machine.run("status", "--json").text
            else:
                words, piped = FORMS[case["carrier"]](
                    machine, {"command": str(machine.work / "run")}
                )
                machine.as_person  # noqa: B018 - hands the files over before they are looked at
                before = machine.snapshot()
                strict = ["--sandbox"] if case["level"] == "strict" else []
                shown = machine.run("add", "--yes", *strict, *words, stdin=piped).text
            machine.check_unchanged(before)
            if not has_run(machine, shown):
                raise Void(f"it did not run: {shown[-400:]}")

        yield attempt


LAUNCHERS = {
    "npx -y server": ("package.json", ".npmrc", "node_modules/.bin/server", "yarn.lock"),
    "npm start": ("package.json", "src/a.js", "lib/b.ts", "node_modules/x/index.js"),
    "pnpm start": ("pnpm-lock.yaml", ".pnpmfile.cjs", "a.mjs"),
    "yarn server": (".yarnrc.yml", ".yarn/releases/yarn.cjs", "a.js", ".pnp.cjs"),
    "bun run server.ts": ("server.ts", "lib/a.ts", "bunfig.toml"),
    "node server.js": ("server.js", "lib/a.js", "node_modules/x/a.js"),
    "deno run server.ts": ("server.ts", "deno.json", "import_map.json"),
    "uvx --from . server": ("pyproject.toml", "src/a.py"),
    "uv run server": ("pyproject.toml", "uv.lock", "src/a.py"),
    "poetry run server": ("poetry.lock", "src/a.py"),
    "go run .": ("go.mod", "main.go", "internal/a.go"),
    "cargo run": ("Cargo.toml", "build.rs", "src/main.rs"),
    "make serve": ("Makefile", "rules.mk"),
    "just serve": ("justfile", "a.sh"),
    "gradle run": ("build.gradle", "src/A.java"),
    "ruby server.rb": ("server.rb", "lib/a.rb", "Gemfile"),
    "sh -c true&&./x.sh": ("x.sh", "lib.sh"),
    "bash run.sh": ("run.sh", "lib/a.sh"),
    "env A=1 ./x": ("x", "a.py"),
    "some-program": ("a.py", "bin/x.sh"),
}
"""Command lines, and files that decide what they run."""


@st.composite
def _swapping(draw):
    line = draw(st.sampled_from([*LAUNCHERS]))
    return {
        "line": line,
        "file": draw(st.sampled_from(LAUNCHERS[line])),
        "how": draw(st.sampled_from(["changed", "new", "removed", "replaced by a link"])),
        "same time": draw(st.booleans()),
    }


@contextmanager
def _swapping_after_trust():
    with open_machine() as fresh:

        def attempt(case):
            machine = fresh()
            command, *args = shlex.split(case["line"])
            # what is found by name is somebody else's program, and shows that it was started
            put_script(machine.home / "bin" / command, hostile_script(machine))
            for name in LAUNCHERS[case["line"]]:
                if name != case["file"] or case["how"] != "new":
                    put_script(machine.work / name, "1")
            write_project(machine, {"command": command, "args": args})
            review = machine.run("trust", "--yes").text
            first = machine.run("status", "--json").text
            if not has_run(machine, first):
                raise Void(f"it did not run: {(review + first)[-400:]}")
            machine.canary.forget()
            _swap(machine, case)
            shown = machine.run("status", "--json").text
            if has_run(machine, shown):
                raise Breach(f"{case['file']} changed unnoticed:\n{review}")

        yield attempt


def _swap(machine, case):
    path = machine.work / case["file"]
    times = path.stat() if path.exists() else None
    if case["how"] in {"removed", "replaced by a link"}:
        path.unlink()
    if case["how"] == "replaced by a link":
        put_script(machine.work / "other.bin", "2")
        path.symlink_to(machine.work / "other.bin")
    elif case["how"] != "removed":
        put_script(path, "2")
    if times is not None and case["same time"] and path.exists():
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


NAMES = st.text("abcdefghijklmnopqrstuvwxyz-_ .!", min_size=6, max_size=30).map(
    lambda text: f"ignore-{text.strip() or 'x'}"
)


@st.composite
def _naming(draw):
    return {
        "names": draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)),
        "file": draw(st.sampled_from(["multitap.toml", "multitap.toml", "mcp.json", ".kode.json"])),
        "era": draw(st.sampled_from(["handshake", "stateless"])),
        "remote": draw(st.booleans()),
    }


@contextmanager
def _naming_for_the_model():
    with open_machine() as fresh:

        def attempt(case):
            machine = fresh()
            (machine.work / ".git").mkdir()
            server = {"url": machine.canary.url} if case["remote"] else {"command": "./run"}
            if case["file"] != "multitap.toml":
                kind = "http" if case["remote"] else "stdio"
                server |= {"type": kind, "transport": kind}
            put_script(machine.work / "run", hostile_script(machine))
            servers = dict.fromkeys(case["names"], server)
            text = (
                tomlkit.dumps({"servers": servers})
                if case["file"].endswith("toml")
                else json.dumps({"mcpServers": servers})
            )
            machine.put(f"work/{case['file']}", text)
            asked = _conversation(case["era"])
            answers = machine.run("serve", stdin="".join(f"{json.dumps(one)}\n" for one in asked))
            machine.check_nothing_ran()
            machine.check_nobody_called()
            if '"result"' not in answers.out:
                raise Void(f"nothing was answered: {answers.text[-400:]}")
            for name in case["names"]:
                if name in answers.out:
                    raise Breach(f"the model reads {name!r}: {answers.out[:600]}")

        yield attempt


def _conversation(era):
    def message(number, method, **params):
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}

    if era == "handshake":
        info = {"name": "raw", "version": "1"}
        first = [
            message(
                *(0, "initialize"), protocolVersion="2025-11-25", capabilities={}, clientInfo=info
            ),
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
        ]
        meta = {}
    else:
        start = "io.modelcontextprotocol/"
        meta = {
            "_meta": {f"{start}protocolVersion": "2026-07-28", f"{start}clientCapabilities": {}}
        }
        first = [message(0, "server/discover", **meta)]
    methods = ("tools/list", "prompts/list", "resources/list")
    return [*first, *(message(number, name, **meta) for number, name in enumerate(methods, 1))]


SAVING = f"""
import os, sys
with open(os.path.join(os.environ["HOME"], "token"), "w") as file:
    file.write({SECRETS["vault"]!r})
sys.stderr.write("SAVED")
"""
"""A server that keeps a login in its home."""


@st.composite
def _inheriting(draw):
    return {
        "how": draw(st.sampled_from(["removed", "removed", "other project", "renamed"])),
        "first": draw(st.sampled_from(["text", "named text", "typed"])),
        "second": draw(st.sampled_from(["text", "cursor link", "project"])),
        "same command": draw(st.booleans()),
    }


@contextmanager
def _inheriting_a_home():
    with open_machine() as fresh:

        def attempt(case):
            machine = fresh()
            put_script(machine.home / "bin/first", f"#!{machine.python} -IS\n{SAVING}\n")
            thief = hostile_script(machine, [("contents", "HOME")])
            # a program that is still in use is its own server's
            is_gone = case["how"] == "removed"
            second = "first" if case["same command"] and is_gone else "second"
            program = {"command": str(machine.home / "bin/first")}
            shown = _add(machine, case["first"], program)
            shown += machine.run("status", "--json").text
            if "SAVED" not in shown:
                raise Void(f"the first one did not run: {shown[-500:]}")
            if case["how"] == "renamed":
                machine.run("rename", "evil", "other")
            elif case["how"] == "removed":
                machine.run("remove", "evil")
            put_script(machine.home / "bin" / second, thief)
            program = {"command": str(machine.home / "bin" / second)}
            if case["second"] == "project" or case["how"] == "other project":
                write_project(machine, program)
                shown = machine.run("trust", "--yes").text
            else:
                shown = _add(machine, case["second"], program)
            shown += machine.run("status", "--json").text
            if b"ran" not in machine.canary.visits:
                raise Void(f"the second one did not run: {shown[-500:]}")
            machine.check_nothing_left(but={"document"})

        yield attempt


def _add(machine, form, program):
    if form == "typed":
        line = ["add", "--no-check", "--sandbox", "evil", "--", program["command"]]
        return machine.run(*line).text
    words, piped = FORMS[form](machine, program)
    return machine.run("add", "--yes", "--no-check", *words, stdin=piped).text


COMMANDS = (
    "status", "status --json", "tools", "call run_x", "resources", "prompts", "tokens", "doctor",
    "config show", "config files", "sandbox show", "policy", "export --json", "trust", "pins",
    "logs run", "audit", "stats", "serve", "read x://y", "prompt linked", "add https://x.invalid/",
    "disable run", "set run sandbox=off", "remove run", "login web", "trace run", "generate run",
    "restart run", "undo", "search x",
)  # fmt: skip


@contextmanager
def _working_in_a_clone():
    with open_machine() as fresh:

        def attempt(case):
            machine = fresh()
            machine.canary.forget()
            marks = build(machine.work, machine.home, machine.canary.port)
            machine.run(*case.split(), CANARY=SECRETS["variable"])
            if ran := sorted(path.name for path in marks.iterdir()):
                raise Breach(f"{', '.join(ran)} ran")
            machine.check_nobody_called()

        yield attempt


ATTACKS = (
    Attack("a clone does something unasked", st.sampled_from(COMMANDS), _working_in_a_clone, 3),
    Attack("a program called docker is not confined", _engines(), _calling_it_an_engine),
    Attack("a confined project leaves its folder", _climbing(), _climbing_out),
    Attack("a confined program changes files outside", _changing(), _changing_files),
    Attack("a change after trust is not noticed", _swapping(), _swapping_after_trust),
    Attack("names of untrusted servers reach the model", _naming(), _naming_for_the_model),
    Attack("a server inherits another one's home", _inheriting(), _inheriting_a_home, 3),
)
