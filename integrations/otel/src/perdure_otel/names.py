"""The names of attributes: those of the GenAI semantic conventions where one fits, and ours under `perdure.`.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/ (in development there; these are the names of 2026).
"""

from typing import Final

ERROR_TYPE: Final = "error.type"

AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OPERATION: Final = "gen_ai.operation.name"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
TOKEN_TYPE: Final = "gen_ai.token.type"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_TYPE: Final = "gen_ai.tool.type"

AGENT_CHANGED: Final = "perdure.agent.changed"
APPROVAL_ID: Final = "perdure.approval.id"
APPROVAL_KIND: Final = "perdure.approval.kind"
APPROVAL_STATUS: Final = "perdure.approval.status"
ATTEMPT: Final = "perdure.attempt"
COST: Final = "perdure.usage.cost_usd"
FINISH_REASON: Final = "perdure.finish_reason"
OUTCOME: Final = "perdure.outcome"
RESUMED: Final = "perdure.run.resumed"
RUN_ID: Final = "perdure.run.id"
STORE_OPERATION: Final = "perdure.store.operation"
STORE_PART: Final = "perdure.store.part"
STORE_SIZE: Final = "perdure.store.size"
