from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_redislock import Lock
from tests.admin.pages import login
from tests.helpers.actors import Ghost
from tests.helpers.browser import browser, picture, visit  # noqa: F401 (fixtures)
from tests.helpers.pools import crowd_around


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
    """A pool of which both members are wanted by many; and an ordinary lock."""
    crowd_around(ghost())
    Lock("a").acquire()
