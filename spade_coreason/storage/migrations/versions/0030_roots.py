"""Turns have the person behind them in a column."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"

_PAGE_ROWS = 500


def upgrade() -> None:
    op.add_column("interactions", sa.Column("root", sa.Text, nullable=False, server_default=""))
    connection = op.get_bind()
    agents = set(connection.scalars(sa.text("SELECT DISTINCT agent FROM conversations")))
    page = sa.text(
        "SELECT i.id, i.body, c.agent, c.owner FROM interactions i JOIN conversations c ON c.id = i.conversation "
        f"WHERE i.id > :after ORDER BY i.id LIMIT {_PAGE_ROWS}"
    )
    after = -1
    while rows := connection.execute(page, {"after": after}).all():
        after = rows[-1].id
        roots = [{"id": row.id, "root": root} for row in rows if (root := _find_root(row, agents))]
        if roots:
            connection.execute(sa.text("UPDATE interactions SET root = :root WHERE id = :id"), roots)
    is_another = sa.text("root != ''")
    op.create_index("interactions_by_root", "interactions", ["root"], sqlite_where=is_another, postgresql_where=is_another)


def _find_root(row, agents):
    """Return the person behind a turn: "hidden" if not known, "" if that is the owner."""
    if row.body == "":
        return "erased"
    try:
        body = json.loads(row.body)
        meta = body["meta"]
        channel, root = meta.get("channel"), meta.get("root_sender")
        if isinstance(root, str):
            return "" if root == row.owner else root or "hidden"
        if channel == "notification" or (channel == "schedule" and row.owner == row.agent):
            return ""
        is_passed_on = row.owner in agents or body.get("lineage", {}).get("root_request_id") != meta.get("request_id")
        is_own = channel in ("program", "door") and not is_passed_on
        return "" if is_own or (channel in ("person", "page") and "nickname" not in meta) else "hidden"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "hidden"
