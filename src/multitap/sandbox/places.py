"""Paths that no sandbox rule may open, what remains around them, and folders in arguments."""

import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from multitap.files import USER_FOLDERS

_NEVER = (".ssh", ".aws", ".gnupg", ".password-store", ".local/share/keyrings")
"""In the home folder: keys to other machines, and stores of passwords."""
_CLOUDS = (
    *(".azure", ".boto", ".config/gcloud", ".config/doctl", ".config/heroku", ".config/ngrok"),
    *(".config/rclone", ".config/stripe", ".databrickscfg", ".docker", ".fly", ".kube", ".netlify"),
    *(".ngrok2", ".oci", ".s3cfg", ".snowflake", ".snowsql", ".terraform.d", ".vault-token"),
    *(".config/containers/auth.json", ".cache/huggingface/token", ".huggingface/token"),
    *(".cloudflared", ".config/.wrangler", ".config/configstore", ".config/hcloud", ".config/helm"),
    *(".config/linode-cli", ".config/netlify", ".config/openstack", ".config/scw", ".config/sops"),
    *(".local/share/com.vercel.cli", ".minikube", ".pulumi/credentials.json"),
    *(
        ".terraformrc",
        ".tsh",
        ".supabase/access-token",
        ".wrangler",
        ".railway/config.json",
        ".config/age",
        ".step",
        ".ollama/id_ed25519",
    ),
)
_ACCOUNTS = (
    *(".cargo/credentials", ".cargo/credentials.toml", ".composer/auth.json", ".config/gh"),
    *(".config/git/credentials", ".config/glab-cli", ".config/hub", ".config/pip", ".config/uv"),
    *(".gem/credentials", ".git-credentials", ".gradle/gradle.properties", ".m2/settings.xml"),
    *(".m2/settings-security.xml", ".netrc", ".npmrc", ".pgpass", ".pip", ".pypirc", ".yarnrc.yml"),
    *(".my.cnf", ".mylogin.cnf", ".local/share/uv/credentials", ".config/op", ".env", ".pki"),
    *(".bundle/config", ".bunfig.toml", ".condarc", ".config/composer/auth.json", ".config/dart"),
    *(".config/NuGet", ".config/pypoetry/auth.toml", ".hex/hex.config", ".ivy2/.credentials"),
    ".sentryclirc",
    *(".local/share/gem/credentials", ".nuget/NuGet", ".pub-cache/credentials.json", ".subversion"),
    *(".authinfo", ".authinfo.gpg", ".fetchmailrc", ".mbsyncrc", ".msmtprc", ".smbcredentials"),
    *(".config/borg", ".config/rbw", ".local/share/gopass", ".local/share/lpass", ".putty"),
    *(".config/filezilla", ".local/share/remmina", ".local/share/DBeaverData", ".erlang.cookie"),
    ".Xauthority",
)
_APPLICATIONS = (
    *(".config/BraveSoftware", ".config/chromium", ".config/google-chrome"),
    ".config/microsoft-edge",
    *(".config/opera", ".config/vivaldi", ".cache/google-chrome", ".cache/chromium"),
    *(".cache/mozilla", ".mozilla", ".thunderbird", ".config/Signal", ".config/Slack"),
    ".config/discord",
    *(".config/1Password", ".config/Bitwarden", ".config/KeePass", ".config/keepassxc"),
    *(".local/share/kwalletd", ".local/share/evolution", ".var/app", "snap"),
    *(".bitcoin", ".electrum", ".ethereum", ".config/solana"),
)
"""Browsers, mail, messengers, password managers, wallets."""
_LOCAL_SERVERS = (
    *(".config/code-server", ".config/syncthing", ".jupyter", ".local/share/jupyter/runtime"),
    *(".local/state/syncthing", ".vscode-server/cli", ".vscode-server/data"),
)
"""Keys to programs that listen on loopback, and do there whatever they are told."""
_AGENTS = (
    *(".claude", ".claude.json", ".codeium", ".codex", ".config/Claude", ".config/Code/User"),
    *(".config/Cursor", ".config/goose", ".config/mcp", ".config/opencode", ".continue", ".cursor"),
    *(".gemini", ".local/share/opencode", ".local/share/goose", ".aider.conf.yml", ".config/zed"),
    *(".kode.json", ".excelmanus", ".config/tong_work"),
)
"""Other agents' own files: they contain keys, and say what those agents run."""
_HISTORIES = (
    *(".local/share/fish/fish_history", ".lesshst", ".viminfo", ".histfile", ".zhistory"),
    *(".config/nushell/history.txt", ".config/nushell/history.sqlite3", ".local/share/atuin"),
    *(".local/share/mcfly", ".local/share/xonsh", ".local/share/zsh", ".local/state/bash"),
    *(".local/state/zsh", ".zsh_sessions"),
)
_HISTORY = re.compile(r"\..*_history(?:-.*)?")
"""The names of history files in the home folder, of shells and of other prompts."""
_ONLY_BY_NAME = (
    *_CLOUDS,
    *_ACCOUNTS,
    *_APPLICATIONS,
    *_LOCAL_SERVERS,
    *_AGENTS,
    *_HISTORIES,
)
"""In the home folder: opened only by a rule for the place itself, not for a folder around it."""
NAMED_BY = (
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "DOCKER_CONFIG", "GNUPGHOME", "KUBECONFIG"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "NETRC", "NPM_CONFIG_USERCONFIG", "PASSWORD_STORE_DIR"),
    *("PGPASSFILE", "PIP_CONFIG_FILE", "HISTFILE", "CLOUDSDK_CONFIG", "AZURE_CONFIG_DIR"),
    *("CLAUDE_CONFIG_DIR", "CODEX_HOME"),
)
"""Variables of the user that name such a place elsewhere."""
_SYSTEM = (
    *("/boot", "/dev", "/proc", "/run", "/sys", "/var/run", "/var/lib/docker"),
    "/var/lib/containerd",
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers"),
    *("/etc/sudoers.d", "/etc/ssl/private", "/etc/wireguard", "/etc/krb5.keytab"),
    *("/etc/NetworkManager/system-connections", "/etc/kubernetes", "/etc/rancher", "/var/spool"),
)
"""The same for the whole machine: devices, other programs' sockets and memory, root's secrets."""
_HOST_KEY = re.compile(r"ssh_host_.*_key")
_MOST = 10_000  # the maximum number of rules that replace one rule


class PrivatePaths(msgspec.Struct, frozen=True):
    """What is private on this machine; all paths are real ones, without links."""

    never: tuple[str, ...]
    by_name: tuple[str, ...]

    @classmethod
    def of_user(
        cls, home: Path, state: Path, ours: Mapping[str, str] | None = None
    ) -> "PrivatePaths":
        """The user's private paths, and ours: vault, tokens, audit, settings, servers' data.

        `ours` are our own variables, which may name private files elsewhere.
        """
        own = (
            USER_FOLDERS.user_data_path,
            USER_FOLDERS.user_config_path,
            USER_FOLDERS.user_state_path,
            USER_FOLDERS.user_cache_path,
            state,
        )
        variables = os.environ if ours is None else ours
        never, by_name = [*map(str, own)], [*_SYSTEM, *_matches("/etc/ssh", _HOST_KEY)]
        for folder in (str(home), *_other_homes(home)):
            # Places that do not exist yet count at home, where they may be created later.
            is_there = os.path.lexists if folder != str(home) else bool
            never += filter(is_there, (os.path.join(folder, name) for name in _NEVER))
            by_name += filter(is_there, (os.path.join(folder, name) for name in _ONLY_BY_NAME))
            by_name += _matches(folder, _HISTORY)
        by_name += _elsewhere(variables, home)
        return cls(tuple(map(os.path.realpath, never)), tuple(map(os.path.realpath, by_name)))

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.never, *self.by_name)

    def holds(self, path: str) -> bool:
        """Whether a path is private, or inside a private one."""
        real = os.path.realpath(path)
        return any(is_within(real, private) for private in self.paths)

    def openable(self, path: str) -> tuple[str, ...]:
        """The paths that a rule for `path` opens: itself, or its entries that are not private.

        The kernel has no exceptions below an open folder, so a folder with private entries is
        opened entry by entry. Entries that are created later open at the next start.
        """
        real = os.path.realpath(path)
        # By real path: a link to `.ssh` with a harmless name opens nothing.
        if any(is_within(real, private) for private in self.never):
            return ()
        below = real if real.endswith("/") else f"{real}/"
        holes = [private for private in self.paths if private.startswith(below)]
        return tuple(_around(real, holes))

    def surroundings(self) -> tuple[str, ...]:
        """The folders around private places, which are opened entry by entry."""
        folders: set[str] = set()
        for private in self.paths:
            folder = os.path.dirname(private)
            while folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
        return tuple(
            folder for folder in sorted(folders) if os.path.isdir(folder) and not self.holds(folder)
        )


def _other_homes(home: Path) -> list[str]:
    """The home folders of others, which root could read."""
    if os.geteuid() != 0:
        return []
    folders = {os.path.realpath(user.pw_dir) for user in pwd.getpwall()}
    return sorted(folder for folder in folders - {str(home)} if os.path.isdir(folder))


def _matches(folder: str, names: re.Pattern[str]) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if names.fullmatch(name)]
    except OSError:
        return []


def _elsewhere(variables: Mapping[str, str], home: Path) -> Iterator[str]:
    """Private places that variables of the user put outside their usual folders."""
    for variable, usual in (("XDG_CONFIG_HOME", ".config/"), ("XDG_DATA_HOME", ".local/share/")):
        folder = variables.get(variable, "")
        if os.path.isabs(folder):
            for name in (*_NEVER, *_ONLY_BY_NAME):
                if name.startswith(usual):
                    yield os.path.join(folder, name.removeprefix(usual))
    for variable in NAMED_BY:
        for path in variables.get(variable, "").split(os.pathsep):
            # one that names the home folder or the root would close everything
            if os.path.isabs(path) and not is_within(str(home), os.path.realpath(path)):
                yield path


def _around(path: str, holes: list[str]) -> Iterator[str]:
    if path in holes:
        return
    if not holes:
        yield path
        return
    try:
        entries = sorted(os.listdir(path))[:_MOST]
    except OSError:
        return
    for entry in entries:
        inner = os.path.join(path, entry)
        if os.path.islink(inner):  # its target is not what the rule names
            continue
        yield from _around(inner, [hole for hole in holes if is_within(hole, inner)])


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or somewhere in it."""
    return folder in {path, "/"} or path.startswith(f"{folder}/")


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that are not inside another one."""
    outer: list[str] = []
    for path in sorted(set(paths)):
        if not outer or not is_within(path, outer[-1]):
            outer.append(path)
    return tuple(outer)


_SYSTEM_FOLDERS = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run"),
    *("/sbin", "/sys", "/usr", "/var/spool", "/System", "/Library", "/private/etc"),
)
"""Places of the system, from which everybody's programs run."""
_WHOLE = (
    *("/", "/home", "/Users", "/opt", "/srv", "/var", "/private", "/private/var"),
    *("/tmp", "/private/tmp"),  # noqa: S108 - as a whole they are not opened
)
"""Folders that hold what belongs to many."""
_TAKES_TEXT = re.compile(r"-\w*[ce]|--eval|--command|--exec")
"""Options before a program's text: `sh -lc`, `node -e`."""


def folder_arguments(
    args: Sequence[str], cwd: Path, home: Path, private: Collection[str]
) -> tuple[str, ...]:
    """The real paths of existing folders that are whole arguments, and may be opened.

    Not the home folder or one around it, nothing hidden in it, no place of the system, nothing
    around or in a private place; and nothing that is only part of a text, or beside a script.
    """
    real_home = os.path.realpath(home)
    folders = (
        os.path.realpath(cwd / word)
        for before, word in pairwise(("", *args))
        if word and not _TAKES_TEXT.fullmatch(before) and os.path.isdir(cwd / word)
    )
    return outermost(path for path in folders if _may_open(path, real_home, private))


def writable_folders(args: Sequence[str], cwd: Path, state: Path | None = None) -> tuple[str, ...]:
    """The folders among a server's arguments that it may write to once they were shown."""
    if not any(os.path.isdir(cwd / word) for word in args):  # the rest takes some milliseconds
        return ()
    home = Path.home().resolve()
    private = PrivatePaths.of_user(home, state or USER_FOLDERS.user_state_path)
    return folder_arguments(args, cwd, home, private.paths)


def _may_open(path: str, home: str, private: Collection[str]) -> bool:
    if path in _WHOLE or is_within(home, path):
        return False
    if any(is_within(path, place) for place in _SYSTEM_FOLDERS):
        return False
    # `~/.local/bin`, `~/.config/autostart`: what is written there runs unconfined later.
    if is_within(path, home) and os.path.relpath(path, home).startswith("."):
        return False
    return not any(is_within(path, place) or is_within(place, path) for place in private)
