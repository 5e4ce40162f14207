"""The EC2 instance types whose processors have AMX, with what a cluster is chosen by.

EC2's own API cannot tell: ProcessorInfo.SupportedFeatures of DescribeInstanceTypes does not list AMX. So this
is a table for choosing; whether a node really has AMX is proven on the node. (r7iz virtual machines did not
show it in the preview of March 2023, r7iz.metal did.)

Prices are on demand, Linux, us-east-1, as of 2026-02-09: AWS's price list as Karpenter recorded it that day
(pkg/providers/pricing/zz_generated.pricing_aws.go in https://github.com/aws/karpenter-provider-aws). Today's
are at https://aws.amazon.com/ec2/pricing/on-demand/.
Cores, memory, network and EFA are from https://docs.aws.amazon.com/ec2/latest/instancetypes/ (gp, co, mo).
Families with Granite Rapids and local disks or more bandwidth (m8id, c8in, r8ib ...) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from provision.errors import SettingsError

PRICES_AS_OF = "2026-02-09"
PRICES_REGION = "us-east-1"


@dataclass(frozen=True)
class InstanceType:
    """What EC2 publishes of one type.

    cores: physical ones; every type here has two threads, that is two vCPUs, per core.
    network_gbps: what is sustained; where `burst` is true, the published "up to" (by credits, for minutes).
    efa: whether an Elastic Fabric Adapter can be attached.
    flex: at full speed for 95 % of the time only, and never in a cluster placement group.
    usd_per_hour: on demand, Linux, in PRICES_REGION, as of PRICES_AS_OF.
    """

    name: str
    vcpus: int
    cores: int
    memory_gib: float
    network_gbps: float
    burst: bool
    efa: bool
    metal: bool
    flex: bool
    usd_per_hour: float

    @property
    def threads_per_core_settable(self) -> bool:
        """Whether CpuOptions with ThreadsPerCore=1 is allowed.

        Of the types with two threads per core EC2's rules except metal only; flex is not excepted:
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-cpu-options-rules.html
        """
        return not self.metal


# Family, US dollars for one vCPU and hour, GiB for one vCPU, the vCPUs from which on there is EFA, and the
# sizes besides those that all have. A * is a price 10 % above that of as many vCPUs without metal.
_FAMILIES = """
m7i       0.0504      4  192  24xlarge 48xlarge metal-24xl* metal-48xl
c7i       0.044625    2  192  24xlarge 48xlarge metal-24xl* metal-48xl
r7i       0.06615     8  192  24xlarge 48xlarge metal-24xl* metal-48xl
r7iz      0.093       8  128  32xlarge metal-16xl* metal-32xl*
m7i-flex  0.04788     4  -
c7i-flex  0.04239375  2  -
m8i       0.05292     4  192  24xlarge 32xlarge 48xlarge 96xlarge metal-48xl metal-96xl
c8i       0.046855    2  192  24xlarge 32xlarge 48xlarge 96xlarge metal-48xl* metal-96xl
r8i       0.06946     8  192  24xlarge 32xlarge 48xlarge 96xlarge metal-48xl* metal-96xl
m8i-flex  0.050275    4  -
c8i-flex  0.04451     2  -
r8i-flex  0.065985    8  -
"""
_SIZES_OF_ALL = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge"

# vCPUs -> Gb/s, by generation.
_NETWORK_GBPS: Mapping[str, Mapping[int, float]] = {
    "7": {2: 12.5, 4: 12.5, 8: 12.5, 16: 12.5, 32: 12.5, 48: 18.75, 64: 25, 96: 37.5, 128: 50, 192: 50},
    "8": {2: 12.5, 4: 12.5, 8: 15, 16: 15, 32: 15, 48: 22.5, 64: 30, 96: 40, 128: 50, 192: 75, 384: 100},
}
_NETWORK_GBPS_EXCEPT = {"r7iz.12xlarge": 25.0}
_BURST_UP_TO_VCPUS = 16  # larger ones sustain what is published, unless they are flex

_SIZE = re.compile(r"(?:metal-)?(\d+)xl(?:arge)?")
_VCPUS = {"nano": 2, "micro": 2, "small": 2, "medium": 2, "large": 2, "xlarge": 4, "metal": 96}


def _vcpus(size: str) -> int | None:
    """The vCPUs that a size of any family stands for, roughly where it has no number; None if it is no size.

    >>> _vcpus("metal-24xl"), _vcpus("4xlarge"), _vcpus("4xlrage")
    (96, 16, None)
    """
    match = _SIZE.fullmatch(size)
    return 4 * int(match[1]) if match else _VCPUS.get(size)


def _read_families(text: str) -> Iterator[InstanceType]:
    for line in text.strip().splitlines():
        family, usd, gib, efa_from, *more = line.split()
        for size in (*_SIZES_OF_ALL.split(), *more):
            yield _instance_type(family, size, float(usd), int(gib), efa_from)


def _instance_type(family: str, size: str, usd: float, gib: int, efa_from: str) -> InstanceType:
    name = f"{family}.{size.rstrip('*')}"
    vcpus = _vcpus(size.rstrip("*"))
    assert vcpus is not None
    flex = family.endswith("-flex")
    return InstanceType(
        name=name,
        vcpus=vcpus,
        cores=vcpus // 2,
        memory_gib=float(vcpus * gib),
        network_gbps=_NETWORK_GBPS_EXCEPT.get(name, float(_NETWORK_GBPS[family[1]][vcpus])),
        burst=flex or vcpus <= _BURST_UP_TO_VCPUS,
        efa=efa_from != "-" and vcpus >= int(efa_from),
        metal=size.startswith("metal"),
        flex=flex,
        usd_per_hour=round(vcpus * usd * (1.1 if size.endswith("*") else 1), 5),
    )


TYPES: Mapping[str, InstanceType] = {each.name: each for each in _read_families(_FAMILIES)}


def type_named(name: str) -> InstanceType:
    """The type with AMX of this name.

    Raises SettingsError for any other, in one line: why, if known, and which types would do.
    """
    if name not in TYPES:
        raise SettingsError(_what_instead(name))
    return TYPES[name]


def _what_instead(name: str) -> str:
    """
    >>> _what_instead("m6i.4xlarge")
    'm6i.4xlarge has no AMX (Ice Lake); m7i.4xlarge, r7i.4xlarge or c7i.4xlarge have'
    """
    family, _, size = name.partition(".")
    vcpus = _vcpus(size)
    if vcpus is None or name.lower() in TYPES:
        return _misspelled(name)
    if family in _families():
        return f"there is no {name}; there are {_either(_nearest(family, size, 2), 'and')}"
    why = _why_without(family)
    lacks = f"{name} has no AMX ({why})" if why else f"{name} is not known here to have AMX"
    would_do = [each for other in _relatives(family) for each in _nearest(other, size, 1)]
    return f"{lacks}; {_either(would_do, 'or')} have"


def _misspelled(name: str) -> str:
    close = get_close_matches(name.lower(), TYPES, 1, 0.75)
    if close:
        return f"there is no EC2 type {name!r}; did you mean {close[0]}?"
    return f"there is no EC2 type {name!r}; those with AMX are {', '.join(_families())}, such as m7i.4xlarge"


def _families() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.partition(".")[0] for name in TYPES))


def _relatives(family: str) -> tuple[str, ...]:
    """The three families with AMX that are most like one without.

    >>> _relatives("c6i"), _relatives("m8id")
    (('c7i', 'm7i', 'r7i'), ('m8i', 'r8i', 'c8i'))
    """
    generation = "8" if "8" in family else "7"
    usual = sorted((f"{use}{generation}i" for use in "mrc"), key=lambda each: each[0] != family[:1])
    unknown = not _why_without(family)
    close = get_close_matches(family.lower(), _families(), 1, 0.75) if unknown else []
    return tuple(dict.fromkeys([*close, *usual]))[:3]


def _nearest(family: str, size: str, count: int) -> tuple[str, ...]:
    """So many types of a family nearest to a size, the smaller first; metal for metal where there is any.

    >>> _nearest("m7i", "32xlarge", 2)
    ('m7i.24xlarge', 'm7i.48xlarge')
    """
    wanted = _vcpus(size) or 0
    own = [each for each in TYPES.values() if each.name.startswith(f"{family}.")]
    alike = [each for each in own if each.metal == size.startswith("metal")] or own
    nearest = sorted(alike, key=lambda each: (abs(each.vcpus - wanted), -each.vcpus))[:count]
    return tuple(each.name for each in sorted(nearest, key=lambda each: each.vcpus))


def _either(names: Sequence[str], word: str) -> str:
    """
    >>> _either(("m7i", "r7i", "c7i"), "or")
    'm7i, r7i or c7i'
    """
    *first, last = names
    return f"{', '.join(first)} {word} {last}"


_OLDER_XEONS = {
    "Ice Lake": "m6i m6id m6in m6idn c6i c6id c6in r6i r6id r6in r6idn i4i x2idn x2iedn hpc6id",
    "Skylake or Cascade Lake": "m5 m5d m5n m5dn m5zn c5 c5d c5n r5 r5b r5d r5n r5dn t3 z1d",
    "Haswell or Broadwell": "m4 c4 r4",
}
_PROCESSOR_LETTER = re.compile(r"[a-z]+\d+([ag])[a-z]*")
_MAKERS = {"a": "AMD EPYC", "g": "AWS Graviton"}


def _why_without(family: str) -> str | None:
    """The processor that has no AMX, of a family that is known to have such a one.

    The letter after the generation names the maker:
    https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html

    >>> _why_without("hpc7a"), _why_without("c6gn"), _why_without("m5dn"), _why_without("x9")
    ('AMD EPYC', 'AWS Graviton', 'Skylake or Cascade Lake', None)
    """
    for processor, families in _OLDER_XEONS.items():
        if family in families.split():
            return processor
    match = _PROCESSOR_LETTER.fullmatch(family)
    return _MAKERS[match[1]] if match else None
