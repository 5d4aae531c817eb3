"""Whether a model fits where placement puts it, with the room that placement counts: the card and the table agree."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from console.catalog.models import Copy
from console.deployments import fitting, rooms
from console.deployments.claims import WIDE
from console.deployments.place_presentation import Places
from console.deployments.placement import Strategy
from console.fleet.models import Device, Engine
from workers.vllm.arguments import Value


def fit(
    copy: Copy, engine: Engine, *, places: Places | None, strategy: Strategy, values: Mapping[str, Value],
    environment: Mapping[str, str], **others: Any,
) -> fitting.Fit:  # fmt: skip
    """`fitting.fit` on the devices of `places`, the tightest where replicas go on unlike ones.

    Without `places`, or where they have no room, it is planned on the host of `copy` and `engine`. With "pack" the engine is
    sized to share its device. `others`: as `fitting.fit` takes them.
    """
    shares = strategy == "pack"
    found = []
    for site, devices in _unlike(places) if places is not None else ():
        if site.engine is None:
            continue  # placement leaves such a host out
        total = devices[0].memory_total
        sized = rooms.sized(site.copy, site.engine, values, environment, total=total) if shares else values
        room = places.room_on(site.host.pk) if places is not None else None
        one = fitting.fit(
            site.copy, site.engine, values=sized, environment=environment, placed=devices, room=room, **others
        )
        found.append(replace(one, host=site.host.name) if strategy in WIDE else one)
    if found:
        return min(found, key=lambda one: one.tightness)
    sized = rooms.sized(copy, engine, values, environment) if shares else values
    room = places.room_on(engine.host_id) if places is not None else None
    return fitting.fit(copy, engine, values=sized, environment=environment, room=room, **others)


def _unlike(places: Places) -> list[tuple[rooms.Site, list[Device]]]:
    """One place of each kind that was taken, the one that had the least room: those that are alike plan alike."""
    choices = places.decision.choices
    uuids = {uuid for choice in choices for uuid in choice.devices}
    # All of them at once: the form asks with every key that is pressed.
    rows = Device.objects.filter(host__in={choice.host for choice in choices}, uuid__in=uuids)
    by_place = {(row.host_id, row.uuid): row for row in rows}
    taken: dict[tuple[object, ...], tuple[int, rooms.Site, list[Device]]] = {}
    for choice in choices:
        site = places.sites[choice.host]
        devices = sorted((by_place[choice.host, uuid] for uuid in choice.devices), key=lambda one: one.index)
        room = places.room_on(choice.host)
        free = min(room[one.uuid].free for one in devices)
        kind = tuple((one.name, one.memory_total) for one in devices)
        if kind not in taken or free < taken[kind][0]:
            taken[kind] = (free, site, devices)
    return [(site, devices) for _free, site, devices in taken.values()]
