"""Encrypted secrets: they open at their own place with a known key, and nowhere else."""

from __future__ import annotations

import base64
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.kernel.crypto import KEY_BYTES, MasterKeys, SealedColumn, UnsealError, new_master_key, read_master_keys
from moorage.kernel.errors import StartupError

SECRETS = [bytes([number]) * KEY_BYTES for number in (1, 2, 3)]
KEYS = MasterKeys(SECRETS[:1])
PLACE = SealedColumn("destinations", "id", "credentials").place("0190a")


@given(st.binary(max_size=2000), st.text(max_size=100))
def test_what_was_sealed_opens(value, place):
    assert KEYS.open(KEYS.seal(value, place), place) == value


@given(st.binary(max_size=50), st.data())
def test_any_flipped_bit_is_refused(value, data):
    sealed = bytearray(KEYS.seal(value, PLACE))
    at = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[at // 8] ^= 1 << at % 8
    with pytest.raises(UnsealError):
        KEYS.open(bytes(sealed), PLACE)


@given(st.binary(max_size=50), st.data())
def test_a_cut_off_secret_is_refused(value, data):
    sealed = KEYS.seal(value, PLACE)
    with pytest.raises(UnsealError):
        KEYS.open(sealed[: data.draw(st.integers(0, len(sealed) - 1))], PLACE)


@given(st.text(max_size=50), st.text(max_size=50))
def test_a_secret_that_was_moved_is_refused(place, other):
    sealed = KEYS.seal(b"value", place)
    if place != other:
        with pytest.raises(UnsealError, match="changed or moved"):
            KEYS.open(sealed, other)


def test_equal_values_look_different_when_sealed():
    assert KEYS.seal(b"value", PLACE) != KEYS.seal(b"value", PLACE)


@given(st.binary(max_size=200))
def test_a_rotation_keeps_the_value_and_needs_the_old_key_no_more(value):
    old, both, new = MasterKeys(SECRETS[:1]), MasterKeys([SECRETS[1], SECRETS[0]]), MasterKeys(SECRETS[1:2])
    sealed = old.seal(value, PLACE)
    assert both.open(sealed, PLACE) == value
    assert not sealed.startswith(both.newest_prefix)
    rewrapped = both.rewrap(sealed)
    assert rewrapped.startswith(both.newest_prefix)
    assert new.open(rewrapped, PLACE) == value
    with pytest.raises(UnsealError):
        old.open(rewrapped, PLACE)


def test_a_missing_master_key_is_named():
    with pytest.raises(UnsealError, match=KEYS.ids[0]):
        MasterKeys(SECRETS[1:]).open(KEYS.seal(b"value", PLACE), PLACE)


def test_keys_for_other_purposes_are_one_per_master_key_and_purpose():
    keys = MasterKeys(SECRETS)
    tokens, cookies = keys.derive("tokens"), keys.derive("cookies")
    assert list(tokens) == keys.ids
    assert len({*tokens.values(), *cookies.values(), *SECRETS}) == 9


def test_no_repr_shows_a_key():
    text = f"{KEYS!r} {KEYS._newest!r} {vars(KEYS)}"
    assert SECRETS[0].hex() not in text
    assert repr(SECRETS[0]) not in text


class TestWhereTheyComeFrom:
    def test_the_environment_wins_and_the_newest_is_first(self, tmp_path):
        words = [base64.b64encode(secret).decode() for secret in SECRETS]
        keys = read_master_keys(f" {words[0]},{words[1]},\n{words[2]} ", tmp_path / "secret.key")
        assert keys.ids == MasterKeys(SECRETS).ids
        assert not list(tmp_path.iterdir())

    def test_both_alphabets_are_read_with_and_without_padding(self, tmp_path):
        key = b"\xfb\xff" * 16
        for word in (base64.b64encode(key), base64.urlsafe_b64encode(key), base64.b64encode(key).rstrip(b"=")):
            assert read_master_keys(word.decode(), tmp_path / "secret.key").ids == MasterKeys([key]).ids

    def test_without_any_one_is_made_once_for_the_owner_alone(self, tmp_path):
        file = tmp_path / "secret.key"
        made = read_master_keys(None, file)
        assert file.stat().st_mode & 0o777 == 0o600
        assert read_master_keys("", file).ids == made.ids
        assert list(tmp_path.iterdir()) == [file]

    def test_of_many_that_start_at_once_all_have_the_same_key(self, tmp_path):
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: read_master_keys(None, tmp_path / "secret.key"), range(8)))
        assert len({tuple(keys.ids) for keys in made}) == 1

    @pytest.mark.parametrize(
        "given",
        [
            "c2hvcnQ=",
            "not base64 at all!",
            base64.b64encode(os.urandom(31)).decode(),
            f"{new_master_key()},oops",
            ", ,",
        ],
        ids=["short", "no base64", "a byte too few", "a good one and a bad one", "none"],
    )
    def test_a_wrong_key_stops_the_start_and_is_not_repeated(self, tmp_path, given):
        with pytest.raises(StartupError, match="MOORAGE_SECRET_KEY") as caught:
            read_master_keys(given, tmp_path / "secret.key")
        assert given not in str(caught.value)

    def test_a_file_that_others_may_read_stops_the_start(self, tmp_path: Path):
        file = tmp_path / "secret.key"
        read_master_keys(None, file)
        file.chmod(0o644)
        with pytest.raises(StartupError, match="chmod 600"):
            read_master_keys(None, file)
