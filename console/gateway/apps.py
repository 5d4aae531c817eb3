"""Set-up of the gateway."""

from django.apps import AppConfig


class GatewayConfig(AppConfig):
    """One OpenAI endpoint over all deployments: routes, keys, admission, usage."""

    name = "console.gateway"
    label = "gateway"

    def ready(self) -> None:
        """Tell deployments under which names routes send them requests, and where clients reach them."""
        from console.deployments import public
        from console.gateway import adapters, names, routes

        public.name_by(names.of_deployment)
        public.reach_by(names.endpoint)
        public.publish_by(routes.publish)
        public.keep_names_by(adapters.why_taken)
