"""The arguments of a tool: their schema, and whether those of a model fit. Loaded with the first tool, and pydantic with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError, create_model

from perdure import codec
from perdure.contracts.store import describe
from perdure.runtime.tools import ToolArgumentsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.contracts.records import Record


class Arguments:
    """What a tool takes.

    Attributes:
        schema: The JSON schema of all arguments.
    """

    def __init__(self, tool: str, expected: Mapping[str, tuple[Any, Any]]) -> None:
        """Make a pydantic model of the arguments.

        Args:
            tool: The tool's name, which is the title of the schema.
            expected: By argument its type hint and its default; `...`: it must be given.
        """
        self._names = {f"argument_{number}": name for number, name in enumerate(expected)}
        # The name is an alias: a field may not be called `_id`, nor `json` or `copy` as methods of its class are.
        fields: dict[str, Any] = {
            field: (Annotated[expected[name][0], Field(alias=name)], expected[name][1])
            for field, name in self._names.items()
        }
        self._model = create_model(tool, __config__={"extra": "forbid"}, **fields)
        self.schema: Record = TypeAdapter(self._model).json_schema()

    def check(self, arguments: Record) -> dict[str, Any]:
        """Return the arguments as the function takes them, or raise `ToolArgumentsError`."""
        try:
            model = self._model.model_validate(codec.copied(arguments))  # the function may change what it gets
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()
            )
            raise ToolArgumentsError(f"the arguments do not fit: {problems}") from error
        except Exception as error:  # of a validator of the application, which a retry would meet again
            raise ToolArgumentsError(f"the arguments cannot be checked: {describe(error)}") from error
        return {name: getattr(model, field) for field, name in self._names.items()}
