"""Every way out of the sandbox that we know, tried by a real program: with it, and without it."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from multitap.sandbox.levels import sandbox_support
from tests.attacks.escape_probes import PROBES
from tests.attacks.guarded_program import NEEDS
from tests.attacks.ordinary_user import as_user, ordinary_python
from tests.attacks.sandbox_world import NEVER_WORK, try_everything, use_everything
from tests.module_life import nothing_left  # noqa: F401 - a fixture

SUPPORT = sandbox_support()
pytestmark = [
    pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason)),
]

ALLOWED = {"proxy_to_declared_host"}
"""What a confined program may do: the proxy works, so that a refusal means something."""

GUARD_ALLOWS = {
    *("bind_port", "dns_tunnel", "netlink_socket", "tcp_over_ipv6", "tcp_to_another_port"),
    *("tcp_to_the_proxys_port_elsewhere", "udp", "udp_over_ipv6", "list_home"),
}
"""What a guarded program may do besides: use the network, and see the names in the home folder."""

ROOT_ONLY = {
    *(
        "change_core_pattern",
        "change_kernel_setting",
        "change_root",
        "enter_namespace_of_another_server",
    ),
    *(
        "kernel_program",
        "make_device",
        "mount",
        "new_mount_interface",
        "packet_socket",
        "old_packet_socket",
        "raw_socket",
    ),
    *(
        "read_by_file_handle",
        "read_raw_disk",
        "read_shadow",
        "write_kernel_log",
        "performance_counters",
    ),
}
"""What only root could do anyway."""

KERNELS_CHOICE = {
    *("io_ring", "keyring", "multipath_tcp", "open_message_queue", "other_system_call_table"),
    *("performance_counters", "set_attribute", "tcp_fast_open", "tcp_fast_open_by_message"),
    *("user_fault_handler", "user_namespace", "clone_into_namespace", "clone3_into_namespace"),
    *("x32_system_call", "read_raw_disk", "write_kernel_log", "kernel_program", "tcp_over_ipv6"),
    *("udp_over_ipv6", "trace_another_server", "take_descriptor_of_another_server"),
    *("type_at_a_terminal", "read_by_file_handle", "change_kernel_setting"),
    *("kernel_crypto_socket", "stream_control_socket", "virtual_machine_socket"),
    *("set_attribute_of_read_only_descriptor", "set_file_attributes_by_the_newest_call"),
    *("set_file_flags", "change_mode_by_the_newest_call", "gateway_by_fast_open"),
    *("gateway_over_ipv6", "gateway_by_mapped_address", "gateway_by_no_address_over_ipv6"),
    *("gateway_by_mapped_no_address", "gateway_by_address_of_this_machine"),
    *("gateway_by_mapped_address_of_this_machine", "gateway_by_link_local_address"),
    "gateway_by_ipv6_address_of_this_machine",
}
"""What not every kernel has; where it has, the comparison counts."""


def tried_by_nobody():
    """The same by an ordinary user, who has none of root's powers."""
    if os.geteuid() != 0:
        pytest.skip("already tried by an ordinary user")
    user = pwd.getpwnam("nobody")
    python = ordinary_python()
    root = Path(tempfile.mkdtemp(prefix="multitap-nobody-", dir="/tmp")).resolve()
    os.chown(root, user.pw_uid, user.pw_gid)
    try:
        options = as_user(user)
        options["env"]["HOME"] = str(root / "home")
        done = subprocess.run(
            [python, "-m", "tests.attacks.sandbox_world", str(root)],
            **options,
            capture_output=True,
            check=False,
        )
    finally:
        shutil.rmtree(root)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(
    scope="module",
    params=[
        # root of a test machine has more rights than anybody who uses us, and takes as long
        pytest.param("this user", marks=pytest.mark.wide if os.geteuid() == 0 else ()),
        "an ordinary user",
    ],
)
def tried(request, tmp_path_factory):
    if request.param != "this user":
        return tried_by_nobody()
    root = tmp_path_factory.mktemp("world").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root / "home"))
        for name in [name for name in os.environ if name.startswith("XDG_")]:
            patch.delenv(name)
        return {"escapes": try_everything(root), "uses": use_everything(root)}


def test_all_probes_succeed_without_the_sandbox(tried, request):
    is_root = os.geteuid() == 0 and "this user" in request.node.name
    impossible_here = KERNELS_CHOICE if is_root else KERNELS_CHOICE | ROOT_ONLY
    stopped = {
        name: outcome
        for name, outcome in tried["escapes"]["free"].items()
        if name not in NEVER_WORK | impossible_here and not outcome.startswith("ESCAPED")
    }

    assert stopped == {}
    assert tried["escapes"]["free"].keys() >= PROBES.keys() - NEVER_WORK


@pytest.mark.parametrize("level", ["strict", "strict with /proc/self", "guard"])
def test_the_sandbox_stops_all_probes(tried, level):
    allowed = ALLOWED | GUARD_ALLOWS if level == "guard" else ALLOWED
    outcomes = tried["escapes"][level]
    escaped = {
        name: outcomes[name]
        for name in PROBES.keys() - allowed
        if not outcomes[name].startswith("STOPPED")
    }

    assert escaped == {}


def test_a_confined_program_reaches_what_its_rules_declare(tried):
    for level in ("strict", "strict with /proc/self"):
        assert "hello" in tried["escapes"][level]["proxy_to_declared_host"]


def test_a_guarded_program_can_do_what_programs_need(tried):
    assert {name: tried["uses"][name] for name in NEEDS} == dict.fromkeys(NEEDS, "hello")


def test_there_are_more_than_a_hundred_probes():
    assert len(PROBES) > 100
