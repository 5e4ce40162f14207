"""The instance metadata service at 169.254.169.254: a host is known by its source address.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

from tests.ec2sim.fleet import Fleet
from tests.ec2sim.machine import Machine

NOT_FOUND = "404 - Not Found"


class Service(ThreadingHTTPServer):
    """Tokens are good on the host that asked for them only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, fleet: Fleet) -> None:
        super().__init__((address, 80), Request)
        self.fleet = fleet
        self.tokens: dict[str, tuple[str, float]] = {}


class Request(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_PUT(self) -> None:
        machine = self.server.fleet.at(self.client_address[0])
        lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if machine is None or self.path != "/latest/api/token":
            self._answer(404, NOT_FOUND)
        elif not lifetime.isdigit() or not 1 <= int(lifetime) <= 21600:
            self._answer(400, "400 - Bad Request")
        else:
            token = secrets.token_urlsafe(40)
            self.server.tokens[token] = (machine.instance.id, time.monotonic() + int(lifetime))
            self._answer(200, token)

    def do_GET(self) -> None:
        machine = self.server.fleet.at(self.client_address[0])
        if machine is None:
            self._answer(404, NOT_FOUND)
        elif self.path.startswith("/sim/"):
            self._answer_found(_for_first_boot(machine), self.path.removeprefix("/sim/"))
        elif machine.instance.metadata_options.http_endpoint == "disabled":
            self._answer(403, "403 - Forbidden")
        elif not self._allowed(machine):
            self._answer(401, "401 - Unauthorized")
        else:
            with self.server.fleet.lock:
                entries = _entries(machine)
            self._answer_found(entries, self.path.removeprefix("/latest/"))

    def _allowed(self, machine: Machine) -> bool:
        """Without a token: only as long as the instance does not require one. A wrong one is refused."""
        token = self.headers.get("X-aws-ec2-metadata-token")
        if token is None:
            return bool(machine.instance.metadata_options.http_tokens != "required")
        owner, until = self.server.tokens.get(token, ("", 0.0))
        return owner == machine.instance.id and time.monotonic() < until

    def _answer_found(self, entries: dict[str, str], path: str) -> None:
        """The entry, or the names below it as EC2 lists them."""
        if path in entries:
            return self._answer(200, entries[path])
        folder = path.rstrip("/") + "/"
        below = [name.removeprefix(folder) for name in entries if name.startswith(folder)]
        if not below:
            return self._answer(404, NOT_FOUND)
        names = {name.partition("/")[0] + ("/" if "/" in name else "") for name in below}
        return self._answer(200, "\n".join(sorted(names)))

    def _answer(self, status: int, text: str) -> None:
        body = text.encode("utf-8", "surrogateescape")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _entries(machine: Machine) -> dict[str, str]:
    instance = machine.instance
    address = str(instance.private_ip)
    meta = {
        "ami-id": instance.image_id,
        "ami-launch-index": instance.ami_launch_index,
        "hostname": instance.private_dns_name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": instance.private_dns_name,
        "local-ipv4": address,
        "mac": instance.nics[0].mac_address,
        "placement/availability-zone": instance.placement.zone,
        "placement/group-name": instance.placement.group_name,
        "placement/region": machine.region,
        "public-hostname": instance.public_dns_name,
        "public-ipv4": instance.public_ip,
        "security-groups": "\n".join(group.name for group in instance.security_groups),
        **_public_key(instance),
        **machine.notice,
        **_tags(instance),
    }
    entries = {f"meta-data/{name}": str(value) for name, value in meta.items() if value not in (None, "")}
    if instance.user_data:
        entries["user-data"] = _user_data(machine).decode("utf-8", "surrogateescape")
    document = {"instanceId": instance.id, "region": machine.region, "privateIp": address,
                "imageId": instance.image_id, "instanceType": instance.instance_type}  # fmt: skip
    return entries | {"dynamic/instance-identity/document": json.dumps(document)}


def _public_key(instance: Any) -> dict[str, str]:
    pair = instance.ec2_backend.key_pairs.get(instance.key_name)
    # The key is put on the instance at launch: that it is deleted later changes nothing there.
    material = getattr(instance, "simulated_public_key", pair.public_key if pair else "")
    return {"public-keys/0/openssh-key": material.strip() + "\n"} if material else {}


def _tags(instance: Any) -> dict[str, str]:
    if instance.metadata_options.instance_metadata_tags != "enabled":
        return {}
    return {f"tags/instance/{tag['key']}": tag["value"] for tag in instance.get_tags()}


def _user_data(machine: Machine) -> bytes:
    return base64.b64decode(str(machine.instance.user_data or ""))


def _for_first_boot(machine: Machine) -> dict[str, str]:
    """Not EC2's: see firstboot.py."""
    entries = {"boot": json.dumps({"kind": machine.boot.kind, "seconds": machine.boot.seconds})}
    data = _user_data(machine)
    if data.startswith(b"#cloud-config"):
        entries["user-data"] = json.dumps(yaml.safe_load(data), default=lambda value: value.decode())
    return entries
