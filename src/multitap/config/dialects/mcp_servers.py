"""The `mcpServers` family: the same map of servers with small differences from host to host."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from multitap.config.dialects.draft import Draft, Reading, UnwrittenFields, bare, only, respelling
from multitap.config.dialects.host_format import (
    Dialect,
    Spelling,
    Transcript,
    WritingRules,
    as_is,
    same_text,
    within,
)
from multitap.config.dialects.local_remote import is_server, spec07_spelling
from multitap.config.dialects.rules import (
    EVERY_TRANSPORT,
    Rules,
    TwoWay,
    all_arguments,
    command,
    duration,
    env,
    flag,
    forget,
    ignore,
    integer,
    members,
    nothing,
    oauth,
    path,
    pick,
    string,
    strings,
    table,
    transport,
    transport_as,
    unitless,
    unsupported,
    words,
)
from multitap.config.documents import Document, KeyPath, Node, is_list, is_table
from multitap.config.problems import Problem, Severity

_CLIENT: Rules = {
    "enabled": nothing,
    "clientId": string("oauth", "client_id"),
    "clientSecret": string("oauth", "client_secret"),
    "scope": words("oauth", "scope"),
    "scopes": words("oauth", "scope"),
    "callbackPort": integer("oauth", "callback_port"),
    "redirectUri": string("oauth", "redirect_uri"),
    "authServerMetadataUrl": string("oauth", "metadata_url"),
    "CLIENT_ID": string("oauth", "client_id"),
    "CLIENT_SECRET": string("oauth", "client_secret"),
    **dict.fromkeys(
        (
            "authorizationUrl",
            "issuer",
            "tokenUrl",
            "audiences",
            "tokenParamName",
            "registrationUrl",
            "enterpriseManaged",
        ),
        ignore,
    ),
}
_LOGIN_STATE = frozenset({"tokens", "clientInformation", "codeVerifier"})


def _oauth(draft: Draft, node: Node) -> None:
    """How to log in; Cline's own tokens under the same key are ignored."""
    if is_table(node.value) and node.value.keys() & _LOGIN_STATE:
        forget(draft, node)
    elif is_table(node.value) and node.value.get("enabled") is False:
        draft.set("oauth", node, value=False)
    else:
        oauth(_CLIENT)(draft, node)


def _google_login(draft: Draft, node: Node) -> None:
    if node.value != "dynamic_discovery":
        unsupported("login with Google credentials is not supported")(draft, node)


def _streamable(draft: Draft, node: Node) -> None:
    string("url")(draft, node)
    draft.set("transport", node, "streamable-http")


def _streamable_url(fields: UnwrittenFields) -> str | None:
    """The address, if the server certainly speaks Streamable HTTP."""
    if fields.look("transport") != "streamable-http" or (url := fields.text("url")) is None:
        return None
    fields.take("transport")
    return url


def _transport(draft: Draft, node: Node) -> None:
    """A word, or a table with everything about the connection."""
    rule = members(KEYS) if is_table(node.value) else transport
    rule(draft, node)


KEYS: Rules = {
    "type": EVERY_TRANSPORT,
    "transport": _transport,
    "transportType": transport,
    "command": command,
    "args": all_arguments,
    "env": env,
    "envFile": path("env_file"),
    "cwd": path("cwd"),
    "url": string("url"),
    "serverUrl": string("url"),
    # Gemini CLI: the deprecated name for an address that speaks Streamable HTTP.
    "httpUrl": TwoWay(_streamable, _streamable_url),
    "tcp": unsupported("WebSocket servers are not supported"),
    "headers": table("headers"),
    # A shell command of Claude Code: reading the file of another host must not run anything.
    "headersHelper": unsupported("is not run; write the headers instead"),
    "oauth": TwoWay(_oauth, oauth(_CLIENT).write),
    "oauthClient": oauth(_CLIENT),
    "auth": oauth(_CLIENT),
    "authProviderType": _google_login,
    "enabled": flag("enabled"),
    "disabled": flag("enabled", inverse=True),
    "description": string("description"),
    # Claude Code and Gemini CLI mean milliseconds, Cline and ExcelManus seconds: a wrong guess is
    # off by a factor of 1000.
    "timeout": unitless("timeout"),
    "request_timeout_ms": duration("timeout", bare="ms"),
    "includeTools": strings("filter", "allow"),
    "excludeTools": strings("filter", "deny"),
    "disabledTools": strings("filter", "deny"),
    # VS Code approves the calls of sandboxed servers automatically: users who relied on that
    # must know that the server has no sandbox here.
    "sandboxEnabled": unsupported("the server runs without a sandbox here"),
    **dict.fromkeys(
        (
            # `alwaysAllow`, `autoApprove` and `trust` are permissions for another host: importing
            # them would allow calls that nobody has allowed here.
            "alwaysAllow",
            "alwaysLoad",
            "autoApprove",
            "dev",
            "extension",
            "gallery",
            "metadata",
            "remoteConfigured",
            "targetAudience",
            "targetServiceAccount",
            "tools",
            "trust",
            "version",
        ),
        ignore,
    ),
}
"""The keys of all hosts of the family, because people paste from one to another."""
IN_SECONDS: Rules = {**KEYS, "timeout": duration("timeout", bare="s")}
IN_MILLISECONDS: Rules = {**KEYS, "timeout": duration("timeout", bare="ms")}


def _says_transport(draft: Draft) -> None:
    """Requires a transport, unless the entry only enables or disables another one."""
    if ("transport",) not in draft.fields and {*draft.fields} != {("enabled",)}:
        draft.missing("transport", hint='`"transport": "stdio"` or `"sse"`')


def _says_args(draft: Draft) -> None:
    if ("command",) in draft.fields and ("args",) not in draft.fields:
        draft.missing("args", hint='`"args": []` if there are none')


def read(name: str, spelling: Spelling, document: Document, folder: Path) -> Reading:
    transcript = Transcript(name, document, folder, spelling)
    transcript.table(transcript.root.find("mcpServers"))
    return transcript.reading()


def read_excelmanus(spelling: Spelling, document: Document, folder: Path) -> Reading:
    """Requires the map: a file without it counts as unreadable."""
    root = document.root
    if root.find("mcpServers") is None:
        hint = '`{"mcpServers": {}}` if there are none'
        problem = Problem(
            severity=Severity.ERROR, message="`mcpServers` is missing", place=root.place, hint=hint
        )
        return Reading(dialect="", problems=(problem,))
    return read("excelmanus", spelling, document, folder)


def read_plain(spelling: Spelling, document: Document, folder: Path) -> Reading:
    """Also accepts a bare map of servers, or a single server named after its file."""
    return _read_plain(Transcript("mcpservers", document, folder, spelling))


def read_mixed_hosts(spelling: Spelling, document: Document, folder: Path) -> Reading:
    """Reads each server as its own keys suggest."""
    is_bare = document.root.find("mcpServers") is None
    spelling_of = spec07_spelling if is_bare else _spelling_of
    return _read_plain(
        Transcript("mcpservers", document, folder, spelling, spelling_of=spelling_of)
    )


def _read_plain(transcript: Transcript) -> Reading:
    root = transcript.root
    if servers := root.find("mcpServers"):
        transcript.table(servers)
    elif is_server(root):
        transcript.entry(root.name, root)
    else:
        transcript.table(root)
    return transcript.reading()


def read_claude_code(spelling: Spelling, document: Document, folder: Path) -> Reading:
    """Servers of the user, then those of the current project."""
    transcript = Transcript("claude-code", document, folder, spelling)
    transcript.table(transcript.root.find("mcpServers"))
    # Claude Code keeps the servers of `claude mcp add`, and which ones are disabled, by the path
    # of the project.
    if project := transcript.root.find("projects", str(folder)):
        transcript.table(project.find("mcpServers"))
        for key in ("disabledMcpServers", "disabledMcpjsonServers"):
            _switch_off(transcript, project.find(key))
    return transcript.reading()


def read_gemini(spelling: Spelling, document: Document, folder: Path) -> Reading:
    transcript = Transcript("gemini", document, folder, spelling)
    transcript.table(transcript.root.find("mcpServers"))
    if allowed := transcript.root.find("mcp", "allowed"):
        if not is_list(allowed.value):
            transcript.problem(Severity.ERROR, allowed, "expected a list of servers")
        names = [element.value for element in allowed.elements()]
        for entry in [entry for entry in transcript.entries if entry.name not in names]:
            transcript.amend(entry.name, allowed, "enabled", value=False)
    _switch_off(transcript, transcript.root.find("mcp", "excluded"))
    return transcript.reading()


def _switch_off(transcript: Transcript, names: Node | None) -> None:
    if names and not is_list(names.value):
        transcript.problem(Severity.ERROR, names, "expected a list of servers")
    for element in names.elements() if names else ():
        if isinstance(element.value, str):
            transcript.amend(element.value, element, "enabled", value=False)
        else:
            transcript.problem(Severity.WARNING, element, "expected the name of a server")


def _servers(document: Document) -> list[Node]:
    container = document.root.find("mcpServers")
    return (
        [member for _, member in container.members() if is_table(member.value)] if container else []
    )


Mark = Callable[[Node], bool]
"""Whether a server has something that only one host knows."""


def _has(*keys: str) -> Mark:
    return lambda server: any(key in server.value for key in keys)


def _is_cline(server: Node) -> bool:
    return (
        _has("transportType", "oauthClient", "remoteConfigured")(server)
        or is_table(server.value.get("transport"))
        or server.value.get("type") == "streamableHttp"
    )


def _is_excelmanus(server: Node) -> bool:
    return server.value.get("transport") in ("stdio", "sse")


def _is_file_of_gemini(document: Document) -> bool:
    limits = [document.root.find("mcp", key) for key in ("allowed", "excluded")]
    return bool(_servers(document)) and any(limits)


def _is_file_of_claude_code(document: Document) -> bool:
    return bool(_servers(document)) and document.root.find("projects") is not None


def _spelling_of(server: Node) -> Spelling | None:
    """The spelling of the host whose keys a server has; None if it could be any."""
    if not is_table(server.value):
        return None
    return next((spelling for mark, spelling in _MARKS if mark(server)), None)


def _all_spelled(spelling: Spelling) -> Callable[[Document], bool]:
    """Whether all servers are of one host, and nothing around them is of another.

    If they differ, each is read by itself: see `read_mixed_hosts`.
    """

    def matches(document: Document) -> bool:
        servers = _servers(document)
        if _is_file_of_claude_code(document) or _is_file_of_gemini(document):
            return False
        return bool(servers) and all(_spelling_of(server) is spelling for server in servers)

    return matches


def _is_plain(document: Document) -> bool:
    root = document.root
    if container := root.find("mcpServers"):
        return is_table(container.value)
    return is_server(root) or any(
        is_server(member) or spec07_spelling(member) for _, member in root.members()
    )


def _never(_: Document) -> bool:
    """Recognised by its file name, because its content is not specific."""
    return False


_STDIO = ("command", "args", "env")
_REMOTE = ("url", "headers")
_SERVERS = within("mcpServers")
# Each host expands these forms and no others. If we expanded more, a text that is literal in its
# host would take values from our environment.
_CURSOR = only("env:", "userHome", "workspaceFolder", "pathSeparator}", "/}")
_WINDSURF = only("env:", "file:")
_CLINE = only("env:")

_OF_CLAUDE_CODE = Spelling(keys=IN_MILLISECONDS)
_OF_CURSOR = Spelling(keys=KEYS, rewrite=_CURSOR)
_OF_WINDSURF = Spelling(keys=KEYS, rewrite=_WINDSURF, words={"url": "serverUrl"})
_OF_CLINE = Spelling(keys=IN_SECONDS, rewrite=_CLINE)
_OF_GEMINI = Spelling(keys=IN_MILLISECONDS, rewrite=bare)
_OF_EXCELMANUS = Spelling(keys=IN_SECONDS, check=_says_transport)
_MARKS: tuple[tuple[Mark, Spelling], ...] = (
    (_has("headersHelper", "alwaysLoad"), _OF_CLAUDE_CODE),
    (_is_cline, _OF_CLINE),
    (_has("httpUrl", "includeTools", "excludeTools", "trust", "authProviderType"), _OF_GEMINI),
    (_has("envFile", "auth"), _OF_CURSOR),
    (_has("serverUrl"), _OF_WINDSURF),
    (_is_excelmanus, _OF_EXCELMANUS),
)

CLAUDE_CODE = Dialect(
    name="claude-code",
    title="Claude Code",
    read=partial(read_claude_code, _OF_CLAUDE_CODE),
    matches=lambda document: (
        _is_file_of_claude_code(document) or _all_spelled(_OF_CLAUDE_CODE)(document)
    ),
    writing=WritingRules(
        keys={
            # always written: Claude Code refuses an address without it
            "type": transport_as(stdio="stdio", http="http", sse="sse"),
            **pick(IN_MILLISECONDS, *_STDIO, *_REMOTE),
            "oauth": oauth(
                {
                    "clientId": string("oauth", "client_id"),
                    "callbackPort": integer("oauth", "callback_port"),
                    "authServerMetadataUrl": string("oauth", "metadata_url"),
                    "scopes": string("oauth", "scope"),
                }
            ),
            "timeout": IN_MILLISECONDS["timeout"],
        },
        respell=respelling(same_text, env="${%s}", default="${%s:-%s}"),
        container=_SERVERS,
    ),
    files=(".mcp.json", ".claude.json", "managed-mcp.json"),
)
CURSOR = Dialect(
    name="cursor",
    title="Cursor",
    read=partial(read, "cursor", _OF_CURSOR),
    matches=_all_spelled(_OF_CURSOR),
    writing=WritingRules(
        keys={
            **pick(KEYS, *_STDIO, "envFile", *_REMOTE),
            "auth": oauth(
                {
                    "CLIENT_ID": string("oauth", "client_id"),
                    "CLIENT_SECRET": string("oauth", "client_secret"),
                    "scopes": words("oauth", "scope"),
                }
            ),
        },
        respell=respelling(_CURSOR, env="${env:%s}", folders=True),
        container=_SERVERS,
    ),
    files=(".cursor/mcp.json",),
)
WINDSURF = Dialect(
    name="windsurf",
    title="Windsurf",
    read=partial(read, "windsurf", _OF_WINDSURF),
    matches=_all_spelled(_OF_WINDSURF),
    writing=WritingRules(
        keys=pick(KEYS, *_STDIO, "serverUrl", "headers", "disabled", "disabledTools"),
        respell=respelling(_WINDSURF, env="${env:%s}", file="${file:%s}"),
        container=_SERVERS,
    ),
    files=("windsurf/mcp_config.json", ".codeium/mcp_config.json"),
)
CLINE = Dialect(
    name="cline",
    title="Cline",
    read=partial(read, "cline", _OF_CLINE),
    matches=_all_spelled(_OF_CLINE),
    writing=WritingRules(
        keys={
            "type": transport_as(stdio="stdio", streamable_http="streamableHttp", sse="sse"),
            **pick(IN_SECONDS, *_STDIO, "cwd", *_REMOTE, "disabled", "timeout"),
            "oauthClient": oauth(
                {
                    "clientId": string("oauth", "client_id"),
                    "clientSecret": string("oauth", "client_secret"),
                }
            ),
        },
        respell=respelling(_CLINE, env="${env:%s}"),
        container=_SERVERS,
    ),
    files=("cline_mcp_settings.json", ".cline/mcp.json"),
)
GEMINI = Dialect(
    name="gemini",
    title="Gemini CLI",
    read=partial(read_gemini, _OF_GEMINI),
    matches=lambda document: _is_file_of_gemini(document) or _all_spelled(_OF_GEMINI)(document),
    writing=WritingRules(
        keys={
            **pick(IN_MILLISECONDS, *_STDIO, "cwd", "httpUrl", "url"),
            "type": transport_as(http="http", sse="sse"),
            **pick(IN_MILLISECONDS, "headers", "timeout", "description"),
            **pick(IN_MILLISECONDS, "includeTools", "excludeTools"),
            "oauth": oauth(
                {
                    "clientId": string("oauth", "client_id"),
                    "clientSecret": string("oauth", "client_secret"),
                    "scopes": words("oauth", "scope"),
                    "redirectUri": string("oauth", "redirect_uri"),
                }
            ),
        },
        respell=respelling(bare, env="${%s}", default="${%s:-%s}"),
        container=_SERVERS,
    ),
    files=(".gemini/settings.json", "gemini-extension.json"),
)
EXCELMANUS = Dialect(
    name="excelmanus",
    title="ExcelManus",
    read=partial(read_excelmanus, _OF_EXCELMANUS),
    matches=_all_spelled(_OF_EXCELMANUS),
    writing=WritingRules(
        keys={
            "transport": KEYS["type"],
            **pick(IN_SECONDS, *_STDIO, *_REMOTE, "timeout"),
        },
        respell=as_is,
        container=_SERVERS,
    ),
    files=(".excelmanus/mcp.json",),
)
KODE = Dialect(
    name="kode",
    title="kode",
    read=partial(read, "kode", Spelling(keys=KEYS, check=_says_args)),
    matches=_never,
    writing=WritingRules(
        keys=pick(KEYS, "type", *_STDIO, *_REMOTE), respell=as_is, container=_SERVERS
    ),
    files=(".kode.json",),
)
CLAUDE_DESKTOP = Dialect(
    name="claude",
    title="Claude Desktop",
    read=partial(read, "claude", Spelling(keys=KEYS)),
    matches=_never,
    writing=WritingRules(
        # its file knows programs only, and no variables
        keys=pick(KEYS, *_STDIO),
        respell=respelling(same_text),
        container=_SERVERS,
    ),
    files=("claude_desktop_config.json",),
)
_PLAIN_KEYS = ("type", *_STDIO, "cwd", "envFile", *_REMOTE, "disabled", "description")


def _plain_container(root: Node) -> KeyPath:
    is_bare = root.find("mcpServers") is None and any(
        is_server(member) for _, member in root.members()
    )
    return () if is_bare else ("mcpServers",)


PLAIN = Dialect(
    name="mcpservers",
    title="mcpServers",
    read=partial(read_plain, Spelling(keys=KEYS)),
    matches=_is_plain,
    writing=WritingRules(
        keys={
            **pick(KEYS, *_PLAIN_KEYS),
            # not `timeout`, whose unit differs from host to host
            "request_timeout_ms": KEYS["request_timeout_ms"],
            **pick(KEYS, "includeTools", "excludeTools", "oauth"),
        },
        respell=as_is,
        container=_plain_container,
    ),
)
MIXED_HOSTS = replace(PLAIN, read=partial(read_mixed_hosts, Spelling(keys=KEYS)))
"""The same if nobody said so: the servers may come from several hosts."""
# Those with their own keys first; the last two are recognised only by file name.
FAMILY = (CLAUDE_CODE, CLINE, GEMINI, CURSOR, WINDSURF, EXCELMANUS, CLAUDE_DESKTOP, KODE)
