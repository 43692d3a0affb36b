"""The models of a valid configuration: every setting, its default and what it means.

`ConfigModel` checks values when a model is made, whether they come from a file or from Python.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from msgspec import Meta, Struct, field

from multitap.config.access import AccessSettings
from multitap.config.checks import ConfigModel, FieldMistake, Paths, Texts
from multitap.config.durations import PATTERN
from multitap.config.policy_rules import PolicyRule
from multitap.config.provenance import Level, Provenance
from multitap.config.secrets import in_arguments, in_headers, in_url, in_variables
from multitap.errors import BadArguments
from multitap.names import Naming
from multitap.redaction import Redactor

MIB = 1024 * 1024
# a line break in a header begins another header, or a request of its own
_LINE_BREAKS = frozenset("\r\n\0")
URL = re.compile(r"^(https?://\S+|\S*\$\{.*)$")
"""A web address, or one still to be expanded."""

HOST = re.compile(
    r"(?:\S*\$\{.*|\*(?::\d{1,5})?|(?:\*\.)?[\w-]+(?:\.[\w-]+)*\.?(?::\d{1,5})?|[\d.]+/\d{1,2}"
    r"|\[[\da-fA-F:.]+\](?::\d{1,5})?|[\da-fA-F:.]*:[\da-fA-F:.]*(?:/\d{1,3})?)"
)
"""A name, an address or a network, or one still to be expanded."""

_SPAN: dict[str, Any] = {
    "anyOf": [
        {"minimum": 0, "type": "number"},
        {"examples": ["30s", "1m30s", "500ms"], "pattern": PATTERN, "type": "string"},
    ]
}
if TYPE_CHECKING:
    Rules = Sequence[PolicyRule]
else:
    Rules = tuple[PolicyRule, ...]
Duration = Annotated[float, Meta(gt=0, extra={"duration": True}, extra_json_schema=_SPAN)]
"""Seconds, or a text such as "1m30s"."""
Grace = Annotated[float, Meta(ge=0, extra={"duration": True}, extra_json_schema=_SPAN)]
"""A duration that may be zero."""
Url = Annotated[str, Meta(extra={"pattern": URL}, extra_json_schema={"pattern": URL.pattern})]
Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)]
Price = Annotated[float, Meta(ge=0)]
_Size = Annotated[int, Meta(ge=1024)]
_Cap = Annotated[int, Meta(ge=100)]

CheckArguments = Literal["refuse", "warn", "off"]
CheckResults = Literal["warn", "off"]
Pin = Literal["enforce", "report", "off"]
Scan = Literal["block", "report", "off"]
Recording = Literal["off", "errors", "all"]
ToolListing = Literal["all", "search", "code", "auto", "auto-code"]
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class ToolFilter(ConfigModel, frozen=True, kw_only=True):
    """Which tools may be seen and called: shell-style globs, `deny` wins over `allow`."""

    allow: Texts = ("*",)
    deny: Texts = ()


class Limits(ConfigModel, frozen=True, kw_only=True):
    """Limits of one server."""

    message: _Size = 32 * MIB
    """Bytes of one line, body (after decompression) or event."""
    in_flight: Count = 64
    """Calls the server works on at the same time."""
    queue: Amount = 8192
    """Calls that may wait for their turn; more are refused at once."""
    tools: Count = 10_000
    """Tools taken from one server's list."""
    # a heartbeat counts as 64 bytes: at any sane rate, none reach it
    junk: _Size = 4 * MIB
    """Bytes of junk per minute, after which the server is stopped."""


class Elicitation(ConfigModel, frozen=True, kw_only=True):
    """What one server may ask people."""

    secrets: Literal["refuse", "flag", "allow"] | None = None
    """Forms that ask for passwords, keys or card numbers: `refuse` them, `flag` them with a
    warning, or `allow` them. By default, `flag` for your own servers, `refuse` for servers from a
    project or a registry."""


class Sampling(ConfigModel, frozen=True, kw_only=True):
    """How much one server may use models."""

    rate: Amount = 20
    """Requests per minute."""
    tokens: Amount = 500_000
    """Tokens per hour, of prompts and answers; one request may take a tenth of them."""


class OAuth(ConfigModel, frozen=True, kw_only=True):
    """How to log in to a remote server; everything is discovered and registered by default."""

    client_id: str | None = None
    """The id of a registered client, or the https address of a client metadata document."""
    client_secret: str | None = None
    private_key: str | None = None
    """A private key in PEM, instead of a client secret (`private_key_jwt`)."""
    issuer: str | None = None
    """The authorization server that the client is registered with; no other gets its secret."""
    grant: Literal["authorization_code", "client_credentials", "jwt_bearer"] = "authorization_code"
    """`authorization_code`: a person logs in. `client_credentials`: the client does, with its
    secret or key. `jwt_bearer`: a program does, with a JWT from its platform."""
    assertion: str | None = None
    """The JWT for `jwt_bearer`."""
    assertion_file: Path | None = None
    """A file with the JWT, read whenever a token is needed."""
    identity_provider: str | None = None
    """Token endpoint of a company's identity provider, if the JWT is an ID token that the provider
    has to exchange first."""
    identity_client_id: str | None = None
    """Our client id at the identity provider, if it is not `client_id`."""
    scope: str | None = None
    """Scopes, separated by spaces; by default, those that the server asks for."""
    callback_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """The port for the redirect on this machine; by default, any free port."""
    redirect_uri: str | None = None
    metadata_url: str | None = None
    """URL of the authorization server's metadata, if not the standard one."""


class _SecretHolder(ConfigModel, frozen=True, kw_only=True):
    """A server or model that gets secrets."""

    @cached_property
    def redact(self) -> Redactor:
        """Removes its secrets from a text."""
        return Redactor(self._secrets())

    def replace(self, **changes: Any) -> Self:
        copy = super().replace(**changes)
        copy.redact.learn(copy._secrets())  # noqa: SLF001 - its own; what this one learned it has
        return copy

    def _secrets(self) -> Iterator[str]:
        yield from ()


class ServerHome(Struct, frozen=True, kw_only=True):
    """The folders of one server, used instead of the current folder, which may be a stranger's."""

    paths: Path | None = None
    """The base of relative paths in its configuration; None for the current folder."""
    start: Path | None = None
    """The folder that its program starts in; None for the current folder."""
    writes: Texts = ()
    """Real paths of folders among its arguments that a person let it write to."""
    identity: str = ""
    """Distinguishes a project's server from another one of the same name, trusted later."""
    level: Level | None = None
    """How much a person chose to confine a project's server, whatever its entry says."""


class _Server(_SecretHolder, frozen=True, kw_only=True):
    @cached_property
    def home(self) -> ServerHome:
        """Its home folder, unless it names one itself."""
        return ServerHome()

    def at_home(self, home: ServerHome) -> Self:
        """The same server with another home folder."""
        copy = self.replace()
        copy.beside["home"] = home
        return copy

    @property
    def longest_call(self) -> float:
        """Seconds after which a call ends despite progress, unless `hard_timeout` says so."""
        return self.hard_timeout or max(600.0, self.timeout, *self.timeouts.values())

    def mistakes(self) -> Iterator[FieldMistake]:
        if not all(self.tool_names.values()):
            yield "tool_names", "a name that is empty"
        if len({*self.tool_names.values()}) < len(self.tool_names):
            yield "tool_names", "two tools with the same name"
        if self.select:
            yield from self._bad_selectors()
        if self.credentials == "exchange" and getattr(self, "exchange", None) is None:
            yield "credentials", "`exchange` is for servers with a `url` and a table `exchange`"
        if self.service_account and self.credentials == "shared":
            yield "service_account", 'needs `credentials = "per-user"`'

    @property
    def is_per_user(self) -> bool:
        """Whether people use accounts of their own."""
        return self.credentials != "shared"

    def _bad_selectors(self) -> Iterator[FieldMistake]:
        from multitap.selectors import Selector  # noqa: PLC0415 - few configurations select

        for tool, expression in self.select.items():
            try:
                Selector(expression)
            except BadArguments as exc:
                yield "select", f"{tool}: {exc}"

    enabled: bool = True
    description: str | None = None
    """A description for people."""
    provenance: Provenance = "user"
    """Who described the server; always `project` for a project's file. Servers that the user did
    not describe have stricter defaults."""
    start: Literal["eager", "lazy"] = "eager"
    """`lazy`: tools come from the stored catalog, the server starts with the first call."""
    idle_timeout: Duration | None = None
    """Seconds without a call after which a lazy server is stopped; by default, 300."""
    timeout: Duration = 30.0
    """Seconds to wait for an answer; every progress report restarts the time. At the gateway, the
    default is `serve.timeout`."""
    timeouts: Mapping[str, Duration] = {}
    """The same for single tools, by the server's own names."""
    hard_timeout: Duration | None = None
    """Seconds after which a call ends despite progress; by default ten times its timeout, and 600
    or the longest `timeout` at most."""
    connect_timeout: Duration = 60.0
    """Seconds from start to the first list; `npx` may have to download first."""
    health_interval: Duration | None = None
    """Seconds between health checks; by default, the settings' value."""
    reconnect: bool = True
    """If false, a server that is lost or fails to start stays down until you restart it."""
    retry: Literal["hinted", "never"] = "hinted"
    """`hinted`: a lost call is repeated if the tool says that it is read-only or idempotent."""
    check_arguments: CheckArguments | None = None
    """How to treat arguments that do not match the tool's schema: `refuse` the call, `warn` and
    pass it on, or `off`: do not check. By default, `off` at the gateway, `refuse` elsewhere."""
    check_results: CheckResults = "warn"
    """How to treat results that do not match the tool's output schema, and malformed content:
    `warn` and drop the malformed blocks, or `off`: do not check."""
    pin: Pin | None = None
    """How to treat tools that have changed since they were first seen: `enforce` withholds them
    until `multitap pins review`, `report` only reports them, `off` does not check. By default,
    `enforce` for servers from a registry and `report` for others; always `enforce` for a
    project's."""
    scan: Scan | None = None
    """How to treat tools that look like an attack: `block` withholds them, `report` only reports
    them, `off` does not scan. By default, `report`; a project cannot turn it off."""
    scan_results: bool = False
    """Whether results are scanned as well, up to 256 Ki characters of each, in a thread; with
    `scan = "block"`, a result that looks like an attack is refused."""
    filter: ToolFilter = ToolFilter()
    """Which tools exist, by the server's own names."""
    tool_names: Mapping[str, str] = {}
    """Other names for tools, by the server's own names: with `create_issue = "new_issue"`, callers
    see `github_new_issue`."""
    tool_descriptions: Mapping[str, str] = {}
    """Descriptions that replace the server's own, by its own tool names."""
    select: Mapping[str, str] = {}
    """What the gateway's clients get of a tool's results: a JMESPath expression for each tool, by
    the server's own names, or `jq:` and a program of jq. With `list_issues = "[].{id: id, title:
    title}"`, two fields of each."""
    cache: Mapping[str, Duration] = {}
    """Seconds for which a result of a tool may be given again to the same caller with the same
    arguments, by the server's own names; only for tools whose annotations say that they read only
    and are idempotent."""
    policy: Rules = ()
    """Which calls are allowed, asked about or denied; the first rule that applies counts. The
    settings' rules apply as well: the stricter of the two decides."""
    elicitation: Elicitation = Elicitation()
    """What the server may ask people."""
    sampling: Sampling = Sampling()
    """How much the server may use models."""
    result_cap: _Cap | None = None
    """Characters of a result's text; by default, the settings' value."""
    result_caps: Mapping[str, int] = {}
    """The same for single tools, by the server's own names."""
    limits: Limits = Limits()
    log_level: LogLevel | None = None
    """The lowest level of log messages that the server should send; by default, it decides."""
    session: Literal["shared", "per-client"] = "shared"
    """`per-client`: each client of the gateway gets its own session, and so its own process."""
    era: Literal["auto", "handshake", "stateless"] = "auto"
    """Which protocol era to speak; `auto` asks the server and remembers."""
    credentials: Literal["shared", "per-user", "exchange"] = "shared"
    """`per-user`: everyone who signs in at the gateway uses an account of their own here: a login,
    or their own values of the `${auth:NAME}` in this entry. Each person then has a session, and so
    a process, for themselves."""
    service_account: bool = False
    """With `credentials = "per-user"`: whether the gateway's own account makes the list that people
    see before they connect theirs, and serves programs that sign in without a person."""


class TokenExchange(ConfigModel, frozen=True, kw_only=True):
    """How a person's sign-in at the gateway becomes a token for a server."""

    provider: Text
    """The name of the provider under `access.oidc`, which exchanges its own tokens."""
    kind: Literal["token-exchange", "on-behalf-of", "id-jag"] = "token-exchange"
    """RFC 8693; Entra's flow; or an assertion for the server's own issuer."""
    audience: Text | None = None
    """What the token is for, as the provider calls it; sent only if it is set. For `id-jag`, the
    issuer that the server trusts."""
    resource: Text | None = None
    """The server as a resource (RFC 8707); sent only if it is set."""
    scope: Text | None = None
    """Scopes to ask for, separated by spaces."""
    subject: Literal["access_token", "jwt", "id_token"] = "access_token"
    """Which of the person's tokens is exchanged, and under which type."""

    def mistakes(self) -> Iterator[FieldMistake]:
        if self.kind == "on-behalf-of" and not self.scope:
            yield "scope", "is needed for `on-behalf-of`, as in `api://SERVER/.default`"
        if self.kind == "id-jag" and not self.audience:
            yield "audience", "is needed for `id-jag`: the issuer that the server trusts"


class SandboxRules(ConfigModel, frozen=True, kw_only=True):
    """What a confined server may use besides the system's programs and its own folder."""

    read: Paths = ()
    """Files and folders that it may read, and run programs from."""
    write: Paths = ()
    """Files and folders that it may change as well."""
    hosts: Texts = ()
    """Hosts that it may reach through the counting proxy: `api.example.com`, `*.example.com`,
    `example.com:8080`, `10.0.0.0/8`, `*` for every public host. Without a port, 80 and 443."""
    processes: Count = 256
    """Processes that it may have at a time; threads do not count."""
    memory: Annotated[int, Meta(ge=64 * MIB)] = 8192 * MIB
    """Bytes of data that each of its processes may have."""
    proc: bool = False
    """Whether all of its processes may read their own `/proc/self`, not only the first. Multitap
    then checks every file that the server opens, which slows it down."""

    def widen(self, other: "SandboxRules") -> "SandboxRules":
        """These rules, and what the other ones open; the limits stay."""
        return self.replace(
            read=tuple(dict.fromkeys((*self.read, *other.read))),
            write=tuple(dict.fromkeys((*self.write, *other.write))),
            hosts=tuple(dict.fromkeys((*self.hosts, *other.hosts))),
            proc=self.proc or other.proc,
        )

    def mistakes(self) -> Iterator[FieldMistake]:
        for host in self.hosts:
            if not HOST.fullmatch(host):
                message = "is not a host, a pattern such as `*.example.com`, or a network"
                yield "hosts", f"{host!r} {message}"


class StdioServer(_Server, frozen=True, kw_only=True):
    """A program that speaks MCP over stdio."""

    transport: Literal["stdio"] = "stdio"
    command: Text
    args: Texts = ()
    env: Mapping[str, str] = {}
    env_file: Path | None = None
    """A file of `NAME=value` lines; `env` overrides it."""
    cwd: Path | None = None
    """The folder in which the program starts; by default, your home folder for a server of your own
    configuration, and the folder of the file for a file that you named."""
    sandbox: Annotated[
        Literal["auto", "off", "guard", "strict", "bubblewrap"],
        Meta(extra={"flags": {True: "strict", False: "off"}}),
    ] = "auto"
    """How the program is confined: `guard` closes private places, `strict` everything that
    `sandbox_rules` does not open, `off` nothing. `auto` means the settings' `sandbox` for programs
    that you did not describe yourself, and `off` for your own. With `strict`, the program is not
    started where it cannot be confined; `bubblewrap` is like `strict`, and also hides other
    processes and the user's private files. A project can only choose a stricter level."""
    sandbox_rules: SandboxRules = SandboxRules()
    replicas: Annotated[int, Meta(ge=1, le=64)] = 1
    """In a cluster: how many gateways run the program; the others reach it through these."""
    placement: Mapping[str, str] = {}
    """In a cluster: labels that a gateway must have to run the program."""

    @property
    def start_folder(self) -> Path | None:
        """The folder in which the program starts; None for the current folder."""
        return self.cwd or self.home.start

    def mistakes(self) -> Iterator[FieldMistake]:
        yield from super().mistakes()
        # here: the system would refuse it at the start, without naming the field
        if "\0" in self.command:
            yield "command", "contains a NUL character"
        if any("\0" in argument for argument in self.args):
            yield "args", "contains a NUL character"
        if any(not key or "=" in key or "\0" in key + text for key, text in self.env.items()):
            yield "env", "an empty name, a name with `=`, or a NUL character"

    def _secrets(self) -> Iterator[str]:
        yield from in_variables(self.env)
        yield from in_arguments(self.args)


class HttpServer(_Server, frozen=True, kw_only=True):
    """A server reached by URL."""

    transport: Literal["http", "streamable-http", "sse"] = "http"
    """`http`: Streamable HTTP first, then legacy SSE."""
    url: Url
    """May contain `${...}`, which is expanded when the server connects."""
    headers: Mapping[str, str] = {}
    oauth: OAuth | Literal[False] | None = None
    """`false`: never log in. By default, logs in when the server asks for it."""
    exchange: TokenExchange | None = None
    """How people's sign-ins become tokens for it, with `credentials = "exchange"`."""

    def login_name(self, name: str) -> str:
        """The name of its login: a project's server never gets that of the user's one."""
        return f"{name}~{self.home.identity}" if self.home.identity else name

    def mistakes(self) -> Iterator[FieldMistake]:
        yield from super().mistakes()
        if any(_LINE_BREAKS & {*name, *value} for name, value in self.headers.items()):
            yield "headers", "a header with a line break or NUL character"
        if self.exchange is not None and self.credentials != "exchange":
            yield "exchange", 'needs `credentials = "exchange"`'

    def _secrets(self) -> Iterator[str]:
        yield from in_url(self.url)
        yield from in_headers(self.headers)
        if isinstance(self.oauth, OAuth):
            secrets = (self.oauth.client_secret, self.oauth.private_key, self.oauth.assertion)
            yield from filter(None, secrets)


class LocalServer(_Server, frozen=True, kw_only=True):
    """An SDK `Server` or `MCPServer` object in this process."""

    transport: Literal["local"] = "local"
    server: Any
    on_request: Texts = ()
    """Tools, by their own names, that the gateway shows only in profiles with `environment`."""


ServerConfig = StdioServer | HttpServer | LocalServer


class Quota(ConfigModel, frozen=True, kw_only=True):
    """How much each client may use, by its token or identity; nothing is limited by default."""

    calls_per_hour: Count | None = None
    calls_per_day: Count | None = None
    bytes_per_hour: Count | None = None
    """Bytes of results; the one that exceeds it is still delivered."""
    bytes_per_day: Count | None = None


class Serve(ConfigModel, frozen=True, kw_only=True):
    """How the hub serves MCP clients."""

    enabled: bool = False
    transport: Literal["stdio", "http"] = "stdio"
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 3000
    # a request says `Host` as its sender likes: links and audiences must not follow it
    public_url: Url | None = None
    """The URL of the gateway as people see it, such as `https://tap.example.com`: what is before
    `/mcp`. Needed for `[access.oidc]`; never taken from a request."""
    insecure: bool = False
    """Whether clients anywhere may connect without a token."""
    require_token: bool = False
    """Whether clients on this machine need a token as well."""
    timeout: Duration = 300.0
    """Seconds that a client's call waits for a server without its own `timeout`."""
    tools: ToolListing = "all"
    """What clients list: `all` tools; `search`: three tools that find, describe and call all
    others; `code`: three that find and describe them and run scripts that call them; `auto` and
    `auto-code`: all tools up to `token_budget`, and above it `search` or `code`."""
    token_budget: Count = 20_000
    """Estimated tokens that the definitions of all tools may take with `tools = "auto"`, and one
    result in search mode."""
    search_model: Path | None = None
    """A folder with a model of sentences, `model.onnx` and `tokenizer.json`, by which tools are
    found by what they mean as well. Needs the extra `embed`; read when the gateway starts."""
    page_size: Count = 1000
    """Tools, resources, templates or prompts that clients get at a time when they list them. Some
    clients ask for no more than the first page."""
    allow_origins: Texts = ()
    """Origins of web pages that may use the gateway, as in `https://app.example.com`."""
    trusted_proxies: Texts = ()
    """Addresses or networks of proxies; only these are believed what they say of their clients."""
    proxy_protocol: bool = False
    """Whether trusted proxies begin each connection with a header of the PROXY protocol."""
    quota: Quota = Quota()
    """How much each client may use."""
    drain: Grace = 0.0
    """Seconds for which a gateway that stops goes on answering, not ready, while calls last."""
    keep: Duration = 600.0
    """Seconds for which the gateway in the background keeps servers that no client uses."""


class ModelConfig(_SecretHolder, frozen=True, kw_only=True):
    """A language model, and how to reach it."""

    provider: Literal["openai", "anthropic"] = "openai"
    """Which protocol it speaks; most other providers use OpenAI's."""
    name: Text
    base_url: Url | None = None
    """By default, the provider's own address."""
    api_key: str | None = None
    """May contain `${...}`; by default, the provider's own variable."""
    max_tokens: Count = 4096
    """Tokens of one answer."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    timeout: Duration = 120.0
    """Seconds to wait for an answer to begin, and between its parts."""
    input_price: Price | None = None
    """Per million tokens read, in any currency; `multitap chat` shows what a conversation costs."""
    output_price: Price | None = None
    """Per million tokens written."""

    def _secrets(self) -> Iterator[str]:
        yield self.api_key or ""
        yield from in_url(self.base_url or "")


class Agent(ToolFilter, frozen=True, kw_only=True):
    """A user of the tools; `allow` goes by the names that callers see, `deny` by any name."""

    description: str | None = None
    prompt: str | None = None
    """The name of the prompt to use as its system prompt."""
    model: ModelConfig | None = None
    """By default, the model of the settings."""
    max_steps: Count = 20
    """Requests to the model that one answer may take."""


class Profile(ToolFilter, frozen=True, kw_only=True):
    """One way to use the environment: which servers, agents and tools belong to it."""

    description: str | None = None
    display_name: str | None = None
    servers: Texts = ("*",)
    """Globs over the names of servers."""
    agents: Texts = ("*",)
    """Globs over the names of agents."""
    prompt: str | None = None
    """The name of a prompt."""
    environment: bool = False
    """Whether its clients see the tools of the Env protocol; with `[environment]`, all do."""
    tools: ToolListing | None = None
    """What its clients list; by default, as in `[serve]`, and `auto` if there is a budget."""
    token_budget: Count | None = None
    """Estimated tokens for the list and for each result, which is cut if it takes more; by default,
    the budget of `[serve]`, and results are cut in search mode only."""


class PromptConfig(ConfigModel, frozen=True, kw_only=True):
    """A text for a model, in the configuration or in its own file."""

    text: str | None = None
    file: Path | None = None
    description: str | None = None
    arguments: Mapping[str, str] = {}
    """A description of each `{name}` in the text."""

    def mistakes(self) -> Iterator[FieldMistake]:
        if (self.text is None) is (self.file is None):
            yield "", "needs either `text` or `file`"


class Environment(ConfigModel, frozen=True, kw_only=True):
    """The environment of the agents, and what others may use of it."""

    id: Text = "multitap"
    display_name: str | None = None
    description: str | None = None
    version: str = "1.0.0"
    tools: Texts = ()
    """Python functions: `module:function`, or `path/to/file.py:function` beside this file."""
    skills: Paths = (Path("skills"),)
    """Folders of skills: each subfolder contains a `SKILL.md`."""
    execute_tool: bool = False
    """Whether other programs may call tools through the environment's own server."""
    invoke_llm: bool = False
    """Whether other programs may use the model through it."""


class Audit(ConfigModel, frozen=True, kw_only=True):
    """The record of who called what, and what was decided."""

    enabled: bool = True
    arguments: bool = False
    """Whether arguments are recorded too, without secrets."""
    required: bool = False
    """Whether calls are refused while the record cannot be written."""
    keep: Annotated[int, Meta(ge=1000)] = 500_000
    """How many entries are kept."""


class Telemetry(ConfigModel, frozen=True, kw_only=True):
    """What operators see of requests."""

    traces: Literal["off", "memory", "otlp"] = "off"
    """`memory`: the last ones are kept for `multitap trace`; `otlp`: they are also sent to a
    collector, as `OTEL_EXPORTER_OTLP_ENDPOINT` says."""
    trace_parent: Literal["client", "link", "ignore"] = "client"
    """What the trace of a client is to ours: its parent, a link, or nothing."""
    sample: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """The share of requests that are recorded, of those that belong to no trace yet."""
    traces_per_second: Count = 100
    """Requests that are recorded per second at most, whatever clients want."""


class ConsoleSettings(ConfigModel, frozen=True, kw_only=True):
    """The web console of a gateway."""

    add: bool = False
    """Whether people who sign in there with the organisation's account may add servers; whoever
    opens it with a link of `multitap console` always may."""


def _twice_the_cores() -> int:
    """A start is mostly CPU time, with short waits that another start can use."""
    try:
        cores = len(os.sched_getaffinity(0))  # the cores that this process may use
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return 2 * cores


class Settings(ConfigModel, frozen=True, kw_only=True):
    """All settings of a hub."""

    enabled: bool = True
    """If false, every server is disabled."""
    auto_reload: bool = True
    """Whether changed files are applied without a restart."""
    serve: Serve = Serve()
    servers: Mapping[str, ServerConfig] = {}
    environment: Environment = Environment()
    model: ModelConfig | None = None
    """For agents without their own model, and for clients that may use it."""
    agents: Mapping[str, Agent] = {}
    profiles: Mapping[str, Profile] = {}
    policy: Rules = ()
    """Which calls are allowed, asked about or denied, for all servers; the first rule that applies
    counts."""
    sandbox: Level = "guard"
    """How programs are confined that you did not describe yourself: those of projects, registries,
    bundles, links and other programs' files."""
    access: AccessSettings = AccessSettings()
    audit: Audit = Audit()
    telemetry: Telemetry = Telemetry()
    console: ConsoleSettings = ConsoleSettings()
    prompts: Mapping[str, PromptConfig] = {}
    naming: Naming = Naming.SERVER_TOOL
    health_interval: Duration = 30.0
    start_concurrency: Count = field(default_factory=_twice_the_cores)
    """Programs that may use the CPU to start at a time; by default, twice the number of cores."""
    result_cap: _Cap = 5000
    """Characters of a result's text; the rest is kept for paging."""
    drain_timeout: Grace = 10.0
    """Seconds that a replaced or removed server has to finish its calls."""
    record: Recording = "off"
    """Which calls keep their arguments and results: bounded in size and age, and redacted."""
    registry: Url | None = None
    """Address of the registry for `search` and `add`; by default, the official one."""
    state_dir: Path | None = None
    """The folder for logs, call history and catalogs; by default, the user's state directory."""

    @property
    def has_rules(self) -> bool:
        """Whether there is a policy, for all servers or for one."""
        return bool(self.policy) or any(server.policy for server in self.servers.values())

    def with_servers(self, servers: Mapping[str, ServerConfig]) -> Self:
        """The same settings with other servers."""
        return self.replace(servers=servers)
