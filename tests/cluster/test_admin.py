"""The admin and the locks of a cluster: each hash tag draws fences of its own."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from django_redislock import Lock, force_release
from tests.admin.pages import login, names, select, told
from tests.helpers.browser import LIST
from tests.helpers.cluster import Cluster

from .conftest import key_of, names_on

pytestmark = pytest.mark.django_db


def test_the_list_shows_locks_of_all_nodes_in_order(cluster: Cluster) -> None:
    for number in range(120):
        Lock(f"order:{number:03}").acquire()
    page = login(User.objects.create_superuser("jo")).get(LIST, {"o": "-1", "q": "order:11"})
    assert names(page) == [f"order:{number}" for number in range(119, 109, -1)]
    assert page.context["cl"].full_result_count == 120


@pytest.mark.parametrize("across", ["0", "1"])
def test_who_acquired_after_the_confirmation_is_spared_however_high_the_fences_of_other_tags_are(
    across: str, cluster: Cluster
) -> None:
    admin = login(User.objects.create_superuser("jo"))
    node, other = cluster.masters()[:2]
    (first,), (second,) = names_on(cluster, node), names_on(cluster, other)
    client = node.client()
    ahead = (int(client.time()[0]) + 600) * 10**6  # as if its clock were
    client.set(key_of(first).replace(f"lock:{first}", "fence"), ahead)
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
