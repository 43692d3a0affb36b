"""Reads the command line of a container engine, and finds what it opens of this machine."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from multitap.sandbox.places import is_within

CLIENTS = frozenset({"docker", "podman", "nerdctl", "finch", "container"})
"""Programs that have a container engine run containers."""

_GLOBAL_FLAGS = frozenset({"-D", "--debug", "--noout", "--syslog", "--trace"})
_GLOBAL_VALUES = frozenset(
    (
        *("--config", "-c", "--context", "-H", "--host", "-l", "--log-level", "--tlscacert"),
        *("--tlscert", "--tlskey", "--connection", "--identity", "--url", "--root", "--runroot"),
        *("--storage-driver", "--storage-opt", "--runtime", "--hooks-dir", "--module", "--tmpdir"),
        *("--cgroup-manager", "--network-cmd-path", "--network-config-dir", "--conmon", "--out"),
        *("-a", "--address", "-n", "--namespace", "--data-root", "--cni-path", "--volumepath"),
    )
)
"""Options before the subcommand that take a value."""
_SHORT: Mapping[str, str] = {
    "a": "attach", "c": "cpu-shares", "d": "detach", "e": "env", "h": "hostname",
    "i": "interactive", "l": "label", "m": "memory", "p": "publish", "P": "publish-all",
    "q": "quiet", "t": "tty", "u": "user", "v": "volume", "w": "workdir",
}  # fmt: skip
_SAME: Mapping[str, str] = {"net": "network", "dns-opt": "dns-option", "net-alias": "network-alias"}
_FLAGS = frozenset(
    (
        *("detach", "disable-content-trust", "init", "interactive", "no-healthcheck"),
        "no-hostname",
        *("no-hosts", "oom-kill-disable", "publish-all", "quiet", "read-only", "read-only-tmpfs"),
        *("replace", "rm", "rmi", "sig-proxy", "tls-verify", "tty", "unsetenv-all"),
    )
)
_HARMLESS = frozenset(
    (
        *("add-host", "annotation", "attach", "blkio-weight", "cap-drop", "cpu-count"),
        *("cpu-percent", "cpu-period", "cpu-quota", "cpu-rt-period", "cpu-rt-runtime"),
        *("cpu-shares", "cpus", "cpuset-cpus", "cpuset-mems", "detach-keys", "dns", "dns-option"),
        *("dns-search", "domainname", "entrypoint", "env", "expose", "group-add", "health-cmd"),
        *("health-interval", "health-retries", "health-start-interval", "health-start-period"),
        *("health-timeout", "hostname", "io-maxbandwidth", "io-maxiops", "ip", "ip6", "isolation"),
        *("kernel-memory", "label", "link-local-ip"),
        *("mac-address", "memory", "memory-reservation", "memory-swap", "memory-swappiness"),
        *("name", "network-alias", "oom-score-adj", "pids-limit", "platform", "publish", "pull"),
        *("restart", "shm-size", "stop-signal", "stop-timeout", "timeout", "tmpfs", "tz"),
        *("ulimit", "umask", "unsetenv", "user", "workdir"),
    )
)
"""Options with a value that open nothing of this machine."""
_GRANTS: Mapping[str, str] = {
    "authfile": "it uses the logins in {}",
    "blkio-weight-device": "it uses the device {}",
    "cap-add": "it gets the privilege {}",
    "cgroup-parent": "it joins the control group {}",
    "cidfile": "it writes the file {}",
    "device": "it uses the device {}",
    "device-cgroup-rule": "it uses devices: {}",
    "device-read-bps": "it uses the device {}",
    "device-read-iops": "it uses the device {}",
    "device-write-bps": "it uses the device {}",
    "device-write-iops": "it uses the device {}",
    "env-file": "it gets the variables in the file {}",
    "gpus": "it uses the graphics card: {}",
    "label-file": "it reads the file {}",
    "link": "it is linked to the container {}",
    "log-driver": "its output also goes to {}",
    "log-opt": "its output also goes elsewhere: {}",
    "pidfile": "it writes the file {}",
    "runtime": "it runs under {}",
    "secret": "it gets the secret {}",
    "storage-opt": "it sets {}",
    "sysctl": "it sets {}",
    "volume-driver": "its volumes come from {}",
    "volumes-from": "it uses the volumes of the container {}",
}
"""Options with a value that open something."""
_GRANTING_FLAGS: Mapping[str, str] = {
    "env-host": "it gets all variables of its client",
    "privileged": "it has all rights of this machine (`--privileged`)",
    "rootfs": "it runs a folder of this machine instead of an image",
    "use-api-socket": "it controls the container engine",
}
_NAMESPACES: Mapping[str, frozenset[str]] = {
    "cgroupns": frozenset({"", "private"}),
    "ipc": frozenset({"", "none", "private", "shareable"}),
    "network": frozenset({"", "bridge", "default", "none", "pasta", "slirp4netns"}),
    "pid": frozenset({"", "private"}),
    "userns": frozenset({"", "auto", "keep-id", "nomap", "private"}),
    "uts": frozenset({"", "private"}),
}
"""Namespaces, and the values with which the container has its own."""
_MOUNTS = frozenset({"mount", "volume"})
_OTHERS = frozenset({"security-opt"})
_STEERING = re.compile(
    r"(?:DOCKER|CONTAINERS?|PODMAN|NERDCTL|CONTAINERD|BUILDKIT|BUILDX|LD|DYLD|XDG)_.*|HOME|PATH"
    r"|REGISTRY_AUTH_FILE|GODEBUG|SSH_.*"
)
"""Variables with which a client talks to another engine, or runs other programs."""
_NO_NEW_PRIVILEGES = frozenset({"no-new-privileges", "no-new-privileges=true"})
# as the engines read them: those of Go's `strconv.ParseBool`
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class ContainerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A command line of a container engine."""

    subcommand: str
    """`run`, or another one, of which nothing else is read."""
    image: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """The options of `run` by their long names, with their values."""
    engine: tuple[str, ...] = ()
    """Options before the subcommand, which choose another engine or its settings."""
    unknown: tuple[str, ...] = ()
    """Options that are not understood; what follows one may be misread."""

    def __repr__(self) -> str:
        return f"<ContainerRun {self.subcommand} {self.image}>"  # values of options may be secret


def parse_container_run(command: Sequence[str]) -> ContainerRun | None:
    """Parse a command line; None if it is not one of a container engine.

    Only by its name: whether the program is what it is called, the caller has to find out.
    """
    if not command or PurePath(command[0]).name not in CLIENTS:
        return None
    queue = [*command[1:]]
    engine: list[str] = []
    unknown: list[str] = []
    while queue and queue[0].startswith("-"):
        word = queue.pop(0)
        name, sign, _ = word.partition("=")
        if word in _GLOBAL_FLAGS:
            continue
        if name not in _GLOBAL_VALUES:
            unknown.append(word)
        elif sign:
            engine.append(word)
        else:
            engine.append(f"{word} {queue.pop(0) if queue else ''}".rstrip())
    # how much it writes about itself opens nothing
    engine = [text for text in engine if not text.startswith(("-l", "--log-level"))]
    if queue[:2] == ["container", "run"]:
        del queue[0]
    subcommand = queue.pop(0) if queue else ""
    if subcommand != "run":
        return ContainerRun(subcommand=subcommand, engine=tuple(engine), unknown=tuple(unknown))
    options: list[tuple[str, str]] = []
    while queue and queue[0].startswith("-") and queue[0] != "-":
        word = queue.pop(0)
        if word == "--":
            break
        take = _long_option if word.startswith("--") else _short_options
        unknown += take(word, queue, options)
    return ContainerRun(
        subcommand="run",
        image=queue[0] if queue else "",
        options=tuple(options),
        engine=tuple(engine),
        unknown=tuple(unknown),
    )


def objections(
    run: ContainerRun, workspace: Path | None, env: Iterable[str] = ()
) -> tuple[str, ...]:
    """Everything of this machine that a container would get; none if it gets nothing.

    Variables that it passes on (`-e NAME`) are no objection: its client has only those of its
    entry.

    Args:
        workspace: The folder that it may have; the base of relative paths.
        env: The names of the variables that its entry sets.
    """
    return (
        *_objections(run, workspace),
        *(f"the variable {name} steers its client" for name in env if _STEERING.fullmatch(name)),
    )


def is_real_client(program: str, strangers: Collection[Path]) -> bool:
    """Whether a program file is the client of a container engine, and not somebody else's.

    `strangers` are folders whose content others write: a project's, bundles.
    """
    real = Path(os.path.realpath(program))
    inside = any(real.is_relative_to(os.path.realpath(folder)) for folder in strangers)
    return real.name in CLIENTS and not inside and os.access(real, os.X_OK)


def _long_option(word: str, queue: list[str], options: list[tuple[str, str]]) -> Iterator[str]:
    """Take one option with its value from a queue; yields it if it is not understood."""
    name, sign, value = word[2:].partition("=")
    name = _SAME.get(name, name)
    if name in _FLAGS or name in _GRANTING_FLAGS:
        if value not in _FALSE:
            options.append((name, value))
    elif _takes_value(name):
        options.append((name, value if sign else queue.pop(0) if queue else ""))
    else:
        yield word


def _short_options(word: str, queue: list[str], options: list[tuple[str, str]]) -> Iterator[str]:
    """The same for one or more short options in one word: `-itv/:/host`."""
    for index, letter in enumerate(word[1:], 1):
        name = _SHORT.get(letter)
        rest = word[index + 1 :]
        if name is None:
            yield word
            return
        if name in _FLAGS:
            options.append((name, ""))
            if rest.startswith("="):
                return
            continue
        options.append((name, rest.removeprefix("=") if rest else queue.pop(0) if queue else ""))
        return


def _takes_value(name: str) -> bool:
    return any(name in table for table in (_HARMLESS, _GRANTS, _NAMESPACES, _MOUNTS, _OTHERS))


def _objections(run: ContainerRun, workspace: Path | None) -> Iterator[str]:
    yield from (f"`{text}` chooses another engine or its settings" for text in run.engine)
    yield from (f"`{text}` is not understood" for text in run.unknown)
    if run.subcommand != "run":
        yield f"`{run.subcommand or 'no subcommand'}` is not `run`: what it does is not checked"
        return
    if not run.image:
        yield "it names no image"
    for name, value in run.options:
        if name in _MOUNTS:
            yield from _mount_objections(name, value, workspace)
        else:
            yield from _option_objections(name, value)


def _option_objections(name: str, value: str) -> Iterator[str]:
    if name in _GRANTING_FLAGS:
        yield _GRANTING_FLAGS[name]
    elif name in _GRANTS:
        yield _GRANTS[name].format(value)
    # the options of a network can open loopback: `slirp4netns:allow_host_loopback=true`
    elif (
        name in _NAMESPACES
        and (value if name == "network" else value.partition(":")[0]) not in _NAMESPACES[name]
    ):
        yield f"`--{name}={value}`: it shares a namespace with this machine or a container"
    elif name == "security-opt" and value not in _NO_NEW_PRIVILEGES:
        yield f"`--security-opt={value}` changes how it is confined"
    elif name == "publish-all":
        yield "it opens all its ports on this machine"


def _mount_objections(name: str, value: str, workspace: Path | None) -> Iterator[str]:
    source, is_host = _volume(value) if name == "volume" else _mount(value)
    if not is_host:
        return
    if source is None:
        yield f"the mount {value!r} is not understood"
        return
    base = str(workspace or "/")
    real = os.path.realpath(os.path.join(base, os.path.expanduser(source)))
    if workspace is None or not is_within(real, os.path.realpath(workspace)):
        yield f"it may use {real} of this machine"


def _volume(value: str) -> tuple[str | None, bool]:
    """The source of `-v`, and whether it is a path of this machine."""
    source, colon, _ = value.partition(":")
    if not colon:
        return None, False  # a new volume
    is_path = "/" in source or source.startswith((".", "~")) or not source
    return source or None, is_path


def _mount(value: str) -> tuple[str | None, bool]:
    """The same for `--mount`."""
    pairs = [part.partition("=")[::2] for part in value.split(",")]
    keys = ["source" if key.lower() == "src" else key.lower() for key, _ in pairs]
    parts = dict(zip(keys, (text for _, text in pairs), strict=True))
    kind, source = parts.get("type", "volume"), parts.get("source")
    # the options of a volume can make any folder one
    has_options = any(key.startswith("volume-") and key != "volume-nocopy" for key in keys)
    # a comma in quotes, or a part that is there twice: others may read it differently
    is_odd = '"' in value or len({*keys}) < len(keys)
    if kind not in {"volume", "tmpfs", "bind"} or has_options or is_odd:
        return None, True
    if kind == "bind" or (source and "/" in source):
        return source, True
    return source, False
