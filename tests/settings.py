"""Settings of the tests. The Redis URL is known once the private server of the session runs."""

from __future__ import annotations

import os

SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = ["django_redislock"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("REDISLOCK_TEST_URL", "redis://127.0.0.1:1/0"),
    },
    "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}
ROOT_URLCONF = "tests.urls"
ALLOWED_HOSTS = ["*"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": []}]
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}
