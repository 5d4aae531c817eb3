"""A gateway with its controller, and with it the driver of rollouts; engines that can be made slow, wrong or dead."""

import pytest

from console.deployments.models import Deployment, Instance
from console.gateway import routes
from console.gateway.models import Route
from console.gateway.routes import Share
from console.jobs.models import Job
from tests.factories import Fleet
from tests.gateway.test_controller import controlled, engine, place

__all__ = ["controlled", "engine", "place"]


@pytest.fixture
def deployment(fleet: Fleet) -> Deployment:
    """It serves with one instance, behind the route `chat`."""
    fleet.deploy(name="chat-a")
    Deployment.objects.update(state="serving")
    Job.objects.update(state="succeeded")
    Instance.objects.update(state="ready", port=9001, run=True, ordered=True, bring_up="agent")
    found = Deployment.objects.get()
    routes.save(Route(name="chat"), aliases=[], shares=[Share(found)], actor=None)
    return found
