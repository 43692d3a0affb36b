"""Shell completion; it never starts a server."""

from typing import Any

import click

from multitap.cli.options import CommonOptions


def complete_server(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of servers with this prefix."""
    from multitap.cli.known_names import server_names  # noqa: PLC0415 - only a shell asks for it

    return [name for name in server_names(_options(ctx)) if name.startswith(incomplete)]


def complete_tool(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of tools with this prefix."""
    from multitap.cli.known_names import tool_names  # noqa: PLC0415 - only a shell asks for it

    return [name for name in tool_names(_options(ctx)) if name.startswith(incomplete)]


def complete_code(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Failure codes with this prefix."""
    from multitap.cli.servers.help_command import explanations  # noqa: PLC0415 - only a shell asks

    return [one.code for one in explanations() if one.code.startswith(incomplete)]


def complete_client(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of clients with this prefix."""
    from multitap.cli.editing.client_table import CLIENTS  # noqa: PLC0415 - only a shell asks

    return [name for name in (*CLIENTS, "all") if name.startswith(incomplete)]


def complete_dialect(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of dialects with this prefix."""
    from multitap.config.dialects import DIALECTS  # noqa: PLC0415 - only a shell asks for it

    return [name for name in DIALECTS if name.startswith(incomplete)]


def complete_setting(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a server with this prefix."""
    from multitap.cli.editing.setting_words import setting_names  # noqa: PLC0415 - only a shell asks

    return [f"{name}=" for name in setting_names() if name.startswith(incomplete)]


def complete_published(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names in the bundled catalog with this prefix."""
    from multitap.published.bundled_catalog import servers  # noqa: PLC0415 - only a shell asks

    return [name for name in servers() if name.startswith(incomplete)]


def _options(ctx: click.Context) -> CommonOptions:
    # while a line is completed, options are where they were typed: before the command or after it
    root: dict[str, Any] = ctx.find_root().params
    files = ctx.params.get("files") or root.get("files") or ()
    return CommonOptions(tuple(files), ctx.params.get("dialect"))
