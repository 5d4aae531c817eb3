"""`slipway host`: join a console, run or keep this machine's agent, look at its engines, or end them all."""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from workers.host_config import HostConfig, HostConfigError

STOP_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of `slipway host`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    join_parser = actions.add_parser("join", help="let this machine take part in a console, with a token of its page")
    join_parser.add_argument("url", help="address of the console")
    join_parser.add_argument("--token", required=True, help="one-time token from “Add host”")
    join_parser.add_argument("--config", type=Path, help="where to write the host's configuration")
    join_parser.add_argument(
        "--ca-sha256", default="", help="SHA-256 of the console's certificate authority, from the same page"
    )
    start = join_parser.add_mutually_exclusive_group()
    start.add_argument("--systemd", action="store_true", help="install and start the agent as a service of systemd")
    start.add_argument("--run", action="store_true", help="run the agent right away, in the foreground")
    start.add_argument("--no-start", action="store_true", help="only join, and print how to start the agent")
    run_parser = actions.add_parser("run", help="run the host's agent until SIGTERM; engines outlive it")
    keep = actions.add_parser("keep", help="run the agent, start it again when it ends, and carry its upgrades out")
    status = actions.add_parser("status", help="show which instances run here")
    stop = actions.add_parser("stop", help="end every instance on this host (the agent must not run)")
    for action in (run_parser, keep, status, stop):
        place = action.add_mutually_exclusive_group()
        place.add_argument("--config", type=Path, help="the host's configuration file")
        place.add_argument("--name", default="local", help="name of the host whose default file is used")
    for action in (status, stop):
        action.add_argument("--json", action="store_true", help="print one JSON object")
    stop.add_argument("--grace-seconds", type=float, default=20.0, help="time for an orderly end before KILL")


def run(options: argparse.Namespace) -> int:
    """Run the chosen action and return its exit code."""
    if options.action == "join":
        return _join(options)
    path = options.config or HostConfig.default_path(options.name)
    try:
        config = HostConfig.load(path)
    except HostConfigError as error:
        print(f"slipway host: {error}", file=sys.stderr)
        return 2
    if options.action == "run":
        return _run_agent(config, path)
    if options.action == "keep":
        return _keep(config, path)
    if options.action == "stop":
        return _stop(config, options.grace_seconds, as_json=options.json)
    return _status(config, as_json=options.json)


def _join(options: argparse.Namespace) -> int:
    from workers.host.joining import JoinError, join
    from workers.host.service import ServiceError, trust_this_version

    try:
        config, path = join(options.url, options.token, config=options.config, ca_sha256=options.ca_sha256)
    except JoinError as error:
        print(f"slipway host: {error}", file=sys.stderr)
        return 1
    print(f"host {config.name} has joined {config.console_url}; its configuration is {path}", flush=True)
    trust_this_version(path)
    if options.run:
        return _run_agent(config, path)
    try:
        _start(options, config, path)
    except (ServiceError, OSError) as error:
        print(f"slipway host: the host has joined, but its agent was not started: {error}", file=sys.stderr)
        return 1
    return 0


def _start(options: argparse.Namespace, config: HostConfig, path: Path) -> None:
    """Start the agent as asked for, and say how it is started otherwise."""
    from workers.host.keeper import current_link
    from workers.host.service import install_unit, start_detached, systemd_unit, unit_name, unit_path

    if options.systemd:
        print(f"its agent runs as a service: {install_unit(config, path)}")
        return
    if not options.no_start:
        print(f"its agent runs: process {start_detached(config, path)}, log {config.state_dir / 'agent.log'}")
    command = f"{current_link(path) / 'bin' / 'python'} -P -m workers.cli host keep --config {path}"
    print(
        f"\nIt is started by:\n  {command}\n\nor at every boot, with this unit in {unit_path(unit_name(config.name))}:\n"
    )
    print(systemd_unit(config.name, path))


def _keep(config: HostConfig, path: Path) -> int:
    from workers.host.keeper import Keeper
    from workers.host.logging_setup import set_up_logging

    set_up_logging("keeper")
    return Keeper(path, config.state_dir).run()


def _run_agent(config: HostConfig, path: Path) -> int:
    from workers.host.agent import Agent
    from workers.host.agent_lock import AlreadyRunningError
    from workers.host.logging_setup import set_up_logging

    set_up_logging("agent")

    async def supervise() -> bool:
        agent = Agent(config, path)
        await agent.run()
        return agent.starts_anew

    try:
        anew = asyncio.run(supervise())
    except AlreadyRunningError as error:
        print(f"slipway host: {error}", file=sys.stderr)
        return 1
    if anew:
        words = [sys.executable, "-P", "-m", "workers.cli", "host", "run", "--config", str(path.absolute())]
        os.execv(sys.executable, words)  # noqa: S606 - an argv list, no shell
    return 0


def _status(config: HostConfig, *, as_json: bool) -> int:
    from workers.host.instance_files import InstanceFiles

    rows = []
    for files in InstanceFiles.all_in(config.state_dir):
        state, order = files.state(), files.order()
        if state is None:
            continue
        alive = state.unfinished and state.engine_alive
        rows.append(
            {
                "instance": str(files.instance),
                "deployment": order.deployment if order else "",
                "state": state.state if alive or not state.unfinished else "lost",
                "attempt": state.attempt,
                "pid": state.pid if alive else None,
                "port": order.port if order else None,
                "exit_code": state.exit_code,
            }
        )
    if as_json:
        print(json.dumps({"host": config.name, "instances": rows}))
    else:
        for row in rows:
            print(f"{row['instance']}  {row['state']:9} {row['deployment']}  pid {row['pid']}  port {row['port']}")
        if not rows:
            print(f"nothing has run on host {config.name} yet")
    return 0


def _stop(config: HostConfig, grace_seconds: float, *, as_json: bool) -> int:
    """Ask every shim to stop, then wait until the last process is gone."""
    from workers.host.agent_lock import AgentLock, AlreadyRunningError
    from workers.host.drivers.choosing import driver_of
    from workers.host.instance_files import InstanceFiles

    try:
        # A running agent would start them again, as the desired state says.
        lock = AgentLock(config.state_dir, config.name)
    except AlreadyRunningError as error:
        print(f"slipway host: {error}", file=sys.stderr)
        if as_json:
            print(json.dumps({"host": config.name, "stopped": [], "left": None, "error": str(error)}))
        return 1
    driver = driver_of(config)
    everything = InstanceFiles.all_in(config.state_dir)
    waiting = [files for files in everything if (state := files.state()) is not None and state.unfinished]
    for files in waiting:
        driver.stop(files, grace_seconds)
    deadline = time.monotonic() + grace_seconds + STOP_SECONDS
    left = waiting
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = [files for files in left if (state := files.state()) is not None and state.unfinished]
    lock.release()
    stopped = [str(files.instance) for files in waiting if files not in left]
    if as_json:
        print(json.dumps({"host": config.name, "stopped": stopped, "left": [str(files.instance) for files in left]}))
    else:
        print(f"stopped {len(stopped)} instances; {len(left)} could not be ended")
    return 0 if not left else 1
