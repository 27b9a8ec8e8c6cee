"""caboose.toml: its sections and keys, and one clear error line for anything invalid.

Design
------
Sections are frozen dataclasses; their fields, types and docstrings are the whole specification. Loading is strict: an
unknown key, a wrong type or a value out of range stops the start with one line that names file, key and value, and for
an unknown key the nearest valid one. Flags and environment variables are merged in by the command line. Thresholds
posted to a running daemon go through the same checks (`build_rules`).
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qs, urlsplit

from caboose_daemon.rollback_state.settings import RollbackConfig
from caboose_daemon.rules import RULES
from caboose_daemon.rules.parts.rule import RuleConfig
from caboose_wire.endpoints import DEFAULT_ENDPOINT, DEFAULT_HTTP, split_http, split_tcp

S = TypeVar("S")
Tables = Mapping[str, Mapping[str, Any]]
"""Thresholds set explicitly, by rule."""
SECTIONS = ("daemon", "journal", "alignment", "metrics", "otlp", "grafana", "export", "rollback", "store", "fleet")
"""Sections besides the rules; changing them takes a restart."""


class ConfigError(ValueError):
    """The configuration is invalid; the message is one line for the user."""


@dataclass(frozen=True)
class DaemonConfig:
    """`[daemon]`: addresses, data directory, access."""

    listen: str = DEFAULT_ENDPOINT
    """Address agents report to, tcp://host:port; port 0 takes a free one."""
    http: str = DEFAULT_HTTP
    """Address of the page, the API and /metrics, host:port; port 0 takes a free one."""
    data_dir: str = "caboose-data"
    """Directory of the journal and the token; created if missing."""
    keys: str = ""
    """Directory made by `caboose keys new`; with it, only agents with a key are accepted."""
    token_file: str = ""
    """File with the token required for HTTP writes. Empty: one is made in data_dir, for use on this machine."""
    read_token_file: str = ""
    """File with the token required to read over HTTP: API, page and /metrics. Empty: reading is open."""
    tls_cert: str = ""
    """File with the certificate chain, PEM. With it and tls_key, HTTP is served over TLS."""
    tls_key: str = ""
    """File with the private key of tls_cert, PEM, without a passphrase."""
    external_url: str = ""
    """Address at which people reach the page: the links of alerts, runbooks and agents begin with it. Empty: this
    machine's name and the port of `http`, or the loopback address if that is all it listens on."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names accepted in HTTP requests, besides the bound one and this machine's."""
    abandoned_seconds: float = 3600.0
    """Seconds without a message from any rank after which a job counts as lost and its incidents
    close. Raise it if whole jobs are suspended for longer."""
    linger_seconds: float = 0.0
    """On SIGTERM, stay up to this long while incidents may still open or be scraped; a second signal ends it at once.
    For daemons that end with their job: more than incident_seconds, less than the scheduler's grace period."""
    insecure: bool = False
    """Allow addresses reachable from other machines without keys or token. Only on a network you trust."""

    def __post_init__(self) -> None:
        for name, check in (("listen", split_tcp), ("http", split_http)):
            try:
                check(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name} = {getattr(self, name)!r}: {error}") from None
        if self.external_url and not self.external_url.startswith(("http://", "https://")):
            raise ValueError(f"external_url = {self.external_url!r}: expected http://host:port or https://host/path")
        _must_be_positive(self, "abandoned_seconds")
        if not self.linger_seconds >= 0:
            raise ValueError(f"linger_seconds = {self.linger_seconds!r}: must not be below 0")
        if bool(self.tls_cert) != bool(self.tls_key):
            given, other = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ValueError(f"{given} = {getattr(self, given)!r}: needs {other} as well")


@dataclass(frozen=True)
class JournalConfig:
    """`[journal]`: retention, and what to do with a damaged one."""

    max_steps: int = 2_000_000
    """Steps kept per job; the oldest go first. A million take about 100 MB."""
    retention_days: float = 90.0
    """Days after which steps, events and closed episodes are deleted."""
    strict: bool = False
    """Refuse to start on a damaged journal. Otherwise it is kept aside, and a fresh one is begun."""

    def __post_init__(self) -> None:
        _must_be_positive(self, "max_steps", "retention_days")


@dataclass(frozen=True)
class AlignmentConfig:
    """`[alignment]`: how long a step waits for its slowest rank."""

    min_deadline_seconds: float = 2.0
    """Minimum wait of a step for its slowest rank."""
    deadline_steps: float = 3.0
    """Minimum wait in median step times; the larger of the two applies."""

    def __post_init__(self) -> None:
        _must_be_positive(self, "min_deadline_seconds", "deadline_steps")


SAFE_INCIDENT_SECONDS = 120.0
"""Minimum the alerts need: one minute `for` of the quickest ticket, plus one evaluation per minute."""


@dataclass(frozen=True)
class MetricsConfig:
    """`[metrics]`: what Prometheus scrapes."""

    incident_seconds: float = SAFE_INCIDENT_SECONDS
    """Minimum time an incident is exported, however short it is. Must be longer than two scrapes and the quickest
    ticket's `for`: below 120 the daemon warns at start."""

    def __post_init__(self) -> None:
        _must_be_positive(self, "incident_seconds")


SIGNALS = ("metrics", "logs", "traces")


@dataclass(frozen=True)
class OtlpConfig:
    """`[otlp]`: metrics, incidents and attempts pushed over OTLP. Needs the extra `otel`."""

    endpoint: str = ""
    """Address of a collector, http://host:port or https://host:port. Empty: nothing is pushed."""
    protocol: Literal["grpc", "http"] = "grpc"
    """grpc (usually port 4317), or http (usually port 4318; /v1/metrics, /v1/logs and /v1/traces are added)."""
    signals: tuple[str, ...] = SIGNALS
    """What is pushed: metrics, logs (incidents), traces (attempts)."""
    interval_seconds: float = 30.0
    """Seconds between two pushes of metrics. Incidents are pushed at once."""
    timeout_seconds: float = 5.0
    """Seconds after which a request that was not answered has failed."""
    headers_file: str = ""
    """File with headers of the requests, such as a token: one `name: value` a line."""
    certificate_file: str = ""
    """File with the certificates that an https endpoint is checked with, PEM. Empty: those of the system."""

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint = {self.endpoint!r}: expected http://host:port or https://host:port")
        if not self.signals or set(self.signals) - set(SIGNALS):
            raise ValueError(f"signals = {list(self.signals)!r}: use some of {', '.join(map(repr, SIGNALS))}")
        _must_be_positive(self, "interval_seconds", "timeout_seconds")


@dataclass(frozen=True)
class GrafanaConfig:
    """`[grafana]`: the Grafana that gets annotations of incidents, and dashboards from `caboose grafana push`."""

    url: str = ""
    """Address, http://host:port/path. Empty: nothing is posted."""
    token_file: str = ""
    """File with a service account's token (role Editor). Empty: the token is in CABOOSE_GRAFANA_TOKEN."""
    annotations: bool = True
    """Post an annotation when an incident opens, changes or closes, and when a new attempt begins."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url = {self.url!r}: expected http://host:port/path")


@dataclass(frozen=True)
class StoreConfig:
    """`[store]`: a PostgreSQL for the history of several daemons, beside the journal. Needs the extra `postgres`."""

    postgres: str = ""
    """Address, postgresql://user@host:port/database. Empty: nothing is sent."""
    password_file: str = ""
    """File with the password. Empty: libpq's own ways apply, such as ~/.pgpass or PGPASSWORD."""

    def __post_init__(self) -> None:
        if not self.postgres:
            return
        try:
            parts = urlsplit(self.postgres)
            secret = parts.password or "password" in parse_qs(parts.query)
        except ValueError:
            raise ValueError("postgres: not an address; expected postgresql://user@host:port/database") from None
        if parts.scheme not in ("postgresql", "postgres"):
            raise ValueError("postgres: expected postgresql://user@host:port/database")
        if secret:
            raise ValueError("postgres: holds a password; put that into a file, and name the file in password_file")


@dataclass(frozen=True)
class FleetConfig:
    """`[fleet]`: the daemons that `caboose jobs` asks together. The daemon itself reads nothing of it."""

    daemons: tuple[str, ...] = ()
    """HTTP addresses, host:port or URL. Empty: only the daemon of --daemon or CABOOSE_HTTP is asked."""


@dataclass(frozen=True)
class ExportConfig:
    """`[export]`: mirrors of curves, histograms and incidents. Needs the extra `mirror`, `mlflow` or `trackio`."""

    tensorboard_dir: str = ""
    """Directory for TensorBoard's event files, one run in `<job>/run-1`, `run-2`, ... Empty: none are written."""
    wandb_project: str = ""
    """Weights & Biases project. Empty: nothing is sent."""
    wandb_entity: str = ""
    """Team or user. Empty: the owner of the API key."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """offline writes to wandb_dir, for `wandb sync`; online sends, with the key of `wandb login` or WANDB_API_KEY."""
    wandb_dir: str = ""
    """Directory of its files. Empty: `wandb` in data_dir."""
    mlflow_uri: str = ""
    """MLflow's tracking server (http://...), or a directory for its files (file:///...). Empty: nothing is written."""
    mlflow_experiment: str = "caboose"
    """Its experiment; created if there is none."""
    trackio_project: str = ""
    """Trackio project. Empty: nothing is written."""
    trackio_dir: str = ""
    """Directory of its files. Empty: `trackio` in data_dir."""
    every_steps: int = 1
    """Mirror every Nth step. Sampled steps and steps with a non-finite loss are always mirrored."""
    histograms: bool = True
    """Mirror histograms of weights, gradients and activations, of at most 32 layers each."""
    histogram_seconds: float = 60.0
    """Minimum seconds between two samples mirrored as histograms, per job."""

    def __post_init__(self) -> None:
        _must_be_positive(self, "every_steps")
        for name in ("tensorboard_dir", "wandb_dir", "trackio_dir"):
            if "://" in getattr(self, name):
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be a directory on this machine")
        if not self.histogram_seconds >= 0:
            raise ValueError(f"histogram_seconds = {self.histogram_seconds!r}: must not be below 0")


def _default_rules() -> Mapping[str, RuleConfig]:
    return MappingProxyType({rule.name: rule.config_class() for rule in RULES})


@dataclass(frozen=True)
class Config:
    """The whole of caboose.toml."""

    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    alignment: AlignmentConfig = field(default_factory=AlignmentConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    otlp: OtlpConfig = field(default_factory=OtlpConfig)
    grafana: GrafanaConfig = field(default_factory=GrafanaConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    rollback: RollbackConfig = field(default_factory=RollbackConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    rules: Mapping[str, RuleConfig] = field(default_factory=_default_rules)
    rule_tables: Tables = field(default_factory=dict, compare=False)
    """Rule thresholds set in the file; all others are defaults."""
    file: str = field(default="", compare=False)
    """The file it was read from; empty if none."""


def load(
    path: Path | None,
    overrides: Mapping[str, Any] | None = None,
    rollback: Mapping[str, Any] | None = None,
    journal: Mapping[str, Any] | None = None,
) -> Config:
    """The file's configuration (or the defaults), with overrides for `[daemon]`, `[rollback]` and `[journal]`."""
    table: dict[str, Any] = {}
    name = str(path) if path is not None else "command line"
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from None
    rules = table.pop("rules", {})
    _check_keys(name, "", table, [*SECTIONS, "rules"])
    sections = {
        f.name: _section(name, f.name, f.default_factory, table.get(f.name, {}))
        for f in fields(Config)
        if f.name in SECTIONS and f.default_factory is not MISSING
    }
    for section, over in (("daemon", overrides), ("rollback", rollback), ("journal", journal)):
        if over:
            base = {f.name: getattr(sections[section], f.name) for f in fields(sections[section])}
            sections[section] = _build("command line", section, type(sections[section]), {**base, **over})
    return Config(
        **sections, rules=build_rules(name, rules), rule_tables=rules, file=str(path) if path is not None else ""
    )


def changed_keys(before: Config, after: Config) -> list[str]:
    """The keys outside the rules in which two configurations differ."""
    return [
        f"{section}.{f.name}"
        for section in SECTIONS
        for f in fields(getattr(before, section))
        if getattr(getattr(before, section), f.name) != getattr(getattr(after, section), f.name)
    ]


def check_rule_keys(source: str, table: Any) -> None:
    """Raises ConfigError if the table has a key that is no rule or threshold; values are not checked."""
    if not isinstance(table, dict):
        raise ConfigError(f"{source}: rules = {table!r}: expected a section [rules.<name>] for each rule")
    _check_keys(source, "rules.", table, [rule.name for rule in RULES])
    for rule in RULES:
        _check_section(source, f"rules.{rule.name}", rule.config_class, table.get(rule.name, {}))


def build_rules(source: str, *tables: Any) -> Mapping[str, RuleConfig]:
    """The thresholds of every rule; later tables override earlier ones. `source` is named in errors."""
    for table in tables:
        check_rule_keys(source, table)
    configs: dict[str, RuleConfig] = {}
    for rule in RULES:
        values = {key: value for table in tables for key, value in table.get(rule.name, {}).items()}
        configs[rule.name] = _build(source, f"rules.{rule.name}", rule.config_class, values)
        try:
            rule(configs[rule.name])
        except Exception as error:  # noqa: BLE001 - any error must show now, not at the next attempt
            raise ConfigError(f"{source}: rules.{rule.name}: invalid for this rule: {error}") from None
    return MappingProxyType(configs)


def _section(file: str, prefix: str, cls: Any, table: Any) -> Any:
    _check_section(file, prefix, cls, table)
    return _build(file, prefix, cls, table)


def _check_section(file: str, prefix: str, cls: Any, table: Any) -> None:
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {prefix} = {table!r}: expected a section [{prefix}]")
    _check_keys(file, f"{prefix}.", table, [f.name for f in fields(cls)])


def _build(file: str, prefix: str, cls: type[S], table: Mapping[str, Any]) -> S:
    hints = get_type_hints(cls)
    values = {key: _typed(f"{file}: {prefix}.{key}", hints[key], value) for key, value in table.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{file}: {prefix}.{error}") from None


def _typed(where: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{where} = {value!r}: use one of {', '.join(map(repr, get_args(hint)))}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{where} = {value!r}: expected a list of strings")
        return tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where}: number too large") from None
    if type(value) is not hint:
        raise ConfigError(
            f"{where} = {value!r}: expected {_NAMES[hint]}, got {_NAMES.get(type(value), 'something else')}"
        )
    return value


_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a section",
}


def _check_keys(file: str, prefix: str, table: Mapping[str, Any], valid: list[str]) -> None:
    for key, value in table.items():
        if key not in valid:
            near = difflib.get_close_matches(key, valid, n=1, cutoff=0.4)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"valid here: {', '.join(sorted(valid))}"
            shown = "" if isinstance(value, dict) else f" = {value!r}"
            raise ConfigError(f"{file}: {prefix}{key}{shown}: unknown key; {hint}")


def _must_be_positive(section: Any, *names: str) -> None:
    for name in names:
        if not getattr(section, name) > 0:
            raise ValueError(f"{name} = {getattr(section, name)!r}: must be above 0")
