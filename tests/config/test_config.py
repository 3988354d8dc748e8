"""`bayou.toml` and the environment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from bayou.config import (
    Config,
    DatastoreConfig,
    SparkConfig,
    SyncConfig,
    load_config,
    offline_requested,
    spark_config,
    write_datastore,
)
from bayou.core.errors import ConfigInvalid, CredentialInConfig, NamespaceInvalid, UsageError

REPO_ID = "11111111-2222-4333-8444-555555555555"

WHOLE = f"""\
repo_id = "{REPO_ID}"
[datastore]
url = "s3://team-bucket/project"
namespace = "infra"
hydrate = "lazy"
exclude = ["logs/**"]
[datastore.options]
endpoint = "http://127.0.0.1:8333"
skip_signature = true
[sync]
timeout = 60
concurrency = 8
point_limit = 50
pack_below = "64KiB"
pack_size = "4 MiB"
[spark]
remote = "sc://host:15002"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bayou.toml"


def load(file: Path, text: str, **environ: str) -> Config:
    file.write_text(text)
    return load_config(file, environ)


def section(name: str, line: str) -> str:
    heading = f"[{name}]\n" if name else ""
    return f'repo_id = "{REPO_ID}"\n{heading}{line}\n'


def test_a_file_says_everything(file):
    assert load(file, WHOLE) == Config(
        REPO_ID,
        DatastoreConfig(
            url="s3://team-bucket/project",
            namespace="infra",
            hydrate="lazy",
            exclude=("logs/**",),
            options={"endpoint": "http://127.0.0.1:8333", "skip_signature": "true"},
        ),
        SyncConfig(timeout=60.0, concurrency=8, point_limit=50, pack_below=64 << 10, pack_size=4 << 20),
        SparkConfig(remote="sc://host:15002"),
    )


def test_what_a_file_does_not_say_has_a_default(file):
    config = load(file, f'repo_id = "{REPO_ID}"\n')

    assert config == Config(REPO_ID)
    assert config.sync == SyncConfig(
        timeout=None, concurrency=64, point_limit=None, pack_below=256 << 10, pack_size=8 << 20
    )
    assert config.datastore == DatastoreConfig(None, None, None, "full", (), {})


def test_the_environment_is_stronger_than_the_file(file):
    config = load(
        file,
        WHOLE,
        BAYOU_NAMESPACE="other",
        BAYOU_HYDRATE="full",
        BAYOU_SYNC_TIMEOUT="2.5",
        BAYOU_CONCURRENCY="3",
        BAYOU_POINT_LIMIT="7",
        BAYOU_PACK_BELOW="0",
        BAYOU_PACK_SIZE="1MiB",
        BAYOU_SYNC_LIMIT_RATE="2M",
    )

    assert config.datastore.namespace == "other"
    assert config.datastore.hydrate == "full"
    assert config.sync == SyncConfig(2.5, 3, 7, 0, 1 << 20, 2_000_000)


def test_an_empty_variable_is_as_good_as_none(file):
    names = (
        "DATASTORE",
        "NAMESPACE",
        "HYDRATE",
        "SYNC_TIMEOUT",
        "CONCURRENCY",
        "POINT_LIMIT",
        "PACK_BELOW",
        "PACK_SIZE",
        "SYNC_LIMIT_RATE",
    )

    assert load(file, WHOLE, **{f"BAYOU_{name}": "" for name in names}) == load(file, WHOLE)


@pytest.mark.parametrize("same", ["s3://team-bucket/project", "s3://team-bucket/project/"])
def test_the_same_store_from_the_environment_keeps_the_files_namespace_and_options(file, same):
    config = load(file, WHOLE, BAYOU_DATASTORE=same)

    assert config.datastore.namespace == "infra"
    assert config.datastore.options["endpoint"] == "http://127.0.0.1:8333"


def test_another_store_from_the_environment_takes_neither_namespace_nor_options_of_the_file(file):
    """V9: they were meant for the file's store; on another one they would name somebody else's data."""
    there = load(file, WHOLE, BAYOU_DATASTORE="s3://team-bucket/project2").datastore

    assert there == DatastoreConfig(url="s3://team-bucket/project2", hydrate="lazy", exclude=("logs/**",))


def test_a_file_that_names_no_store_gives_its_namespace_to_the_environments(file):
    there = load(file, section("datastore", 'namespace = "infra"'), BAYOU_DATASTORE="s3://bucket").datastore

    assert (there.url, there.namespace) == ("s3://bucket", "infra")


def test_a_directory_from_the_environment_is_taken_from_where_the_caller_stands(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    there = load(file, WHOLE, BAYOU_DATASTORE="shared").datastore

    assert (there.url, there.path, there.namespace) == (None, str(tmp_path / "shared"), None)


@pytest.mark.parametrize(
    ("where", "line", "key", "nearest"),
    [
        ("", "[datastor]", "datastor", "datastore"),
        ("", 'repoid = "x"', "repoid", "repo_id"),
        ("", "timeout = 3", "timeout", "sync.timeout"),
        ("datastore", 'ulr = "s3://b"', "datastore.ulr", "datastore.url"),
        ("datastore", 'name_space = "n"', "datastore.name_space", "datastore.namespace"),
        ("sync", "point-limit = 3", "sync.point-limit", "sync.point_limit"),
        ("spark", 'mastr = "local"', "spark.mastr", "spark.master"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest_known_one(file, where, line, key, nearest):
    with pytest.raises(ConfigInvalid) as caught:
        load(file, section(where, line))

    assert caught.value.message == f"{file}: unknown key {key}"
    assert caught.value.hint == f"did you mean {nearest}?"


def test_an_unknown_key_that_resembles_none_lists_those_that_are_known(file):
    with pytest.raises(ConfigInvalid) as caught:
        load(file, section("spark", "zzz = 1"))

    assert caught.value.hint == "known here: remote, master"


@pytest.mark.parametrize(
    ("where", "line", "key"),
    [
        ("", "sync = 3", "sync"),
        ("datastore", "url = 3", "datastore.url"),
        ("datastore", 'url = ""', "datastore.url"),
        ("datastore", 'exclude = "logs/**"', "datastore.exclude"),
        ("datastore", "exclude = [1]", "datastore.exclude"),
        ("datastore", 'hydrate = "eager"', "datastore.hydrate"),
        ("datastore", "options = 3", "datastore.options"),
        ("datastore.options", "region = 3", "datastore.options.region"),
        ("sync", "timeout = 0", "sync.timeout"),
        ("sync", "timeout = nan", "sync.timeout"),
        ("sync", 'timeout = "5"', "sync.timeout"),
        ("sync", "timeout = true", "sync.timeout"),
        ("sync", "concurrency = 0", "sync.concurrency"),
        ("sync", "concurrency = 1.5", "sync.concurrency"),
        ("sync", "concurrency = 100000", "sync.concurrency"),
        ("sync", "point_limit = -1", "sync.point_limit"),
        ("sync", "pack_below = -1", "sync.pack_below"),
        ("sync", "pack_below = 1.5", "sync.pack_below"),
        ("sync", "pack_below = true", "sync.pack_below"),
        ("sync", 'pack_below = "some"', "sync.pack_below"),
        ("sync", 'pack_below = ""', "sync.pack_below"),
        ("sync", 'pack_below = "17MiB"', "sync.pack_below"),
        ("sync", "pack_size = 0", "sync.pack_size"),
        ("sync", 'pack_size = "1KiB"', "sync.pack_size"),
        ("sync", 'pack_size = "1GiB"', "sync.pack_size"),
        ("spark", "master = 3", "spark.master"),
    ],
)
def test_a_value_of_the_wrong_kind_is_an_error_that_names_its_key(file, where, line, key):
    with pytest.raises(ConfigInvalid) as caught:
        load(file, section(where, line))

    assert f"{file}: {key} " in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BAYOU_SYNC_TIMEOUT", "soon"),
        ("BAYOU_SYNC_TIMEOUT", "-1"),
        ("BAYOU_SYNC_TIMEOUT", "inf"),
        ("BAYOU_CONCURRENCY", "2.5"),
        ("BAYOU_POINT_LIMIT", "0"),
        ("BAYOU_PACK_BELOW", "-1"),
        ("BAYOU_PACK_BELOW", "1.5MB"),
        ("BAYOU_PACK_BELOW", "64KiBs"),
        ("BAYOU_PACK_SIZE", "0"),
        ("BAYOU_SYNC_LIMIT_RATE", "0"),
        ("BAYOU_SYNC_LIMIT_RATE", "fast"),
        ("BAYOU_PACK_SIZE", "٣MB"),
        ("BAYOU_HYDRATE", "eager"),
        ("BAYOU_DATASTORE", "s3://"),
    ],
)
def test_a_bad_variable_is_named(file, name, value):
    with pytest.raises(ConfigInvalid, match=name):
        load(file, WHOLE, **{name: value})


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("0", 0),
        ('"0"', 0),
        ("1000", 1000),
        ('"1000"', 1000),
        ('"1000B"', 1000),
        ('"64KB"', 64_000),
        ('"64k"', 64_000),
        ('"64KiB"', 65_536),
        ('"64 KiB"', 65_536),
        ('" 1mib "', 1 << 20),
        ('"2M"', 2_000_000),
        ('"16MiB"', 16 << 20),
    ],
)
def test_a_number_of_bytes_is_a_number_or_has_a_unit(file, value, size):
    assert load(file, section("sync", f"pack_below = {value}")).sync.pack_below == size


def test_a_bad_number_of_bytes_is_told_how_to_write_one_and_which_are_possible(file):
    with pytest.raises(ConfigInvalid) as caught:
        load(file, section("sync", 'pack_below = "many"'))
    assert "256KiB" in (caught.value.hint or "")

    with pytest.raises(ConfigInvalid, match="from 65536 to 67108864 bytes"):
        load(file, section("sync", "pack_size = 1"))


@pytest.mark.parametrize("text", ["", 'repo_id = "mine"\n', "repo_id = 3\n"])
def test_a_repo_has_an_id(file, text):
    with pytest.raises(ConfigInvalid, match="repo_id"):
        load(file, text)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('url = "s3://b"\npath = "/p"', "exclude each other"),
        ('path = "/p"\nnamespace = "n"', "neither namespace nor options"),
        ('path = "s3://b"', "path is a URL"),
        ('url = "bucket/prefix"', "not a store's URL"),
        ('url = "s3://b?x=1"', "no \\? and no #"),
        ('url = "s3://b/a/../c"', "bad prefix"),
        ('url = "s3://b"\noptions.regoin = "eu"', "unknown option regoin"),
    ],
)
def test_a_datastore_that_contradicts_itself_is_refused(file, line, what):
    with pytest.raises(ConfigInvalid, match=what) as caught:
        load(file, section("datastore", line))

    assert caught.value.message.startswith(f"{file}: datastore.")


def test_two_kinds_of_spark_exclude_each_other(file):
    with pytest.raises(ConfigInvalid, match="exclude each other"):
        load(file, section("spark", 'remote = "sc://h"\nmaster = "local"'))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('remote = "host:15002"', "spark.remote is not the address"),
        ('remote = "sc://"', "spark.remote is not the address"),
        ('remote = "sc://user@host"', "spark.remote is not the address"),
        ('master = "sc://host"', "spark.master is the address"),
    ],
)
def test_what_names_no_spark_is_refused(file, line, what):
    with pytest.raises(ConfigInvalid, match=what):
        load(file, section("spark", line))


def test_a_token_in_the_address_of_spark_may_stand_in_the_environment_only(file):
    address = "sc://host:15002/;use_ssl=true;token=secret"
    with pytest.raises(CredentialInConfig, match=r"spark\.remote has a token") as caught:
        load(file, section("spark", f'remote = "{address}"'))

    assert "secret" not in f"{caught.value.message} {caught.value.hint}"
    assert load(file, section("spark", ""), BAYOU_SPARK_REMOTE=address).spark == SparkConfig(remote=address)


def test_the_environment_says_which_spark(file):
    assert load(file, section("spark", 'remote = "sc://h"'), BAYOU_SPARK_MASTER="yarn").spark == SparkConfig(
        master="yarn"
    )
    assert spark_config({}) == SparkConfig()
    assert spark_config({"BAYOU_SPARK_REMOTE": "sc://h"}) == SparkConfig(remote="sc://h")
    with pytest.raises(ConfigInvalid, match="BAYOU_SPARK_REMOTE and BAYOU_SPARK_MASTER exclude each other"):
        spark_config({"BAYOU_SPARK_REMOTE": "sc://h", "BAYOU_SPARK_MASTER": "yarn"})


@pytest.mark.parametrize("name", ["data", "logs", ".bayou", "A", "a/b", "x" * 65, "-a"])
def test_a_bad_namespace_is_refused_wherever_it_stands_f073(file, name):
    with pytest.raises(NamespaceInvalid, match=r"datastore\.namespace"):
        load(file, section("datastore", f'url = "s3://b"\nnamespace = "{name}"'))
    with pytest.raises(NamespaceInvalid):
        load(file, section("datastore", 'url = "s3://b"'), BAYOU_NAMESPACE=name)


@pytest.mark.parametrize(
    "line",
    [
        'url = "s3://b"\noptions.secret_access_key = "hunter2"',
        'options.aws_session_token = "hunter2"',
        'url = "x://b"\noptions.password = "hunter2"',
        'url = "s3://b"\noptions.endpoint = "http://me:hunter2@127.0.0.1:1"',
        'url = "s3://me:hunter2@b"',
        'secret_access_key = "hunter2"',
    ],
)
def test_a_credential_is_refused_and_never_repeated(file, line):
    with pytest.raises(CredentialInConfig) as caught:
        load(file, section("datastore", line))

    assert caught.value.message.startswith(f"{file}: datastore.")
    assert "hunter2" not in caught.value.message + str(caught.value.hint)


def test_a_credential_in_the_environments_url_is_refused_and_never_repeated(file):
    with pytest.raises(CredentialInConfig) as caught:
        load(file, WHOLE, BAYOU_DATASTORE="s3://me:hunter2@bucket")

    assert "BAYOU_DATASTORE" in caught.value.message
    assert "hunter2" not in caught.value.message


def test_options_of_a_plugged_in_store_are_left_to_it(file):
    config = load(file, section("datastore", 'url = "myscheme://b"\noptions.colour = "red"'))

    assert config.datastore.options == {"colour": "red"}


def test_a_file_that_is_not_toml_names_the_line(file):
    with pytest.raises(ConfigInvalid, match="line 3") as caught:
        load(file, section("datastore", 'url = "s3://b'))

    assert caught.value.message.startswith(f"{file} is not valid TOML: ")


def test_a_file_that_is_not_utf_8_names_the_line(file):
    file.write_bytes(b'repo_id = "x"\n# gr\xfcn\n')

    with pytest.raises(ConfigInvalid, match="line 2"):
        load_config(file, {})


def test_a_file_that_cannot_be_read_is_named(file):
    file.mkdir()

    with pytest.raises(ConfigInvalid, match="cannot read"):
        load_config(file, {})


@pytest.mark.parametrize(("told", "offline"), [("1", True), ("yes", True), ("0", False), ("", False), ("False", False)])
def test_the_environment_can_ask_to_stay_offline(told, offline):
    assert offline_requested({"BAYOU_OFFLINE": told}) is offline


def test_a_word_that_is_neither_yes_nor_no_is_refused():
    with pytest.raises(ConfigInvalid, match="BAYOU_OFFLINE"):
        offline_requested({"BAYOU_OFFLINE": "maybe"})


COMMENTED = f"""\
# Ours. Ask Ada before you change it.
repo_id = "{REPO_ID}"  # never changes

[sync]  # slow line
timeout = 900 # seconds
"""


def test_comments_survive_a_change_f063(file):
    file.write_text(COMMENTED)

    write_datastore(file, url="s3://team/project", namespace="n", options={"region": "eu-north-1"}, hydrate="lazy")

    text = file.read_text()
    assert text.startswith(COMMENTED)
    assert load_config(file, {}).datastore == DatastoreConfig(
        "s3://team/project", None, "n", "lazy", (), {"region": "eu-north-1"}
    )
    assert load_config(file, {}).sync.timeout == 900


def test_setting_the_same_datastore_again_does_not_touch_the_file_f063(file):
    file.write_text(COMMENTED)
    write_datastore(file, url="s3://team/project", namespace="n")
    before = (file.read_bytes(), file.stat().st_ino)

    write_datastore(file, url="s3://team/project", namespace="n")

    assert (file.read_bytes(), file.stat().st_ino) == before


def test_a_directory_takes_the_place_of_a_store_and_back_again(file):
    file.write_text(WHOLE.replace("hydrate", "# why: slow line\nhydrate"))

    write_datastore(file, path="/mnt/shared")
    assert load_config(file, {}).datastore == DatastoreConfig(path="/mnt/shared", hydrate="lazy", exclude=("logs/**",))
    write_datastore(file, url="gs://bucket")

    assert load_config(file, {}).datastore == DatastoreConfig(url="gs://bucket", hydrate="lazy", exclude=("logs/**",))
    assert "# why: slow line" in file.read_text()
    assert "options" not in file.read_text()


def test_an_empty_section_stays_for_the_sake_of_its_comment(file):
    file.write_text(section("datastore.options", '# Ada: the region is slow\nregion = "x"'))

    write_datastore(file, url="gs://bucket")

    assert "# Ada: the region is slow" in file.read_text()
    assert load_config(file, {}).datastore == DatastoreConfig(url="gs://bucket")


def test_neither_url_nor_path_means_the_repos_own_tree(file):
    file.write_text(WHOLE)

    write_datastore(file)

    assert load_config(file, {}).datastore == DatastoreConfig(hydrate="lazy", exclude=("logs/**",))


@pytest.mark.parametrize(
    "lines",
    [
        'datastore.url = "s3://old"\ndatastore.options.region = "x"\n',
        'datastore = { url = "s3://old", options = { region = "x" } }\n',
        '[datastore.options]\nregion = "x"\n[datastore]\nurl = "s3://old"\n',
        '[datastore]\nurl = "s3://old"\noptions = { region = "x" }\n',
    ],
)
def test_however_the_section_is_written_it_can_be_changed(file, lines):
    file.write_text(f'repo_id = "{REPO_ID}"\n{lines}')

    write_datastore(file, url="s3://new", namespace="n", options={"region": "y", "endpoint": "http://127.0.0.1:1"})

    assert load_config(file, {}).datastore == DatastoreConfig(
        "s3://new", None, "n", options={"region": "y", "endpoint": "http://127.0.0.1:1"}
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "s3://b", "path": "/p"},
        {"url": "s3://b", "namespace": "data"},
        {"url": "s3://b", "options": {"secret_access_key": "hunter2"}},
        {"url": "nowhere"},
    ],
)
def test_nothing_wrong_is_ever_written(file, wrong):
    file.write_text(COMMENTED)

    with pytest.raises(UsageError):
        write_datastore(file, **wrong)

    assert file.read_text() == COMMENTED


def test_a_crash_while_writing_leaves_the_old_file_and_no_other(file, monkeypatch):
    """V19."""
    file.write_text(COMMENTED)

    def crash(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="No space"):
        write_datastore(file, url="s3://b")

    assert file.read_text() == COMMENTED
    assert os.listdir(file.parent) == ["bayou.toml"]


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(file, tmp_path):
    real = tmp_path / "real.toml"
    real.write_text(COMMENTED)
    real.chmod(0o640)
    file.symlink_to(real)

    write_datastore(file, url="s3://b")

    assert file.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert load_config(real, {}).datastore.url == "s3://b"
