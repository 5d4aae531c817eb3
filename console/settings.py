"""Django's settings. Everything that differs between installations comes from `console.env`."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog
from csp.constants import NONE, SELF
from django.utils.translation import gettext_lazy as _

from console import env

BASE_DIR = Path(__file__).resolve().parent.parent
ENV = env.environment()

SECRET_KEY = ENV.slipway_secret_key or env.generated_secrets()["secret_key"]
ENCRYPTION_KEYS = [key.strip() for key in ENV.slipway_encryption_keys.split(",") if key.strip()] or [
    env.generated_secrets()["encryption_key"]
]
DEBUG = ENV.slipway_debug
ALLOWED_HOSTS = [name.strip() for name in ENV.slipway_allowed_hosts.split(",") if name.strip()]
ALLOWED_HOSTS += [f"[{name}]" if ":" in name else name for name in ENV.hosts_names]
CSRF_TRUSTED_ORIGINS = [ENV.slipway_public_url] if ENV.slipway_public_url else []

INSTALLED_APPS = [
    "channels",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_filters",
    "django_htmx",
    "django_structlog",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "console.common",
    "console.access",
    "console.fleet",
    "console.catalog",
    "console.jobs",
    "console.deployments",
    "console.gateway",
    "console.telemetry",
    "console.benchmarks",
    "console.studies",
    "console.quantization",
    "console.rollouts",
    "console.alerts",
    "console.oncall",
    "console.operations",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "console.common.middleware.SecureCookiesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "console.access.middleware.PersonMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "console.common.middleware.PlainErrorsMiddleware",
]

ROOT_URLCONF = "console.urls"
ASGI_APPLICATION = "console.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.common.context.shell",
            ]
        },
    }
]


def _database(url: str) -> dict[str, Any]:
    if not url or url.startswith("sqlite:///"):
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": url.removeprefix("sqlite:///") or str(ENV.console_dir / "db.sqlite3"),
            "OPTIONS": {
                # Several processes share the file: writers queue up front instead of failing half-way (DESIGN §7).
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=134217728;",
            },
        }
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 0,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": 8, "timeout": 10}},
    }


ENV.console_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
DATABASES = {"default": _database(ENV.database_url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.redis_url()
CHANNEL_LAYERS = {
    "default": {
        # The plain layer drops messages past 100 queued ones; the PubSub layer delivered all of them when measured.
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "console:live"},
    }
}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

AUTH_USER_MODEL = "access.User"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "overview"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_ADAPTER = "console.access.adapter.ClosedAdapter"
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_RATE_LIMITS = {"login_failed": "10/m/ip,5/300s/key"}
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
SESSION_COOKIE_AGE = 14 * 24 * 3600

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "console" / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = ENV.slipway_time_zone
USE_THOUSAND_SEPARATOR = True

STATIC_URL = "static/"
STATIC_ROOT = ENV.console_dir / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV.slipway_https
SECURE_SSL_REDIRECT = ENV.slipway_https
SECURE_HSTS_SECONDS = 31_536_000 if ENV.slipway_https else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = ENV.slipway_https
# The TLS front for other machines sets the header; the web process itself is then reached on loopback only.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENV.slipway_https or ENV.hosts_names else None
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:", "blob:"],  # a chart that is saved as a picture is an image of its own SVG first
        "font-src": [SELF],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

LOGS_DIR = ENV.console_dir / "logs"
LOGS_KEEP_DAYS = ENV.slipway_logs_keep_days
LOGS_KEEP_BYTES = int(ENV.slipway_logs_keep_gib * 2**30)

structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    cache_logger_on_first_use=True,
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {
            "()": structlog.stdlib.ProcessorFormatter,
            "processor": structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
            "foreign_pre_chain": [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso")],
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": ENV.slipway_log_level},
    "loggers": {
        "django.server": {"level": "WARNING"},
        "django_structlog": {"level": "WARNING"},
        "uvicorn.access": {"level": "WARNING"},
        "daphne": {"level": "WARNING"},
    },
}
