"""The codecs by themselves: keys, encryption, compression, and both in a row."""

from __future__ import annotations

import base64
import importlib
import random
import struct
import sys
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.at_rest import Codec, Codecs, Compression, Encryption, KeyRing, Location, encryption_from_environment
from perdure.at_rest.codecs import one_codec
from perdure.errors import (
    CodecLibraryError,
    InvalidArgumentError,
    NotEncryptedError,
    RecordTooLargeError,
    StoreCorruptedError,
    WrongKeyError,
)

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
HERE = Location("default", "sessions", "user-42", 7)
TEXT = b'{"role":"user","content":"The account is 4711"}'


def both(*keys: bytes) -> Codec:
    return Codecs([Compression(), Encryption(KeyRing(keys or (OLD,)))])


# --- encryption ---


def test_what_is_encrypted_comes_back_and_shows_nothing() -> None:
    codec = Encryption(KeyRing([OLD]))
    stored = codec.encode(TEXT, HERE)
    assert codec.decode(stored, HERE) == TEXT
    assert b"account" not in stored
    assert len(stored) == len(TEXT) + 40
    assert codec.decode(codec.encode(b"", HERE), HERE) == b""


def test_the_same_data_is_never_encrypted_to_the_same_bytes() -> None:
    codec = Encryption(KeyRing([OLD]))
    nonces = {codec.encode(TEXT, HERE)[12:24] for _ in range(1000)}
    assert len(nonces) == 1000


def test_every_byte_that_is_changed_is_noticed() -> None:
    codec = Encryption(KeyRing([OLD]))
    stored = codec.encode(TEXT, HERE)
    for place in range(len(stored)):
        changed = bytearray(stored)
        changed[place] ^= 1
        with pytest.raises((StoreCorruptedError, WrongKeyError, NotEncryptedError)):
            codec.decode(bytes(changed), HERE)


def test_data_that_is_cut_anywhere_or_longer_is_noticed() -> None:
    codec = Encryption(KeyRing([OLD]))
    stored = codec.encode(TEXT, HERE)
    for changed in [stored[:length] for length in range(len(stored))] + [stored + b"\0"]:
        with pytest.raises((StoreCorruptedError, NotEncryptedError)):
            codec.decode(changed, HERE)


@pytest.mark.parametrize(
    "elsewhere",
    [
        HERE._replace(namespace="other"),
        HERE._replace(part="runs"),
        HERE._replace(id="user-43"),
        HERE._replace(sequence=8),
        HERE._replace(sequence=None),
        HERE._replace(group="mine"),
        HERE._replace(status="idle"),
        Location("defaultsessions", "", "user-42", 7),
    ],
)
def test_data_is_refused_at_every_other_place(elsewhere: Location) -> None:
    codec = Encryption(KeyRing([OLD]))
    with pytest.raises(StoreCorruptedError, match="written for another place"):
        codec.decode(codec.encode(TEXT, HERE), elsewhere)


def test_a_missing_group_is_not_an_empty_one() -> None:
    codec = Encryption(KeyRing([OLD]))
    head = HERE._replace(sequence=None)
    with pytest.raises(StoreCorruptedError):
        codec.decode(codec.encode(TEXT, head), head._replace(group=""))


def test_a_wrong_key_is_told_from_damage() -> None:
    stored = Encryption(KeyRing([OLD])).encode(TEXT, HERE)
    with pytest.raises(WrongKeyError, match="sessions user-42") as raised:
        Encryption(KeyRing([NEW])).decode(stored, HERE)
    assert (raised.value.key, raised.value.known) == (KeyRing([OLD]).ids[0], KeyRing([NEW]).ids)
    assert "not damaged" in raised.value.hint


def test_a_ring_writes_with_its_first_key_and_reads_with_all() -> None:
    old, rotated = Encryption(KeyRing([OLD])), Encryption(KeyRing([NEW, OLD]))
    stored = old.encode(TEXT, HERE)
    assert rotated.decode(stored, HERE) == TEXT
    assert (old.is_current(stored), rotated.is_current(stored)) == (True, False)
    assert rotated.is_current(rotated.encode(TEXT, HERE))
    with pytest.raises(WrongKeyError):
        old.decode(rotated.encode(TEXT, HERE), HERE)


def test_plaintext_is_refused_unless_it_is_asked_for() -> None:
    with pytest.raises(NotEncryptedError):
        Encryption(KeyRing([OLD])).decode(TEXT, HERE)
    with pytest.raises(NotEncryptedError):
        Encryption(KeyRing([OLD])).decode(b"", HERE)
    migrating = Encryption(KeyRing([OLD]), accept_plaintext=True)
    assert migrating.decode(TEXT, HERE) == TEXT
    assert migrating.decode(migrating.encode(TEXT, HERE), HERE) == TEXT
    assert not migrating.is_current(TEXT)


def test_the_format_is_kept() -> None:
    """What this release reads was written by it for all time: a change of the format needs another mark."""
    stored = base64.b64decode(STORED)
    assert Encryption(KeyRing([OLD])).decode(stored, HERE) == TEXT


STORED = "9VBFAdQps+LDxDsEGhZWjMNs8pG1BcipavaozGLwgIF8dfpycdm63kAkXVGcYQYnefyM4IXMKC2L4k4eIlzNT6xVaH71whUE30r/pI2tGbQdRxsKkcqS"


# --- keys ---


def test_no_key_is_shown() -> None:
    ring = KeyRing([OLD, NEW])
    shown = repr(ring) + str(ring) + repr(Encryption(ring))
    assert OLD.hex() not in shown
    assert base64.b64encode(OLD).decode() not in shown
    assert ring.ids[0] in repr(ring)
    assert OLD.hex()[:16] != ring.ids[0]


def test_keys_are_read_from_text() -> None:
    first, second = KeyRing.new_key(), KeyRing.new_key()
    ring = KeyRing.parse(f"{first},\n  {second}\n")
    assert ring.ids == KeyRing([base64.b64decode(first), base64.b64decode(second)]).ids
    url_safe = base64.urlsafe_b64encode(b"\xff" * 32).decode()
    assert KeyRing.parse(url_safe).ids == KeyRing([b"\xff" * 32]).ids


@pytest.mark.parametrize("text", ["", " , ", "secret", "c2VjcmV0", f"{'A' * 43}= x", "ä" * 44])
def test_a_wrong_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        KeyRing.parse(text)
    assert not text.strip(" ,") or text not in str(raised.value)


@pytest.mark.parametrize("text", [None, b"c2VjcmV0", 5])
def test_what_is_no_text_has_no_keys(text: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be text"):
        KeyRing.parse(text)


@pytest.mark.parametrize("keys", [[], b"x" * 32, [b"short"], ["x" * 32], [OLD, OLD], [bytearray(32)], None])
def test_wrong_keys_are_refused(keys: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        KeyRing(keys)


def test_the_environment_has_keys_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_KEYS", raising=False)
    with pytest.raises(InvalidArgumentError, match="PERDURE_KEYS is not set"):
        encryption_from_environment()
    monkeypatch.setenv("PERDURE_KEYS", base64.b64encode(OLD).decode())
    assert encryption_from_environment().decode(Encryption(KeyRing([OLD])).encode(TEXT, HERE), HERE) == TEXT


# --- compression ---


def test_what_is_compressed_is_smaller_and_comes_back() -> None:
    codec, data = Compression(), TEXT * 100
    stored = codec.encode(data, HERE)
    assert len(stored) < len(data) / 10
    assert codec.decode(stored, HERE) == data


def test_what_would_not_be_smaller_stays_as_it_is() -> None:
    codec, noise = Compression(), random.Random(7).randbytes(300)
    assert codec.encode(TEXT, HERE) == TEXT
    assert codec.encode(noise, HERE) == noise
    assert codec.decode(TEXT, HERE) == TEXT


@settings(max_examples=60)
@given(st.binary(max_size=600) | st.binary(max_size=9).map(lambda start: b"\xf5PZ\x01" + start))
def test_any_bytes_come_back_from_each_and_from_both(data: bytes) -> None:
    for codec in (Compression(), both(), Codecs([Compression(level=1)])):
        assert codec.decode(codec.encode(data, HERE), HERE) == data


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    bomb = b"\xf5PZ\x01" + zstandard.compress(bytes(64 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(StoreCorruptedError, match="would be 67108864 bytes"):
        Compression(max_size=1 << 20).decode(bomb, HERE)
    # A frame may also claim a size that it does not have: 2^62 bytes.
    liar = b"\xf5PZ\x01" + b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", 1 << 62) + b"\x01\x00\x00"
    with pytest.raises(StoreCorruptedError, match="would be"):
        Compression().decode(liar, HERE)


def test_a_frame_that_does_not_tell_its_size_is_refused() -> None:
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT * 10)
    with pytest.raises(StoreCorruptedError, match="does not tell its size"):
        Compression().decode(b"\xf5PZ\x01" + stream, HERE)


@pytest.mark.parametrize("change", ["cut", "longer", "noise"])
def test_damaged_frames_are_refused(change: str) -> None:
    stored = Compression().encode(TEXT * 100, HERE)
    changed = {"cut": stored[:-1], "longer": stored + b"x", "noise": stored[:4] + b"no frame"}[change]
    with pytest.raises(StoreCorruptedError):
        Compression().decode(changed, HERE)


def test_what_could_not_be_read_again_is_not_written() -> None:
    codec = Compression(max_size=1000)
    assert codec.decode(codec.encode(b"x" * 1000, HERE), HERE) == b"x" * 1000
    with pytest.raises(RecordTooLargeError) as raised:
        codec.encode(b"x" * 1001, HERE)
    assert "max_size" in raised.value.hint


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 23}, {"level": "3"}, {"max_size": 0}, {"max_size": 1.5}])
def test_wrong_settings_are_refused(options: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Compression(**options)


# --- several ---


def test_both_compress_and_then_encrypt() -> None:
    data = TEXT * 100
    stored = both().encode(data, HERE)
    assert len(stored) < len(data) / 10
    assert both().decode(stored, HERE) == data
    assert both(NEW, OLD).decode(stored, HERE) == data
    assert (both().is_current(stored), both(NEW, OLD).is_current(stored)) == (True, False)


@pytest.mark.parametrize("codecs", [[], None, "zstd", [1], [Compression(), "x"]])
def test_what_is_no_codec_is_refused(codecs: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        one_codec(codecs)


def test_compressing_what_is_encrypted_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="compress before it encrypts"):
        Codecs([Encryption(KeyRing([OLD])), Compression()])


@pytest.mark.parametrize(
    ("library", "extra", "make"),
    [
        ("cryptography", "encrypt", lambda: Encryption(KeyRing([OLD]))),
        ("zstandard", "zstd", lambda: Compression()),
    ],
)
def test_a_missing_library_says_how_to_install_it(
    library: str, extra: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    importlib.import_module("perdure.at_rest")
    with pytest.raises(CodecLibraryError, match=library) as raised:
        make()
    assert f"perdure[{extra}]" in raised.value.hint
