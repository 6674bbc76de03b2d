"""Has docstrings read as the site shows them best: examples as code, and the promises of a contract method as a list."""

import re

import griffe

_PROMISE = re.compile(r"^(Atomic|Durable|Concurrent|Retry|Cancelled|Laws): *\n?(.*(?:\n    .*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes docstrings when they have been read."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(docstring: str) -> str:
    """Return a docstring with the heading of examples that the parser knows, and a list of promises."""
    examples = re.sub(r"^Example:$", "Examples:", docstring, flags=re.MULTILINE)
    return _PROMISE.sub(_item, examples)


def _item(found: re.Match[str]) -> str:
    heading, text = found[1], " ".join(found[2].split())
    if heading == "Laws":
        text = ", ".join(f"`{law}`" for law in text.split(", "))
    return f"* **{heading}**: {text}"
