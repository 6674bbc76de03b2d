"""Store URLs: `scheme:rest?options`, taken apart once and shown without secrets.

The parser is our own since `urllib.parse.urlsplit` drops newlines and cuts at `#`, and a path may contain both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from perdure.contracts.ids import check_namespace
from perdure.errors import InvalidIdError, StoreURLError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

HIDDEN = "***"
DEFAULT_NAMESPACE = "default"
CORE_OPTIONS = ("max_record", "namespace")
"""The options that every URL takes and no plugin sees among its own."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_SECRET = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_POSITIVE = re.compile(r"[1-9][0-9]{0,17}")
_AUTHORITY = re.compile(r"//[^/].*", re.DOTALL)
_LOGIN_WITHOUT_SLASHES = re.compile(r"\A/?[^/]*@|\A[^/].*@|[^/?]*:.*@", re.DOTALL)


class Host(NamedTuple):
    """A host of a URL, with its port if one is given."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"


@dataclass(frozen=True, repr=False)
class StoreURL:
    """A store URL, taken apart. `str` and `repr` show no password and no option that may be a secret.

    Two URLs are equal if they name the same store with the same options, in whatever order these were written.

    Attributes:
        scheme: What names the plugin, in lower case.
        path: What follows the scheme, or the host if there is one, percent-decoded once: `agent.db`, `/abs/agent.db`,
            `:memory:`, `""`.
        hosts: The hosts of a `scheme://host` form, in order; none for a path.
        username: The user's name, or `None`.
        password: The password, or `None`.
        query: The plugin's options as text, percent-decoded once.
        namespace: The tenant, `default` if it is not given.
        max_record: The limit of one record in bytes; `None` leaves it to the store.
        options: The plugin's options, checked; `None` until `open_store` has done so.
    """

    scheme: str
    path: str = ""
    hosts: tuple[Host, ...] = ()
    username: str | None = None
    password: str | None = None
    query: Mapping[str, str] = field(default_factory=dict, hash=False)
    namespace: str = DEFAULT_NAMESPACE
    max_record: int | None = None
    options: BaseModel | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str) -> StoreURL:
        """Take a URL apart.

        Args:
            text: `scheme:path`, `scheme:///path` or `scheme://user:password@host:port,host:port/path`, then perhaps
                `?name=value&name=value`. The first `?` begins the options; `%3F` is a question mark of the path.

        Returns:
            The URL, its own options not yet checked.

        Raises:
            StoreURLError: The text breaks the grammar; the message shows no secret.
        """
        scheme, colon, remainder = text.partition(":")
        if not colon or not _SCHEME.fullmatch(scheme):
            raise refuse(
                _show_broken(text) or "the empty URL",
                "has no scheme",
                "Write scheme:path, for example sqlite:agent.db.",
            )
        return _Parser(scheme.lower(), text).parse(remainder)

    @property
    def host(self) -> str | None:
        """The name of the first host, or `None`."""
        return self.hosts[0].name or None if self.hosts else None

    @property
    def port(self) -> int | None:
        """The port of the first host, or `None`."""
        return self.hosts[0].port if self.hosts else None

    def path_only(self) -> str:
        """Return the path of a URL that cannot have a host.

        Raises:
            StoreURLError: A host or a user is given, as in `sqlite://agent.db`; the hint says what to write.
        """
        if not self.hosts and self.username is None and self.password is None:
            return self.path
        meant = ",".join(host.name for host in self.hosts) + self.path
        hint = f"Write {self.scheme}:{meant} or {self.scheme}:///abs/{meant}."
        raise refuse(str(self), "has a host where a path is meant", hint)

    def __str__(self) -> str:
        options = {name: self._show_option(name) for name in self.query}
        if self.namespace != DEFAULT_NAMESPACE:
            options["namespace"] = self.namespace
        if self.max_record is not None:
            options["max_record"] = str(self.max_record)
        shown = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{self.scheme}:{self._show_place()}{'?' if shown else ''}{shown}"

    def __repr__(self) -> str:
        return f"<StoreURL {self}>"

    def _show_place(self) -> str:
        hosts = ",".join(str(host) for host in self.hosts)
        if self.password is not None:
            return f"//{self.username or ''}:{HIDDEN}@{hosts}{self.path}"
        if self.username is not None:
            return f"//{HIDDEN}@{hosts}{self.path}"  # a name alone may be a token
        if self.hosts:
            return f"//{hosts}{self.path}"
        return _LOGIN_WITHOUT_SLASHES.sub(f"{HIDDEN}@", self.path, count=1)

    def _show_option(self, name: str) -> str:
        """Show a value only when its option is known, and known to be no secret."""
        declared = None if self.options is None else type(self.options).model_fields.get(name)
        if declared is None or is_secret(name, declared):
            return HIDDEN
        from pydantic import SecretBytes, SecretStr  # it is there already, with the options

        return HIDDEN if isinstance(getattr(self.options, name), SecretStr | SecretBytes) else self.query[name]


def is_secret(option: str, declared: FieldInfo) -> bool:
    """Whether the name of an option, or the type that is written for it, says that its value is a secret."""
    return _SECRET.search(option) is not None or "Secret" in str(declared.annotation)


def refuse(shown: str, problem: str, hint: str = "") -> StoreURLError:
    """Return the error of a wrong URL; the way out stands in its message and in its `hint`."""
    error = StoreURLError(shown, f"{problem}. {hint}" if hint else problem)
    if hint:
        error.hint = hint
    return error


def _show_broken(text: str) -> str:
    """Show a text that could not be taken apart: no option, and nothing that may be a login."""
    place, question, options = text.partition("?")
    if "@" in options:
        place = place.partition(":")[0] + f":{HIDDEN}"
    place = _LOGIN_WITHOUT_SLASHES.sub(f"{HIDDEN}@", _AUTHORITY.sub(f"//{HIDDEN}", place, count=1), count=1)
    return f"{place}?{HIDDEN}" if question else place


class _Parser:
    """Takes one URL apart; it keeps the text for its errors."""

    def __init__(self, scheme: str, text: str) -> None:
        self.scheme, self.shown = scheme, _show_broken(text)

    def parse(self, remainder: str) -> StoreURL:
        place, question, options = remainder.partition("?")
        authority, path = "", place
        if place.startswith("//"):
            authority, slash, path = place[2:].partition("/")
            path = slash + path
        if authority and "@" in path + options:
            # Refused rather than guessed: the / or ? before it may be part of a password.
            raise self.refused("has an @ behind the host", "Write / as %2F, ? as %3F and @ as %40 in a password.")
        login, _, hosts = authority.rpartition("@")
        username, colon, password = login.partition(":")
        query = self.options(options) if question and options else {}
        return StoreURL(
            self.scheme,
            self.decoded(path),
            self.hosts(hosts) if hosts else (),
            username=self.decoded(username) if username else None,
            password=self.decoded(password) if colon else None,
            namespace=self.namespace(query.pop("namespace", DEFAULT_NAMESPACE)),
            max_record=self.max_record(query.pop("max_record", None)),
            query=query,
        )

    def refused(self, problem: str, hint: str = "") -> StoreURLError:
        return refuse(self.shown, problem, hint)

    def decoded(self, text: str) -> str:
        if _BROKEN_ESCAPE.search(text):
            raise self.refused("has a % that starts no escape", "Write a percent sign as %25.")
        try:
            plain = unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise self.refused("has escapes that are not UTF-8") from None
        if "\0" in plain:
            raise self.refused("contains NUL")
        return plain

    def hosts(self, text: str) -> tuple[Host, ...]:
        return tuple(self.one_host(host, alone="," not in text) for host in text.split(","))

    def one_host(self, text: str, *, alone: bool) -> Host:
        found = _HOST.fullmatch(text)
        port = int(found[2]) if found and found[2] else None
        if found is None or (port is not None and not 1 <= port <= 65535):
            raise self.refused("has a port that is no number from 1 to 65535, or an IPv6 address without brackets")
        if not found[1] and not alone:
            raise self.refused("has an empty name in its list of hosts")
        return Host(self.decoded(found[1].strip("[]")), port)

    def options(self, text: str) -> dict[str, str]:
        options: dict[str, str] = {}
        for item in text.split("&"):
            name, equals, value = item.partition("=")
            name = self.decoded(name)
            if not equals or not _OPTION.fullmatch(name):
                raise self.refused("has an option that is not written name=value")
            if name in options:
                raise self.refused(f"gives the option {name} twice")
            options[name] = self.decoded(value)
        return options

    def namespace(self, value: str) -> str:
        try:
            return check_namespace(value)
        except InvalidIdError as error:
            rule = error.rule
        # Neither the value nor the error that tells it: it may hold a secret.
        raise self.refused(f"option namespace: must be {rule}")

    def max_record(self, value: str | None) -> int | None:
        if value is None:
            return None
        if not _POSITIVE.fullmatch(value):
            raise self.refused("option max_record: must be a whole number of bytes, 1 or more")
        return int(value)
