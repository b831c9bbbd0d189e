"""The remedy for `python -m spade_coreason.llm.scripted`, a server that was taken away."""

import sys

if __name__ == "__main__":
    remedy = "use the model `script` for an agent, `FakeModel` in tests, and a server with OpenAI's API for other programs"
    sys.exit(f"error: this server is gone; {remedy}")
