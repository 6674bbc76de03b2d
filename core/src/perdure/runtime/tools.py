"""Tools: plain functions that a model may call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args, get_type_hints, overload

from perdure import codec
from perdure.errors import InvalidArgumentError
from perdure.models import ToolSchema
from perdure.runtime.functions import called, called_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.contracts.records import Record
    from perdure.runtime.arguments import Arguments

_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")
_LONGEST: Final = timedelta(days=366_000)
"""The longest time that a human may be given: the end of one that is much longer has no date."""
_NAME_RULE: Final = "1 to 64 characters of A-Z a-z 0-9 _ -"

InDoubt: TypeAlias = Literal["rerun", "fail", "ask"]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of the call that it serves; ask for it by a parameter of this type.

    Attributes:
        session_id: The session, `None` for a run without one.
        run_id: The run.
        call_id: The call, as the model named it.
        attempt: 1 for the first attempt at this call.
        idempotency_key: The same for every attempt at the same call; hand it to whatever has the effect.
    """

    session_id: str | None
    run_id: str
    call_id: str
    attempt: int
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class ToolRan:
    """What a probe answers: the attempt in doubt had its effect.

    Attributes:
        result: What the tool would have returned.
    """

    result: Any


@dataclass(frozen=True, slots=True)
class ToolDidNotRun:
    """What a probe answers: the attempt in doubt had no effect, and the call may run."""


class ToolArgumentsError(ValueError):
    """The model's arguments do not fit the tool; the text tells the model why."""


class ToolResultError(ValueError):
    """The tool ran, and what it returned is not JSON."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call, with its policies.

    Attributes:
        function: The function, sync (it runs in a thread) or async.
        name: What the model calls it: 1 to 64 characters of A-Z a-z 0-9 _ -.
        description: What the model is told of it.
        parameters: The JSON schema of its arguments, without the context.
        needs_approval: Whether a human decides each call first: True, False, or a function of the arguments.
        idempotent: Whether running it twice with one idempotency key is the same as once.
        in_doubt: What to do with a call that was started and has no result: `rerun`, `fail` (tell the model), `ask` a
            human, or `None`: stop with `ToolOutcomeUnknownError`.
        probe: A function, sync or async, that finds out what became of a call in doubt. It takes the tool's arguments, and
            a `ToolContext` if it asks for one, and answers `ToolRan(result)`, `ToolDidNotRun()`, or `None` if it cannot
            tell, which leaves the call to `in_doubt`.
        retries: How often a call that raised, or timed out, is repeated before the model is told; for idempotent tools.
        timeout: How long one call of it may take; `None`: as long as it takes.
        approval_timeout: After which time an approval expires; `None`: never.
        on_expiry: What an expired approval means: `deny`, or `keep` waiting.
    """

    function: Callable[..., Any]
    name: str
    description: str
    parameters: Record
    needs_approval: bool | Callable[[Record], bool] = False
    idempotent: bool = False
    in_doubt: InDoubt | None = None
    probe: Callable[..., Any] | None = None
    retries: int = 0
    timeout: timedelta | None = None
    approval_timeout: timedelta | None = None
    on_expiry: Literal["deny", "keep"] = "deny"
    _arguments: Arguments = field(repr=False, kw_only=True)
    _context: str | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse options that would fail in the middle of a turn."""
        if not isinstance(self.needs_approval, bool) and not callable(self.needs_approval):
            raise InvalidArgumentError("needs_approval", "must be True, False, or a function of the arguments")
        if inspect.iscoroutinefunction(self.needs_approval):
            raise InvalidArgumentError("needs_approval", "must be a plain function, not an async one")
        for name, allowed in (("in_doubt", (None, "rerun", "fail", "ask")), ("on_expiry", ("deny", "keep"))):
            if getattr(self, name) not in allowed:
                raise InvalidArgumentError(name, f"must be one of {', '.join(map(str, allowed))}")
        if self.probe is not None and not callable(self.probe):
            raise InvalidArgumentError("probe", "must be a function, or None")
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidArgumentError("retries", "must be 0 or more")
        if self.retries and not self.idempotent:
            raise InvalidArgumentError(
                "retries", "needs idempotent=True: a call that may have had an effect is not repeated"
            )
        for name in ("timeout", "approval_timeout"):
            duration = getattr(self, name)
            if duration is not None and (not isinstance(duration, timedelta) or duration < timedelta(0)):
                raise InvalidArgumentError(name, "must be a timedelta of 0 or more, or None")
        if self.approval_timeout is not None and self.approval_timeout > _LONGEST:
            raise InvalidArgumentError("approval_timeout", f"must be {_LONGEST.days} days at most, or None: for ever")

    @property
    def schema(self) -> ToolSchema:
        """What a model is told: made anew each time, since adapters change schemas to what their provider takes."""
        return ToolSchema(self.name, self.description, codec.copied(self.parameters))

    @functools.cached_property
    def _is_async(self) -> bool:
        """Whether the function is awaited here; a plain one is called in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def check(self, arguments: Record) -> dict[str, Any]:
        """Return the arguments as the function takes them, or raise `ToolArgumentsError`."""
        return self._arguments.check(arguments)

    def is_gated(self, arguments: Record) -> bool:
        """Whether a call with these arguments needs an approval. A predicate that fails says yes."""
        if not callable(self.needs_approval):
            return self.needs_approval
        try:
            return bool(self.needs_approval(codec.copied(arguments)))
        except Exception:  # noqa: BLE001  # reason: an unanswered question is never a yes to running
            return True

    async def call(self, values: dict[str, Any], context: ToolContext) -> str:
        """Call the function, and return its result as text: a string as it is, anything else as JSON.

        Raises:
            ToolResultError: It ran, and its result is not JSON.
            TimeoutError: It did not end in time.
            Exception: Whatever the function raises.
        """
        if self._context is not None:
            values = {**values, self._context: context}
        work = self.function(**values) if self._is_async else called_in_thread(self.function, **values)
        if self.timeout is None:
            return as_text(await work)
        async with asyncio.timeout(self.timeout.total_seconds()):
            return as_text(await work)

    async def find_out(self, values: dict[str, Any], context: ToolContext) -> ToolRan | ToolDidNotRun | None:
        """Ask the probe what became of a call in doubt; `None`: nobody can tell.

        Raises:
            InvalidArgumentError: The probe answered something else.
            Exception: Whatever the probe raises.
        """
        if self.probe is None:
            return None
        name = _context_of(self.probe)
        given = values if name is None else {**values, name: context}
        found = await called(self.probe, **given)
        if found is None or isinstance(found, (ToolRan, ToolDidNotRun)):
            return found
        kind = type(found).__name__
        raise InvalidArgumentError("probe", f"of {self.name} answered a {kind}, not ToolRan, ToolDidNotRun or None")


def as_text(result: object) -> str:
    """Return what a tool returned as the model reads it, or raise `ToolResultError`."""
    return result if type(result) is str else _as_json(result)


def _as_json(result: object) -> str:
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # text does not need it

    try:
        return codec.encode(to_jsonable_python(result), "result").decode("utf-8")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolResultError(f"the tool ran, but what it returned is not JSON: {error}") from error


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | Callable[[Record], bool] = False,
    idempotent: bool = False,
    in_doubt: InDoubt | None = None,
    probe: Callable[..., Any] | None = None,
    retries: int = 0,
    timeout: timedelta | None = None,
    approval_timeout: timedelta | None = None,
    on_expiry: Literal["deny", "keep"] = "deny",
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a plain function, bare or with options; the options are the attributes of `Tool`.

    Example:
        >>> @tool(needs_approval=True)
        ... async def pay(to: str, amount: int, context: ToolContext) -> dict[str, str]:
        ...     "Pay somebody."
        ...     return {"paid": context.idempotency_key}
    """
    if function is not None:
        return make_tool(function)
    return lambda function: make_tool(function, **options)


def make_tool(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **options: Any
) -> Tool:
    """Make a tool: its schema from the type hints, its description from the docstring.

    Raises:
        InvalidArgumentError: An option is wrong, the function takes arguments that have no name, or its own name is none
            for a tool, as that of a lambda is not.
    """
    from perdure.runtime.arguments import Arguments  # and pydantic: only who makes a tool needs it

    if not callable(function):
        raise InvalidArgumentError("function", f"must be a function, not a {type(function).__name__}")
    own_name = getattr(function, "__name__", None) or type(function).__name__
    title = _check_tool_name(own_name if name is None else name)
    hints = _hints(function)
    expected: dict[str, tuple[Any, Any]] = {}
    context: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext or ToolContext in get_args(hint):
            context = parameter.name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidArgumentError("function", f"{title} takes {parameter}; a tool takes named arguments only")
        else:
            default = ... if parameter.default is parameter.empty else parameter.default
            expected[parameter.name] = (hint, default)
    text = inspect.getdoc(function) or "" if description is None else description
    arguments = Arguments(title, expected)
    return Tool(function, title, text, arguments.schema, _arguments=arguments, _context=context, **options)


def _check_tool_name(name: object) -> str:
    if type(name) is not str or not _NAME.fullmatch(name):
        problem = f"of a tool must be {_NAME_RULE}, as the providers of models want it, not {name!r}"
        raise InvalidArgumentError("name", problem)
    return name


def _context_of(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that takes the context, `None` if there is none."""
    for name, hint in _hints(function).items():
        if name != "return" and (hint is ToolContext or ToolContext in get_args(hint)):
            return name
    return None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    if isinstance(function, functools.partial):
        return _hints(function.func)
    named = inspect.isroutine(function) or inspect.isclass(function)
    return get_type_hints(function if named else type(function).__call__, include_extras=True)
