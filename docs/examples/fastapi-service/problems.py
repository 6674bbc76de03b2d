"""What each error of perdure is in HTTP: a status, and a problem (RFC 9457) that says what to do next."""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi import Request
from fastapi.responses import JSONResponse

from perdure import errors

STATUSES: Final[dict[type[Exception], int]] = {
    # The request is wrong, or comes to what is not there.
    errors.InvalidIdError: 422,
    errors.InvalidArgumentError: 422,
    errors.NotJsonError: 422,
    errors.RecordTooLargeError: 413,
    errors.ApprovalNotFoundError: 404,
    errors.ApprovalExpiredError: 410,
    errors.ApprovalOrphanedError: 410,
    errors.SessionDeletedError: 410,
    errors.LimitExceededError: 403,
    # The conversation is in another state than the request needs.
    errors.SessionError: 409,
    errors.ApprovalError: 409,
    errors.AgentChangedError: 409,
    errors.ToolOutcomeUnknownError: 409,
    # The store is away. An input may be sent again with its `input_id`: it is taken once.
    errors.StoreUnavailableError: 503,
    errors.OutcomeUnknownError: 503,
    errors.StoreClosedError: 503,
    # The model or a tool failed, and the turn stays pending.
    errors.RunError: 502,
}
RETRY_AFTER: Final = "1"

_log = logging.getLogger(__name__)


def status_of(error: Exception) -> int:
    """Return the status of an error: that of its class, or of the nearest one above it."""
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def problem_of(error: Exception) -> dict[str, Any]:
    """Return what a client is told. Of what it can do nothing about, it is told nothing more."""
    status = status_of(error)
    if status == 500:
        return {"title": "InternalError", "status": status, "detail": "something went wrong", "retryable": False}
    problem = {"title": type(error).__name__, "status": status, "detail": str(error)}
    problem |= {"hint": getattr(error, "hint", ""), "retryable": getattr(error, "retryable", False)}
    if isinstance(error, errors.SessionAwaitingApprovalError):
        problem["approval_ids"] = list(error.approval_ids)
    return problem


async def answer_problem(_: Request, error: Exception) -> JSONResponse:
    """Answer a request that failed."""
    problem = problem_of(error)
    if problem["status"] >= 500:
        _log.error("a request failed", exc_info=error)
    headers = {"Retry-After": RETRY_AFTER} if problem["retryable"] else None
    return JSONResponse(problem, problem["status"], headers, media_type="application/problem+json")
