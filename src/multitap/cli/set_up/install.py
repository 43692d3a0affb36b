"""`multitap install` and `uninstall`: put the gateway into other clients' files."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from multitap.cli.completion import complete_client
from multitap.cli.configuration import load_configuration
from multitap.cli.edits import EditTarget, show_differences, write_edits
from multitap.cli.options import CommonOptions, config_options, dry_run_option
from multitap.cli.set_up.clients import CLIENTS, McpClient, client_named
from multitap.cli.terminal import Exit, advise, note, say, short_path
from multitap.config import Document, HttpServer, StdioServer, Surroundings, native
from multitap.config.dialects import Dialect, dialect
from multitap.config.dialects.draft import literal
from multitap.config.documents import is_there
from multitap.config.edit.changes import Change, RemoveValue, SetValue
from multitap.config.edit.journal import FileEdit, Journal, content_of
from multitap.config.edit.servers import (
    Program,
    entry_place,
    identity,
    is_gateway,
    read_host,
    write_entry,
)
from multitap.config.layers import Layer, merge, read_document
from multitap.config.models import URL
from multitap.config.sources import Source, host_file
from multitap.errors import ConfigError
from multitap.trust.vault import Vault
from multitap.version import own_program

NAME = "multitap"
"""Our name in clients' files."""
DEFAULT_URL = "http://127.0.0.1:3000/mcp"


@click.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="CLIENT...", shell_complete=complete_client
)
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value=DEFAULT_URL,
    metavar="[URL]",
    help=f"Connect to a running gateway; default: {DEFAULT_URL}",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Remove the client's own entries for servers that the gateway has",
)
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    expose_value=False,
    help="Accepted for scripts; install does not ask",
)
@dry_run_option
@config_options
def install(
    options: CommonOptions,
    names: Sequence[str],
    *,
    address: str | None,
    replace: bool,
    dry_run: bool,
) -> int:
    """Add Multitap to other clients

    Writes to each client's own configuration file, and shows what changes. CLIENT is a name as
    for import, or all for those that have a file on this machine.
    """
    if address is not None and not URL.match(address):
        raise ConfigError(
            f"{address!r} is not the address of a gateway",
            hint=f"expected one that starts with http:// or https://, such as {DEFAULT_URL}",
        )
    config = HttpServer(url=address) if address else _own_command(options)
    present = load_configuration(options).settings.servers
    # by command, not by name: clients have different names for the same server
    own = {
        identity(server, Vault().value)
        for server in present.values()
        if isinstance(server, StdioServer | HttpServer)
    }
    edits: list[FileEdit] = []
    doubled: list[str] = []
    for name, client in _choose_clients(names):
        if client.dialect is None:
            _instruct(client, options, address)
            continue
        target = _target(client.dialect)
        if name not in names and write_entry(NAME, config, dialect(client.dialect)).entry is None:
            note(f"{name} is left out: it can only start the gateway itself")  # one of `all`
            continue
        _check_expressible(name, client.dialect, config)
        edits.append(_adding(target, client, config, own if replace else set()))
        if not replace and (count := _count_copies(target, own)):
            doubled.append(f"{name} still starts {count} of these servers itself")
    code = _carry_out(f"install {' '.join(names)}", edits, dry_run=dry_run)
    if doubled:
        note("; ".join(doubled))
        advise(f"`multitap install {' '.join(names)} --replace` removes these entries")
    if not present:
        note("no servers are configured yet: the gateway has nothing to offer")
        advise("`multitap import` brings in those of your clients, `multitap add` adds one")
    return code


@click.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="CLIENT...", shell_complete=complete_client
)
@dry_run_option
def uninstall(names: Sequence[str], *, dry_run: bool) -> int:
    """Remove Multitap from other clients"""
    clients = [
        (name, client) for name, client in _choose_clients(names) if client.dialect is not None
    ]
    targets = [_target(client.dialect or "") for _, client in clients]
    edits = [_removing(target) for target in targets if is_there(target.path)]
    return _carry_out(f"uninstall {' '.join(names)}", edits, dry_run=dry_run)


def installed_in() -> Iterator[str]:
    """The clients whose own file has the gateway."""
    where = Surroundings.here()
    for name, client in CLIENTS.items():
        path = host_file(client.dialect, where) if client.dialect else None
        if path is None or not is_there(path):
            continue
        servers = read_host(Source(path=path, dialect=client.dialect), where.folder).servers
        if any(is_gateway(server, config) for server, config in servers.items()):
            yield name


def _choose_clients(names: Sequence[str]) -> Iterator[tuple[str, McpClient]]:
    """The clients of these names; `all` means those that have a file."""
    for name in names:
        if name != "all":
            yield name, client_named(name)
            continue
        for other, client in CLIENTS.items():
            path = host_file(client.dialect, Surroundings.here()) if client.dialect else None
            if path is not None and is_there(path):
                yield other, client


def _target(name: str) -> EditTarget:
    path = host_file(name, Surroundings.here())
    if path is None:
        raise ConfigError(
            f"Multitap does not know where {dialect(name).title} keeps its configuration"
        )
    return EditTarget(path, name)


def _own_command(options: CommonOptions) -> StdioServer:
    """The command with which a client starts us, whatever its PATH."""
    # clients start it in another folder, so named files have absolute paths
    search = native(Surroundings.here(), options.files)
    files = [str(source.path) for source in search.sources if source.required]
    named = [word for file in files for word in ("-c", file)]
    return StdioServer(
        command=literal(_program()[0]), args=(*map(literal, (*_program()[1:], "serve", *named)),)
    )


def _program() -> tuple[str, ...]:
    typed = Path(sys.argv[0])
    # the typed program, which stays the same after an upgrade
    if typed.name == NAME and (path := shutil.which(str(typed.absolute()))):
        return (path,)
    if path := shutil.which(NAME, path=str(Path(sys.executable).parent)):
        return (path,)
    return own_program()


def _instruct(client: McpClient, options: CommonOptions, url: str | None) -> None:
    config = _own_command(options)
    command = shlex.join([config.command, *config.args])
    say(client.instructions.format(command=command, url=url or DEFAULT_URL))


def _check_expressible(name: str, dialect_name: str, config: Program) -> None:
    written = write_entry(NAME, config, dialect(dialect_name))
    if written.entry is None:
        hint = f"`multitap install {name}` without `--http` has it start the gateway itself"
        raise ConfigError(written.losses[0].reason, hint=hint)


def _adding(target: EditTarget, client: McpClient, config: Program, own: set[object]) -> FileEdit:
    def changes(document: Document, dialect_: Dialect) -> list[Change]:
        entry = {**(write_entry(NAME, config, dialect_).entry or {}), **client.extra}
        replaced = [*_copies(document, dialect_, own)]
        # the last of a list first, so that the other indices stay valid
        drops = [RemoveValue(path) for path in sorted(replaced, key=_last, reverse=True)]
        place = entry_place(dialect_, document, NAME)
        # appended to a list from which entries are removed in the same edit
        if isinstance(place[-1], int) and document.root.find(*map(str, place)) is None:
            place = (*place[:-1], place[-1] - len(drops))
        besides = dialect_.writing.also(document.root, [entry])
        return [*drops, SetValue(place, entry), *(SetValue(path, value) for path, value in besides)]

    return target.edit(changes)


def _last(path: tuple[str | int, ...]) -> int:
    return path[-1] if isinstance(path[-1], int) else 0


def _count_copies(target: EditTarget, own: set[object]) -> int:
    try:
        text = (content_of(target.path) or b"").decode()
    except (ConfigError, UnicodeDecodeError):
        return 0  # it does not exist yet, or the edit reports its problem
    return len([*_copies(target.document(text), dialect(target.dialect or ""), own)])


def _copies(
    document: Document, dialect_: Dialect, own: set[object]
) -> Iterator[tuple[str | int, ...]]:
    """The entries of a client's file that the gateway has, too."""
    reading = read_document(document, Path.cwd(), dialect_name=dialect_.name)
    settings = merge([Layer(reading)]).settings
    for entry in reading.entries if own else ():
        config = settings.servers.get(entry.name)
        if not isinstance(config, StdioServer | HttpServer) or not entry.complete:
            continue
        if identity(config, Vault().value) in own:
            yield entry.node.key


def _removing(target: EditTarget) -> FileEdit:
    """Remove the gateway: restore the file from before `install`, byte for byte."""
    # only if the file has not changed since: see `Journal.original`
    if (original := Journal().original(target.path, "install ")) is not None:
        return FileEdit(target.path, lambda _: original.text)
    return target.edit(_removals)


def _removals(document: Document, dialect_: Dialect) -> list[Change]:
    """Every entry of the gateway."""
    file = read_host(Source(path=document.path, dialect=dialect_.name), Path.cwd())
    ours = {name for name, config in file.servers.items() if is_gateway(name, config)}
    entries = read_document(document, Path.cwd(), dialect_name=dialect_.name).entries
    keys = [entry.node.key for entry in entries if entry.name in ours and entry.complete]
    return [RemoveValue(key) for key in sorted(keys, key=_last, reverse=True)]


def _carry_out(label: str, edits: Sequence[FileEdit], *, dry_run: bool) -> int:
    # always shown: these files belong to other programs
    previews = Journal().preview(edits)
    show_differences(previews)
    if dry_run:
        note("nothing was written")
    elif write_edits(label, edits) is None:
        note("nothing to change")
    else:
        for preview in previews:
            note(f"changed {short_path(preview.path)}")
        note("restart these clients; `multitap undo` reverts the change")
    return Exit.DONE
