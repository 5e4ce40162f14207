"""Is the host key that a machine shows its own? Decided from who vouches for it; pure."""

from __future__ import annotations

from dataclasses import dataclass

from provision.openssh import KnownKeys, fingerprint


@dataclass(frozen=True)
class Trust:
    """`pins` is what the record keeps; empty while nobody vouches. `problem` says why nobody may log in."""

    pins: tuple[str, ...] = ()
    problem: str | None = None


def judge(shown: str, recorded: tuple[str, ...], stated: tuple[str, ...], known: KnownKeys) -> Trust:
    """By the record, else the inventory, else the operator's known_hosts; a stolen key by nobody.

    >>> judge("ssh-ed25519 AAAA", (), (), KnownKeys())
    Trust(pins=(), problem=None)
    """
    if shown in known.revoked:
        return Trust(
            problem=f"HOST KEY REVOKED: it shows {_named(shown)}, which your known_hosts marks @revoked"
        )
    sources = (
        ("the inventory has (clusterctl_host_keys)", stated),
        ("this cluster's record has", recorded),
        ("your known_hosts has", known.trusted),
    )
    for who, keys in sources:
        if shown in keys:
            return Trust(stated if keys is stated else (shown,))
        if keys:
            other = ", ".join(map(_named, keys))
            return Trust(
                problem=f"HOST KEY CHANGED: it shows {_named(shown)}, and {who} {other}: somebody may answer "
                f"in its place, nothing was sent there; {_way_out(who)}"
            )
    return Trust()


def _named(key: str) -> str:
    return f"{key.split()[0]} {fingerprint(key)}"


def _way_out(who: str) -> str:
    if who.startswith("this"):
        return "if you installed it anew, `clusterctl up --forget` it"
    if who.startswith("your"):
        return "if you installed it anew, `ssh-keygen -R` its name"
    return "if you installed it anew, correct the inventory"
