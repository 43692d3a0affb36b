"""A person's machine with things to steal, and every place where they would turn up."""

import base64
import json
import os
import pty
import pwd
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks.ordinary_user import SEARCH, ordinary_python
from tests.attacks.redteam.attack import Breach
from tests.waiting import PATIENCE, wait_for

SECRETS = {
    "variable": "tok-7f3a9c51e0d24b68",
    "key": "key-19be40c7a5d3f826",
    "cloud": "cld-c84d06f1b97e2a53",
    "vault": "vlt-5e20d9a8c3b17f64",
    "document": "doc-a1f7e3095cd8b246",
}
"""What others may want, by what it is; a guarded program may read documents."""
OUR_FOLDERS = (".config", ".local", ".cache", "work")
"""Where we keep our own things, and where the person works."""


class Canary:
    """Listens where nobody has any business, and keeps whatever arrives."""

    def __init__(self):
        self._tcp = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self.udp_port = self._udp.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._visits = []
        self._threads = [
            threading.Thread(target=self._hear_connections),
            threading.Thread(target=self._hear_packets),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def visits(self):
        return b"\n".join(self._visits)

    def forget(self):
        self._visits.clear()

    def close(self):
        self._tcp.shutdown(socket.SHUT_RDWR)
        self._udp.sendto(b"end", self._udp.getsockname())
        for thread in self._threads:
            thread.join()
        self._tcp.close()
        self._udp.close()

    def _hear_connections(self):
        while True:
            try:
                guest, _ = self._tcp.accept()
            except OSError:
                return
            with guest, suppress(OSError):
                guest.settimeout(2)
                self._visits.append(self._read(guest))
                guest.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _read(self, guest):
        data = b""
        while b"\r\n\r\n" not in data and (part := guest.recv(65536)):
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                rest = int(line.partition(b":")[2]) - len(body)
                while rest > 0 and (part := guest.recv(65536)):
                    data, rest = data + part, rest - len(part)
        return data or b"(somebody connected)"

    def _hear_packets(self):
        while (packet := self._udp.recv(65536)) != b"end":
            self._visits.append(packet)


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err


@dataclass
class Machine:
    """A home folder as new, of an ordinary user, with secrets in it."""

    root: Path
    canary: Canary
    ordinary: bool = True
    """Whether its user is an ordinary one; otherwise the one who runs this."""
    home: Path = field(init=False)
    work: Path = field(init=False)
    marks: Path = field(init=False)
    """A folder that everybody may write to; what runs leaves something there."""

    def __post_init__(self):
        self.home, self.marks = self.root / "home", self.root / "marks"
        self.work = self.home / "work"
        is_root = os.geteuid() == 0 and self.ordinary
        self.python = ordinary_python() if is_root else sys.executable
        self.user = pwd.getpwnam("nobody") if is_root else None
        for folder in (self.work, self.marks, self.home / "bin"):
            folder.mkdir(parents=True)
        self.marks.chmod(0o777)
        self.put(".ssh/id_rsa", SECRETS["key"], mode=0o600)
        self.put(".aws/credentials", SECRETS["cloud"], mode=0o600)
        self.put(".local/share/multitap/vault/old", SECRETS["vault"], mode=0o600)
        self.put("docs/list.txt", SECRETS["document"])
        self.put("docs/tool", "#!/bin/sh\n", mode=0o4755)
        self.put("notes.txt", SECRETS["document"])

    def put(self, name, text, *, mode=0o644):
        """Write a file below the home folder; a folder of ours is private to its user."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    @property
    def env(self):
        return {
            "HOME": str(self.home),
            "PATH": f"{self.home / 'bin'}{os.pathsep}{os.defpath}",
            "PYTHONPATH": SEARCH,
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GITHUB_TOKEN": SECRETS["variable"],
            "LANG": "C.UTF-8",
            "MULTITAP_WAIT": "30",
            "MULTITAP_ALONE": "1",
        }

    def command(self, *words):
        return [self.python, "-P", "-m", "multitap", *words]

    @property
    def as_person(self):
        """How `subprocess` starts a program of this person."""
        self._hand_over()
        if self.user is None:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def run(self, *words, cwd=None, stdin="", **env):
        """Run a command as the person types it, without a terminal."""
        done = subprocess.run(
            self.command(*words),
            cwd=cwd or self.work,
            env={**self.env, **env},
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
            **self.as_person,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def run_at_terminal(self, *words, answers, cwd=None, **env):
        """Run a command at a terminal, and type each answer once its question is there.

        Returns its exit code and all that the terminal showed.
        """
        screen, side = pty.openpty()
        if self.user is not None:
            os.fchown(side, self.user.pw_uid, -1)
        process = subprocess.Popen(
            self.command(*words),
            stdin=side,
            stdout=side,
            stderr=side,
            cwd=cwd or self.work,
            env={**self.env, "TERM": "dumb", "COLUMNS": "400", **env},
            start_new_session=True,
            **self.as_person,
        )
        os.close(side)
        try:
            return _converse(process, screen, [*answers])
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            os.close(screen)

    @contextmanager
    def serve(self, *options, cwd=None, **env):
        """Run a gateway; its value is its port, and a function that reads its log."""
        log = self.root / f"serve-{time.monotonic_ns()}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command("serve", "--http", "127.0.0.1:0", *options),
                cwd=cwd or self.work,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **self.as_person,
            )
        try:
            yield _wait_for_port(process, log), log.read_text
        finally:
            process.terminate()
            process.wait(PATIENCE)

    @contextmanager
    def client(self, user=None):
        """Somebody of this machine who sends requests: the person, or another user by number."""
        who = self.as_person
        if user is not None:
            who = {"user": user, "group": user, "extra_groups": []}
        process = subprocess.Popen(
            [self.python, "-IS", "-c", _CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            **who,
        )

        def ask(port, data):
            process.stdin.write(json.dumps([port, data.decode("latin-1")]).encode() + b"\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline()).encode("latin-1")

        with process:
            yield ask
            process.stdin.close()

    def snapshot(self):
        """Every file of the person that is none of ours, with all that one can change of it."""
        files = {}
        for path in sorted(self.home.rglob("*")):
            if path.relative_to(self.home).parts[0] in OUR_FOLDERS:
                continue
            found = path.lstat()
            times = (found.st_mtime_ns, found.st_ctime_ns)
            # the number of links to a folder is that of the folders in it
            links = 0 if path.is_dir() else found.st_nlink
            who = (found.st_mode, found.st_uid, found.st_gid, found.st_size, links)
            files[str(path.relative_to(self.home))] = (*who, *times)
        return files

    def check_unchanged(self, before):
        """Raises `Breach` if any file of the person is another one than before."""
        after = self.snapshot()
        if changed := sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        ):
            raise Breach(f"it changed {', '.join(changed)} in the person's home")

    def check_nothing_ran(self):
        if ran := sorted(path.name for path in self.marks.iterdir()):
            raise Breach(f"a program ran and left {', '.join(ran)}")

    def check_nothing_left(self, *, but=(), more=b""):
        """Raises `Breach` if a secret has arrived anywhere, in any form that we know."""
        visits = self.canary.visits + more
        for kind, secret in SECRETS.items():
            if kind not in but and any(form in visits for form in _forms(secret)):
                raise Breach(f"a secret left the machine: the {kind}")

    def check_nobody_called(self):
        if visits := self.canary.visits:
            raise Breach(f"somebody called the attacker: {visits[:300]!r}")

    def _hand_over(self):
        """Give every file below the root to the person."""
        if self.user is None:
            return
        owner = (self.user.pw_uid, self.user.pw_gid)
        for folder, names, files in os.walk(self.root):
            for name in (".", *names, *files):
                path = Path(folder, name)
                found = path.lstat()
                if found.st_uid != owner[0]:
                    os.lchown(path, *owner)
                    if not path.is_symlink():  # another owner takes its special bits away
                        path.chmod(found.st_mode & 0o7777)


_CLIENT = """
import json, socket, sys
for line in sys.stdin:
    port, data = json.loads(line)
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as peer:
            peer.sendall(data.encode("latin-1"))
            while part := peer.recv(65536):
                answer += part
    except OSError:
        pass
    print(json.dumps(answer.decode("latin-1")), flush=True)
"""
"""A client of one request for each connection."""


def _wait_for_port(process, log):
    def port():
        text = log.read_text()
        assert process.poll() is None, text
        found = re.search(r"http://[0-9.]+:(\d+)/mcp ", text)
        return found and int(found[1])

    return wait_for(port)


def _forms(secret):
    raw = secret.encode()
    return (raw, raw[::-1], raw.hex().encode(), base64.b64encode(raw).rstrip(b"="))


def _converse(process, screen, answers):
    seen, read = "", 0
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if select.select([screen], [], [], 0.05)[0]:
            try:
                seen += os.read(screen, 65536).decode(errors="replace")
            except OSError:  # nobody has the other end any more
                break
        elif process.poll() is not None:
            break
        if answers and (at := seen.find(answers[0][0], read)) >= 0:
            question, answer = answers.pop(0)
            read = at + len(question)
            os.write(screen, f"{answer}\n".encode())
    else:
        raise TimeoutError(seen)
    return process.wait(PATIENCE), seen


@contextmanager
def open_machine(*, ordinary=True):
    """Makes machines, each as new; they share the attacker's listeners."""
    canary = Canary()
    folder = Path(tempfile.mkdtemp(prefix="multitap-attack-", dir="/tmp")).resolve()
    folder.chmod(0o755)
    number = 0

    def fresh():
        nonlocal number
        number += 1
        canary.forget()
        (folder / str(number)).mkdir()
        if number > 1:
            shutil.rmtree(folder / str(number - 1), ignore_errors=True)
        return Machine(folder / str(number), canary, ordinary)

    try:
        yield fresh
    finally:
        canary.close()
        shutil.rmtree(folder, ignore_errors=True)
