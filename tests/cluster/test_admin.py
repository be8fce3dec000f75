"""The admin and the locks of a cluster: each hash tag draws fences of its own."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from django_redislock import Lock, force_release
from django_redislock.store.stores import get_partition
from tests.admin.pages import login, select, told
from tests.cluster.conftest import names_on
from tests.helpers.cluster import Cluster

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("across", ["0", "1"])
def test_who_acquired_after_the_confirmation_is_spared_however_high_the_fences_of_other_tags_are(
    across: str, cluster: Cluster
) -> None:
    admin = login(User.objects.create_superuser("jo"))
    first, second = (names_on(cluster, node)[0] for node in cluster.masters()[:2])
    partition = get_partition(None, first)
    seconds, _ = partition.execute(("TIME",))
    partition.execute(
        ("SET", f"{partition.prefix}fence", str((int(seconds) + 600) * 10**6))
    )  # as if its clock were ahead
    for name in (first, second):
        assert Lock(name, ttl=600).acquire()
    asked = select(admin, first, second, select_across=across).context
    assert asked["total"] == 2
    force_release(second)
    assert Lock(second, ttl=600, token="t" * 22).acquire()
    response = select(admin, first, second, select_across=across, post="yes", **asked["fences"])
    assert told(response) == [
        "1 lock was force-released.",
        "1 lock was left alone: its holder had changed or was gone.",
    ]
    assert not Lock(first).locked()
    assert Lock(second).locked()
