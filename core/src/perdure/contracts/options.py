"""The options of a store URL, checked by the plugin's pydantic model; no message shows a secret."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from perdure.contracts.urls import CORE_OPTIONS, StoreURL, is_secret, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails


class NoOptions(BaseModel):
    """The options of a plugin that has none."""


def options_model(module: object) -> type[BaseModel] | None:
    """Return the model of the options of a plugin module; `None` if what it calls `Options` is no pydantic model."""
    model = getattr(module, "Options", NoOptions)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def check_options(url: StoreURL, model: type[BaseModel]) -> StoreURL:
    """Return the URL with `options` checked.

    Raises:
        StoreURLError: An option is unknown, missing or wrong; the message names it, and the known ones or the reason.
    """
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    for name in url.query:
        if name not in fields:
            raise refuse(str(url), f"unknown option {name} (known: {_known(fields)})", _nearest(name, fields))
    options = _validated(model, url.query)
    if isinstance(options, BaseModel):
        return replace(url, options=options)
    raise refuse(str(url), "; ".join(_reason(problem, fields) for problem in options))


def _validated(model: type[BaseModel], query: Mapping[str, str]) -> BaseModel | list[ErrorDetails]:
    """Return the options or what is wrong with them. pydantic's own error, which shows the values, ends here."""
    try:
        return model.model_validate_strings(dict(query))
    except ValidationError as error:
        return error.errors(include_url=False, include_context=False, include_input=False)


def _known(fields: Mapping[str, FieldInfo]) -> str:
    return ", ".join(sorted((*fields, *CORE_OPTIONS)))


def _nearest(name: str, fields: Mapping[str, FieldInfo]) -> str:
    near = difflib.get_close_matches(name, (*fields, *CORE_OPTIONS), n=1)
    return f"Did you mean {near[0]}?" if near else "Remove it."


def _reason(problem: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    """Say what is wrong with an option, or with several together; a reason may show a value, so secrets get none."""
    name = str(problem["loc"][0]) if problem["loc"] else None
    concerned = fields if name is None else {name: fields[name]}
    secret = any(is_secret(one, field) for one, field in concerned.items())
    subject = "options" if name is None else f"option {name}"
    return f"{subject}: {'not valid' if secret else problem['msg']}"
