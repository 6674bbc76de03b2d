import pickle
from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, Secret, SecretStr, field_validator, model_validator

from perdure.contracts.options import NoOptions, check_options
from perdure.contracts.urls import Host, StoreURL
from perdure.errors import StoreURLError

PLACES: list[tuple[str, dict[str, Any]]] = [
    ("sqlite:agent.db", {"path": "agent.db"}),
    ("sqlite:dir/agent.db", {"path": "dir/agent.db"}),
    ("sqlite:/abs/agent.db", {"path": "/abs/agent.db"}),
    ("sqlite:///abs/agent.db", {"path": "/abs/agent.db"}),
    ("sqlite::memory:", {"path": ":memory:"}),
    ("sqlite:C:/data/agent.db", {"path": "C:/data/agent.db"}),
    ("SQLite:agent.db", {"scheme": "sqlite", "path": "agent.db"}),
    ("memory:", {"path": ""}),
    ("memory:name", {"path": "name"}),
    ("memory://", {"path": ""}),
    ("sqlite:a#b.db", {"path": "a#b.db"}),
    ("sqlite:a\nb.db", {"path": "a\nb.db"}),
    ("sqlite:a+b.db", {"path": "a+b.db"}),
    ("sqlite:a%2Bb%20c%3F.db", {"path": "a+b c?.db"}),
    ("sqlite:100%2541.db", {"path": "100%41.db"}),
    ("sqlite:caf%C3%A9/\u00e9.db", {"path": "caf\u00e9/\u00e9.db"}),
    ("sqlite:me@home.db", {"path": "me@home.db"}),
    ("sqlite:///home/me@home.db?a=1", {"path": "/home/me@home.db", "query": {"a": "1"}}),
    ("redis+unix:///run/redis.sock", {"scheme": "redis+unix", "path": "/run/redis.sock"}),
    ("redis://localhost", {"path": "", "hosts": (Host("localhost"),), "host": "localhost", "port": None}),
    ("redis://h:6379/0", {"path": "/0", "host": "h", "port": 6379, "username": None, "password": None}),
    ("redis://u:p@h", {"host": "h", "username": "u", "password": "p"}),
    ("redis://u:p%40%2F%3F%25@h", {"host": "h", "username": "u", "password": "p@/?%"}),
    ("redis://u:a:b@h", {"username": "u", "password": "a:b"}),
    ("redis://:p#q@h", {"host": "h", "username": None, "password": "p#q"}),
    ("redis://:p@q@h", {"host": "h", "password": "p@q"}),
    ("redis://u:@h", {"username": "u", "password": ""}),
    ("redis://u@h", {"username": "u", "password": None}),
    ("redis://:6379", {"host": None, "port": 6379}),
    ("redis://[::1]:1/0", {"host": "::1", "port": 1}),
    ("redis+cluster://a:1,b,[::1]:3/0", {"hosts": (Host("a", 1), Host("b"), Host("::1", 3)), "path": "/0"}),
    ("x:p?a=1&b=2", {"query": {"a": "1", "b": "2"}}),
    ("x:p?a=1+1&b=%26%3D&c=", {"query": {"a": "1+1", "b": "&=", "c": ""}}),
    ("x:p?a=b=c?d", {"query": {"a": "b=c?d"}}),
    ("x:p?", {"query": {}}),
    ("x:p", {"namespace": "default", "max_record": None, "options": None}),
    ("x:p?namespace=team-1&a=1", {"namespace": "team-1", "query": {"a": "1"}}),
    ("x:p?max_record=1048576", {"max_record": 1048576, "query": {}}),
]


@pytest.mark.parametrize(("text", "facts"), PLACES, ids=[text for text, _ in PLACES])
def test_a_url_is_taken_apart(text: str, facts: dict[str, Any]) -> None:
    url = StoreURL.parse(text)
    assert {name: getattr(url, name) for name in facts} == facts
    assert pickle.loads(pickle.dumps(url)) == url


BROKEN = [
    ("", "has no scheme"),
    ("agent.db", "has no scheme"),
    ("/abs/agent.db", "has no scheme"),
    (":memory:", "has no scheme"),
    (" sqlite:a", "has no scheme"),
    ("1x:a", "has no scheme"),
    ("sqlite:100%", "has a % that starts no escape. Write a percent sign as %25."),
    ("sqlite:a%2", "has a % that starts no escape"),
    ("sqlite:a%zz", "has a % that starts no escape"),
    ("sqlite:a%00b", "contains NUL"),
    ("sqlite:a\0b", "contains NUL"),
    ("sqlite:a?b=%00", "contains NUL"),
    ("sqlite:a%FF", "has escapes that are not UTF-8"),
    ("x:p?a", "has an option that is not written name=value"),
    ("x:p?=1", "has an option that is not written name=value"),
    ("x:p?a=1&", "has an option that is not written name=value"),
    ("x:p?a b=1", "has an option that is not written name=value"),
    ("x:p?a=1&a=1", "gives the option a twice"),
    ("x:p?a=1&%61=2", "gives the option a twice"),
    ("redis://h:port", "has a port that is no number from 1 to 65535"),
    ("redis://h:0", "has a port that is no number from 1 to 65535"),
    ("redis://h:65536", "has a port that is no number from 1 to 65535"),
    ("redis://h:\u0661", "has a port that is no number from 1 to 65535"),
    ("redis://::1", "IPv6 address without brackets"),
    ("redis://a,,b", "has an empty name in its list of hosts"),
    ("x:p?namespace=", "option namespace: "),
    ("x:p?namespace=a.b", "option namespace: must be 1 to 64 characters of A-Z a-z 0-9 _ -"),
    ("x:p?namespace=a%0A", "option namespace: "),
    ("x:p?max_record=0", "option max_record: must be a whole number of bytes, 1 or more"),
    ("x:p?max_record=-1", "option max_record: "),
    ("x:p?max_record=1e6", "option max_record: "),
    ("x:p?max_record=\u0661", "option max_record: "),
    ("x:p?max_record=" + "9" * 5000, "option max_record: "),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN, ids=[text[:40] for text, _ in BROKEN])
def test_a_broken_url_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        StoreURL.parse(text)
    assert problem in caught.value.problem
    assert caught.value.hint


def test_equal_urls_share_what_they_name() -> None:
    one, two = StoreURL.parse("SQLITE:/a?b=1&c=2"), StoreURL.parse("sqlite:///a?c=2&b=%31")
    assert one == two
    assert hash(one) == hash(two)
    assert one != StoreURL.parse("sqlite:/a?b=1&c=2&namespace=n")
    assert StoreURL.parse("redis://:one@h") != StoreURL.parse("redis://:two@h")


def test_a_host_where_a_path_is_meant_says_what_to_write() -> None:
    assert StoreURL.parse("sqlite:agent.db").path_only() == "agent.db"
    assert StoreURL.parse("sqlite:///abs").path_only() == "/abs"
    with pytest.raises(StoreURLError, match="has a host where a path is meant") as caught:
        StoreURL.parse("sqlite://agent.db").path_only()
    assert caught.value.hint == "Write sqlite:agent.db or sqlite:///abs/agent.db."
    with pytest.raises(StoreURLError) as caught:
        StoreURL.parse("sqlite://user:hunter2@dir/agent.db").path_only()
    assert caught.value.hint == "Write sqlite:dir/agent.db or sqlite:///abs/dir/agent.db."
    assert "hunter2" not in str(caught.value)


SECRETS = [
    "redis://user:hunter2@h/0",
    "redis://:hunter2@h",
    "redis://hunter2@h",
    "redis://:hunter2@a,b,",
    "redis://user:hunter2@h:port",
    "redis://user:hunter2",
    "redis://user:hunter2%40h",
    "redis://user:x/hunter2@h",
    "redis://user:x?hunter2@h",
    "redis://user:1?hunter2@h",
    "redis://user:1?hunter2",
    "redis://user:1#hunter2@h?x",
    "redis:user:hunter2@h",
    "redis:user:x/hunter2@h",
    "redis:hunter2@h",
    "redis:hunter2@x@h",
    "redis:x/hunter2@h",
    "redis:/hunter2@h",
    "redis:hunter2@h?x",
    "hunter2@h",
    "redis//user:hunter2@h",
    "//user:hunter2@h",
    "redis://h?password=hunter2",
    "redis://h?passwrod=hunter2",
    "redis://h?token=a@hunter2",
    "redis://h?password=hunter2&password=hunter2",
    "redis://h?password=hunter2%",
    "redis://h?hunter2",
    "x:p?timeout=hunter2",
    "x:p?secret_number=hunter2",
    "x:p?pin=hunter2",
    "x:p?checked_key=hunter2",
    "x:p?max_record=1&encryption_key=hunter2",
    "x:p?max_record=hunter2",
    "x:p?namespace=n;password=hunter2",
]


class Options(BaseModel):
    timeout: int = 1
    secret_number: int = 1
    pin: SecretStr = Field(default=SecretStr(""), max_length=2)
    encryption_key: str = ""
    checked_key: str = ""

    @field_validator("checked_key")
    @classmethod
    def _refuse(cls, value: str) -> str:
        raise ValueError(f"not {value}")


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_never_shown(text: str) -> None:
    shown: list[object] = []
    try:
        url = StoreURL.parse(text)
        shown += [url, str(url)]
        url = check_options(url, Options)
        shown += [url, str(url)]
        url.path_only()
    except StoreURLError as error:
        shown += [error, str(error), error.hint, error.args, error.__cause__, str(error.__cause__), error.__context__]
    assert shown
    assert "hunter2" not in repr(shown)


def test_options_are_shown_once_they_are_known_to_be_harmless() -> None:
    url = StoreURL.parse("x:p?timeout=5&encryption_key=k&pin=1&namespace=n&max_record=7")
    assert str(url) == "x:p?timeout=***&encryption_key=***&pin=***&namespace=n&max_record=7"
    checked = check_options(url, Options)
    assert str(checked) == "x:p?timeout=5&encryption_key=***&pin=***&namespace=n&max_record=7"
    assert repr(checked) == f"<StoreURL {checked}>"
    assert str(StoreURL.parse("redis://u:p@[::1]:7,b/0")) == "redis://u:***@[::1]:7,b/0"


class Strict(BaseModel):
    mode: Literal["fast", "safe"] = "safe"
    wait: float = Field(default=1.0, ge=0)
    flag: bool = False
    size: int | None = Field(default=None, alias="page_size")


def test_options_become_typed() -> None:
    options = check_options(StoreURL.parse("x:p?mode=fast&wait=0.5&flag=true&page_size=9"), Strict).options
    assert options == Strict(mode="fast", wait=0.5, flag=True, page_size=9)
    assert pickle.loads(pickle.dumps(check_options(StoreURL.parse("x:p?wait=2"), Strict))).options == Strict(wait=2)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        (
            "mod=fast",
            "unknown option mod (known: flag, max_record, mode, namespace, page_size, wait). Did you mean mode?",
        ),
        ("namspace=a", "Did you mean namespace?"),
        ("zzz=1", "unknown option zzz (known: flag, max_record, mode, namespace, page_size, wait). Remove it."),
        ("size=1", "unknown option size"),
        ("mode=slow", "option mode: Input should be 'fast' or 'safe'"),
        ("wait=-1", "option wait: Input should be greater than or equal to 0"),
        ("wait=", "option wait: Input should be a valid number"),
        ("wait=x&flag=x", "option wait: Input should be a valid number"),
        ("wait=x&flag=x", "; option flag: Input should be a valid boolean"),
        ("page_size=x", "option page_size: Input should be a valid integer"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_the_reason(query: str, problem: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        check_options(StoreURL.parse(f"x:p?{query}"), Strict)
    assert problem in caught.value.problem
    assert pickle.loads(pickle.dumps(caught.value)).hint == caught.value.hint


def test_a_missing_option_is_named() -> None:
    class Required(BaseModel):
        server: str

    with pytest.raises(StoreURLError, match="option server: Field required"):
        check_options(StoreURL.parse("x:p"), Required)


class Pair(BaseModel):
    left: str = ""

    @model_validator(mode="after")
    def _refuse(self) -> "Pair":
        raise ValueError(f"left is {self.left}")


class SecretPair(Pair):
    right: SecretStr = SecretStr("")


def test_options_that_do_not_go_together_are_refused_without_secrets() -> None:
    with pytest.raises(StoreURLError, match="options: Value error, left is 5"):
        check_options(StoreURL.parse("x:p?left=5"), Pair)
    with pytest.raises(StoreURLError, match=r"options: not valid(\n|$)"):
        check_options(StoreURL.parse("x:p?left=5&right=5"), SecretPair)


class SecretKinds(BaseModel):
    login: Secret[str] = Secret("")
    pins: list[SecretStr] = []


@pytest.mark.parametrize("option", ["login=hunter2", "pins=hunter2"])
def test_an_option_of_any_secret_type_is_never_shown(option: str) -> None:
    url = replace(StoreURL.parse(f"x:p?{option}"), options=SecretKinds())
    assert "hunter2" not in f"{url} {url!r}"


def test_a_plugin_without_options_takes_those_of_the_core_only() -> None:
    assert check_options(StoreURL.parse("x:p?namespace=n"), NoOptions).namespace == "n"
    with pytest.raises(StoreURLError, match=r"unknown option a \(known: max_record, namespace\)"):
        check_options(StoreURL.parse("x:p?a=1"), NoOptions)
