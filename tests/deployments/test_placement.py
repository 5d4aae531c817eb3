"""Placement: never over memory, the same whatever the order, and with a reason for every device."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.deployments.place_presentation import Places, sentence_of
from console.deployments.placement import STRATEGIES, DeviceRoom, HostRoom, Need, Rule, decide

GIB = 2**30


def gpu(index: int, free: int, *, total: int = 80, node: int | None = None, links: tuple[str, ...] = ()) -> DeviceRoom:
    return DeviceRoom(f"g{index}", f"H100 #{index}", index, total * GIB, free * GIB, node=node, links=frozenset(links))


def host(name: str, *devices: DeviceRoom, **more: object) -> HostRoom:
    return replace(HostRoom(sum(map(ord, name)), name, devices), **more)


devices = st.lists(st.integers(0, 80), min_size=0, max_size=6).map(
    lambda frees: tuple(gpu(index, free, node=index // 2) for index, free in enumerate(frees))
)
fleets = st.lists(devices, min_size=1, max_size=4).map(
    lambda lists: [host("abcd"[at], *rows, chosen=at == 0, verified=at % 2 == 0) for at, rows in enumerate(lists)]
)
rules = st.builds(Rule, strategy=st.sampled_from(STRATEGIES), replicas=st.integers(1, 5))
needs = st.builds(
    Need, nbytes=st.integers(1, 60).map(lambda size: size * GIB), devices=st.integers(1, 4), sized=st.booleans()
)

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine draws slowly; that says nothing about placement."""


@calm
@given(fleets, rules, needs)
def test_no_device_is_ever_given_away_beyond_what_is_free(fleet: list[HostRoom], rule: Rule, need: Need) -> None:
    decision = decide(need, fleet, rule)
    free = {(one.pk, device.uuid): device.free for one in fleet for device in one.devices}
    for choice in decision.choices:
        assert len(set(choice.devices)) == need.devices
        for uuid, nbytes in zip(choice.devices, choice.nbytes, strict=True):
            assert nbytes >= need.nbytes
            free[choice.host, uuid] -= nbytes
    assert all(left >= 0 for left in free.values())
    assert len(decision.choices) + decision.missing == rule.replicas


@calm
@given(fleets, rules, needs, st.randoms())
def test_a_decision_does_not_depend_on_the_order_of_what_it_looks_at(
    fleet: list[HostRoom], rule: Rule, need: Need, random: object
) -> None:
    shuffled = [replace(one, devices=tuple(random.sample(one.devices, len(one.devices)))) for one in fleet]
    random.shuffle(shuffled)
    assert decide(need, shuffled, rule) == decide(need, fleet, rule)


@calm
@given(fleets, rules, needs)
def test_every_device_has_its_row_and_its_reason(fleet: list[HostRoom], rule: Rule, need: Need) -> None:
    decision = decide(need, fleet, rule)
    rows = [one for one in decision.verdicts if one.device]
    assert len(rows) == sum(len(one.devices) for one in fleet)
    assert all(one.why for one in decision.verdicts)
    assert sum(one.taken for one in rows) == len(decision.choices) * need.devices


def test_pack_fills_the_fullest_and_spread_takes_the_emptiest() -> None:
    fleet = [host("a", gpu(0, 30), gpu(1, 70), chosen=True, engines=1), host("b", gpu(0, 80))]
    need = Need(20 * GIB)
    packed, spread = (decide(need, fleet, Rule(strategy, 2)) for strategy in ("pack", "spread"))
    assert [(one.host, one.devices) for one in packed.choices] == [(97, ("g0",)), (97, ("g1",))]
    assert [(one.host, one.devices) for one in spread.choices] == [(98, ("g0",)), (97, ("g1",))]


def test_a_tensor_parallel_group_takes_the_gpus_that_are_linked() -> None:
    ends = {0: ("g3",), 3: ("g0",)}
    rows = [gpu(index, 70 if index in (0, 3) else 80, node=index // 2, links=ends.get(index, ())) for index in range(4)]
    decision = decide(Need(40 * GIB, devices=2), [host("a", *rows, chosen=True)], Rule())
    assert decision.choices[0].devices == ("g0", "g3")
    assert "0 hops" in decision.choices[0].why


def test_a_group_stays_on_one_numa_node_where_nothing_is_linked() -> None:
    rows = [gpu(index, free, node=index // 2) for index, free in enumerate((80, 50, 60, 60))]
    decision = decide(Need(40 * GIB, devices=2), [host("a", *rows, chosen=True)], Rule("spread"))
    assert decision.choices[0].devices == ("g2", "g3")


def test_verified_files_come_before_more_room() -> None:
    fleet = [host("a", gpu(0, 50), chosen=True), host("b", gpu(0, 80), verified=False)]
    assert decide(Need(40 * GIB), fleet, Rule("spread")).choices[0].host == fleet[0].pk


def test_labels_ask_for_hosts_and_refuse_them() -> None:
    fleet = [host("a", gpu(0, 80), labels={"zone": "x"}, chosen=True), host("b", gpu(0, 80), labels={"spot": ""})]
    asked = decide(Need(GIB), fleet, Rule("spread", labels={"zone": "x"}))
    assert [one.host for one in asked.choices] == [fleet[0].pk]
    assert asked.verdicts[1].why == "it has no label zone=x"
    refused = decide(Need(GIB), fleet, Rule("spread", labels={"spot": "!"}))
    assert [one.host for one in refused.choices] == [fleet[0].pk]


def test_small_models_share_a_gpu_with_a_share_that_is_sized_to_their_need() -> None:
    need = Need(7 * GIB, sized=True)
    decision = decide(need, [host("a", gpu(0, 80), gpu(1, 80), chosen=True)], Rule("pack", 3))
    assert [one.devices for one in decision.choices] == [("g0",)] * 3
    assert need.share_of(80 * GIB) == 0.09
    assert decision.choices[0].nbytes[0] >= 0.09 * 80 * GIB - 1


def test_what_is_missing_is_said_with_who_holds_it() -> None:
    full = replace(gpu(0, 10), claimed=50 * GIB, others=20 * GIB)
    decision = decide(Need(0, share=0.9), [host("a", full, chosen=True)], Rule())
    assert not decision.holds
    assert decision.verdicts[0].why == "62 GiB too little. 50 GiB are claimed. 20 GiB are held by others."


def test_devices_that_are_alike_share_a_row_of_the_table() -> None:
    wide = host("a", *(gpu(index, 40 if index == 3 else 80) for index in range(6)), chosen=True)
    empty = host("b", trouble="paused")
    places = Places(decide(Need(50 * GIB, devices=2), [wide, empty], Rule("spread")), "", "", {})
    assert [(row.host, row.device, row.size, row.taken) for row in places.rows] == [
        ("a", "H100 #0–1", "room for 80 GiB, 50 GiB each", 1),
        ("a", "H100 #2, #4–5", "room for 80 GiB, 50 GiB each", 0),
        ("a", "H100 #3", "room for 40 GiB, 50 GiB each", 0),
        ("b", "", "", 0),
    ]
    parts = [DeviceRoom(f"MIG-{part}", f"A100 #0.{part}.0", 0, 10 * GIB, 9 * GIB) for part in (11, 9)]
    places = Places(decide(Need(20 * GIB), [host("a", *parts, chosen=True)], Rule()), "", "", {})
    assert [row.device for row in places.rows] == ["A100 #0.9.0, #0.11.0"]
    processor = DeviceRoom("cpu", "AMD EPYC", 0, 80 * GIB, 60 * GIB)
    places = Places(decide(Need(GIB), [host("a", processor, chosen=True)], Rule()), "", "", {})
    assert places.rows[0].device == "AMD EPYC"


def test_where_labels_leave_a_host_out_the_sentence_says_so_instead_of_speaking_of_room() -> None:
    fleet = [host("a", gpu(0, 80), chosen=True), host("b", gpu(0, 10), labels={"zone": "x"})]
    nowhere = decide(Need(20 * GIB), fleet, Rule("spread", labels={"zone": "y"}))
    assert sentence_of(nowhere, Rule()) == "None of the 2 hosts can take it: it has no label zone=y."
    too_small = decide(Need(20 * GIB), fleet, Rule("spread", labels={"zone": "x"}))
    assert sentence_of(too_small, Rule()) == "No device has room for it now. 1 host is left out, see why below."
    alone = decide(Need(20 * GIB), fleet[:1], Rule("spread", labels={"zone": "x"}))
    assert sentence_of(alone, Rule()) == "a can't take it: it has no label zone=x."
