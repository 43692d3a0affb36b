"""A client's message out of its bytes, or what is wrong with them."""

from multitap.serve import faults
from multitap.serve.message import UNPARSABLE, Message, Params, Refused, parse, parse_params


def read_message(data: bytes) -> Message:
    """The one message in `data`.

    Raises:
        Refused: There is none, or more than one.
    """
    try:
        if not data.isascii():
            data.decode()  # what stays undecoded is passed on: it has to be text
        return parse(data)
    except UNPARSABLE as exc:
        if data.lstrip()[:1] == b"[":
            words = "batches are not supported: send one message"
            raise Refused(faults.INVALID_REQUEST, words) from None
        raise Refused(faults.PARSE_ERROR, f"Parse error: {exc}") from None


def read_params(message: Message) -> Params:
    """What a request says, as far as we have to look.

    Raises:
        Refused: It can not be read.
    """
    try:
        return parse_params(message.params) if len(message.params) else Params()
    except UNPARSABLE as exc:
        raise Refused(faults.INVALID_PARAMS, f"the parameters can not be read: {exc}") from None
