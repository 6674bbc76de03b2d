"""What both models share: one streamed POST, read as server-sent events, and errors that say whether a retry may help."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from perdure.errors import RunError

PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may pass: the request took too long, met another one, or came too soon."""


class ProviderError(RunError):
    """A provider refused or broke off a request. The turn stays pending: resume it, or discard it.

    Attributes:
        provider: Which one.
        status: The status of its answer; `None`: there was none, or it broke off.
        problem: What it said.
        retryable: Whether the same request may succeed later.
    """

    def __init__(self, provider: str, status: int | None, problem: str, retryable: bool) -> None:
        super().__init__(provider, status, problem, retryable)
        self.provider, self.status, self.problem, self.retryable = provider, status, problem, retryable
        self.hint = "Resume the turn later." if retryable else "Correct the request, or discard the turn."

    def __str__(self) -> str:
        status = "" if self.status is None else f" ({self.status})"
        return f"{self.provider}{status}: {self.problem}. {self.hint}"


async def streamed(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], provider: str
) -> AsyncGenerator[dict[str, Any], None]:
    """Send a request, and yield the events of its answer.

    Raises:
        ProviderError: The answer is no success, could not be read, or broke off.
    """
    try:
        async with client.stream("POST", path, json=body) as response:
            if not response.is_success:
                raise await _refusal(response, provider)
            async for line in response.aiter_lines():
                name, _, data = line.partition(":")
                if name == "data" and (data := data.strip()) != "[DONE]":
                    yield _decoded(data, provider)
    except httpx.TransportError as error:
        raise ProviderError(provider, None, f"the connection failed ({type(error).__name__})", True) from error


def _decoded(data: str, provider: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise ProviderError(provider, None, "an event of the answer is no JSON", True) from error
    if not isinstance(event, dict):
        raise ProviderError(provider, None, "an event of the answer is no object", True)
    if event.get("error"):  # the answer had begun as a success
        raise ProviderError(provider, None, said_in(event) or "the answer broke off", True)
    return event


async def _refusal(response: httpx.Response, provider: str) -> ProviderError:
    status = response.status_code
    try:
        problem = said_in(json.loads(await response.aread()))
    except ValueError:
        problem = ""
    passing = status >= 500 or status in PASSING
    return ProviderError(provider, status, problem or response.reason_phrase or "the request failed", passing)


def said_in(answer: Any) -> str:
    """Return what an error says, shortened."""
    error = answer.get("error") if isinstance(answer, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    return str(said or "")[:300].rstrip(".")


def decoded_arguments(written: str) -> dict[str, Any]:
    """Return the arguments of a call; those that are no object as one that no tool takes, so that the model is told."""
    try:
        arguments = json.loads(written or "{}")
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"arguments_that_are_no_json_object": written}
