"""What one confined server may use: its folder, system programs, its rules."""

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from multitap.config.documents import is_list, is_table
from multitap.config.models import StdioServer
from multitap.files import bundles_folder, open_regular, read_regular
from multitap.sandbox.levels import ShownLevel
from multitap.sandbox.places import PrivatePaths, folder_arguments, is_within, outermost

_LARGEST = 256 * 1024
_NPM = re.compile(r"(?:@[^:\s]+:)?registry|https?-proxy|proxy|no-?proxy|cafile|ca|strict-ssl")
_PIP = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "find-links": "PIP_FIND_LINKS",
    "trusted-host": "PIP_TRUSTED_HOST",
    "cert": "PIP_CERT",
    "proxy": "PIP_PROXY",
    "no-index": "PIP_NO_INDEX",
}
_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "native-tls": "UV_NATIVE_TLS",
    "system-certs": "UV_SYSTEM_CERTS",
    "allow-insecure-host": "UV_INSECURE_HOST",
    "offline": "UV_OFFLINE",
}
_ADDRESSES = re.compile(
    r"PIP_(?:EXTRA_)?INDEX_URL|PIP_FIND_LINKS|UV_(?:DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL)"
    r"|UV_FIND_LINKS|(?:NPM_CONFIG_(?:@.*:)?|BUN_CONFIG_|YARN_)REGISTRY",
    re.IGNORECASE,
)
"""Variables whose value is the address of a registry."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


def package_settings(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The settings as variables, which the package managers understand; inherited ones win."""
    files = {**_npm(home, env), **_bun(home), **_pip(home), **_uv(home)}
    inherited = {name: value for name, value in env.items() if _ADDRESSES.fullmatch(name)}
    names = {name.lower() for name in env}
    settings = {name: value for name, value in files.items() if name.lower() not in names}
    # a password for a registry is the user's, and a confined program is not
    return {name: _CREDENTIALS.sub("", value) for name, value in {**settings, **inherited}.items()}


def _npm(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    path = env.get("NPM_CONFIG_USERCONFIG") or env.get("npm_config_userconfig")
    settings: dict[str, str] = {}
    for line in _text(Path(path) if path else home / ".npmrc").splitlines():
        key, equals, value = (part.strip() for part in line.partition("="))
        if equals and _NPM.fullmatch(key) and value:
            settings[f"npm_config_{key.replace('-', '_')}"] = value.strip("\"'")
    return settings


def _bun(home: Path) -> dict[str, str]:
    install = _table(home / ".bunfig.toml").get("install")
    registry = install.get("registry") if is_table(install) else None
    address = registry.get("url") if is_table(registry) else registry
    return {"BUN_CONFIG_REGISTRY": address} if isinstance(address, str) else {}


def _pip(home: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path in (home / ".pip" / "pip.conf", home / ".config" / "pip" / "pip.conf"):
        if not (text := _text(path)):
            continue
        import configparser  # noqa: PLC0415 - most people have no such file

        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text)
        except configparser.Error:
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                for key, value in parser.items(section):
                    if variable := _PIP.get(key.replace("_", "-")):
                        settings[variable] = " ".join(value.split())
    return settings


def _uv(home: Path) -> dict[str, str]:
    table = _table(home / ".config" / "uv" / "uv.toml")
    settings = {
        variable: _join(table[key]) for key, variable in _UV.items() if _is_plain(table.get(key))
    }
    others: list[str] = []
    indexes = table.get("index")
    for index in indexes if is_list(indexes) else ():
        if is_table(index) and isinstance(address := index.get("url"), str):
            name = index.get("name")
            if index.get("default") is True:
                settings["UV_DEFAULT_INDEX"] = address
            else:
                others.append(f"{name}={address}" if isinstance(name, str) else address)
    return {**settings, "UV_INDEX": " ".join(others)} if others else settings


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | str | list)


def _join(value: bool | str | Iterable[object]) -> str:  # noqa: FBT001 - what TOML contains
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else " ".join(map(str, value))


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError:
        return {}


def _text(path: Path) -> str:
    try:
        return os.fsdecode(read_regular(path, _LARGEST))
    except (OSError, ValueError):
        return ""


_PROGRAMS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/gnu/store", "/home/linuxbrew/.linuxbrew"),
)
_FACTS = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "gai.conf", "group"),
    *("host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload"),
    *("locale.alias", "locale.conf", "localtime", "machine-info", "magic", "mime.types"),
    *("nsswitch.conf", "os-release", "passwd", "pki", "protocols", "python3", "resolv.conf"),
    *("services", "ssl", "terminfo", "timezone", "crypto-policies"),
)
"""Files in /etc that programs need and that are not confidential."""
_MACHINE = (
    *("/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/stat"),
    *("/proc/sys", "/proc/uptime", "/proc/version", "/proc/version_signature"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup"),
    *("/sys/kernel/mm/transparent_hugepage",),
)
"""Readable parts of /proc; the arguments of other programs may contain secrets."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_TERMINALS = ("/dev/ptmx", "/dev/tty")
"""What makes a new terminal, and the one that a program runs at. The warden opens the other end of
a terminal, and shared memory, to those that made them: /dev/pts and /dev/shm hold those of all."""
_LANGUAGES = {
    "PYENV_ROOT": ".pyenv",
    "NVM_DIR": ".nvm",
    "VOLTA_HOME": ".volta",
    "ASDF_DATA_DIR": ".asdf",
    "ASDF_DEFAULT_TOOL_VERSIONS_FILENAME": ".tool-versions",
    "MISE_DATA_DIR": ".local/share/mise",
    "MISE_CONFIG_DIR": ".config/mise",
    "UV_PYTHON_INSTALL_DIR": ".local/share/uv/python",
    "FNM_DIR": ".local/share/fnm",
    "NODENV_ROOT": ".nodenv",
    "PROTO_HOME": ".proto",
    "RBENV_ROOT": ".rbenv",
    "RUSTUP_HOME": ".rustup",
}
"""What version managers keep in the home folder, by the variables that say where it is."""
_CERTIFICATES = (
    *("CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NIX_SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"),
    *("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
)
_PACKAGES = ("PIP_FIND_LINKS", "UV_FIND_LINKS")
_ELSEWHERE = re.compile(
    r"XDG_\w+|TMPDIR|TEMP|TMP|UV_CACHE_DIR|UV_TOOL_DIR|PIP_CONFIG_FILE|PYTHONPYCACHEPREFIX"
    r"|NPM_CONFIG_(?:CACHE|PREFIX|USERCONFIG|GLOBALCONFIG|TMP|LOGS_DIR)",
    re.IGNORECASE,
)
"""Inherited variables that name places outside."""
_PROXY = re.compile(r"\w+_PROXY", re.IGNORECASE)
_BUNDLE = re.compile(r"[0-9a-f]{64}(?=/)")
_INTERPRETERS = re.compile(r"(?:python|node|bun|deno|ruby|perl|php|bash|sh)[\d.]*")
_VERSION = re.compile(r"(?<=.)@[^/@]*$")  # of a package
_LARGEST_PTH = 64 * 1024
_LONGEST_SHEBANG = 256  # the limit of the kernel
FOLDER = "sandboxes"
"""The folder in the state folder with one folder for each confined server."""


class SandboxPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a confined server may use; the kernel refuses the rest."""

    level: ShownLevel
    folder: Path
    """Its own folder: it may write there, and no other server can read it."""
    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    env: Mapping[str, str]
    """All its variables, except those for the proxy."""
    cwd: Path
    processes: int
    """The maximum number of processes at a time."""
    memory: int
    """Bytes of data of each process."""
    proc: bool = False
    """Whether all its processes may read their own `/proc/self`, not only the first."""
    listed: tuple[str, ...] = ()
    """Folders that it may list, but not open as a whole."""
    sockets: tuple[str, ...] = ()
    """Unix sockets outside its folders that its program may connect to."""
    program: str = ""
    """The real path of its program."""
    refused: tuple[str, ...] = ()
    """Rules that open nothing, because their paths are private."""


def plan_sandbox(
    name: str,
    config: StdioServer,
    program: str,
    env: Mapping[str, str],
    *,
    level: ShownLevel,
    home: Path,
    state: Path,
    here: Path,
    ours: Mapping[str, str],
) -> SandboxPlan:
    """Make the plan of a server.

    Args:
        env: The variables it would have without a sandbox.
        ours: Our own variables; those of a server may come from a project, and open nothing.
    """
    private = PrivatePaths.of_user(home, state, ours)
    folder = own_folder(state, name, config, here)
    is_project = config.provenance == "project"
    project = (config.home.start or here) if is_project else None
    work = config.cwd or (project if project and not _holds(project, home) else None)
    is_guarded = level != "strict"
    writable = [(str(path), private.openable(str(path))) for path in config.sandbox_rules.write]
    # a server must not widen its rules by a link in a folder that it may change
    own = tuple(os.path.abspath(path) for path, _ in writable)
    readable = [
        (str(path), private.openable(str(path)))
        for path in config.sandbox_rules.read
        if not any(is_within(os.path.abspath(path), folder) for folder in own)
    ]
    write = [path for _, opened in writable for path in opened]
    if is_guarded:
        places = [str(work)] if work is not None else []
        places += _argument_folders(config, home, private, here)
        write += (path for place in places for path in _workspace(place, home, private))
        usual = ["/", *_name_service(private)]
    else:
        usual = [*_needed_to_run(config, program, home, ours)]
        usual += [str(work)] if work is not None else []
    read = outermost(
        [
            *(path for place in usual for path in private.openable(place)),
            *(path for _, opened in readable for path in opened),
            *_own_bundles(config),
            *(path for path in _MACHINE if Path(path).exists()),
            *(["/sys"] if is_guarded else ()),
        ]
    )
    return SandboxPlan(
        level=level,
        folder=folder,
        read=tuple(path for path in read if os.path.exists(path)),
        write=(str(folder), *outermost(write)),
        # in containers, /dev/ptmx is a link
        devices=(*_DEVICES, *map(os.path.realpath, _TERMINALS)) if is_guarded else _DEVICES,
        hosts=tuple(config.sandbox_rules.hosts),
        env=_environment(env, config, folder, home, is_guarded=is_guarded),
        cwd=config.cwd or project or folder / "home",
        processes=config.sandbox_rules.processes,
        memory=config.sandbox_rules.memory,
        proc=config.sandbox_rules.proc,
        listed=private.surroundings() if is_guarded else (),
        sockets=engine_sockets(ours) if level == "container" else (),
        program=os.path.realpath(program),
        refused=tuple(path for path, opened in (*writable, *readable) if not opened),
    )


def _argument_folders(
    config: StdioServer, home: Path, private: PrivatePaths, here: Path
) -> tuple[str, ...]:
    """The folders in a server's arguments: of a project's, only those that a person was shown."""
    if config.provenance == "project":
        return tuple(config.home.writes)
    return folder_arguments(config.args, config.start_folder or here, home, private.paths)


def _workspace(folder: str, home: Path, private: PrivatePaths) -> tuple[str, ...]:
    """The paths that a writable folder opens; none for the home folder, and those around it."""
    if _holds(Path(folder), home) or private.holds(folder):
        return ()
    return private.openable(folder)


def _name_service(private: PrivatePaths) -> Iterator[str]:
    """Where names are resolved, which is often a link into /run."""
    for name in ("resolv.conf", "hosts", "nsswitch.conf"):
        real = os.path.realpath(f"/etc/{name}")
        if not real.startswith("/etc/"):
            # the folder, because such files are replaced; but not all of /run
            folder = os.path.dirname(real)
            yield real if folder in private.by_name else folder


def engine_sockets(ours: Mapping[str, str]) -> tuple[str, ...]:
    """The sockets of container engines on this machine."""
    runtime = ours.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    places = ["/var/run/docker.sock", f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    places += ["/run/podman/podman.sock", "/run/containerd/containerd.sock"]
    host = ours.get("DOCKER_HOST", "")
    places += [host.removeprefix("unix://")] if host.startswith("unix:///") else []
    return tuple(dict.fromkeys(os.path.realpath(path) for path in places if os.path.exists(path)))


def _needed_to_run(
    config: StdioServer, program: str, home: Path, ours: Mapping[str, str]
) -> Iterator[str]:
    """Under `strict`: the system's programs, and those that the server consists of."""
    yield from map(os.path.expanduser, _system_paths(ours, home))
    yield from _around_program(program, home)
    if config.provenance != "project":  # it could name any folder
        yield from _script(config, home)
    # a project could name any folder in these
    if config.provenance != "project" or _is_ours(program):
        yield from _around_interpreter(program, home)
        yield from _import_roots(program, home)


def bubblewrap_arguments(plan: SandboxPlan, home: Path, state: Path) -> list[str]:
    """The file system that bubblewrap shows a server: read-only, and without private paths.

    The kernel's own rules decide what may be read within it.
    """
    # the network stays: the way out is our proxy on loopback
    arguments = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    arguments += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    arguments += ["--tmpfs", "/tmp"]  # noqa: S108 - its own, and empty
    private = PrivatePaths.of_user(home, state)
    hidden = (*private.never, *(path for path in private.by_name if path.startswith(f"{home}/")))
    # hidden before anything is shown: of two that concern a path, the later one counts
    for path in outermost(hidden):
        if os.path.isdir(path):
            arguments += ["--tmpfs", path]
        elif os.path.exists(path):
            arguments += ["--ro-bind", "/dev/null", path]
    # our own step that confines the server runs inside, and must be visible there
    ours = (
        sys.prefix,
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    )
    visible = (*ours, *(path for path in plan.read if path not in _MACHINE))
    arguments += [word for path in visible for word in ("--ro-bind-try", path, path)]
    for path in plan.write:
        arguments += ["--bind-try", path, path]
    return [*arguments, "--chdir", str(plan.cwd), "--"]


def with_all_but_private(plan: SandboxPlan, home: Path, state: Path) -> SandboxPlan:
    """The plan for learning: everything that is not private can be read."""
    everything = PrivatePaths.of_user(home, state).openable("/")
    return replace(plan, read=outermost((*plan.read, *everything)))


def own_folder(state: Path, name: str, config: StdioServer, here: Path) -> Path:
    """A server's own folder.

    No other server gets it: not one of the same name in another project, nor one that takes over
    the name of a removed server.
    """
    place = str(config.start_folder or here) if config.provenance == "project" else ""
    package = next((word for word in config.args if not word.startswith("-")), "")
    # an update keeps what the server has stored
    package = _VERSION.sub("", package)
    parts = (name, config.provenance, place, config.home.identity, config.command, package)
    identity = "\0".join(parts)
    safe = re.sub(r"[^\w.-]+", "_", name)[:40].strip(".") or "server"
    digest = sha256(identity.encode(errors="surrogateescape")).hexdigest()[:12]
    return Path(os.path.realpath(state)) / FOLDER / f"{safe}-{digest}"


def _system_paths(ours: Mapping[str, str], home: Path) -> Iterator[str]:
    yield from _PROGRAMS
    yield from (f"/etc/{name}" for name in _FACTS)
    # Our PATH, not the server's: a project could name any folder in its own.
    for folder in ours.get("PATH", "").split(os.pathsep):
        # a version manager's shims run its own programs, which are beside them
        is_shims = os.path.basename(folder) == "shims"
        place = os.path.dirname(folder) if is_shims else folder
        if os.path.isabs(place) and not _holds(Path(place), home):
            yield place
    for variable, usual in _LANGUAGES.items():
        yield ours.get(variable) or str(home / usual)
    for variable in (*_CERTIFICATES, *_PACKAGES):
        if os.path.isabs(ours.get(variable, "")):
            yield ours[variable]


def _around_program(program: str, home: Path) -> Iterator[str]:
    """The program, each link on its path, and its installation."""
    path = os.path.abspath(program)
    for _ in range(40):  # as many links as the kernel follows
        yield path
        yield from _installation(Path(path), home)
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    real = os.path.realpath(program)
    yield real
    yield from _installation(Path(real), home)


def _around_interpreter(program: str, home: Path) -> Iterator[str]:
    """The interpreter in the first line of a script."""
    try:
        with open_regular(Path(program)) as file:
            line = file.readline(_LONGEST_SHEBANG)
    except OSError:
        return
    command = os.fsdecode(line).removeprefix("#!").split()
    if line.startswith(b"#!") and command and os.path.isabs(command[0]):
        yield from _around_program(command[0], home)


def _import_roots(program: str, home: Path) -> Iterator[str]:
    """Further folders of a program's Python environment, as for editable installs."""
    prefix = _environment_of(program)
    if not (prefix / "pyvenv.cfg").exists():
        return
    for file in prefix.glob("lib/python3*/site-packages/*.pth"):
        try:
            lines = os.fsdecode(read_regular(file, _LARGEST_PTH)).splitlines()
        except OSError:
            continue
        for line in lines:
            if os.path.isabs(line) and os.path.isdir(line) and not _holds(Path(line), home):
                yield line


def _environment_of(program: str) -> Path:
    return Path(os.path.dirname(os.path.dirname(os.path.abspath(program))))


def _is_ours(program: str) -> bool:
    """Whether a program belongs to our own Python environment."""
    return os.path.realpath(_environment_of(program)) == os.path.realpath(sys.prefix)


def _own_bundles(config: StdioServer) -> Iterator[str]:
    """The unpacked bundles in its command: the only part of our data that is its own code."""
    if config.provenance == "project":
        return
    place = os.path.realpath(bundles_folder())
    for word in (config.command, *config.args):
        rest = os.path.realpath(word).removeprefix(f"{place}/")
        if os.path.isabs(word) and (bundle := _BUNDLE.match(rest)):
            yield os.path.join(place, bundle[0])


def _script(config: StdioServer, home: Path) -> Iterator[str]:
    """The script that an interpreter runs, with the files beside it."""
    if not _INTERPRETERS.fullmatch(os.path.basename(config.command)):
        return
    for argument in config.args:
        if argument.startswith("-"):
            continue
        path = Path(config.cwd or "", argument)
        if path.is_absolute() and path.is_file():
            yield str(path)
            if not _holds(path.parent, home):
                yield str(path.parent)
        return


def _installation(program: Path, home: Path) -> Iterator[str]:
    """The installation folder of a program with its libraries, if there is one."""
    parents = program.parents
    prefix = parents[1] if len(parents) > 1 and parents[0].name in {"bin", "Scripts"} else None
    if prefix is not None and not _holds(prefix, home) and _has_libraries(prefix, home):
        yield str(prefix)
    for parent in parents:
        if parent.name == "node_modules":
            yield str(parent)
            return


def _has_libraries(prefix: Path, home: Path) -> bool:
    if prefix == home / ".local":  # shared by all kinds of programs
        return False
    return (prefix / "pyvenv.cfg").exists() or (prefix / "lib").is_dir()


def _environment(
    env: Mapping[str, str], config: StdioServer, folder: Path, home: Path, *, is_guarded: bool
) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in env.items()
        if name in config.env
        or not (_ELSEWHERE.fullmatch(name) or (not is_guarded and _PROXY.fullmatch(name)))
    }
    places = {
        name: str(home / usual)
        for name, usual in _LANGUAGES.items()
        if name not in inherited and (home / usual).exists()
    }
    own = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    if is_guarded:
        own |= package_settings(home, env)
    if config.provenance == "project":
        # Compiled files of a project would run instead of the trusted sources.
        own["PYTHONPYCACHEPREFIX"] = str(folder / "pycache")
    return {**inherited, **places, **own, **config.env}


def _holds(folder: Path, home: Path) -> bool:
    """Whether a folder is or contains the home folder."""
    return Path(os.path.realpath(folder)) in {home, *home.parents}
