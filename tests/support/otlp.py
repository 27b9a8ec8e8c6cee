"""Real OTLP collectors: a gRPC server of the generated services, and an HTTP server of the same messages."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

REQUESTS = {
    "/v1/metrics": metrics_service_pb2.ExportMetricsServiceRequest,
    "/v1/logs": logs_service_pb2.ExportLogsServiceRequest,
    "/v1/traces": trace_service_pb2.ExportTraceServiceRequest,
}


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes of a point, a record or a span."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@dataclass
class Collected:
    """What a collector received; while `is_refusing` it takes nothing."""

    url: str = ""
    requests: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    is_refusing: bool = False

    def _of(self, name: str, after: int = 0) -> Iterator[Any]:
        for request in self.requests[after:]:
            for resource in getattr(request, f"resource_{name}", ()):
                for scope in getattr(resource, f"scope_{name}"):
                    yield resource.resource, scope

    def metrics(self, after: int = 0) -> dict[str, Any]:
        """The newest of each metric in the requests after so many."""
        return {metric.name: metric for _, scope in self._of("metrics", after) for metric in scope.metrics}

    def records(self) -> list[Any]:
        return [record for _, scope in self._of("logs") for record in scope.log_records]

    def spans(self) -> list[Any]:
        return [span for _, scope in self._of("spans") for span in scope.spans]

    def resources(self) -> list[dict[str, Any]]:
        return [attributes(r.attributes) for name in ("metrics", "logs", "spans") for r, _ in self._of(name)]


@contextlib.contextmanager
def grpc_collector() -> Iterator[Collected]:
    """A gRPC server with the three services."""
    found = Collected()

    def export(answer: Any) -> Any:
        def take(_: Any, request: Any, context: Any) -> Any:
            if found.is_refusing:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused")
            found.requests.append(request)
            found.headers.append({key: str(value) for key, value in context.invocation_metadata()})
            return answer()

        return take

    services = (
        (metrics_service_pb2_grpc, "MetricsService", metrics_service_pb2.ExportMetricsServiceResponse),
        (logs_service_pb2_grpc, "LogsService", logs_service_pb2.ExportLogsServiceResponse),
        (trace_service_pb2_grpc, "TraceService", trace_service_pb2.ExportTraceServiceResponse),
    )
    server = grpc.server(ThreadPoolExecutor(2))
    for module, name, answer in services:
        servicer = type(name, (getattr(module, f"{name}Servicer"),), {"Export": export(answer)})()
        getattr(module, f"add_{name}Servicer_to_server")(servicer, server)
    found.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield found
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def http_collector() -> Iterator[Collected]:
    """An HTTP server that takes the same messages."""
    found = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if not found.is_refusing:
                found.requests.append(REQUESTS[self.path].FromString(body))
                found.headers.append({key.lower(): value for key, value in self.headers.items()})
            self.send_response(400 if found.is_refusing else 200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
