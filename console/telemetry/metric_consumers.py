"""Sockets of metrics: the newest points of a deployment's board, second by second."""

import asyncio
import time
from typing import Any

from channels.db import database_sync_to_async
from django.http import Http404

from console.access import policies
from console.access.policies import Action
from console.deployments.models import Deployment, Instance
from console.telemetry import kv_pools, sharing
from console.telemetry.boards import MOST_APART
from console.telemetry.consumers import Watch
from console.telemetry.live_frames import live_frames
from console.telemetry.measures import lines_of

GATHER_SECONDS = 0.1
"""Hosts sample at the same moment; so long is waited for the others before a point is drawn."""
LAST_SECONDS = 3
INSTANCES_AGAIN_SECONDS = 10.0


class MetricsConsumer(Watch):
    """`/ws/deployments/<pk>/metrics/?apart=1`: {points: [{t, groups: {key: {line: value}}}]} once a second.

    A point that comes again replaces the earlier one of its time: it holds samples that had been late.
    """

    deployment: Deployment
    instances: list[Instance]
    pools: kv_pools.Pools
    read_at = float("-inf")

    def group(self) -> str:
        """A name of our own: what is new comes from the announcements of frames, not from the channel layer."""
        return f"metrics.{self.deployment.pk}"

    def look(self, user: Any) -> None:
        """Fetch the deployment."""
        pk = self.scope["url_route"]["kwargs"]["pk"]
        self.deployment = policies.get(user, Deployment.objects.all(), Action.VIEW, pk=pk)

    async def disconnect(self, code: int) -> None:
        """Leave."""
        if hasattr(self, "news"):
            live_frames().leave(self.news)
        await super().disconnect(code)

    async def send_news(self) -> bool:
        """Send the points of the last seconds as far as they are new or have changed."""
        if time.monotonic() - self.read_at > INSTANCES_AGAIN_SECONDS:
            self.read_at = time.monotonic()
            self.instances, self.pools = await self._instances()
            await live_frames().watch(self.news, [instance.uuid for instance in self.instances])
        await asyncio.sleep(GATHER_SECONDS)
        apart = b"apart=1" in self.scope["query_string"]
        key = (tuple(instance.pk for instance in self.instances), apart)
        text = live_frames().computed(key, lambda: self._points(apart=apart))
        if text != getattr(self, "sent_text", "[]"):
            self.sent_text = text
            self.told_at = time.monotonic()
            await self.send(text_data=f'{{"points": {text}}}')
        return False

    def _points(self, *, apart: bool) -> list[dict[str, Any]]:
        columns = {instance: part for instance in self.instances for part in live_frames().columns([instance.uuid])}
        for instance, part in columns.items():
            kv_pools.lay_beside(part, self.pools.get(instance.pk, ()))
        seconds = sorted({start for part in columns.values() for start in part.starts})[-LAST_SECONDS:]
        if not apart:
            groups = {"all": lines_of([*columns.values()], seconds, 1)}
        else:
            groups = {
                str(instance.number): lines_of([columns[instance]], seconds, 1)
                for instance in self.instances[-MOST_APART:]
                if instance in columns
            }
        return [
            {
                "t": second * 1000,
                "groups": {
                    key: {name: _short(values[at]) for name, values in lines.items()} for key, lines in groups.items()
                },
            }
            for at, second in enumerate(seconds)
        ]

    @database_sync_to_async  # type: ignore[untyped-decorator]
    def _instances(self) -> tuple[list[Instance], kv_pools.Pools]:
        found = list(self.deployment.instances.exclude(state="stopped").order_by("number"))
        return found, kv_pools.pools_of(found)


class SharedMetricsConsumer(MetricsConsumer):
    """`/ws/shared/<token>/metrics/`: the same for whoever has a link, until it is over."""

    @database_sync_to_async  # type: ignore[untyped-decorator]
    def allowed(self) -> bool:
        """True while the link is good."""
        try:
            self.deployment = sharing.opened(self.scope["url_route"]["kwargs"]["token"]).deployment
        except Http404:
            return False
        return True


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
