"""Has the site show what is of use to readers: examples as code, the promises of a contract method as a list, no private bases."""

import re

import griffe

_PROMISE = re.compile(r"^(Atomic|Durable|Concurrent|Retry|Cancelled|Laws): *\n?(.*(?:\n    .*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes docstrings, and what stands beside them, when they have been read."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Leave out bases that are no part of what is promised."""
        cls.bases = [base for base in cls.bases if not str(base).startswith("_")]


def rewritten(docstring: str) -> str:
    """Return a docstring with the heading of examples that the parser knows, and a list of promises."""
    examples = re.sub(r"^Example:$", "Examples:", docstring, flags=re.MULTILINE)
    return _PROMISE.sub(_item, examples)


def _item(found: re.Match[str]) -> str:
    heading, text = found[1], " ".join(found[2].split())
    if heading == "Laws":
        text = ", ".join(f"`{law}`" for law in text.split(", "))
    return f"* **{heading}**: {text}"
