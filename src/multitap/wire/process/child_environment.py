"""Decides which environment variables a server inherits."""

from collections.abc import Mapping

NAMES = frozenset(
    {
        # the SDK's six
        *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
        # language, time and places
        *("LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        # proxies
        *("ALL_PROXY", "FTP_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
        # certificates: without them npx and uvx fail behind a company's TLS
        *("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NIX_SSL_CERT_FILE"),
        *("NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        # where packages come from
        *("BUN_CONFIG_REGISTRY", "PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"),
        *("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "UV_CACHE_DIR", "UV_DEFAULT_INDEX"),
        *("UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX", "UV_INDEX_URL", "UV_NATIVE_TLS"),
        *("UV_OFFLINE", "UV_PYTHON_INSTALL_MIRROR", "UV_SYSTEM_CERTS", "UV_TOOL_DIR"),
        "YARN_REGISTRY",
        # where language managers put their programs
        *("ASDF_DATA_DIR", "MISE_DATA_DIR", "NVM_DIR", "PYENV_ROOT", "VOLTA_HOME"),
        # Windows programs do not start without these
        *("APPDATA", "COMSPEC", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES"),
        *("SYSTEMDRIVE", "SYSTEMROOT", "USERPROFILE", "WINDIR"),
    }
)

PREFIXES = ("LC_", "XDG_", "NPM_CONFIG_")

_SECRET = ("TOKEN", "PASSWORD", "SECRET", "AUTH")


def child_environment(ours: Mapping[str, str], named: Mapping[str, str]) -> dict[str, str]:
    """A server's environment: the short list from `ours`, and all that its configuration names."""
    inherited = {name: value for name, value in ours.items() if _inherited(name.upper())}
    return {**inherited, **named}


def _inherited(name: str) -> bool:
    if name in NAMES:
        return True
    # npm keeps registry passwords in variables of the same prefix
    return name.startswith(PREFIXES) and not any(word in name for word in _SECRET)
