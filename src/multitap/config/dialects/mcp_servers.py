"""The `mcpServers` family: the same map of servers with small differences from host to host."""

from multitap.config.dialects.draft import Draft
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
    string,
    strings,
    table,
    transport,
    unitless,
    unsupported,
    words,
)
from multitap.config.dialects.unwritten_fields import UnwrittenFields
from multitap.config.documents import Node, is_table

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
