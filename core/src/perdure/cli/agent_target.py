"""The agent that a command names as `module:attribute`."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from perdure.cli.exit_codes import ExitCode
from perdure.contracts.store import describe
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent

AgentArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:AGENT",
        help="The agent as module:attribute: an Agent, or a function that returns one. The current directory is searched first.",
    ),
]


class AgentTargetError(PerdureError):
    """What was named on the command line is no agent."""

    hint = "Name it as module:attribute, an Agent or a function without arguments that returns one."
    exit_code = ExitCode.CANNOT

    def __init__(self, target: str, problem: str) -> None:
        """Remember what was named and what is wrong with it."""
        super().__init__(target, problem)
        self.target, self.problem = target, problem

    def __str__(self) -> str:
        """Say what was named and what is wrong with it."""
        return f"{self.target!r} names no agent: {self.problem}"


async def load_agent(target: str) -> Agent:
    """Return the agent that `module:attribute` names; the current directory is searched for the module first.

    Args:
        target: The attribute, which may have dots, is an `Agent`, or a function without arguments, plain or async, that
            returns one.

    Raises:
        AgentTargetError: It is neither, or it cannot be imported; where code of the user's failed, its traceback is
            printed.
    """
    from perdure.runtime.agent import Agent  # --help does without

    module, separator, attribute = target.partition(":")
    if not separator or not module or not attribute:
        raise AgentTargetError(target, "it must read module:attribute")
    found: Any = _imported(target, module)
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise AgentTargetError(target, f"{module} has no attribute {attribute!r}") from None
    if callable(found) and not isinstance(found, Agent):
        found = await _called(target, found)
    if not isinstance(found, Agent):
        raise AgentTargetError(target, f"it is a {type(found).__name__}, not an Agent")
    return found


def _imported(target: str, module: str) -> ModuleType:
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise AgentTargetError(target, f"there is no module {error.name!r}") from None
        raise _failed(target, f"{module} cannot be imported: {describe(error)}", error) from error
    except Exception as error:
        raise _failed(target, f"{module} cannot be imported: {describe(error)}", error) from error


async def _called(target: str, function: Callable[..., Any]) -> object:
    """Return what a function without arguments returns."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        raise AgentTargetError(target, "it is a function that needs arguments") from None
    try:
        made = function()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise _failed(target, f"it raised {describe(error)}", error) from error


def _failed(target: str, problem: str, error: Exception) -> AgentTargetError:
    """Show where code of the user's failed, and return what to raise."""
    traceback.print_exception(error)
    return AgentTargetError(target, problem)
