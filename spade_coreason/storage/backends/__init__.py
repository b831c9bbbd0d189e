"""The databases: group commit on SQLite and PostgreSQL, and the SQL in which they differ."""
