"""Events with seats, orders for them, and payments."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Event(models.Model):
    objects: ClassVar[models.Manager[Event]]

    name = models.CharField(max_length=100)
    seats = models.PositiveIntegerField()
    remaining = models.IntegerField()

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    objects: ClassVar[models.Manager[Order]]

    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="orders")
    paid = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}"


class Payment(models.Model):
    objects: ClassVar[models.Manager[Payment]]

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="payments")

    def __str__(self) -> str:
        return f"payment {self.pk}"
