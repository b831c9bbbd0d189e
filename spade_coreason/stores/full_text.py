"""Full text over the passages: FTS5 on SQLite, tsvector on PostgreSQL, with the same words found on both."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from ..words import sought

_SQLITE = (
    # The shelf is a word, too: what is on another's is not even looked at.
    "CREATE VIRTUAL TABLE passage_words USING fts5(shelf, words, content='passages', content_rowid='id',"
    ' tokenize="unicode61 remove_diacritics 0")',
    "CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN"
    " INSERT INTO passage_words (rowid, shelf, words) VALUES (new.id, new.shelf, new.words); END",
    "CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN"
    " INSERT INTO passage_words (passage_words, rowid, shelf, words)"
    " VALUES ('delete', old.id, old.shelf, old.words); END",
)
_POSTGRESQL = (
    "ALTER TABLE passages ADD COLUMN found_by tsvector GENERATED ALWAYS AS (to_tsvector('simple', words)) STORED",
    "CREATE INDEX passages_by_words ON passages USING gin (found_by)",
)

_FIND_SQLITE = text(
    "SELECT rowid FROM passage_words WHERE passage_words MATCH :query ORDER BY bm25(passage_words, 0.0, 1.0) LIMIT :most"
)
_FIND_POSTGRESQL = text(
    "SELECT id FROM passages, to_tsquery('simple', :query) AS query WHERE shelf = ANY(:shelves) AND found_by @@ query"
    # 1: a longer passage with as many of the words is less about them.
    " ORDER BY ts_rank(found_by, query, 1) DESC, id LIMIT :most"
)


def create(connection: Connection) -> None:
    """Makes what searching needs, after the tables."""
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.exec_driver_sql(statement)


def drop(connection: Connection) -> None:
    """Takes away what has no table of its own."""
    if connection.dialect.name == "sqlite":
        for statement in ("DROP TRIGGER passage_added", "DROP TRIGGER passage_removed", "DROP TABLE passage_words"):
            connection.exec_driver_sql(statement)


def find(connection: Connection, shelves: Sequence[int], wanted: Sequence[str], most: int) -> list[int]:
    """The passages on these shelves with any of the words `wanted`, the best (BM25 on SQLite, ts_rank on PostgreSQL) first."""
    if not wanted or not shelves:
        return []
    forms = [form for word in wanted for form in sought(word)]
    if connection.dialect.name == "sqlite":
        # Words are letters and digits; in quotes they are no operators of FTS5.
        some = " OR ".join(f'"{form[:-1]}"*' if form.endswith("*") else f'"{form}"' for form in forms)
        query = f"shelf : ({' OR '.join(map(str, shelves))}) AND words : ({some})"
        return list(connection.scalars(_FIND_SQLITE, {"query": query, "most": most}))
    some = " | ".join(form.replace("*", ":*") for form in forms)
    return list(connection.scalars(_FIND_POSTGRESQL, {"query": some, "shelves": list(shelves), "most": most}))


def scrub(connection: Connection) -> None:
    """Takes the words of what was deleted out of the file as well: FTS5 marks them as gone, and keeps them until it merges."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO passage_words (passage_words) VALUES ('optimize')")
