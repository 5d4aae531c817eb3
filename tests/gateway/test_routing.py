"""Where requests go: weights, versions, fallbacks, sessions, the long lane; and what happens when engines come and go."""

import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from tests.gateway.backend import BINARY, Engine, Running, key_of, route_of, server_of, target_of, wait_until
from workers.gateway import config, maps
from workers.gateway.applying import Applier
from workers.gateway.description import Gateway, Limits, Listener, within
from workers.gateway.keeping import RELOAD_PAUSE_SECONDS

KEYS = (key_of("secret", routes=(1, 2)),)


def answered_by(haproxy: Running, times: int, **extra: Any) -> Counter[str]:
    seen: Counter[str] = Counter()
    with haproxy.client() as client:
        for _number in range(times):
            answer = client.post("/v1/chat/completions", json={"model": "chat", "messages": []}, **extra)
            assert answer.status_code == 200, answer.text
            seen[answer.json()["choices"][0]["message"]["content"].rpartition(" ")[2]] += 1
    return seen


def both(engine: Engine, second: Engine, first_weight: int, second_weight: int, **changes: Any) -> tuple[Any, ...]:
    targets = (target_of(engine, 1, weight=first_weight), target_of(second, 2, weight=second_weight, **changes))
    return (route_of(*targets),)


def test_weights_divide_and_change_without_a_reload(haproxy: Running, engine: Engine, second: Engine) -> None:
    haproxy.start(routes=both(engine, second, 90, 10), keys=KEYS)
    seen = answered_by(haproxy, 200)
    assert 5 <= seen["second"] <= 45
    assert haproxy.change(routes=both(engine, second, 0, 100)).way == "runtime"
    assert answered_by(haproxy, 20) == {"second": 20}


def test_a_weight_changes_under_load_without_a_failed_request(haproxy: Running, engine: Engine, second: Engine) -> None:
    haproxy.start(routes=both(engine, second, 100, 0), keys=KEYS)
    statuses: Counter[int] = Counter()
    done = threading.Event()

    def load() -> None:
        while not done.is_set():
            statuses[haproxy.ask().status_code] += 1

    threads = [threading.Thread(target=load) for _number in range(3)]
    for thread in threads:
        thread.start()
    for weight in (1, 5, 25, 50, 100):
        haproxy.change(routes=both(engine, second, 100 - weight, weight))
    # A second name needs a reload, which nobody notices either.
    renamed = (replace(haproxy.gateway.routes[0], names=("chat", "also"), queue_limit=99),)
    assert haproxy.change(routes=renamed).way == "reload"
    done.set()
    for thread in threads:
        thread.join(10)
    assert set(statuses) == {200}
    assert second.asked


def test_a_version_is_reached_by_its_header_and_an_unknown_one_is_refused(
    haproxy: Running, engine: Engine, second: Engine
) -> None:
    haproxy.start(routes=both(engine, second, 100, 0, version="next"), keys=KEYS)
    assert answered_by(haproxy, 5) == {"engine": 5}
    assert answered_by(haproxy, 5, headers={"X-Model-Version": "next"}) == {"second": 5}
    refused = haproxy.ask(headers={"X-Model-Version": "old"})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "version_not_found"


def test_long_requests_have_a_lane_of_their_own(haproxy: Running, engine: Engine, second: Engine) -> None:
    routes = (replace(both(engine, second, 100, 0, is_long_lane=True)[0], long_tokens=1000),)
    haproxy.start(routes=routes, keys=KEYS)
    assert "from engine" in haproxy.ask().text
    assert "from second" in haproxy.ask(user="x" * 4000).text


def test_a_session_stays_with_its_instance(haproxy: Running, engine: Engine, second: Engine) -> None:
    target = replace(target_of(engine, 1), servers=(server_of(engine, 1), server_of(second, 2)))
    haproxy.start(routes=(route_of(target, balance="session"),), keys=KEYS)
    firsts = set()
    for number in range(12):
        seen = answered_by(haproxy, 4, headers={"X-Session-Id": f"person-{number}"})
        assert len(seen) == 1
        firsts |= set(seen)
    assert firsts == {"engine", "second"}


def test_equal_system_prompts_meet_the_same_instance(haproxy: Running, engine: Engine, second: Engine) -> None:
    target = replace(target_of(engine, 1), servers=(server_of(engine, 1), server_of(second, 2)))
    haproxy.start(routes=(route_of(target, balance="prefix"),), keys=KEYS)
    seen: dict[str, set[str]] = {}
    for number in range(48):
        system = f"You are assistant {number % 12}."
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"question {number}"}]
        seen.setdefault(system, set()).add(haproxy.ask(messages=messages).json()["choices"][0]["message"]["content"])
    assert all(len(one) == 1 for one in seen.values())
    assert len(set().union(*seen.values())) == 2


def test_an_engine_that_ends_is_replaced_by_another_and_the_answer_says_so(
    haproxy: Running, engine: Engine, second: Engine
) -> None:
    other = route_of(target_of(second, 2), number=2, names=("spare",))
    haproxy.start(routes=(route_of(target_of(engine), fallback=2), other), keys=KEYS)
    assert "x-slipway-fallback" not in haproxy.ask().headers
    engine.healthy = False
    seconds = wait_until(lambda: haproxy.ask().headers.get("x-slipway-fallback") == "second", seconds=5)
    assert seconds < 2.5
    assert "from second" in haproxy.ask().text
    engine.healthy = True
    wait_until(lambda: "x-slipway-fallback" not in haproxy.ask().headers, seconds=5)


def test_an_engine_that_hangs_is_out_within_two_seconds(haproxy: Running, engine: Engine, second: Engine) -> None:
    haproxy.start(routes=both(engine, second, 100, 0), keys=KEYS)
    engine.hang = True

    def is_down() -> bool:
        return not haproxy.applier.api.servers()["b1", "i1"].is_up

    assert wait_until(is_down, seconds=5) < 2.5
    refused = haproxy.ask()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "no_instance"


def test_an_engine_that_only_makes_errors_is_put_aside_within_two_seconds(
    haproxy: Running, engine: Engine, second: Engine
) -> None:
    target = replace(target_of(engine, 1), servers=(server_of(engine, 1), server_of(second, 2)))
    haproxy.start(routes=(route_of(target),), keys=KEYS)
    took: list[float] = []

    def watch() -> None:
        engine.status = 500
        took.append(wait_until(lambda: not haproxy.applier.api.servers()["b1", "i1"].is_up, seconds=8))

    def load() -> None:
        with haproxy.client() as client:
            while watcher.is_alive():
                client.post("/v1/chat/completions", json={"model": "chat"})

    assert haproxy.ask().status_code == 200
    watcher = threading.Thread(target=watch)
    watcher.start()
    clients = [threading.Thread(target=load) for _number in range(4)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(10)
    assert took
    assert took[0] < 2.5
    assert haproxy.ask().status_code == 200


def test_servers_come_and_go_without_a_reload_and_streams_are_not_cut(
    haproxy: Running, engine: Engine, second: Engine
) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=KEYS)
    engine.pieces = engine.events(["a"] * 30)
    engine.pause_seconds = 0.05
    texts: list[bytes] = []
    thread = threading.Thread(target=lambda: texts.append(haproxy.ask(stream=True).content))
    thread.start()
    wait_until(lambda: engine.asked, seconds=5)
    moved = replace(target_of(engine, 1), servers=(server_of(second, 2),))
    assert haproxy.change(routes=(route_of(moved),)).way == "runtime"
    wait_until(lambda: haproxy.ask().text.find("from second") > 0, seconds=5)
    thread.join(10)
    assert texts[0].endswith(b"data: [DONE]\n\n")
    wait_until(lambda: haproxy.change() and ("b1", "i1") not in haproxy.applier.api.servers(), seconds=20)
    assert "server i2" in (haproxy.directory / "haproxy.cfg").read_text()


def test_a_draining_instance_gets_nothing_new(haproxy: Running, engine: Engine, second: Engine) -> None:
    servers = (server_of(engine, 1), server_of(second, 2))
    haproxy.start(routes=(route_of(replace(target_of(engine, 1), servers=servers)),), keys=KEYS)
    draining = (server_of(engine, 1, draining=True), server_of(second, 2))
    assert haproxy.change(routes=(route_of(replace(target_of(engine, 1), servers=draining)),)).way == "runtime"
    assert answered_by(haproxy, 20) == {"second": 20}


def test_a_revoked_key_is_refused_at_once(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=KEYS)
    assert haproxy.ask().status_code == 200
    assert haproxy.change(keys=()).way == "runtime"
    assert haproxy.ask().status_code == 401


def test_counters_survive_a_reload(haproxy: Running, engine: Engine) -> None:
    keys = (key_of("secret", limits=Limits(requests_per_minute=5)),)
    haproxy.start(routes=(route_of(target_of(engine)),), keys=keys)
    # Only a process that has settled hands its counters on; the controller waits for that, too.
    time.sleep(RELOAD_PAUSE_SECONDS)
    assert [haproxy.ask().status_code for _number in range(4)] == [200] * 4
    assert haproxy.change(routes=(route_of(target_of(engine), queue_seconds=31),)).way == "reload"
    wait_until(lambda: "k1" in haproxy.applier.api.ask("show table requests"), seconds=5)
    assert [haproxy.ask().status_code for _number in range(2)] == [200, 429]


def test_what_someone_changed_by_hand_is_put_right(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=KEYS)
    api = haproxy.applier.api
    assert not haproxy.applier.repair(haproxy.gateway)
    api.ask(f"clear map {haproxy.directory}/maps/keys.map")
    api.ask("set server b1/i1 state maint")
    assert haproxy.ask().status_code == 401
    assert haproxy.applier.repair(haproxy.gateway)
    wait_until(lambda: haproxy.ask().status_code == 200, seconds=5)


def test_a_configuration_that_haproxy_refuses_leaves_the_last_good_one(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=KEYS)
    good = (haproxy.directory / "haproxy.cfg").read_text()
    broken = haproxy.change(listener=replace(haproxy.gateway.listener, certificate="/nowhere/tls.pem"))
    assert broken.way == "nothing"
    assert "/nowhere/tls.pem" in broken.problem
    assert (haproxy.directory / "haproxy.cfg").read_text() == good
    assert haproxy.ask().status_code == 200


def test_a_new_controller_takes_over_what_runs(haproxy: Running, engine: Engine) -> None:
    haproxy.start(routes=(route_of(target_of(engine)),), keys=KEYS)
    assert Applier(haproxy.directory, BINARY).apply(haproxy.gateway).way == "nothing"


def test_shares_of_a_hundred_add_up() -> None:
    for weights in ((1, 1, 1), (99, 1), (100, 100, 100, 1), (5,), (0, 7)):
        targets = tuple(
            target_of(Engine(name=f"e{number}", port=1), number, weight=weight)
            for number, weight in enumerate(weights, start=1)
        )
        slots = maps.slots(route_of(*targets))
        assert len(slots) == 100
        assert set(slots) == {f"b{number}" for number, weight in enumerate(weights, start=1) if weight}
    assert maps.slots(route_of()) == []


def test_the_same_description_gives_the_same_text(engine: Engine) -> None:
    one = Gateway(Listener("/d", "/l"), routes=(route_of(target_of(engine)),), keys=KEYS)
    assert config.render(one) == config.render(replace(one))
    moved = replace(one, routes=(route_of(replace(target_of(engine), servers=())),))
    assert config.skeleton(one) == config.skeleton(moved)
    assert config.render(one) != config.render(moved)


def test_a_spec_that_is_rolled_out_gets_its_share_and_those_who_ask_for_it(
    haproxy: Running, engine: Engine, second: Engine
) -> None:
    old = target_of(engine, weight=9900)
    new = replace(
        target_of(second, number=1, servers=(server_of(second, 2),)), is_canary=True, weight=0, version="next"
    )
    haproxy.start(routes=(route_of(old, new),), keys=(key_of("secret"),))
    asked = [haproxy.ask().json()["choices"][0]["message"]["content"] for _number in range(20)]
    assert set(asked) == {"hello from engine"}
    pinned = haproxy.ask(headers={"X-Model-Version": "next", "X-Request-Id": "pinned"})
    assert "second" in pinned.text
    assert haproxy.line("pinned")["backend"] == "b1n"
    outcome = haproxy.change(routes=(route_of(replace(old, weight=0), replace(new, weight=10_000)),))
    assert outcome.way == "runtime"
    assert "second" in haproxy.ask().text


def test_a_weight_does_not_wait_for_a_reload_that_another_change_needs(
    haproxy: Running, engine: Engine, second: Engine
) -> None:
    old, new = target_of(engine, weight=50), target_of(second, 2, weight=50)
    haproxy.start(routes=(route_of(old, new),), keys=(key_of("secret"),))
    wanted = replace(
        haproxy.gateway,
        routes=(route_of(old, replace(new, weight=0), target_of(second, 3, weight=7)), route_of(old, number=2)),
    )
    possible = within(haproxy.gateway, wanted)
    assert config.skeleton(possible) == config.skeleton(haproxy.gateway)
    assert haproxy.applier.apply(possible).way == "runtime"
    assert set(answered_by(haproxy, 20)) == {"engine"}
