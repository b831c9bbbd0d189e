"""Commands that act on a platform or its stored data by operations."""
