"""Helpers for the admin's pages of locks."""

from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_redislock.models import HeldLock
from tests.helpers.browser import LIST as LIST

NOWHERE = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}


def login(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def url(view: str, name: str, site: str = "admin", using: str | None = None) -> str:
    """The URL of a page of the lock, as the admin's templates make it."""
    return reverse(f"{site}:django_redislock_heldlock_{view}", args=[quote(HeldLock.named(name, using).key)])


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def select(admin: Client, *keys: str, path: str = LIST, **data: Any) -> Any:
    data = {"action": "delete_selected", "_selected_action": keys, **data}
    return admin.post(path, data, follow=True)


def listed(response: Any) -> list[Any]:
    """The locks on a page of the list."""
    return list(response.context["cl"].result_list)


def names(response: Any) -> list[str]:
    return [lock.name for lock in listed(response)]
