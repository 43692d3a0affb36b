"""The hosts that keep their servers in a map named `mcpServers`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from multitap.config.dialects.dialect import (
    Dialect,
    Spelling,
    Transcript,
    WritingRules,
    as_is,
    same_text,
    within,
)
from multitap.config.dialects.draft import Draft, Reading
from multitap.config.dialects.local_remote import is_server, spec07_spelling
from multitap.config.dialects.mcp_servers import IN_MILLISECONDS, IN_SECONDS, KEYS
from multitap.config.dialects.rewrites import bare, only, respelling
from multitap.config.dialects.rules import (
    integer,
    oauth,
    pick,
    string,
    transport_as,
    words,
)
from multitap.config.documents import Document, KeyPath, Node, is_table
from multitap.config.problems import Problem, Severity


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
        problem = Problem(Severity.ERROR, "`mcpServers` is missing", root.place, hint=hint)
        return Reading("", problems=(problem,))
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
        names = [element.value for element in allowed.elements()]
        for entry in [entry for entry in transcript.entries if entry.name not in names]:
            transcript.amend(entry.name, allowed, "enabled", value=False)
    _switch_off(transcript, transcript.root.find("mcp", "excluded"))
    return transcript.reading()


def _switch_off(transcript: Transcript, names: Node | None) -> None:
    for element in names.elements() if names else ():
        if isinstance(element.value, str):
            transcript.amend(element.value, element, "enabled", value=False)
        else:
            transcript.problem(Severity.WARNING, element, "expected the name of a server")


def _servers(document: Document) -> list[Node]:
    found = document.root.find("mcpServers")
    return [member for _, member in found.members() if is_table(member.value)] if found else []


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
    if found := root.find("mcpServers"):
        return is_table(found.value)
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

_OF_CLAUDE_CODE = Spelling(IN_MILLISECONDS)
_OF_CURSOR = Spelling(KEYS, _CURSOR)
_OF_WINDSURF = Spelling(KEYS, _WINDSURF, words={"url": "serverUrl"})
_OF_CLINE = Spelling(IN_SECONDS, _CLINE)
_OF_GEMINI = Spelling(IN_MILLISECONDS, bare)
_OF_EXCELMANUS = Spelling(IN_SECONDS, check=_says_transport)
_MARKS: tuple[tuple[Mark, Spelling], ...] = (
    (_has("headersHelper", "alwaysLoad"), _OF_CLAUDE_CODE),
    (_is_cline, _OF_CLINE),
    (_has("httpUrl", "includeTools", "excludeTools", "trust", "authProviderType"), _OF_GEMINI),
    (_has("envFile", "auth"), _OF_CURSOR),
    (_has("serverUrl"), _OF_WINDSURF),
    (_is_excelmanus, _OF_EXCELMANUS),
)

CLAUDE_CODE = Dialect(
    "claude-code",
    "Claude Code",
    partial(read_claude_code, _OF_CLAUDE_CODE),
    lambda document: _is_file_of_claude_code(document) or _all_spelled(_OF_CLAUDE_CODE)(document),
    WritingRules(
        {
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
        respelling(same_text, env="${%s}", default="${%s:-%s}"),
        _SERVERS,
    ),
    (".mcp.json", ".claude.json", "managed-mcp.json"),
)
CURSOR = Dialect(
    "cursor",
    "Cursor",
    partial(read, "cursor", _OF_CURSOR),
    _all_spelled(_OF_CURSOR),
    WritingRules(
        {
            **pick(KEYS, *_STDIO, "envFile", *_REMOTE),
            "auth": oauth(
                {
                    "CLIENT_ID": string("oauth", "client_id"),
                    "CLIENT_SECRET": string("oauth", "client_secret"),
                    "scopes": words("oauth", "scope"),
                }
            ),
        },
        respelling(_CURSOR, env="${env:%s}", folders=True),
        _SERVERS,
    ),
    (".cursor/mcp.json",),
)
WINDSURF = Dialect(
    "windsurf",
    "Windsurf",
    partial(read, "windsurf", _OF_WINDSURF),
    _all_spelled(_OF_WINDSURF),
    WritingRules(
        pick(KEYS, *_STDIO, "serverUrl", "headers", "disabled", "disabledTools"),
        respelling(_WINDSURF, env="${env:%s}", file="${file:%s}"),
        _SERVERS,
    ),
    ("windsurf/mcp_config.json", ".codeium/mcp_config.json"),
)
CLINE = Dialect(
    "cline",
    "Cline",
    partial(read, "cline", _OF_CLINE),
    _all_spelled(_OF_CLINE),
    WritingRules(
        {
            "type": transport_as(stdio="stdio", streamable_http="streamableHttp", sse="sse"),
            **pick(IN_SECONDS, *_STDIO, "cwd", *_REMOTE, "disabled", "timeout"),
            "oauthClient": oauth(
                {
                    "clientId": string("oauth", "client_id"),
                    "clientSecret": string("oauth", "client_secret"),
                }
            ),
        },
        respelling(_CLINE, env="${env:%s}"),
        _SERVERS,
    ),
    ("cline_mcp_settings.json", ".cline/mcp.json"),
)
GEMINI = Dialect(
    "gemini",
    "Gemini CLI",
    partial(read_gemini, _OF_GEMINI),
    lambda document: _is_file_of_gemini(document) or _all_spelled(_OF_GEMINI)(document),
    WritingRules(
        {
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
        respelling(bare, env="${%s}", default="${%s:-%s}"),
        _SERVERS,
    ),
    (".gemini/settings.json", "gemini-extension.json"),
)
EXCELMANUS = Dialect(
    "excelmanus",
    "ExcelManus",
    partial(read_excelmanus, _OF_EXCELMANUS),
    _all_spelled(_OF_EXCELMANUS),
    WritingRules(
        {
            "transport": KEYS["type"],
            **pick(IN_SECONDS, *_STDIO, *_REMOTE, "timeout"),
        },
        as_is,
        _SERVERS,
    ),
    (".excelmanus/mcp.json",),
)
KODE = Dialect(
    "kode",
    "kode",
    partial(read, "kode", Spelling(KEYS, check=_says_args)),
    _never,
    WritingRules(pick(KEYS, "type", *_STDIO, *_REMOTE), as_is, _SERVERS),
    (".kode.json",),
)
CLAUDE_DESKTOP = Dialect(
    "claude-desktop",
    "Claude Desktop",
    partial(read, "claude-desktop", Spelling(KEYS)),
    _never,
    WritingRules(pick(KEYS, *_STDIO), respelling(same_text), _SERVERS),
    ("claude_desktop_config.json",),
)
_PLAIN_KEYS = ("type", *_STDIO, "cwd", "envFile", *_REMOTE, "disabled", "description")


def _plain_container(root: Node) -> KeyPath:
    is_bare = root.find("mcpServers") is None and any(is_server(one) for _, one in root.members())
    return () if is_bare else ("mcpServers",)


PLAIN = Dialect(
    "mcpservers",
    "mcpServers",
    partial(read_plain, Spelling(KEYS)),
    _is_plain,
    WritingRules(
        {
            **pick(KEYS, *_PLAIN_KEYS),
            "request_timeout_ms": KEYS["request_timeout_ms"],
            **pick(KEYS, "includeTools", "excludeTools", "oauth"),
        },
        as_is,
        _plain_container,
    ),
)
MIXED_HOSTS = replace(PLAIN, read=partial(read_mixed_hosts, Spelling(KEYS)))
"""The same if nobody said so: the servers may come from several hosts."""
# Those with their own keys first; the last two are recognised only by file name.
FAMILY = (CLAUDE_CODE, CLINE, GEMINI, CURSOR, WINDSURF, EXCELMANUS, CLAUDE_DESKTOP, KODE)
