"""Names, masks, sealing and hashes of secrets."""

from uuid import uuid4

import pytest

from moorage.control.records.secrets import MASK, RESERVED, Secret, checked_secrets, merged_secrets
from moorage.control.secret_box import SecretBox
from moorage.kernel.crypto import KEY_BYTES, MasterKeys, UnsealError
from moorage.kernel.errors import InvalidRequestError

BOX = SecretBox(MasterKeys([bytes(KEY_BYTES)]))


def _secrets(**values):
    return [Secret(name=name, value=value) for name, value in values.items()]


def test_a_mask_stands_for_the_value_that_is_there():
    assert merged_secrets(_secrets(A=MASK, B="new"), {"A": "old", "C": "gone"}) == {"A": "old", "B": "new"}
    with pytest.raises(InvalidRequestError, match="A has no value yet"):
        merged_secrets(_secrets(A=MASK), {})


@pytest.mark.parametrize("name", [*sorted(RESERVED), "LSD_X", "MOORAGE_HOME", "1A", "A-B", "", "A" * 256, "A\n"])
def test_names_that_the_platform_sets_or_no_shell_knows_are_refused(name):
    with pytest.raises(InvalidRequestError):
        checked_secrets([Secret(name=name, value="hush")])


@pytest.mark.parametrize("value", ["x" * 65 * 1024, "a\0b"])
def test_a_value_that_no_environment_can_hold_is_refused_without_telling_it(value):
    with pytest.raises(InvalidRequestError, match="The value of the secret A") as refusal:
        checked_secrets(_secrets(A=value))
    assert value not in str(refusal.value)


def test_secrets_open_where_they_were_sealed_and_nowhere_else():
    home, secrets = uuid4(), {"A": "one", "Ü": "\u20ac"}
    sealed = BOX.seal(home, secrets)
    assert BOX.open(home, sealed) == secrets
    assert sealed.names == ("A", "Ü")
    assert b"one" not in sealed.sealed
    with pytest.raises(UnsealError):
        BOX.open(uuid4(), sealed)


def test_the_hash_changes_with_any_secret_and_needs_the_key():
    hashes = {BOX.seal(uuid4(), secrets).hash for secrets in ({}, {"A": "1"}, {"A": "2"}, {"A1": ""}, {"B": "1"})}
    assert len(hashes) == 5
    assert BOX.seal(uuid4(), {"A": "1"}).hash == BOX.seal(uuid4(), {"A": "1"}).hash
    assert SecretBox(MasterKeys([b"k" * KEY_BYTES])).seal(uuid4(), {}).hash not in hashes
