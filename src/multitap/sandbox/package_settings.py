"""The user's settings for package registries, proxies and certificates, without their tokens.

A confined server has a home folder of its own, so its `npx` or `uvx` would not find them; and the
files that contain them are private, because they contain tokens as well.
"""

import configparser
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from multitap.config.documents import is_list, is_table
from multitap.regular_file import read_regular

_LARGEST = 256 * 1024
_NPM = re.compile(r"(?:@[^:\s]+:)?registry|https?-proxy|proxy|no-?proxy|cafile|ca|strict-ssl")
_PIP = {
    "index-url": "PIP_INDEX_URL",
    "extra-index-url": "PIP_EXTRA_INDEX_URL",
    "find-links": "PIP_FIND_LINKS",
    "trusted-host": "PIP_TRUSTED_HOST",
    "cert": "PIP_CERT",
    "proxy": "PIP_PROXY",
    "no-index": "PIP_NO_INDEX",
}
_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "native-tls": "UV_NATIVE_TLS",
    "system-certs": "UV_SYSTEM_CERTS",
    "allow-insecure-host": "UV_INSECURE_HOST",
    "offline": "UV_OFFLINE",
}
_ADDRESSES = re.compile(
    r"PIP_(?:EXTRA_)?INDEX_URL|PIP_FIND_LINKS|UV_(?:DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL)"
    r"|UV_FIND_LINKS|(?:NPM_CONFIG_(?:@.*:)?|BUN_CONFIG_|YARN_)REGISTRY",
    re.IGNORECASE,
)
"""Variables whose value is the address of a registry."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


def package_settings(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The settings as variables, which the package managers understand.

    Args:
        home: The user's home folder, with the settings.
        env: Inherited variables, which count more than the user's files.
    """
    files = {**_npm(home, env), **_bun(home), **_pip(home), **_uv(home)}
    inherited = {name: value for name, value in env.items() if _ADDRESSES.fullmatch(name)}
    names = {name.lower() for name in env}
    settings = {name: value for name, value in files.items() if name.lower() not in names}
    return {name: _CREDENTIALS.sub("", value) for name, value in {**settings, **inherited}.items()}


def _npm(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    path = env.get("NPM_CONFIG_USERCONFIG") or env.get("npm_config_userconfig")
    settings: dict[str, str] = {}
    for line in _text(Path(path) if path else home / ".npmrc").splitlines():
        key, equals, value = (part.strip() for part in line.partition("="))
        if equals and _NPM.fullmatch(key) and value:
            settings[f"npm_config_{key.replace('-', '_')}"] = value.strip("\"'")
    return settings


def _bun(home: Path) -> dict[str, str]:
    install = _table(home / ".bunfig.toml").get("install")
    registry = install.get("registry") if is_table(install) else None
    address = registry.get("url") if is_table(registry) else registry
    return {"BUN_CONFIG_REGISTRY": address} if isinstance(address, str) else {}


def _pip(home: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path in (home / ".pip" / "pip.conf", home / ".config" / "pip" / "pip.conf"):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(_text(path))
        except configparser.Error:
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                for key, value in parser.items(section):
                    if variable := _PIP.get(key.replace("_", "-")):
                        settings[variable] = " ".join(value.split())
    return settings


def _uv(home: Path) -> dict[str, str]:
    table = _table(home / ".config" / "uv" / "uv.toml")
    settings = {
        variable: _join(table[key]) for key, variable in _UV.items() if _is_plain(table.get(key))
    }
    others: list[str] = []
    indexes = table.get("index")
    for index in indexes if is_list(indexes) else ():
        if is_table(index) and isinstance(address := index.get("url"), str):
            name = index.get("name")
            if index.get("default") is True:
                settings["UV_DEFAULT_INDEX"] = address
            else:
                others.append(f"{name}={address}" if isinstance(name, str) else address)
    return {**settings, "UV_INDEX": " ".join(others)} if others else settings


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | str | list)


def _join(value: bool | str | Iterable[object]) -> str:  # noqa: FBT001 - what TOML contains
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else " ".join(map(str, value))


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError:
        return {}


def _text(path: Path) -> str:
    try:
        return os.fsdecode(read_regular(path, _LARGEST))
    except (OSError, ValueError):
        return ""
