"""Celery applications: one for the console, one per host.

Facts behind the settings (measured): early acknowledgement together with a disabled prefetch runs each task once; late
acknowledgement runs a long task again after the visibility timeout. A network partition loses what Redis has already
handed out, so every intent also lives in the console's database, which sends it again.
"""

import ssl
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery

from workers.contracts import host_queue, key_prefix

_COMMON: dict[str, Any] = {
    "task_serializer": "json",
    "accept_content": ["json"],
    "task_ignore_result": True,
    "task_acks_late": False,
    "worker_disable_prefetch": True,
    "worker_prefetch_multiplier": 1,
    "worker_hijack_root_logger": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "task_create_missing_queues": True,
}


def tls_options(redis_url: str, authority: str = "") -> dict[str, Any]:
    """What a `rediss://` address needs beside itself, as keyword arguments of redis-py; nothing for `redis://`.

    `authority` (PEM) is the only one believed; without it the system's, or the file in the address (`ssl_ca_certs`), is.
    Certificate and name are always checked: Celery by itself would check neither.
    """
    if not redis_url.startswith("rediss://"):
        return {}
    found: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    if authority:
        found["ssl_ca_data"] = authority
    elif files := parse_qs(urlsplit(redis_url).query).get("ssl_ca_certs"):
        found["ssl_ca_certs"] = files[0]
    return found


def console_app(redis_url: str) -> Celery:
    """Build the console's own application: queue `console`, for thin tasks that call a service."""
    app = Celery("slipway-console", broker=redis_url)
    app.conf.update(
        _COMMON,
        task_default_queue="console",
        broker_transport_options=_transport("console:"),
        broker_use_ssl=tls_options(redis_url) or None,
    )
    return app


def host_app(host: str, redis_url: str, authority: str = "") -> Celery:
    """Build the application that sends to, or works for, one host: its queue, behind its key prefix.

    `redis_url` carries the credentials: the console's own on the console, the host's on the host. `authority`: see
    `tls_options`.
    """
    app = Celery(f"slipway-host-{host}", broker=redis_url, set_as_current=False)
    app.conf.update(
        _COMMON,
        task_default_queue=host_queue(host),
        broker_transport_options=_transport(key_prefix(host)),
        broker_use_ssl=tls_options(redis_url, authority) or None,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
    )
    return app


def _transport(prefix: str) -> dict[str, Any]:
    return {
        "global_keyprefix": prefix,
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "retry_on_timeout": True,
        "health_check_interval": 10,
    }
