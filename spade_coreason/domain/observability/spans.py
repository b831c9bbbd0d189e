"""The names of spans and of their attributes.

Those with `gen_ai.` are of OpenTelemetry's conventions for generative AI, whose status is "Development":
https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from typing import Literal, TypeAlias

SpanKind: TypeAlias = Literal["internal", "client", "producer", "consumer"]

# Spans. Most names are followed by what they are about: `chat gpt-5`.
RECEIVE = "receive"
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
ASK = "ask"
TELL = "tell"
COMMIT = "commit"
DELIVER = "deliver"

# Attributes of the conventions
OPERATION = "gen_ai.operation.name"
AGENT = "gen_ai.agent.id"
CONVERSATION = "gen_ai.conversation.id"
MODEL = "gen_ai.request.model"
PROVIDER = "gen_ai.provider.name"
OPENAI = "openai"
"""The value of PROVIDER: the API that a model is asked by."""
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
SERVER = "server.address"
PORT = "server.port"
ERROR_TYPE = "error.type"

# Attributes with texts
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
PAYLOAD = "spade_coreason.request.payload"

# Attributes of ours
REQUEST = "spade_coreason.request.id"
CHANNEL = "spade_coreason.channel"
OUTCOME = "spade_coreason.outcome"
REDELIVERED = "spade_coreason.redelivered"
COMMAND = "spade_coreason.command"
INCIDENT = "spade_coreason.incident"
PEER = "spade_coreason.peer"
