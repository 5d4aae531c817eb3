"""`slipway gateway`: join a console as its gateway, keep HAProxy here as the console says, or end it."""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

from workers.host_config import GatewayConfig, HostConfigError

STOP_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of `slipway gateway`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    join = actions.add_parser("join", help="let this machine serve a console's clients, with a token of its page")
    join.add_argument("url", help="address of the console")
    join.add_argument("--token", required=True, help="one-time token from “Add a gateway”")
    join.add_argument("--config", type=Path, help="where to write the gateway's configuration")
    join.add_argument(
        "--ca-sha256", default="", help="SHA-256 of the console's certificate authority, from the same page"
    )
    wishes = join.add_argument_group(
        "how clients are served", "what is left out stays as this machine's gateway had it"
    )
    wishes.add_argument("--bind", help="address on which clients are served (0.0.0.0)")
    wishes.add_argument("--port", type=int, help="where clients are served (8480); the next one is used on loopback")
    wishes.add_argument("--certificate", help="PEM file with certificate and key, to serve clients with TLS")
    wishes.add_argument("--haproxy", help="path of an HAProxy 2.6 or later, instead of the package's")
    wishes.add_argument("--public-url", help="address that clients use, to be shown on the console's page")
    start = join.add_mutually_exclusive_group()
    start.add_argument("--systemd", action="store_true", help="install and start the agent as a service of systemd")
    start.add_argument("--no-start", action="store_true", help="only join, and print how to start it")
    run_parser = actions.add_parser("run", help="keep HAProxy as the console says, until SIGTERM; HAProxy outlives it")
    stop = actions.add_parser("stop", help="end HAProxy on this machine (`slipway gateway run` must not run)")
    for action in (run_parser, stop):
        place = action.add_mutually_exclusive_group()
        place.add_argument("--config", type=Path, help="the gateway's configuration file")
        place.add_argument("--name", default="gateway", help="name of the gateway whose default file is used")


def run(options: argparse.Namespace) -> int:
    """Run the chosen action and return its exit code."""
    if options.action == "join":
        return _join(options)
    path = (options.config or GatewayConfig.default_path(options.name)).absolute()
    try:
        config = GatewayConfig.load(path)
    except HostConfigError as error:
        print(f"slipway gateway: {error}", file=sys.stderr)
        return 2
    return _run(config, path) if options.action == "run" else _stop(config)


def _join(options: argparse.Namespace) -> int:
    from workers.gateway_machine.joining import Wishes, join
    from workers.gateway_machine.service import install_unit, run_words, systemd_unit, unit_name
    from workers.host.joining import JoinError
    from workers.host.service import ServiceError, unit_path

    if options.port is not None and not 1 <= options.port < 65535:
        print(f"slipway gateway: {options.port} is no port; give one from 1 to 65534", file=sys.stderr)
        return 2
    wishes = Wishes(options.bind, options.port, options.certificate, options.haproxy, options.public_url)
    try:
        config, path = join(options.url, options.token, wishes, config=options.config, ca_sha256=options.ca_sha256)
    except JoinError as error:
        print(f"slipway gateway: {error}", file=sys.stderr)
        return 1
    print(f"gateway {config.name} has joined {config.console_url}; its configuration is {path}", flush=True)
    if options.systemd:
        try:
            print(f"its agent runs as a service: {install_unit(config, path)}", flush=True)
        except (ServiceError, OSError) as error:
            print(f"slipway gateway: the gateway has joined, but its agent was not started: {error}", file=sys.stderr)
            return 1
        return 0
    print(f"\nIt is started by:\n  {shlex.join(run_words(path))}", flush=True)
    print(f"\nor at every boot, with this unit in {unit_path(unit_name(config.name))}:\n", flush=True)
    print(systemd_unit(config.name, path), flush=True)
    return 0 if options.no_start else _run(config, path)


def _run(config: GatewayConfig, path: Path) -> int:
    from workers.gateway.program import NoHAProxy
    from workers.gateway_machine.agent import Agent
    from workers.host.agent_lock import AgentLock, AlreadyRunningError
    from workers.host.logging_setup import set_up_logging

    set_up_logging("gateway")
    try:
        config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = AgentLock(config.state_dir, config.name)
        agent = Agent(config, path)
    except (AlreadyRunningError, NoHAProxy) as error:
        print(f"slipway gateway: {error}", file=sys.stderr)
        return 1

    def stop(*_: object) -> None:
        agent.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    anew = agent.run()
    lock.release()
    if anew:
        words = [sys.executable, "-P", "-m", "workers.cli", "gateway", "run", "--config", str(path)]
        os.execv(sys.executable, words)  # noqa: S606 - an argv list, no shell
    return 0


def _stop(config: GatewayConfig) -> int:
    from workers.gateway import program
    from workers.gateway_machine.haproxy_process import HAProxyProcess
    from workers.host.agent_lock import AgentLock, AlreadyRunningError

    try:
        # A running agent would start it again.
        lock = AgentLock(config.state_dir, config.name)
        ended = HAProxyProcess(program.find(config.haproxy), config.state_dir).stop(STOP_SECONDS)
    except (AlreadyRunningError, program.NoHAProxy) as error:
        print(f"slipway gateway: {error}", file=sys.stderr)
        return 1
    lock.release()
    print("HAProxy has ended" if ended else "HAProxy could not be ended")
    return 0 if ended else 1
