"""The table of fences, which fenced locks need."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("django_redislock", "0001_initial")]

    operations: ClassVar[list[Operation]] = [
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
