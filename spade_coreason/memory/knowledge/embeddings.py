"""Embeddings: vectors of texts, near each other for similar meanings, from an OpenAI-compatible server or a local model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from ...domain.environment.installation import install_hint
from ...domain.policy import EMBEDDING_BATCH
from ...exceptions import ConfigError, ModelError
from ..openai_api import OpenAIApi


class Embedder(Protocol):
    """A source of vectors. Vectors of two models are never compared."""

    @property
    def model(self) -> str:
        """The name of the model, which is stored with each vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text, all of one length. Raises ModelError if there are none."""
        ...

    async def close(self) -> None:
        """Release connections and other resources."""
        ...


class OpenAIEmbedder:
    """Vectors from any server with `/v1/embeddings` (OpenAI, Ollama, vLLM, LM Studio), with `batch` texts per request."""

    def __init__(self, api: OpenAIApi, model: str, *, batch: int = EMBEDDING_BATCH) -> None:
        self.model = model
        self._api = api
        self._batch = batch

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text."""
        vectors: list[list[float]] = []
        for begin in range(0, len(texts), self._batch):
            batch = texts[begin : begin + self._batch]
            response = await self._api.post(
                "embeddings", {"model": self.model, "input": list(batch), "encoding_format": "float"}
            )
            vectors += self._parse_vectors(response, len(batch))
        return vectors

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    def _parse_vectors(self, response: dict[str, Any], count: int) -> list[list[float]]:
        try:
            items = sorted(response["data"], key=lambda item: item["index"])
            vectors = [[float(value) for value in item["embedding"]] for item in items]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ModelError(self._api.url, "returned no embeddings; check knowledge.model") from error
        if len(vectors) != count or len({len(vector) for vector in vectors}) != 1 or not vectors[0]:
            raise ModelError(self._api.url, f"returned {len(vectors)} vectors for {count} texts; check knowledge.model")
        return vectors


class LocalEmbedder:
    """Vectors from a sentence-transformers model, by name or path. It is loaded with the first text and runs in a thread."""

    def __init__(self, model: str) -> None:
        if find_spec("sentence_transformers") is None:
            problem = f"a model on this machine needs sentence-transformers: {install_hint('local')}"
            raise ConfigError("knowledge.embedder", problem)
        self.model = model
        self._loaded_model: Any = None
        self._lock = asyncio.Lock()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text."""
        async with self._lock:  # one call of the model already uses all cores
            return await asyncio.to_thread(self._embed, list(texts))

    async def close(self) -> None:
        """Release the model."""
        self._loaded_model = None

    def _embed(self, texts: list[str]) -> list[list[float]]:
        if self._loaded_model is None:
            library: Any = import_module("sentence_transformers")
            try:
                self._loaded_model = library.SentenceTransformer(self.model)
            except (OSError, ValueError) as error:
                problem = f"cannot be loaded: {' '.join(str(error).split())[:200]}; name another model or its directory"
                raise ModelError(self.model, problem) from error
        vectors: list[list[float]] = self._loaded_model.encode(texts, convert_to_numpy=True, show_progress_bar=False).tolist()
        return vectors
