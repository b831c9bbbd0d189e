"""Exact search for the nearest vectors, with numpy (the extra `embeddings`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def pack_vector(vector: Sequence[float]) -> bytes:
    """Pack a vector for storage: normalised to length 1, float32, little-endian.

    Raises ValueError for a vector whose length is 0 or not finite.
    """
    values = np.asarray(vector, dtype=np.float64)
    length = float(np.linalg.norm(values))
    if not np.isfinite(length) or length == 0:
        raise ValueError("a vector whose length is 0 or not finite")
    return (values / length).astype("<f4").tobytes()


class VectorIndex:
    """The vectors of one collection, in memory, with 4 bytes per value."""

    def __init__(self, records: Sequence[tuple[int, bytes]], dimension: int) -> None:
        fitting = [(id_, vector) for id_, vector in records if len(vector) == 4 * dimension]
        self._ids = np.array([id_ for id_, _ in fitting], dtype=np.int64)
        packed = np.frombuffer(b"".join(vector for _, vector in fitting), dtype="<f4")
        self._matrix: Floats = packed.reshape(len(fitting), dimension).astype(np.float32, copy=False)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def dimension(self) -> int:
        """The number of values of each vector."""
        return int(self._matrix.shape[1])

    @property
    def size_bytes(self) -> int:
        """The size in memory, in bytes."""
        return self._matrix.nbytes + self._ids.nbytes

    def similarities(self, query: bytes) -> Floats:
        """Return the cosine of each vector with `query` (packed by `pack_vector`), in the order of the ids."""
        # Not with `@`: its library uses several threads, which cost more than the work itself if the cores are busy.
        cosines: Floats = np.einsum("ij,j->i", self._matrix, np.frombuffer(query, dtype="<f4"))
        return cosines

    def nearest(self, similarities: Floats, limit: int) -> list[int]:
        """Return the ids of the `limit` nearest vectors, nearest first."""
        count = len(similarities)
        candidates = np.argpartition(-similarities, limit)[:limit] if count > limit else np.arange(count)
        return [int(id_) for id_ in self._ids[candidates[np.argsort(-similarities[candidates], kind="stable")]]]

    def similarities_by_id(self, similarities: Floats, ids: Sequence[int]) -> dict[int, float]:
        """Return the cosines of those `ids` that are in this index. The index is sorted by id."""
        if not len(self._ids) or not ids:
            return {}
        wanted_ids = np.array(ids, dtype=np.int64)
        positions = np.minimum(np.searchsorted(self._ids, wanted_ids), len(self._ids) - 1)
        return {
            int(id_): float(similarities[position])
            for id_, position in zip(wanted_ids, positions, strict=True)
            if self._ids[position] == id_
        }
