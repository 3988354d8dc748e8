"""Secrets in all the forms that they take on their way into a text (issue 17.11, V26)."""

from __future__ import annotations

import base64
import json
import random
import shlex
import string
from urllib.parse import quote, quote_plus

import pytest

from bayou.core.redaction import REDACTED, Redactor, own_credentials, redactor
from tests.secrets import PEM, forms, leaked

PASSWORD = """p4ss"word's\\ of /été+100%"""


@pytest.mark.parametrize("name", forms(PEM))
def test_a_key_is_replaced_in_every_form_also_in_the_middle_of_a_text(name):
    text = f"before {forms(PEM)[name]} after"

    found = Redactor([PEM]).text(text)

    assert leaked(found) == []
    assert found.startswith("before ")
    assert found.endswith(" after")
    assert REDACTED in found


@pytest.mark.parametrize("name", forms(PASSWORD))
def test_a_password_with_odd_characters_is_replaced_in_every_form(name):
    form = forms(PASSWORD)[name]

    found = Redactor([PASSWORD]).text(f"x={form}; done")

    assert form.strip("'\"") not in found
    assert "word" not in found
    assert "p4ss" not in found


@pytest.mark.parametrize("name", [name for name in forms(PEM) if "base64" not in name or "pem" in name])
def test_a_private_key_is_known_by_its_shape(name):
    """No secret is declared: the key comes from a file, say."""
    assert leaked(redactor().text(f"the key: {forms(PEM)[name]}\nthe end")) == [], name


def test_what_is_no_private_key_stays():
    text = (
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
        + "a" * 300
        + " /usr/lib/python3/dist-packages/x"
    )

    assert Redactor([PEM, "s3cr3t-value"]).text(text) == text


def test_a_short_secret_is_replaced_only_where_it_is_the_whole_value():
    short = Redactor(["a", "42"])

    assert short.value({"x": "a", "n": 42, "y": "a banana", "z": ["42", "421"]}) == {
        "x": "***",
        "n": "***",
        "y": "a banana",
        "z": ["***", "421"],
    }
    assert Redactor(["prod"], shortest=8).text("a product of prod") == "a product of prod"


def test_a_secret_that_was_cut_is_replaced_where_it_is_cut():
    assert Redactor(["s3cr3t-value-of-mine"]).text("there is no s3cr3t-value-…") == "there is no ***…"
    assert Redactor(["s3cr3t-value-of-mine"]).text("s3cr is all") == "s3cr is all"


@pytest.mark.parametrize("seed", range(60))
def test_a_stream_in_pieces_is_redacted_as_a_whole_text_is(seed):
    """17.11: a secret on the boundary of two pieces."""
    rng = random.Random(seed)
    shapes = list(forms(PEM).values()) + list(forms(PASSWORD).values())
    words = [rng.choice([*shapes, "ordinary words", "\n", " ", "a line\n", "progress\r"]) for _ in range(30)]
    whole = " ".join(words).encode()
    stream = Redactor([PEM, PASSWORD]).stream()
    told, at = b"", 0
    while at < len(whole):
        size = rng.choice([1, 7, 64, 1000, 65536]) if rng.random() < 0.5 else rng.randrange(1, 3000)
        told += stream.add(whole[at : at + size])
        at += size
    told += stream.close()

    assert leaked(told.decode()) == []
    assert b"p4ss" not in told
    assert told.count(b"ordinary words") == whole.count(b"ordinary words")


def test_what_holds_no_secret_passes_a_stream_unchanged():
    rng = random.Random(3)
    data = bytes(rng.randrange(256) for _ in range(300_000)) + b"x" * 400_000
    stream = Redactor([PEM, "s3cr3t-value"]).stream()

    told = b"".join(stream.add(data[at : at + 65_536]) for at in range(0, len(data), 65_536)) + stream.close()

    assert told == data


def test_what_cannot_be_the_beginning_of_a_secret_is_handed_on_at_once():
    stream = Redactor([PEM, "s3cr3t-value"]).stream()

    assert stream.add(b"one\ntwo: ") == b"one\ntwo: "
    assert stream.add(b"s3cr") == b""
    assert stream.add(b"oll\n") == b"s3croll\n"
    assert stream.add(b"a s3cr3t-val") == b"a "
    assert stream.add(b"ue.") == b"***."


def test_a_line_without_an_end_is_handed_on_before_memory_is_full():
    stream = Redactor(["s3cr3t-value"]).stream()

    told = b"".join(stream.add(b"x" * 9_990 + b"s3cr3t-value") for _ in range(100))

    assert len(told) > 500_000
    assert b"s3cr" not in told + stream.close()


def test_credentials_of_providers_are_secrets_and_names_of_files_are_none():
    secret, key = "A1" * 20, base64.b64encode(b"k" * 64).decode()
    found = own_credentials(
        {
            "AWS_SECRET_ACCESS_KEY": "/" + secret,
            "AWS_ACCESS_KEY_ID": "AKIAAAAAAAAAAAAAAAAA",
            "AWS_SESSION_TOKEN": "token-" + secret,
            "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token",
            "AWS_PROFILE": "a-long-name-of-a-profile",
            "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=x;AccountKey={key};EndpointSuffix=core",
            "AZURE_CLIENT_SECRET": "short",
            "GOOGLE_APPLICATION_CREDENTIALS": "/srv/somebody/key.json",
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"type": "service_account", "private_key": PEM}),
            "HOME": "/srv/somebody-else",
        }
    )

    assert {value[:10] for value in found} == {("/" + secret)[:10], "token-A1A1", "AccountNam", '{"type": "'}
    redacted = Redactor(found).text(f"key {key} and {PEM.splitlines()[3]}")
    assert redacted == "key *** and ***"


def test_generated_secrets_never_pass_in_any_form():
    rng = random.Random(17)
    letters = string.ascii_letters + string.digits + string.punctuation + " äß€😀"
    for _ in range(200):
        secret = "".join(rng.choice(letters) for _ in range(rng.randrange(10, 60))).strip()
        if len(secret) < 10:
            continue
        quiet = Redactor([secret])
        for form in (
            secret,
            repr(secret),
            json.dumps(secret),
            json.dumps(json.dumps(secret)),
            quote(secret, safe=""),
            quote_plus(secret),
            shlex.quote(secret),
            " ".join(secret.split()),
            repr(secret.encode()),
        ):
            found = quiet.text(f"<{form}>")
            assert REDACTED in found, (secret, form)
            assert len(found) <= len("<'***'>") + 6, (secret, form, found)


@pytest.mark.parametrize(
    "text", ["\\" * 200_000, "-" * 200_000, " " * 200_000, "-----BEGIN RSA PRIVATE KEY-----" * 2_000, "\\n" * 100_000]
)
def test_no_text_takes_long(text):
    """A run of characters that could be escapes is not tried in every way: this would take hours."""
    assert Redactor([PEM, "a\\\\\\\\\\b", "\\" * 40 + "x" + "\\" * 40]).text(text + "x") is not None
