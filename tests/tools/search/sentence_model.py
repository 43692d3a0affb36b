"""A model of sentences that is small enough to be written here: one vector for each word."""

import json
from struct import pack

FLOATS, INTEGERS = 1, 7
"""Types of ONNX."""


def write_model(folder, vectors, *, inputs=("input_ids", "attention_mask"), unknown=0.0):
    """A model and its tokenizer, which knows these words and their vectors alone."""
    folder.mkdir(parents=True, exist_ok=True)
    table = [[unknown] * len(next(iter(vectors.values()))), *vectors.values()]
    (folder / "model.onnx").write_bytes(onnx(table, inputs))
    words = {"[UNK]": 0, **{word: at for at, word in enumerate(vectors, 1)}}
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "normalizer": {"type": "Lowercase"},
                "pre_tokenizer": {"type": "Whitespace"},
                "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
            }
        )
    )
    return folder


def onnx(table, inputs):
    """Looks up each number of `input_ids` in a table."""
    rows, columns = len(table), len(table[0])
    numbers = pack(f"<{rows * columns}f", *(number for row in table for number in row))
    tensor = integers(1, rows, columns) + integers(2, FLOATS) + text(8, "table") + data(9, numbers)
    outputs = ("last_hidden_state",)
    node = text(1, "table") + text(1, inputs[0]) + text(2, outputs[0]) + text(4, "Gather")
    graph = data(1, node) + text(2, "words") + data(5, tensor)
    graph += b"".join(data(11, value(name, INTEGERS, ("batch", "length"))) for name in inputs)
    graph += data(12, value(outputs[0], FLOATS, ("batch", "length", columns)))
    return integers(1, 8) + data(7, graph) + data(8, text(1, "") + integers(2, 17))


def value(name, kind, shape):
    sizes = (text(2, size) if isinstance(size, str) else integers(1, size) for size in shape)
    tensor = integers(1, kind) + data(2, b"".join(data(1, size) for size in sizes))
    return text(1, name) + data(2, data(1, tensor))


def integers(field, *numbers):
    return b"".join(varint(field << 3) + varint(number) for number in numbers)


def text(field, letters):
    return data(field, letters.encode())


def data(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
