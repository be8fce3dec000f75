"""The table of fences, which fenced locks need, and the permissions of what the admin shows (it is read from Redis)."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    initial: ClassVar[bool] = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="HeldLock",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("owner", models.TextField(verbose_name="owner")),
                ("held_for", models.FloatField(verbose_name="held for")),
                ("lease_left", models.FloatField(verbose_name="lease left")),
                ("fence", models.BigIntegerField(verbose_name="fence")),
                ("waiters", models.PositiveIntegerField(verbose_name="waiters")),
            ],
            options={
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
                "managed": False,
                "default_permissions": ("view",),
                "permissions": [("delete_heldlock", "Can force-release lock")],
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="Fence",
            fields=[
                (
                    "key",
                    models.CharField(
                        editable=False, max_length=64, primary_key=True, serialize=False, verbose_name="key"
                    ),
                ),
                ("name", models.TextField(editable=False, verbose_name="name")),
                ("fence", models.BigIntegerField(editable=False, verbose_name="fence")),
                ("holder", models.CharField(default="", editable=False, max_length=64)),
                ("claimed", models.DateTimeField(editable=False, verbose_name="last claimed")),
            ],
            options={
                "verbose_name": "fence",
                "verbose_name_plural": "fences",
                "db_table": "redislock_fence",
                "default_permissions": ("view",),
            },
        ),
    ]
