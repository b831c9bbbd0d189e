"""Agents in processes of their own: the platform's side (`agent`, `process`) and the child's side (`child`, `remote`)."""
