"""Finds secrets in plain text in a server's configuration, and moves them out."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from multitap.config.models import HttpServer, OAuth, StdioServer
from multitap.config.secrets import in_arguments, in_headers, in_url, in_variables
from multitap.names import slug

NewSecrets = dict[str, str]
"""Secrets by name."""
Reference = Callable[[str], str]


def auth_variable(name: str) -> str:
    """How a configuration refers to a secret in the vault."""
    return f"${{auth:{name}}}"


def without_secrets(
    server: str,
    config: StdioServer | HttpServer,
    existing: Mapping[str, str],
    *,
    refer: Reference = auth_variable,
) -> tuple[Mapping[str, Any], NewSecrets]:
    """The fields with references instead of secrets, and the secrets.

    Args:
        server: Its name, a prefix of the names of its secrets.
        config: The configuration with secrets in plain text.
        existing: Stored secrets by name: the same value keeps its name.
        refer: Makes the reference to a secret.
    """
    names = _SecretNames(server, existing, refer)
    match config:
        case StdioServer():
            env = {
                name: names.hide(name, text, in_variables({name: text}))
                for name, text in config.env.items()
            }
            args = _arguments(config.args, names)
            changed: dict[str, Any] = {"env": env, "args": tuple(args)}
        case HttpServer():
            headers = {
                name: names.hide(name, text, in_headers({name: text}))
                for name, text in config.headers.items()
            }
            changed = {
                "headers": headers,
                "url": names.hide("url", config.url, in_url(config.url)),
            }
            if isinstance(config.oauth, OAuth) and (text := config.oauth.client_secret):
                secret = names.hide("client_secret", text, [text])
                changed["oauth"] = config.oauth.replace(client_secret=secret)
    return {
        key: value for key, value in changed.items() if value != getattr(config, key)
    }, names.new


def clear_secrets(config: StdioServer | HttpServer) -> Iterator[str]:
    """Plain-text values that look like secrets."""
    match config:
        case StdioServer():
            secrets = (*in_variables(config.env), *in_arguments(config.args))
        case HttpServer():
            oauth = config.oauth.client_secret if isinstance(config.oauth, OAuth) else None
            secrets = (*in_url(config.url), *in_headers(config.headers), *filter(None, [oauth]))
    return (secret for secret in secrets if "${" not in secret)


def _arguments(arguments: Iterable[str], names: "_SecretNames") -> Iterator[str]:
    before = ""
    for argument in arguments:
        pair = (before, argument)
        option = argument.partition("=")[0] if argument.startswith("-") else before
        key = option.lstrip("-") if option.startswith("-") else "argument"
        yield names.hide(key, argument, in_arguments(pair))
        before = argument


class _SecretNames:
    """Gives names to secrets."""

    def __init__(self, server: str, existing: Mapping[str, str], refer: Reference) -> None:
        self.server = slug(server)
        self.taken = existing
        self.refer = refer
        self.new: NewSecrets = {}

    def hide(self, key: str, text: str, secrets: Iterable[str]) -> str:
        """The text with references instead of secrets; variables are left alone."""
        # The longest first: one secret may be part of another.
        for secret in sorted(
            {secret for secret in secrets if "${" not in secret}, key=len, reverse=True
        ):
            if secret in text:
                text = text.replace(secret, self.refer(self._name(key, secret)))
        return text

    def _name(self, key: str, secret: str) -> str:
        secrets = {**self.taken, **self.new}
        same = next((name for name, value in secrets.items() if value == secret), None)
        if same is not None:
            return same
        base = f"{self.server}/{slug(key)}"
        numbered = (f"{base}-{number}" for number in range(2, len(secrets) + 3))
        name = next(candidate for candidate in (base, *numbered) if candidate not in secrets)
        self.new[name] = secret
        return name
