"""The client of a language model, its completions, and the fallback to another one."""
