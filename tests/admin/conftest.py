from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_redislock import Lock, LockPool
from tests.admin.pages import login
from tests.helpers.actors import Ghost
from tests.helpers.browser import browser, picture, visit  # noqa: F401 (fixtures)


@pytest.fixture
def admin() -> Client:
    return login(User.objects.create_superuser("jo"))


@pytest.fixture
def staff() -> Callable[..., Client]:
    """A staff user with only these permissions."""

    def staff(*permissions: str) -> Client:
        user = User.objects.create_user("sam", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return login(user)

    return staff


@pytest.fixture
def crowded(ghost: Callable[..., Ghost]) -> None:
    """A pool of two: both are held, two wait for one of them, 103 for any; and an ordinary lock."""
    pool = LockPool("accounts")
    pool.extend(["alice", "bob"])
    for _ in range(2):
        pool.acquire(ttl=600)
    Lock("a").acquire()
    there = ghost()
    for number in range(105):
        name = "pool:accounts:alice" if number < 2 else "pool:accounts:"
        there.queue(f"{number:03}{'t' * 22}", name=name, age=200 - number)
