"""17.13: what was typed in the place of a URL may be a credential. No message, log or file repeats it."""

from __future__ import annotations

import os

import pytest

SECRET = "hush4711/hush+4712"
PARTS = ("hush4711", "hush+4712")
TYPED = [
    f"AKIA:{SECRET}@bucket",
    f"AKIA:{SECRET}@bucket/prefix",
    f"//AKIA:{SECRET}@bucket/prefix",
    f":{SECRET}@bucket",
    f"s3://AKIA:{SECRET}@bucket/prefix",
    f"s3:AKIA:{SECRET}@bucket",
    f"S3:AKIA:{SECRET}@bucket",
    f"s3:/AKIA:{SECRET}@bucket",
    f"s3://AKIA:{SECRET}/bucket",
    f"s3://bucket:{SECRET}",
    f"s3://[AKIA:{SECRET}",
    f"s3://bucket#{SECRET}",
    f"gs://bucket?token={SECRET}",
    f"gs:/bucket?token={SECRET}",
    f"az://container?sig={SECRET}",
    f"https://user:{SECRET}@host:port/bucket",
    f"https://user:{SECRET}@host:99999/bucket",
    f"file://user:{SECRET}@host/path",
    f"file:///mnt/x?token={SECRET}",
    f"s3://AKIA:{SECRET}\n@bucket",
]


def check(ran, repo) -> None:
    assert ran.code == 2, ran
    told = ran.out + ran.err
    assert not [part for part in PARTS if part in told], told
    assert "hint" in told
    for directory, names, files in os.walk(repo.root.parent):
        assert not [name for name in (*names, *files) if "hush" in name or "AKIA" in name], directory
    assert not [part for part in PARTS if part in repo.file.read_text()]


@pytest.mark.parametrize("flags", [[], ["-vv"], ["--json"]], ids=lambda flags: " ".join(flags) or "plain")
@pytest.mark.parametrize("typed", TYPED)
def test_17_13_setup_refuses_a_credential_and_does_not_show_it(repo, command, typed, flags):
    check(command(*flags, "datastore", "setup", typed), repo)


@pytest.mark.parametrize("typed", TYPED)
def test_17_13_replicate_refuses_a_credential_and_does_not_show_it(repo, command, typed):
    check(command("-vv", "datastore", "replicate", typed), repo)


@pytest.mark.parametrize("typed", TYPED)
def test_17_13_the_environment_refuses_a_credential_and_does_not_show_it(repo, command, monkeypatch, typed):
    monkeypatch.setenv("BAYOU_DATASTORE", typed)
    check(command("-vv", "datastore", "status"), repo)


@pytest.mark.parametrize(
    "option",
    [
        f"endpoint=https://user:{SECRET}@host",
        f"endpoint=https://host/?sig={SECRET}",
        f"endpoint=AKIA:{SECRET}@host",
        f"region=AKIA:{SECRET}",
        f"region={SECRET} ",
        f"skip_signature={SECRET}",
        f"profile=a;{SECRET}",
        f"secret_access_key={SECRET}",
    ],
)
def test_17_13_an_option_that_is_a_credential_is_refused_and_not_shown(repo, command, option):
    check(command("-vv", "datastore", "setup", "s3://bucket/p", "--option", option), repo)


def test_17_13_a_configured_directory_that_is_a_credential_is_refused_and_not_shown(repo, command):
    before = repo.file.read_text()
    repo.file.write_text(before + f'[datastore]\npath = "AKIA:{SECRET}@bucket"\n')
    ran = command("-vv", "datastore", "status")
    repo.file.write_text(before)
    check(ran, repo)


@pytest.mark.parametrize("name", ["a:b@c", "x@y", "a:b"])
def test_a_directory_of_a_strange_name_is_still_one(repo, command, tmp_path, name):
    ran = command("datastore", "setup", f"../{name}")
    assert ran.code == 0, ran
    assert (tmp_path / name).is_dir()
