"""What may stand behind a flag, checked before anything is opened. Each function is a `type` of click's."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from bayou.cli.units import parse_duration


def duration(text: str) -> float:
    """Read seconds, or a number with one of s m h d w."""
    seconds = parse_duration(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is no duration: use seconds, or a number with s, m, h, d or w")
    return seconds


def timeout(text: str) -> float:
    """Read a duration that is more than nothing."""
    seconds = duration(text)
    if seconds == 0:
        raise click.BadParameter("it must be more than 0")
    return seconds


def namespace(text: str) -> str:
    """Read a namespace; `NamespaceInvalid` before any request (V9)."""
    from bayou.objectstore.keys import check_namespace  # noqa: PLC0415

    return check_namespace(text)


def target(text: str) -> str:
    """Read a store's URL, left as it is, or a directory, made absolute from here."""
    if "://" in text:
        return text
    from bayou.objectstore.url import refuse_broken_url  # noqa: PLC0415

    refuse_broken_url(text)
    return os.path.abspath(os.path.expanduser(text))


def assignment(text: str) -> tuple[str, str]:
    """Read `name=value`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter("it must look like name=value")
    return name, value


def named_once(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return what `option` said, which may stand several times but not twice for one name."""
    named: dict[str, str] = {}
    for name, value in pairs:
        if name in named:
            raise click.UsageError(f"{option} names {name} twice")
        named[name] = value
    return named
