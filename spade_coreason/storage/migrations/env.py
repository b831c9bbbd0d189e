"""The script that Alembic runs: it applies the migrations on the connection of its configuration."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
context.run_migrations()
