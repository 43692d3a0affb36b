"""The route to a tool: everything that its calls need, and their time limits."""

import math
from collections.abc import Callable, Iterable

import msgspec

from multitap.catalog.catalog import Catalog, Tool, WithheldTool
from multitap.catalog.schemas import ResultChecker, TaskSupport, task_support
from multitap.config.models import CheckArguments, ServerConfig
from multitap.config.problems import nearest
from multitap.errors import NotAllowed, UnknownName, join_hints, quoted
from multitap.trust.policy import Guard, Policy
from multitap.trust.scanner import ScanMode, scan_mode
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext
from multitap.wire.jsonrpc import encode
from multitap.wire.request import Deadline

RENEWALS = 10
"""How many times its timeout a call may take that reports progress, unless that is configured."""


class TimeLimits(msgspec.Struct, frozen=True):
    """How long calls of one tool, or requests to one server, may take."""

    timeout: float | None
    """Seconds without progress; None: only the hard limit applies."""
    hard_timeout: float
    """Seconds in total, whatever the progress; no less than `timeout`."""
    ceiling: float
    """The highest hard limit for callers with another timeout."""
    renewals: float
    """How many times its timeout a call may take within that."""

    def deadline(self, context: CallContext, since: float) -> Deadline:
        """The deadline of a call that begins at `since`, by the loop's clock.

        Set once for each call: waits, retries and questions share it. The caller's own limits take
        precedence.
        """
        if context.timeout is None and context.hard_timeout is None:
            # the usual case, without `max` and `min`
            latest = since + self.hard_timeout
            at = latest if self.timeout is None else since + self.timeout
            return Deadline(self.timeout, self.hard_timeout, latest, at)
        timeout = context.timeout or self.timeout
        if context.hard_timeout is None:
            hard_timeout = _hard_limit(timeout, self.ceiling, self.renewals)
        else:
            hard_timeout = max(context.hard_timeout, timeout or 0.0)
        return Deadline.since(since, timeout, hard_timeout)


def limits(timeout: float | None, hard_timeout: float, *, is_chosen: bool) -> TimeLimits:
    """The limits of a configuration, in which the hard one may be the smaller.

    Args:
        timeout: Seconds without progress.
        hard_timeout: Seconds in total.
        is_chosen: Whether a person chose these; the default is for servers that are busy for long,
            and not for a call with a short timeout.
    """
    renewals = math.inf if is_chosen else RENEWALS
    return TimeLimits(timeout, _hard_limit(timeout, hard_timeout, renewals), hard_timeout, renewals)


def _hard_limit(timeout: float | None, ceiling: float, renewals: float) -> float:
    return ceiling if timeout is None else max(timeout, min(ceiling, renewals * timeout))


class CallDefaults(msgspec.Struct, frozen=True):
    """Settings for calls that the server's configuration does not override."""

    check_arguments: CheckArguments = "refuse"
    timeout: float | None = None
    """Seconds to wait for an answer; None: the default of the configuration."""
    errors_are_results: bool = True
    """Whether a JSON-RPC error becomes a failed result instead of an exception."""
    policy: Policy | None = None
    """The policy for calls; None: all are allowed."""

    def timeout_of(self, config: ServerConfig, tool: str = "") -> float | None:
        """The timeout of a tool, else of its server, else the default."""
        timeout = config.timeouts.get(tool)
        if timeout is None:
            # a `timeout` in the file is for this server; the default is not
            is_given = self.timeout is None or "timeout" in config.given_fields
            timeout = config.timeout if is_given else self.timeout
        return timeout

    def deadline(
        self, config: ServerConfig, *, context: CallContext, since: float, tool: str = ""
    ) -> Deadline:
        """The deadline of a call: by the caller's limits, else the tool's, else the server's.

        Args:
            config: The server's configuration.
            context: The caller's limits.
            since: When its time begins, by the loop's clock.
            tool: The server's own name of the tool, if it is a tool.
        """
        return self.limits_of(config, tool).deadline(context, since)

    def limits_of(self, config: ServerConfig, tool: str = "") -> TimeLimits:
        """The time limits of a tool, or of its server."""
        is_chosen = config.hard_timeout is not None
        return limits(self.timeout_of(config, tool), config.longest_call, is_chosen=is_chosen)


LIBRARY = CallDefaults()


class Route(TimeLimits, frozen=True, kw_only=True):
    """What calls of one tool need, computed once per catalog."""

    tool: Tool
    link: Link
    head: bytes
    """The encoded parameters of a call, up to the arguments."""
    check: CheckArguments
    is_shared: bool
    """Whether all clients of a gateway use one session with the server."""
    repeatable: bool
    """Whether a lost call may be sent again although the server may have received it."""
    errors_are_results: bool
    scan: ScanMode
    """What to do with results that look like attacks; `off`: they are not scanned."""
    result_checker: ResultChecker | None
    """Checks structured content; None if there is no schema for it, or it is not checked."""
    task_support: TaskSupport = "forbidden"
    """Whether the server can, or must, run it as a task, if it is of the handshake era."""
    guard: Guard | None = None
    """The policy for calls; None if all are allowed."""
    cache_for: float = 0.0
    """Seconds for which a result may be given again; 0: not at all."""
    is_plain: bool = False
    """Whether its calls only have to be sent, and their results looked at."""

    def over(self, link: Link) -> "Route":
        """The route to the same tool over another link."""
        return self if link is self.link else msgspec.structs.replace(self, link=link)


def route_to(tool: Tool, defaults: CallDefaults) -> Route:
    """Make the route to a tool."""
    link, config = tool.link, tool.link.config
    guard = None
    if defaults.policy is not None:
        guard = defaults.policy.guard(tool.names, config, tool.annotations)
    time = defaults.limits_of(config, tool.raw_name)
    scan = scan_mode(config) if config.scan_results else "off"
    check = config.check_arguments or defaults.check_arguments
    support, cache_for = task_support(tool.definition), _cache_age(tool, config)
    return Route(
        timeout=time.timeout,
        hard_timeout=time.hard_timeout,
        ceiling=time.ceiling,
        renewals=time.renewals,
        tool=tool,
        link=link,
        # encoded once for each tool, not for each call
        head=b'"name":%b,"arguments":' % encode(tool.raw_name),
        check=check,
        is_shared=config.session == "shared",
        repeatable=tool.repeatable and config.retry == "hinted",
        errors_are_results=defaults.errors_are_results,
        scan=scan,
        result_checker=None if config.check_results == "off" else tool.result_checker,
        task_support=support,
        guard=guard,
        cache_for=cache_for,
        is_plain=(check, scan, support, guard, cache_for) == ("off", "off", "forbidden", None, 0.0),
    )


def _cache_age(tool: Tool, config: ServerConfig) -> float:
    """How long results are cached: only if both the operator and the server say that it is safe."""
    hints = tool.annotations
    is_safe = hints.get("readOnlyHint") is True and hints.get("idempotentHint") is True
    return config.cache.get(tool.raw_name, 0.0) if is_safe else 0.0


def find(catalog: Catalog, name: str) -> Tool:
    """The tool that callers know as `name`, even while its server is down.

    Raises:
        NotAllowed: A filter hides it, or the policy denies it.
        UnknownName: There is none.
    """
    tool = look_up(catalog, name)
    if tool is None:
        raise unknown(catalog.tools, name)
    return tool


def look_up(
    catalog: Catalog,
    name: str,
    *,
    shows: Callable[[Tool], bool] = lambda _: True,
    rank: Callable[[Tool], int] = lambda _: 0,
) -> Tool | None:
    """The tool with this catalog name, or the only one with this name at its server.

    Args:
        catalog: The current catalog.
        name: The name.
        shows: Whether the caller may see a tool; only these can make a name ambiguous.
        rank: How much the caller prefers a tool to others with the same name; 0: not at all.

    Raises:
        NotAllowed: A filter hides it, the policy denies it, or it waits for a review.
    """
    tool = catalog.tools.get(name) or catalog.absent.get(name)
    if tool is not None:
        return tool
    if (hidden := catalog.hidden.get(name)) is not None:
        if not shows(hidden.tool):  # the reason, and the place of the rule, are not for them
            raise hidden_from_client(name)
        raise NotAllowed(f"the tool {quoted(name)} is {hidden.words}", hint=hidden.hint)
    # apps call their own tools by the server's names; a name that two servers use is ambiguous
    alike = [
        tool
        for tool in catalog.tools_with_raw_name(name)
        # no server is called in place of another, least of all while that one is down
        if shows(tool) and (rank(tool) or not catalog.is_named_like_another(tool))
    ]
    if not alike and (held := _withheld(catalog, name)) and shows(held.tool):
        raise NotAllowed(
            f"the tool {quoted(name)} is withheld: {held.reason.words}", hint=held.reason.hint
        )
    if len(alike) > 1:
        best = max(alike, key=rank)
        alike = [best] if rank(best) else []
    return alike[0] if len(alike) == 1 else _with_slash(catalog, name, shows)


def _with_slash(catalog: Catalog, name: str, shows: Callable[[Tool], bool]) -> Tool | None:
    """The tool of `server/tool`, as the Env protocol names its own; MCP allows no `/` in names."""
    server, _, raw_name = name.partition("/")
    for possible in (raw_name, f"{server}_{raw_name}"):
        for tool in catalog.tools_with_raw_name(possible) if raw_name else ():
            if tool.server == server and shows(tool):
                return tool
    return None


def _withheld(catalog: Catalog, name: str) -> WithheldTool | None:
    if (held := catalog.withheld.get(name)) is not None:
        return held
    alike = [held for held in catalog.withheld.values() if held.tool.raw_name == name]
    return alike[0] if len(alike) == 1 else None


def hidden_from_client(name: str) -> NotAllowed:
    """The error for a tool that its caller may not see."""
    return NotAllowed(f"the tool {quoted(name)} is hidden from this client")


def unknown(tools: Iterable[str], name: str, withheld: str = "") -> UnknownName:
    """The error for an unknown name, with a suggestion among the tools that the caller sees.

    Args:
        tools: Their names.
        name: The unknown name.
        withheld: What is not offered because nobody has trusted it.
    """
    near = nearest(name, tools)
    guess = f"did you mean {quoted(near)}? " if near else ""
    hint = join_hints(f"{guess}`multitap tools` lists all tools", withheld)
    return UnknownName(f"no tool named {quoted(name)}", hint=hint)
