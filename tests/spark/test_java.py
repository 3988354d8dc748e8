"""Finding Java: by its files, in the order in which a person expects, and with one line where there is none."""

from __future__ import annotations

import subprocess

import pytest

from bayou.core.errors import JavaMissing, JavaTooOld
from bayou.spark import java
from bayou.spark.java import Java, find_java


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a Java that says its version, in its `release` file or only when it is run."""
    monkeypatch.setattr(java, "USUAL_HOMES", (f"{tmp_path}/jvm/*",))

    def make(name: str, version: str | None, spoken: str = "exit 1"):
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text(f"#!/bin/sh\n{spoken}\n")
        (home / "bin" / "java").chmod(0o755)
        if version is not None:
            (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\n')
        return home

    return make


def test_java_home_comes_before_the_path_and_the_path_before_the_usual_places(install, tmp_path):
    told, on_path, usual = install("told", "17.0.15"), install("path", "21"), install("jvm/a", "25.0.3")
    path = str(on_path / "bin")

    assert find_java({"JAVA_HOME": str(told), "PATH": path}) == Java(told, "17.0.15")
    assert find_java({"PATH": path}) == Java(on_path, "21")
    assert find_java({}) == Java(usual, "25.0.3")


def test_one_that_is_too_old_or_not_there_is_passed_over(install, tmp_path):
    old, usual = install("old", "1.8.0_402"), install("jvm/a", "17.0.1")

    for home in (old, tmp_path / "nothing"):
        assert find_java({"JAVA_HOME": str(home)}).home == usual


def test_a_link_on_the_path_leads_to_its_home(install, tmp_path):
    home = install("real", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "bin")}) == Java(home, "17.0.15")


def test_no_jvm_is_started_to_learn_a_version(install, monkeypatch):
    home = install("real", "17.0.15")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was run"))

    assert find_java({"JAVA_HOME": str(home)}).version == "17.0.15"


def test_a_java_without_a_release_file_is_asked(install):
    home = install("silent", None, """echo 'openjdk version "21.0.2" 2024-01-16' >&2""")

    assert find_java({"JAVA_HOME": str(home)}) == Java(home, "21.0.2")


def test_no_java_at_all_is_one_line_that_says_how_to_get_it(install):
    install("stub", None)  # macOS has a `java` that only says that there is none

    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": "", "PATH": ""})

    assert "\n" not in caught.value.message
    assert "Java 17 or newer" in caught.value.message
    assert "apt-get install openjdk-17-jre-headless" in caught.value.hint
    assert "brew install openjdk@17" in caught.value.hint


def test_an_old_java_alone_is_named(install):
    home = install("jvm/a", "11.0.22")

    with pytest.raises(JavaTooOld, match=rf"needs Java 17 or newer, and {home} is Java 11\.0\.22"):
        find_java({})


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21)])
def test_the_major_version_is_the_one_that_people_say(version, major, tmp_path):
    assert Java(tmp_path, version).major == major
