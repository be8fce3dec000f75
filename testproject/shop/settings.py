"""Settings of the ticket shop: a small site on SQLite that locks through the Redis in its CACHES."""

from __future__ import annotations

import os
from pathlib import Path

SECRET_KEY = "only-for-the-demo-on-this-machine"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
LOCAL = ["security.W004", "security.W008", "security.W009", "security.W016"]  # no TLS and no secret on this machine

INSTALLED_APPS = ["django_redislock", "shop"]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ASYNC = bool(os.environ.get("SHOP_ASYNC"))  # views that are coroutines, for an ASGI server
ROOT_URLCONF = "shop.urls"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", str(Path(__file__).parents[1] / "shop.sqlite3")),
        "CONN_MAX_AGE": 0 if ASYNC else None,  # under ASGI, the thread of a request ends with the request
        "OPTIONS": {
            "timeout": 20,
            # wait for the write lock at BEGIN; a read that turns into a write would fail at once
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Without a Redis the locks live in the memory of this process: enough for one runserver, or a test suite.
REDIS_URL = os.environ.get("REDIS_URL", "")
if REDIS_URL:
    CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": REDIS_URL,
            "KEY_PREFIX": os.environ.get("SHOP_KEY_PREFIX", "shop"),
        }
    }
    SILENCED_SYSTEM_CHECKS = [*LOCAL, "django_redislock.I001"]  # the shop caches nothing, and so never clears its cache
else:
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    SILENCED_SYSTEM_CHECKS = [*LOCAL, "django_redislock.W001"]  # the warning that says just that

REDISLOCK = {
    "TTL": 10,  # seconds after which the locks of a dead process are free; live processes renew theirs
    "TTLS": {"order:*": 60},  # paying may hang at the bank
    "BLOCKING_TIMEOUT": 30,
    "MAX_HOLD": 300,  # so that a client that sends or reads slowly cannot keep a lock for ever
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    # 409 and 423 are normal responses, and need no record in the log
    "loggers": {"django.request": {"level": "ERROR"}, "django.server": {"level": "ERROR"}},
}
