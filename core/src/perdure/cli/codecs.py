"""Which codec a command opens its store with: `perdure --codec`, or the environment variable PERDURE_CODEC."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.cli.exit_codes import ExitCode
from perdure.cli.output import CommandError
from perdure.contracts.store import describe
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.at_rest.codecs import Codec

VARIABLE: Final = "PERDURE_CODEC"

_HINT: Final = (
    "Name it as module:attribute: a codec, a list of codecs, or a function without arguments that returns either."
)


def codec_of_command() -> Codec | None:
    """Return the codec that the command was told to use; `None`: none.

    Raises:
        CommandError: What was named is no codec.
        PerdureError: What the function that was named raises.
    """
    target = os.environ.get(VARIABLE)
    return load_codec(target) if target else None


def load_codec(target: str) -> Codec:
    """Return the codec that `module:attribute` names; the current directory is searched for the module first."""
    from perdure.at_rest.codecs import one_codec  # most stores have no codec

    module, separator, attribute = target.partition(":")
    if not separator or not module or not attribute:
        raise _refused(target, "it must read module:attribute")
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, directory)
    try:
        found: Any = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        return one_codec(found() if callable(found) else found)
    except PerdureError:
        raise
    except Exception as error:
        raise _refused(target, describe(error)) from error


def _refused(target: str, problem: str) -> CommandError:
    return CommandError(f"{target!r} names no codec: {problem}", _HINT, ExitCode.CANNOT)
