"""Servers that crash, stop, fall silent, or do not go when told to."""

import os
import signal

from tests.zoo import children
from tests.zoo.honest import Honest
from tests.zoo.pipes import STDERR, STDIN, STDOUT, silence


class Lapse(Honest):
    """Goes bad at a chosen moment: after the `handshake`, in a `call`, or `idle` after one."""

    when = "handshake"

    def lapse(self):
        raise NotImplementedError

    def ready(self):
        if self.when == "handshake":
            self.lapse()

    def fault(self, request):
        if self.when == "call":
            self.lapse()
            return
        super().fault(request)
        if self.when == "idle":
            self.after(0, self.lapse)


class SigstopSelf(Lapse, mode="sigstop_self"):
    def lapse(self):
        os.kill(os.getpid(), signal.SIGSTOP)


class SigstopInCall(SigstopSelf, mode="sigstop_in_call"):
    when = "call"


class SigstopIdle(SigstopSelf, mode="sigstop_idle"):
    when = "idle"


class Deaf(Lapse, mode="deaf"):
    """Reads no more and keeps the pipe open."""

    def lapse(self):
        self.reading = False


class DeafInCall(Deaf, mode="deaf_in_call"):
    when = "call"


class DeafIdle(Deaf, mode="deaf_idle"):
    when = "idle"


class ClosesStdout(Lapse, mode="closes_stdout"):
    def lapse(self):
        silence(STDOUT)


class ClosesStdoutIdle(ClosesStdout, mode="closes_stdout_idle"):
    when = "idle"


class ClosesStdin(Lapse, mode="closes_stdin"):
    def lapse(self):
        self.reading = False
        silence(STDIN)


class ClosesStdinIdle(ClosesStdin, mode="closes_stdin_idle"):
    when = "idle"


class ClosesStderr(Honest, mode="closes_stderr"):
    """Has no stderr; everything else is well."""

    def start(self):
        silence(STDERR)


class CrashLoop(Lapse, mode="crash_loop"):
    def lapse(self):
        self.write(b"zoo: out of luck\n", STDERR)
        self.after(self.option("seconds", 0.05), self.exit, 1)


class CrashIdle(CrashLoop, mode="crash_idle"):
    when = "idle"


class CrashOnList(Honest, mode="crash_on_list"):
    def on_tools_list(self, _request):
        self.exit(1)


class CrashAfterCalls(Honest, mode="crash_after_calls"):
    """Answers some calls and ends with the next one."""

    called = 0

    def on_tools_call(self, request):
        self.called += 1
        if self.called > self.option("count", 3):
            self.exit(1)
        super().on_tools_call(request)


class OomKilled(Honest, mode="oom_killed"):
    def fault(self, _request):
        os.kill(os.getpid(), signal.SIGKILL)


class HalfAnswer(Honest, mode="half_answer"):
    def fault(self, request):
        whole = self.encode(self.envelope(request, {"content": []}))
        self.write(whole[: len(whole) // 2])
        self.exit(1)


class WritesThenDies(Honest, mode="writes_then_dies"):
    def fault(self, request):
        super().fault(request)
        self.exit(0)


class AnswersAfterClose(Honest, mode="answers_after_close"):
    """Answers only after its stdin was closed, and has more to say then."""

    held = ()

    def fault(self, request):
        self.held = (*self.held, request)

    def closing(self):
        for request in self.held:
            request.text("no fault")
            self.tools_changed()
        self.exit(0)


class PingUnanswered(Honest, mode="ping_unanswered"):
    """Works, but never answers a health check."""

    def on_ping(self, request):
        self.checked(request)

    def on_server_discover(self, request):
        if self.was_ready:
            self.checked(request)
        else:
            super().on_server_discover(request)

    def checked(self, request):
        """Leaves the client waiting."""


class ExitsOnPing(PingUnanswered, mode="exits_on_ping"):
    def checked(self, _request):
        self.exit(1)


class SlowReader(Honest, mode="slow_reader"):
    """Reads a kilobyte at a time, with a pause after each."""

    chunk = 1024

    def read(self):
        super().read()
        if self.reading:
            self.reading = False
            self.after(self.option("seconds", 0.005), self.resume)

    def resume(self):
        self.reading = True


class IgnoresEof(Honest, mode="ignores_eof"):
    def closing(self):
        """Stays until SIGTERM."""


class Stubborn(IgnoresEof, mode="stubborn"):
    def start(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


class SlowExit(Honest, mode="slow_exit"):
    def closing(self):
        self.after(self.option("seconds", 1.0), self.exit, 0)


class ExitLeaveChild(Honest, mode="exit_leave_child"):
    """Goes politely and leaves a child that holds the pipes, as launchers do."""

    def start(self):
        self.record("children", self.spawn())

    def spawn(self):
        return children.child()


class DaemonChild(ExitLeaveChild, mode="daemon_child"):
    def spawn(self):
        return children.daemon()


class DaemonChildCleanEnv(ExitLeaveChild, mode="daemon_child_clean_env"):
    def spawn(self):
        return children.daemon(clean=True)


class OrphanHoldsPipes(ExitLeaveChild, mode="orphan_holds_pipes"):
    """Crashes in a call while its child keeps stdout open: there is no end of file."""

    def fault(self, _request):
        self.exit(1)


class ForkBombSmall(Honest, mode="fork_bomb_small"):
    def fault(self, request):
        for _ in range(self.option("count", 20)):
            self.record("children", children.child())
        super().fault(request)
