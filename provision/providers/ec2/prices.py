"""What nodes cost: asked of AWS where that is possible, else from the table.

No client is made here; the caller passes what boto3 made, and says which of its errors are to be tolerated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from provision.providers.ec2.types import PRICES_AS_OF, PRICES_REGION, type_named

# The Pricing API answers for all regions, but only from these (botocore's get_available_regions("pricing")).
PRICING_API_REGIONS = ("us-east-1", "eu-central-1", "ap-south-1")

_LINUX_ON_SHARED_HOSTS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",  # the others are of capacity reservations, some at 0.0
    "licenseModel": "No License required",
}


class PricingClient(Protocol):
    """boto3.client("pricing"), as far as it is used here."""

    def get_products(self, **request: Any) -> Mapping[str, Any]: ...


class SpotClient(Protocol):
    """boto3.client("ec2"), as far as it is used here."""

    def describe_spot_price_history(self, **request: Any) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Price:
    """Of one instance, and where it is from: "Pricing API", "spot history, us-east-1a" ..."""

    usd_per_hour: float
    source: str


def on_demand(
    client: PricingClient, type_name: str, region: str, errors: tuple[type[BaseException], ...] = ()
) -> Price:
    """The price on demand with Linux; when the Pricing API gives none or raises one of `errors`, the table's.

    Raises SettingsError when the table is needed and does not have the type.
    """
    wanted = {"instanceType": type_name, "regionCode": region, **_LINUX_ON_SHARED_HOSTS}
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
    try:
        answer = client.get_products(ServiceCode="AmazonEC2", FormatVersion="aws_v1", Filters=filters)
    except errors:
        return _in_table(type_name, region)
    usd = parse_price_list(answer.get("PriceList", ()))
    return _in_table(type_name, region) if usd is None else Price(usd, "Pricing API")


def _in_table(type_name: str, region: str) -> Price:
    differs = "" if region == PRICES_REGION else f"; {region} may differ"
    source = f"{PRICES_REGION} price of {PRICES_AS_OF}, in the table{differs}"
    return Price(type_named(type_name).usd_per_hour, source)


def parse_price_list(items: Sequence[str]) -> float | None:
    """The first price above 0 for an hour in what GetProducts gives as PriceList: JSON texts.

    None when there is none: no item, prices of 0, another currency, or no such text.
    """
    return next((usd for item in items for usd in _hourly_prices(item) if usd > 0), None)


def _hourly_prices(item: str) -> Iterator[float]:
    try:
        terms = json.loads(item)["terms"]["OnDemand"].values()
        dimensions = [each for term in terms for each in term["priceDimensions"].values()]
        hourly = [each["pricePerUnit"] for each in dimensions if each["unit"] == "Hrs"]
        yield from [float(each["USD"]) for each in hourly if "USD" in each]
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def spot(client: SpotClient, type_name: str, zones: Sequence[str]) -> dict[str, Price]:
    """The present spot price in each zone; a zone without one does not offer the type.

    The client's errors are the caller's.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for entry in _spot_history(client, type_name, zones) if zones else ():
        zone = entry["AvailabilityZone"]
        if zone not in newest or entry["Timestamp"] > newest[zone]["Timestamp"]:
            newest[zone] = entry
    return {
        zone: Price(float(newest[zone]["SpotPrice"]), f"spot history, {zone}")
        for zone in zones
        if zone in newest
    }


def _spot_history(client: SpotClient, type_name: str, zones: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    request: dict[str, Any] = {
        "InstanceTypes": [type_name],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": datetime.now(timezone.utc),  # gives the price that holds now, which is older
        "Filters": [{"Name": "availability-zone", "Values": list(zones)}],
    }
    while True:
        page = client.describe_spot_price_history(**request)
        yield from page["SpotPriceHistory"]
        if not page.get("NextToken"):
            return
        request["NextToken"] = page["NextToken"]


def per_hour(count: int, price: Price) -> float:
    """US dollars for so many nodes and one hour.

    >>> per_hour(4, Price(0.2016, "Pricing API"))
    0.8064
    """
    return count * price.usd_per_hour


def dollars(usd_per_hour: float) -> str:
    """As a person reads it, with tenths of a cent where cents would say little.

    >>> dollars(0.8064), dollars(0.0352), dollars(1016.064)
    ('$0.81 an hour', '$0.035 an hour', '$1,016.06 an hour')
    """
    digits = 3 if usd_per_hour < 0.0995 else 2
    return f"${usd_per_hour:,.{digits}f} an hour"
