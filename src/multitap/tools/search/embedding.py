"""Compares requests and tools by what they mean, with a model whose files somebody has named."""

from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from multitap.errors import ConfigError, shortened

KEY = "serve.search_model"
MOST = 20_000
"""Texts whose vectors are kept, of 1.5 KB each; an index of more tools searches by words alone."""
_TOKENS = 128  # of one text; the models for this task read 128 to 512
_LEAST = 1e-9  # a vector of zeros is like no other
_MODELS = ("model.onnx", "onnx/model.onnx")  # beside the tokenizer, or as Hugging Face has it
_TOKENIZER = "tokenizer.json"
_POOLING = "1_Pooling/config.json"


class _Pooling(msgspec.Struct):
    is_first: bool = msgspec.field(default=False, name="pooling_mode_cls_token")


class Embedding:
    """A model of sentences, and the vectors of all texts that it has read.

    Args:
        folder: Has `model.onnx` and `tokenizer.json`, as exported for sentence-transformers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.expanduser()
        self._vectors: OrderedDict[str, Any] = OrderedDict()
        self._unread: dict[str, None] = {}
        self._is_first = False
        # typed as they are: these three are imported when a model is loaded, and not before
        self._numpy: Any = None
        self._tokenizer: Any = None
        self._session: Any = None

    def load(self) -> None:
        """Load the model, which takes about half a second.

        Raises:
            ConfigError: A file is missing or damaged; says which.
        """
        if find_spec("onnxruntime") is None or find_spec("tokenizers") is None:
            from multitap.installation import extra_hint  # noqa: PLC0415 - reads metadata

            raise ConfigError(f"{KEY} needs onnxruntime", hint=extra_hint("embed"))
        models = [self._folder / name for name in _MODELS]
        model = next((path for path in models if path.is_file()), models[0])
        tokenizer = self._folder / _TOKENIZER
        for path in (model, tokenizer):
            if not path.is_file():
                raise ConfigError(f"{KEY}: the file {str(path)!r} is missing")
        self._numpy = import_module("numpy")
        runtime, tokenizers = import_module("onnxruntime"), import_module("tokenizers")
        options = runtime.SessionOptions()
        # one thread: others would spin, and take the processor from servers
        options.intra_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # it would keep what the longest text once took
        options.log_severity_level = 4  # what is wrong is raised as well
        place = tokenizer
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
            self._tokenizer.enable_truncation(_TOKENS)
            self._tokenizer.no_padding()
            place = self._folder / _POOLING
            if place.is_file():
                self._is_first = msgspec.json.decode(place.read_bytes(), type=_Pooling).is_first
            place = model
            self._session = runtime.InferenceSession(
                str(model), options, providers=["CPUExecutionProvider"]
            )
            self._read("a")
        except Exception as exc:  # noqa: BLE001 - boundary: both libraries raise what they like
            self._session = None
            raise _damaged(place, exc) from None

    @property
    def has_unread(self) -> bool:
        """Whether searches have met texts that have no vectors yet."""
        return bool(self._unread)

    def read_next(self) -> None:
        """Read one of the texts that searches have met, which takes about 10 ms.

        Raises:
            ConfigError: The model does not work.
        """
        text, _ = self._unread.popitem()  # one step: searches add to it in other threads
        try:
            self._vectors[text] = self._read(text)
        except Exception as exc:  # noqa: BLE001 - boundary: as above
            self._session = None
            raise _damaged(self._folder, exc) from None
        if len(self._vectors) > MOST:
            self._vectors.popitem(last=False)

    def vectors(self, texts: Sequence[str]) -> Any:
        """The vectors of some texts; None until all of them have been read."""
        if self._session is None or not 0 < len(texts) <= MOST:
            return None
        vectors = [self._vectors.get(text) for text in texts]
        missing = [text for text, vector in zip(texts, vectors, strict=True) if vector is None]
        if missing:
            self._unread |= dict.fromkeys(missing)
            return None
        return self._numpy.stack(vectors)

    def similarities(self, request: str, vectors: Any) -> list[float]:
        """How much a request means the same as each of some texts; 1 for the same, 0 for others.

        Empty if the model does not work.
        """
        if self._session is None:
            return []
        try:
            vector = self._read(request)
            # `@` would wake a thread for each processor, which costs ten times as much
            similar: list[float] = self._numpy.einsum("ij,j->i", vectors, vector).tolist()
        except Exception:  # noqa: BLE001 - boundary: a search goes on without
            return []
        return similar

    def _read(self, text: str) -> Any:
        """The vector of a text, of length 1."""
        numpy = self._numpy
        ids = numpy.array([self._tokenizer.encode(text).ids], dtype=numpy.int64)
        named = {
            "input_ids": ids,
            "attention_mask": numpy.ones_like(ids),
            "token_type_ids": numpy.zeros_like(ids),
        }
        inputs = {node.name: named[node.name] for node in self._session.get_inputs()}
        (output, *_) = self._session.run(None, inputs)
        match output[0].ndim, self._is_first:
            case 1, _:  # the model pools by itself
                vector = output[0]
            case 2, True:
                vector = output[0][0]
            case _:
                vector = output[0].mean(0)
        length = float((vector * vector).sum()) ** 0.5
        if vector.ndim != 1 or not isfinite(length):
            raise ValueError("its output is not a vector")
        return (vector / max(length, _LEAST)).astype(numpy.float32)


def _damaged(path: Path, exc: Exception) -> ConfigError:
    return ConfigError(f"{KEY}: {str(path)!r} cannot be used: {shortened(str(exc), 300)}")
