"""One region of an AWS account, every failure of which is one clear line. The only boto3 import."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from provision.errors import ProviderError

# Calls are retried by botocore with exponential back-off and jitter, at most 20 s each ("standard" mode; the
# default "legacy" gives up earlier and does not know RequestLimitExceeded everywhere):
# https://boto3.amazonaws.com/v1/documentation/api/latest/guide/retries.html
ATTEMPTS = 8
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60

_NO_ACCESS = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_NOT_ACCEPTED = (
    "AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException",
    "IncompleteSignature",
)  # fmt: skip
_QUOTA = (
    "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded",
)  # fmt: skip
NO_CAPACITY = (
    "InsufficientInstanceCapacity", "InsufficientHostCapacity", "Unsupported", "InsufficientCapacity",
    "SpotMaxPriceTooLow",
)  # fmt: skip

Kind = TypeVar("Kind")


class AwsError(ProviderError):
    """A call that AWS refused, with its error code ("DependencyViolation")."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Account:
    """Calls into one region; safe to use from several threads."""

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        import boto3
        import botocore.exceptions

        try:
            self._session = boto3.Session(region_name=region, profile_name=profile)
        except botocore.exceptions.BotoCoreError as error:
            raise ProviderError(explain_botocore(error)) from error
        self._profile = profile
        self._clients: dict[str, Any] = {}
        self._making = threading.Lock()

    @property
    def region(self) -> str:
        """Raises ProviderError when neither the inventory nor boto3's chain names one."""
        name: str | None = self._session.region_name
        if name is None:
            raise ProviderError("no AWS region: set `region:` in the inventory, or AWS_DEFAULT_REGION")
        return name

    def owner(self) -> str:
        """Who we are, as IAM says it: "user/anna". Needs no permission."""
        arn = str(self.call("sts", "get_caller_identity")["Arn"])
        return arn.partition(":")[2].rpartition(":")[2][:256]

    def elsewhere(self, region: str) -> Account:
        """The same credentials in another region."""
        return Account(region, self._profile)

    def ec2(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """One call of EC2, "describe_instances" say. Raises AwsError or ProviderError."""
        return self.call("ec2", operation, **parameters)

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One call. Raises AwsError when AWS refuses it, ProviderError when it is not reached."""
        return self._explained(lambda: getattr(self.client(service), operation)(**parameters))

    def pages(self, operation: str, key: str, **parameters: Any) -> list[dict[str, Any]]:
        """All items of a Describe call of EC2, page after page."""

        def read() -> list[dict[str, Any]]:
            pages = self.client("ec2").get_paginator(operation).paginate(**parameters)
            return [item for page in pages for item in page[key]]

        return self._explained(read)

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        """boto3's own client, for those who tolerate its errors. Raises ProviderError."""
        import botocore.config

        with self._making:  # making clients of one session is not thread-safe, using them is
            if service not in self._clients:
                config = botocore.config.Config(
                    retries={"mode": "standard", "max_attempts": attempts},
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=READ_TIMEOUT_S,
                    user_agent_extra="clusterctl",
                    max_pool_connections=16,
                )
                region = self.region
                self._clients[service] = self._explained(
                    lambda: self._session.client(service, region_name=region, config=config)
                )
            return self._clients[service]

    def _explained(self, call: Callable[[], Kind]) -> Kind:
        import botocore.exceptions

        try:
            return call()
        except botocore.exceptions.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "Unknown"))
            message = str(error.response.get("Error", {}).get("Message", ""))
            raise AwsError(explain(code, message, error.operation_name, self.region), code) from error
        except botocore.exceptions.BotoCoreError as error:
            raise ProviderError(explain_botocore(error)) from error


def call_errors() -> tuple[type[BaseException], ...]:
    """What a call of boto3's own client may raise."""
    import botocore.exceptions

    return (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError)


def explain(code: str, message: str, operation: str, region: str) -> str:
    """One line for an error of the API, and what to do next.

    >>> explain("UnauthorizedOperation", "You are not ...", "RunInstances", "us-east-1")
    'the AWS credentials lack the permission for RunInstances; docs/ec2-policy.json lists all that are needed'
    """
    if code in _NO_ACCESS:
        return (
            f"the AWS credentials lack the permission for {operation}; "
            "docs/ec2-policy.json lists all that are needed"
        )
    if code in _EXPIRED:
        return "the AWS session has expired: log in again (`aws sso login`, or new keys), then repeat"
    if code in _NOT_ACCEPTED:
        return f"AWS does not accept the credentials ({code}): check AWS_PROFILE or `aws configure list`"
    if code == "OptInRequired":
        return f"region {region} is not enabled for this account: enable it, or use another"
    if code in _QUOTA:
        return (
            f"a quota of the account in {region} is reached: {_sentence(message)} ({code}); ask for more in "
            "Service Quotas, or use fewer or smaller nodes"
        )
    return f"{operation}: {_sentence(message) or 'refused'} ({code})"


def explain_botocore(error: Exception) -> str:
    """One line for what botocore raises before AWS has answered."""
    kind = type(error).__name__
    if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return "no AWS credentials: set AWS_PROFILE, or run `aws configure` or `aws sso login`"
    if kind == "ProfileNotFound":
        return f"{error}; `profile:` in the inventory, or AWS_PROFILE, names it"
    if "SSO" in kind or "Token" in kind or kind == "LoginRefreshRequired":
        return "the AWS session has expired: run `aws sso login`, then repeat"
    if kind in (
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ConnectionClosedError",
    ):
        return f"AWS is not reached: {error}; is the region right, and the network up?"
    return f"AWS: {' '.join(str(error).split())}"


def all_at_once(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Results of independent calls, made in parallel; the first failure is raised."""
    with ThreadPoolExecutor(max(1, min(16, len(calls)))) as pool:
        futures = {name: pool.submit(call) for name, call in calls.items()}
        return {name: future.result() for name, future in futures.items()}


def each_at_once(work: Callable[[str], Kind], names: Iterable[str]) -> dict[str, Kind]:
    """The same work for many, 16 at a time."""
    return all_at_once({name: (lambda name=name: work(name)) for name in names})  # type: ignore[misc]


def _sentence(message: str) -> str:
    """
    >>> _sentence("You lack something.\\n")
    'You lack something'
    """
    return " ".join(message.split()).rstrip(".")
