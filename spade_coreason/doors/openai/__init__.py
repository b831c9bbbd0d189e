"""The OpenAI-compatible door: `/v1/models`, `/v1/chat/completions` and `/v1/responses`."""
