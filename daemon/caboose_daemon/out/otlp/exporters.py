"""The SDK's exporters for one endpoint, over gRPC or HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan

from caboose_daemon.config import OtlpConfig

POINTS_PER_REQUEST = 4000
"""A collector takes 4 MiB per gRPC message by default; a point is a few hundred bytes."""


class OtlpError(RuntimeError):
    """The endpoint did not take what was sent."""


@dataclass(frozen=True)
class Exporters:
    """One exporter per signal; None where the signal is off."""

    endpoint: str
    metrics: Any
    logs: Any
    traces: Any

    def send_metrics(self, data: MetricsData) -> None:
        self._check("metrics", None if self.metrics is None else self.metrics.export(data))

    def send_logs(self, records: Sequence[ReadableLogRecord]) -> None:
        self._check("logs", None if self.logs is None else self.logs.export(records))

    def send_spans(self, spans: Sequence[ReadableSpan]) -> None:
        self._check("traces", None if self.traces is None else self.traces.export(spans))

    def close(self) -> None:
        for exporter in (self.metrics, self.logs, self.traces):
            if exporter is not None:
                exporter.shutdown()

    def _check(self, what: str, result: Any) -> None:
        if result is not None and result.name != "SUCCESS":
            raise OtlpError(f"{self.endpoint} did not take {what}")


def make_exporters(config: OtlpConfig) -> Exporters:
    """ValueError, in one line, for a file that cannot be read."""
    options: dict[str, Any] = {"headers": _headers(config.headers_file) or None, "timeout": config.timeout_seconds}
    made: dict[str, Any] = dict.fromkeys(("metrics", "logs", "traces"))
    if config.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import _log_exporter, metric_exporter, trace_exporter

        options |= {"endpoint": config.endpoint, **_grpc_security(config)}
        classes = _classes(metric_exporter, _log_exporter, trace_exporter)
        made |= {signal: classes[signal](**options, **_batches(signal)) for signal in config.signals}
    else:
        from opentelemetry.exporter.otlp.proto.http import _log_exporter as logs
        from opentelemetry.exporter.otlp.proto.http import metric_exporter as metrics
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as traces

        certificate = str(_file("certificate_file", config.certificate_file)) if config.certificate_file else None
        options |= {"certificate_file": certificate}
        classes = _classes(metrics, logs, traces)
        base = config.endpoint.rstrip("/")
        made |= {s: classes[s](endpoint=f"{base}/v1/{s}", **options, **_batches(s)) for s in config.signals}
    return Exporters(endpoint=config.endpoint, **made)


def _classes(metrics: Any, logs: Any, traces: Any) -> dict[str, Any]:
    return {"metrics": metrics.OTLPMetricExporter, "logs": logs.OTLPLogExporter, "traces": traces.OTLPSpanExporter}


def _batches(signal: str) -> dict[str, int]:
    return {"max_export_batch_size": POINTS_PER_REQUEST} if signal == "metrics" else {}


def _grpc_security(config: OtlpConfig) -> dict[str, Any]:
    if not config.endpoint.startswith("https://"):
        return {"insecure": True}
    import grpc

    root = _file("certificate_file", config.certificate_file).read_bytes() if config.certificate_file else None
    return {"insecure": False, "credentials": grpc.ssl_channel_credentials(root_certificates=root)}


def _headers(file: str) -> dict[str, str]:
    """Headers of a file, one `name: value` a line."""
    if not file:
        return {}
    lines = _file("headers_file", file).read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(":") for line in lines if line.strip()]
    if not all(name.strip() and colon for name, colon, _ in pairs):
        raise ValueError(f"headers_file = {file!r}: expected lines of the form name: value")
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _file(key: str, name: str) -> Path:
    path = Path(name).expanduser()
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"{key} = {name!r}: {error.strerror}") from None
    return path
