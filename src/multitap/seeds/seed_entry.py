"""Reads one server written in a seed's terms, with that seed's dialect."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multitap.config import Document, Layer, ServerConfig, merge, read_document
from multitap.errors import ConfigError

logger = logging.getLogger(__name__)

CONTAINERS = {"spec07": "mcp", "excelmanus": "mcpServers"}
"""The key that holds the servers in each dialect."""


def server(dialect: str, name: str, entry: Mapping[str, Any]) -> ServerConfig:
    """The configuration of an entry.

    Raises:
        ConfigError: Something is missing or wrong; the message names the key.
    """
    container = CONTAINERS[dialect]
    document = Document(path=Path("(program)"), data={container: {name: entry}})
    merged = merge([Layer(read_document(document, Path.cwd(), dialect_name=dialect))])
    config = merged.settings.servers.get(name)
    for problem in merged.problems:
        message = f"`{problem.key.removeprefix(f'{container}.')}`: {problem.message}"
        # a problem that costs the entry is an error; one that costs a key is a warning
        if config is None:
            raise ConfigError(message, hint=problem.hint)
        logger.warning("%s", message)
    if config is None:
        raise ConfigError(f"`{name}` does not say how to reach it")
    return config
