"""EC2's types with AMX: what the table says of them, and what is said of those that are not in it."""

import botocore.session
import pytest

from provision.errors import SettingsError
from provision.providers.ec2.types import TYPES, type_named

# EC2's own figures, name by name: vCPUs, cores, GiB, Gb/s, EFA, metal.
PUBLISHED = {
    "r7iz.16xlarge": (64, 32, 512, 25, False, False),
    "r7iz.metal-16xl": (64, 32, 512, 25, False, True),
    "r7iz.32xlarge": (128, 64, 1024, 50, True, False),
    "r7iz.metal-32xl": (128, 64, 1024, 50, True, True),
    "m7i.48xlarge": (192, 96, 768, 50, True, False),
    "m7i.metal-48xl": (192, 96, 768, 50, True, True),
    "r7i.48xlarge": (192, 96, 1536, 50, True, False),
    "r7i.metal-48xl": (192, 96, 1536, 50, True, True),
    "c7i.48xlarge": (192, 96, 384, 50, True, False),
    "c7i.metal-48xl": (192, 96, 384, 50, True, True),
    "m7i.metal-24xl": (96, 48, 384, 37.5, False, True),
    "r7i.metal-24xl": (96, 48, 768, 37.5, False, True),
    "c7i.metal-24xl": (96, 48, 192, 37.5, False, True),
    "m8i.96xlarge": (384, 192, 1536, 100, True, False),
    "r7iz.12xlarge": (48, 24, 384, 25, False, False),
    "c8i.32xlarge": (128, 64, 256, 50, False, False),
    "c8i.metal-48xl": (192, 96, 384, 75, True, True),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_large_types_are_as_published(name):
    found = TYPES[name]

    assert (
        found.vcpus,
        found.cores,
        found.memory_gib,
        found.network_gbps,
        found.efa,
        found.metal,
    ) == PUBLISHED[name]
    assert not found.burst


@pytest.mark.parametrize(
    ("name", "network_gbps", "burst"),
    [
        ("m7i.4xlarge", 12.5, True),
        ("m7i.8xlarge", 12.5, False),
        ("r8i.2xlarge", 15, True),
        ("c8i.16xlarge", 30, False),
        ("c7i-flex.12xlarge", 18.75, True),
        ("m8i-flex.16xlarge", 30, True),
    ],
)
def test_small_and_flex_types_have_their_network_by_credits(name, network_gbps, burst):
    assert (TYPES[name].network_gbps, TYPES[name].burst) == (network_gbps, burst)


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("m7i.large", 0.1008),
        ("c7i.xlarge", 0.1785),
        ("r7i.16xlarge", 4.2336),
        ("r7iz.32xlarge", 11.904),
        ("m7i-flex.2xlarge", 0.38304),
        ("c7i-flex.large", 0.08479),
        ("m8i.96xlarge", 20.32128),
        ("c8i.large", 0.09371),
        ("r8i.xlarge", 0.27784),
        ("m8i-flex.large", 0.10055),
        ("c8i-flex.12xlarge", 2.13648),
        ("r8i-flex.large", 0.13197),
    ],
)
def test_prices_are_those_of_us_east_1(name, usd):
    assert TYPES[name].usd_per_hour == usd


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("m7i.metal-24xl", 5.32224),
        ("m7i.metal-48xl", 9.6768),
        ("r7iz.metal-16xl", 6.5472),
        ("m8i.metal-48xl", 10.16064),
        ("c8i.metal-48xl", 9.89578),
        ("r8i.metal-48xl", 14.66995),
        ("r8i.metal-96xl", 26.67264),
    ],
)
def test_some_metal_costs_a_tenth_more(name, usd):
    assert TYPES[name].usd_per_hour == usd


def test_every_type_of_the_table_is_one_of_ec2s():
    ec2s = botocore.session.get_session().get_service_model("ec2").shape_for("InstanceType").enum

    assert set(TYPES) <= set(ec2s)
    assert len(TYPES) == 117


def test_threads_per_core_are_settable_unless_it_is_metal():
    settable = {name for name in TYPES if TYPES[name].threads_per_core_settable}

    assert set(TYPES) - settable == {name for name in TYPES if ".metal" in name}


def test_flex_has_neither_efa_nor_metal():
    flex = [each for each in TYPES.values() if each.flex]

    assert len(flex) == 5 * 7
    assert not any(each.efa or each.metal for each in flex)


REFUSED = {
    "an older Xeon": (
        "m6i.4xlarge",
        "m6i.4xlarge has no AMX (Ice Lake); m7i.4xlarge, r7i.4xlarge or c7i.4xlarge have",
    ),
    "a size that those with AMX do not come in": (
        "c5.9xlarge",
        "c5.9xlarge has no AMX (Skylake or Cascade Lake); c7i.8xlarge, m7i.8xlarge or r7i.8xlarge have",
    ),
    "metal": (
        "m5.metal",
        "m5.metal has no AMX (Skylake or Cascade Lake); "
        "m7i.metal-24xl, r7i.metal-24xl or c7i.metal-24xl have",
    ),
    "smaller than the smallest": (
        "t3.micro",
        "t3.micro has no AMX (Skylake or Cascade Lake); m7i.large, r7i.large or c7i.large have",
    ),
    "AMD of the eighth generation": (
        "m8a.32xlarge",
        "m8a.32xlarge has no AMX (AMD EPYC); m8i.32xlarge, r8i.32xlarge or c8i.32xlarge have",
    ),
    "AMD of another use": (
        "hpc7a.96xlarge",
        "hpc7a.96xlarge has no AMX (AMD EPYC); m7i.48xlarge, r7i.48xlarge or c7i.48xlarge have",
    ),
    "Graviton": (
        "c7g.16xlarge",
        "c7g.16xlarge has no AMX (AWS Graviton); c7i.16xlarge, m7i.16xlarge or r7i.16xlarge have",
    ),
    "a family of which nothing is known": (
        "g4dn.xlarge",
        "g4dn.xlarge is not known here to have AMX; m7i.xlarge, r7i.xlarge or c7i.xlarge have",
    ),
    "a family misspelled": (
        "m7iflex.large",
        "m7iflex.large is not known here to have AMX; m7i-flex.large, m7i.large or r7i.large have",
    ),
    "no family": (
        ".large",
        ".large is not known here to have AMX; m7i.large, r7i.large or c7i.large have",
    ),
    "no such size": (
        "m7i.3xlarge",
        "there is no m7i.3xlarge; there are m7i.2xlarge and m7i.4xlarge",
    ),
    "no such metal": (
        "m8i.metal-24xl",
        "there is no m8i.metal-24xl; there are m8i.metal-48xl and m8i.metal-96xl",
    ),
    "a family without metal": (
        "m7i-flex.metal-24xl",
        "there is no m7i-flex.metal-24xl; there are m7i-flex.12xlarge and m7i-flex.16xlarge",
    ),
    "a size misspelled": (
        "m7i.4xlrage",
        "there is no EC2 type 'm7i.4xlrage'; did you mean m7i.4xlarge?",
    ),
    "a capital": (
        "M7i.4xlarge",
        "there is no EC2 type 'M7i.4xlarge'; did you mean m7i.4xlarge?",
    ),
    "no dot": (
        "m7i-metal-24xl",
        "there is no EC2 type 'm7i-metal-24xl'; did you mean m7i.metal-24xl?",
    ),
    "no type at all": (
        "big",
        "there is no EC2 type 'big'; those with AMX are m7i, c7i, r7i, r7iz, m7i-flex, c7i-flex, m8i, c8i, "
        "r8i, m8i-flex, c8i-flex, r8i-flex, such as m7i.4xlarge",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_type_is_refused_with_the_reason_and_what_would_do(case):
    name, message = REFUSED[case]

    with pytest.raises(SettingsError) as refused:
        type_named(name)

    assert str(refused.value) == message


@pytest.mark.parametrize("name", ["", ".", "m7i", "m7i.", "m7i.metal\n"])
def test_what_is_hardly_a_name_is_refused_in_one_line_too(name):
    with pytest.raises(SettingsError, match=r"\Athere is no EC2 type [^\n]+\Z"):
        type_named(name)


def test_whatever_a_refusal_names_is_in_the_table():
    for name in ("m5.medium", "x1e.32xlarge", "t2.nano", "u7i-12tb.224xlarge", "8.large", "m7i.1024xlarge"):
        with pytest.raises(SettingsError) as refused:
            type_named(name)
        said = str(refused.value).replace(name, "")
        offered = [word.strip(",;?") for word in said.split() if "large" in word or "metal" in word]
        assert len(offered) >= 1
        assert set(offered) <= set(TYPES)


def test_a_type_with_amx_is_given():
    assert type_named("r7iz.metal-16xl") is TYPES["r7iz.metal-16xl"]
