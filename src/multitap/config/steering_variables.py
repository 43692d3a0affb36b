"""Variables with which somebody else's program, registry or machine is used."""

import re
from collections.abc import Mapping

_RISKS: Mapping[str, str] = {
    "decides where packages come from": r"""
        npm_config_.* | UV_(?:INDEX|DEFAULT_INDEX|EXTRA_INDEX|FIND_LINKS|INSECURE|CONFIG).* | PIP_.*
        | BUN_CONFIG_.* | YARN_.* | PNPM_.* | PIPX_.* """,
    "can make it run other code": r"""
        LD_.* | DYLD_.* | NODE_OPTIONS | NODE_PATH | PYTHON(?:PATH|STARTUP|HOME|INSPECT|WARNINGS)
        | BASH_ENV | ENV | PERL5.* | RUBY(?:OPT|LIB) | JAVA_TOOL_OPTIONS | _JAVA_OPTIONS | JDK_.*
        | GIT_.* | SHELL | EDITOR | DOTNET_.* | DENO_.* """,
    "decides which programs it runs": r"PATH",
    "decides which machine or agent it talks to": r"""
        DOCKER_.* | CONTAINER_HOST | KUBECONFIG | SSH_AUTH_SOCK | DBUS_.* """,
    "decides who can read what it sends": r"""
        (?:HTTPS?|ALL|FTP|NO)_PROXY | SSL_CERT_.* | .*_CA_(?:BUNDLE|CERTS|FILE) | CURL_.*
        | NODE_TLS_REJECT_UNAUTHORIZED | PYTHONHTTPSVERIFY """,
    "decides where it looks for its files": r"HOME | XDG_.* | TMPDIR",
}
"""Variables that change more than the program's own behaviour."""
_RISKY = tuple((re.compile(f"(?ix) {names}"), risk) for risk, names in _RISKS.items())


def risk_of(name: str) -> str:
    """What a variable changes besides the program's own behaviour; empty if it changes nothing."""
    return next((risk for names, risk in _RISKY if names.fullmatch(name)), "")
