"""All checks together."""

from __future__ import annotations

import re
from pathlib import Path

from django.core.checks import Tags, run_checks

import django_redislock
from tests.helpers.docs import page

SOURCE = Path(django_redislock.__file__).parent


def test_every_check_has_an_id_of_its_own_and_stands_on_the_page_of_checks() -> None:
    source = "".join(path.read_text("utf-8") for path in (SOURCE / "checks").glob("*.py"))
    used = re.findall(r'id="django_redislock\.([EWI]\d{3})"', source)
    assert len(used) == source.count("id=") == len(set(used)) > 10
    listed = re.findall(r"^``([EWI]\d{3})`` ", page("checks"), re.M)
    assert sorted(listed) == sorted(used)


def test_they_are_among_the_checks_of_caches(settings: object) -> None:
    settings.REDISLOCK = {"TLL": 3}  # type: ignore[attr-defined]
    found = [message.id for message in run_checks(tags=[Tags.caches])]
    assert found == ["django_redislock.E001"]
