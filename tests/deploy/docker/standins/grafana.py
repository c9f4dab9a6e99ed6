"""In Grafana's place: reads what is provisioned as Grafana would, and ends where that is wrong.

It checks mounts, folders, the password, and that dashboards and data sources name only data sources
that are there. It draws nothing and knows nothing of panels.
"""

import json
import os
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import yaml

PROVISIONING = Path("/etc/grafana/provisioning")
DATA = Path("/var/lib/grafana")
PORT = 3000


def documents(kind: str, key: str) -> Iterator[dict[str, object]]:
    """The entries of all files of one kind of provisioning."""
    for file in sorted((PROVISIONING / kind).glob("*.y*ml")):
        yield from yaml.safe_load(file.read_text())[key]


def uids(value: object) -> Iterator[str]:
    """Every data source that a dashboard names by its uid."""
    if isinstance(value, dict):
        source = value.get("datasource")
        if isinstance(source, dict) and source.get("type") == "prometheus":
            yield str(source.get("uid"))
        for inner in value.values():
            yield from uids(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from uids(inner)


def unknown_alertmanagers(sources: list[dict[str, object]]) -> Iterator[str]:
    """Data sources whose alerts go to an Alertmanager that is none."""
    there = {source["uid"] for source in sources if source["type"] == "alertmanager"}
    for source in sources:
        told = dict(source.get("jsonData", {})).get("alertmanagerUid")  # type: ignore[call-overload]  # of YAML
        if told is not None and told not in there:
            yield f"{source['name']} has its alerts at an Alertmanager that is not there: {told}"


def faults() -> Iterator[str]:
    """What Grafana would stumble over."""
    if os.environ.get("GF_SECURITY_ADMIN_PASSWORD", "admin") == "admin":
        yield "the password is Grafana's default"
    sources = list(documents("datasources", "datasources"))
    named = [str(source["uid"]) for source in sources]
    if len(named) > len(set(named)):
        yield f"two data sources have one uid: {named}"
    if [source["type"] for source in sources if source.get("isDefault")] != ["prometheus"]:
        yield "the default data source is not a Prometheus, or there are several"
    yield from unknown_alertmanagers(sources)
    known = {str(source["uid"]) for source in sources if source["type"] == "prometheus"}
    files = [
        file
        for provider in documents("dashboards", "providers")
        for file in sorted(Path(str(dict(provider["options"])["path"])).glob("*.json"))  # type: ignore[call-overload]  # of YAML
    ]
    if not files:
        yield "no dashboard is provisioned"
    for file in files:
        asked = {uid for uid in uids(json.loads(file.read_text())) if not uid.startswith("$")}
        if asked - known:
            yield f"{file.name} asks data sources that are not there: {sorted(asked - known)}"
    try:
        (DATA / "grafana.db").touch()
    except OSError as error:
        yield f"{DATA} cannot be written: {error.strerror}"


class Page(BaseHTTPRequestHandler):
    """/api/health, for every path."""

    def do_GET(self) -> None:
        """Answer that all is well."""
        body = b'{"database": "ok"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        """The same without a body."""
        self.send_response(200)
        self.end_headers()


if __name__ == "__main__":
    if found := list(faults()):
        sys.exit("; ".join(found))
    HTTPServer(("", PORT), Page).serve_forever()  # the container's own network
