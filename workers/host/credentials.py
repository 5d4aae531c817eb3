"""New credentials for this host, on the console's order: a new password for the broker and, if asked, a new key pair.

The broker accepts the old and the new password until the console has seen this host with the new one, so nothing is lost
whatever fails in between. The agent proves the new password first, writes its configuration, and starts itself anew.
"""

import logging
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from redis.exceptions import RedisError

from workers.contracts import CredentialsOrder
from workers.host.redis_link import Address, connect
from workers.host_config import KEPT_KEYS, JoinedConfig
from workers.sealing import SealingError, generate_key_pair, unseal_any

logger = logging.getLogger(__name__)


async def take_over(order: CredentialsOrder | None, config: JoinedConfig, path: Path) -> bool:
    """Write the ordered credentials into the configuration at `path`; False if there is nothing new, or it can't be yet."""
    if order is None or order.number <= config.credentials:
        return False
    try:
        password = unseal_any(config.private_keys, order.sealed_password)
    except SealingError as error:
        logger.error("new credentials can't be opened, the old ones stay: %s", error)  # noqa: TRY400 - it is no fault here
        return False
    url = with_password(config.redis_url, password)
    client = connect(Address(url, config.broker_ca))
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        logger.warning("the broker does not take the new password yet, the old one stays: %s", error)
        return False
    finally:
        await client.aclose()
    changes: dict[str, object] = {"redis_url": url, "credentials": order.number}
    if order.new_key:
        retired = list(config.private_keys)[:KEPT_KEYS]
        changes |= {"private_key": generate_key_pair()[0], "retired_keys": retired}
    config.model_copy(update=changes).save(path)
    logger.info("credentials %d are in use from now on", order.number)
    return True


def with_password(redis_url: str, password: str) -> str:
    """`redis_url` with another password."""
    parts = urlsplit(redis_url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{place}"))
