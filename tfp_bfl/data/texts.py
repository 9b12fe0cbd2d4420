"""Features of texts: means of static token vectors, from a package that is not imported."""

import csv
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfp_bfl.data.names import as_names
from tfp_bfl.errors import InvalidArgument, lookup, shown
from tfp_bfl.files import name as name_of
from tfp_bfl.files import read_regular
from tfp_bfl.files.packages import check_installed, file_of_package

TextFeatures = Callable[[Sequence[str]], np.ndarray]
# The kind of a column of texts, and the number of features of each backbone.
TEXT = "text"
WIDTHS = {"wordllama": 256}
_MOST_BYTES = 2**26
# Files of the package, and the SHA-256 sums that they must have.
_VECTORS = (
    "weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
)
_TOKENIZER = (
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)


class TextColumns(NamedTuple):
    """The backbone of columns of texts, and their names; () for all that hold too many texts for categories."""

    backbone: str
    names: tuple[str, ...] = ()


# Of a table that could have columns of texts, as an error then says.
NO_TEXTS = TextColumns("")


def parse_text_columns(text: str | None) -> TextColumns | None:
    """Return what "BACKBONE" or "BACKBONE:COLUMN,COLUMN" names."""
    if text is None:
        return None
    backbone, _, names = text.partition(":")
    lookup(WIDTHS, backbone, "backbone of texts", "for text_features")
    return TextColumns(backbone, as_names(next(csv.reader([names]), [])))


def text_features(backbone: str = "wordllama") -> TextFeatures:
    """Build a function that computes features of texts.

        features = bfl.models.text_features("wordllama")
        features(["Chest pain for two days.", "Cough."])          # float32 [2, 256]

        f(text) = (1 / T) sum_t v(token_t)                        of the T tokens; 0 for a text without any

    "wordllama" has a vector of 256 numbers for each of 32,000 tokens, and needs the packages wordllama, of which two
    files are read, and tokenizers: `pip install --no-deps wordllama tokenizers`. No network runs, and the order of the
    words does not matter.

    Raises:
      MissingDependency: one of the packages is not installed.
      InvalidArgument: there is no such backbone, or its files are not those that it must have.

    Source: WordLlama 0.4 (MIT): token embeddings of language models, reduced to 256 dimensions.
    """
    return lookup({"wordllama": _wordllama}, backbone, "backbone of texts")()


def _wordllama() -> TextFeatures:
    vectors = _parsed(_read(*_VECTORS))
    check_installed("tokenizers", "The backbone wordllama")
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(_read(*_TOKENIZER).decode("utf-8"))

    def features(texts: Sequence[str]) -> np.ndarray:
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InvalidArgument(f"texts is {shown(texts)}, but must be a list of texts.")
        encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        found = np.zeros((len(encoded), vectors.shape[1]), np.float32)
        for row, tokens in zip(found, encoded):
            if tokens.ids:
                row[:] = vectors[tokens.ids].mean(0, dtype=np.float32)
        return found

    return features


def _read(file: str, sha256: str) -> bytes:
    path = file_of_package("wordllama", file, "The backbone wordllama", "--no-deps tokenizers ")
    content = read_regular(path, "file of the backbone", _MOST_BYTES)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InvalidArgument(
            f"The file of the backbone {name_of(path)} has another SHA-256 sum than {sha256[:16]}...: "
            "pip install --no-deps wordllama==0.4.0.post1"
        )
    return content


def _parsed(content: bytes) -> np.ndarray:
    """Return the one array of a safetensors file: the length of its header, the header as JSON, the numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    entry = json.loads(content[8:start])["embedding.weight"]
    first, last = entry["data_offsets"]
    return np.frombuffer(content[start + first : start + last], "<f2").reshape(entry["shape"]).astype(np.float32)
