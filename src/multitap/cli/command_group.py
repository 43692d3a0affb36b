"""Groups of commands, listed in the order in which people need them."""

import click


class CommandGroup(click.Group):
    """A group that lists its commands as they were declared, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self.commands]
