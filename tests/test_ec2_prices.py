"""Prices: of the Pricing API and of the spot history as they answer, else of the table, which says so."""

import json
from datetime import datetime, timedelta, timezone

import pytest

from provision.errors import SettingsError
from provision.providers.ec2 import prices
from provision.providers.ec2.prices import Price

TABLE = "us-east-1 price of 2026-02-09, in the table"


class Refused(Exception):
    """What a client raises without permission."""


def offer(*usd, unit="Hrs", currency="USD", sku="3HAGRQEZFR7RAJ6Q"):
    """One item of a PriceList as GetProducts gives it, a JSON text; a price dimension for each price."""
    term = f"{sku}.JRTCKXETXF"
    dimensions = {
        f"{term}.6YS6EN2CT{number}": {
            "unit": unit,
            "endRange": "Inf",
            "description": f"${each} per On Demand Linux m7i.xlarge Instance Hour",
            "appliesTo": [],
            "rateCode": f"{term}.6YS6EN2CT{number}",
            "beginRange": "0",
            "pricePerUnit": {currency: each},
        }
        for number, each in enumerate(usd, 7)
    }
    return json.dumps(
        {
            "product": {
                "productFamily": "Compute Instance",
                "attributes": {
                    "enhancedNetworkingSupported": "Yes",
                    "memory": "16 GiB",
                    "vcpu": "4",
                    "capacitystatus": "Used",
                    "locationType": "AWS Region",
                    "instanceFamily": "General purpose",
                    "operatingSystem": "Linux",
                    "regionCode": "eu-west-1",
                    "physicalProcessor": "Intel Xeon Scalable (Sapphire Rapids)",
                    "tenancy": "Shared",
                    "usagetype": "EU-BoxUsage:m7i.xlarge",
                    "licenseModel": "No License required",
                    "instanceType": "m7i.xlarge",
                    "preInstalledSw": "NA",
                    "servicecode": "AmazonEC2",
                    "location": "EU (Ireland)",
                    "operation": "RunInstances",
                },
                "sku": sku,
            },
            "serviceCode": "AmazonEC2",
            "terms": {
                "OnDemand": {
                    term: {
                        "priceDimensions": dimensions,
                        "sku": sku,
                        "effectiveDate": "2026-02-01T00:00:00Z",
                        "offerTermCode": "JRTCKXETXF",
                        "termAttributes": {},
                    }
                },
                "Reserved": {
                    f"{sku}.38NPMPTW36": {
                        "priceDimensions": {
                            f"{sku}.38NPMPTW36.6YS6EN2CT7": {
                                "unit": "Hrs",
                                "pricePerUnit": {"USD": "0.0980000000"},
                            }
                        },
                        "sku": sku,
                        "offerTermCode": "38NPMPTW36",
                        "termAttributes": {"LeaseContractLength": "3yr", "PurchaseOption": "Partial Upfront"},
                    }
                },
            },
            "version": "20260205190537",
            "publicationDate": "2026-02-05T19:05:37Z",
        }
    )


class Pricing:
    """The Pricing API, which answers with these items, or raises."""

    def __init__(self, *items, error=None):
        self.items, self.error = items, error

    def get_products(self, **request):
        self.request = request
        if self.error:
            raise self.error
        return {"FormatVersion": "aws_v1", "PriceList": list(self.items)}


def test_the_pricing_api_is_asked_for_linux_on_shared_hosts():
    client = Pricing(offer("0.2247000000"))

    price = prices.on_demand(client, "m7i.xlarge", "eu-west-1")

    assert price == Price(0.2247, "Pricing API")
    assert client.request["ServiceCode"] == "AmazonEC2"
    assert all(each["Type"] == "TERM_MATCH" for each in client.request["Filters"])
    assert {each["Field"]: each["Value"] for each in client.request["Filters"]} == {
        "instanceType": "m7i.xlarge",
        "regionCode": "eu-west-1",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "licenseModel": "No License required",
    }


def test_prices_of_0_are_passed_over():
    client = Pricing(offer("0.0000000000"), offer("0.0000000000", "0.2016000000"))

    assert prices.on_demand(client, "m7i.xlarge", "us-east-1").usd_per_hour == 0.2016


ANSWERS_WITHOUT_A_PRICE = {
    "no item": (),
    "a price of 0": (offer("0.0000000000"),),
    "another currency": (offer("1.5000000000", currency="CNY"),),
    "another unit": (offer("9.9000000000", unit="Quantity"),),
    "no number": (offer("free"),),
    "no terms": (json.dumps({"product": {}, "terms": {}}),),
    "no JSON": ("<html>",),
    "another shape": ("[]",),
}


@pytest.mark.parametrize("case", ANSWERS_WITHOUT_A_PRICE)
def test_an_answer_without_a_price_gives_the_tables(case):
    client = Pricing(*ANSWERS_WITHOUT_A_PRICE[case])

    assert prices.on_demand(client, "m7i.xlarge", "us-east-1") == Price(0.2016, TABLE)


def test_a_tolerated_error_gives_the_tables_price_which_says_that_the_region_may_differ():
    client = Pricing(error=Refused("AccessDeniedException"))

    price = prices.on_demand(client, "m7i.xlarge", "eu-west-1", (Refused, TimeoutError))

    assert price == Price(0.2016, f"{TABLE}; eu-west-1 may differ")


def test_any_other_error_is_the_callers():
    with pytest.raises(Refused):
        prices.on_demand(Pricing(error=Refused()), "m7i.xlarge", "us-east-1", (TimeoutError,))


def test_a_type_that_is_not_in_the_table_has_no_price_there():
    with pytest.raises(SettingsError, match=r"m6i.large has no AMX"):
        prices.on_demand(Pricing(), "m6i.large", "us-east-1")


NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def spot_entry(zone, usd, hours_ago):
    return {
        "AvailabilityZone": zone,
        "InstanceType": "m7i.xlarge",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": usd,
        "Timestamp": NOON - timedelta(hours=hours_ago),
    }


class Spot:
    """EC2's spot history, page by page."""

    def __init__(self, *pages):
        self.pages, self.requests = pages, []

    def describe_spot_price_history(self, **request):
        self.requests.append(dict(request))
        number = int(request.get("NextToken", 0))
        more = str(number + 1) if number + 1 < len(self.pages) else ""
        return {"SpotPriceHistory": self.pages[number], "NextToken": more}


def test_the_newest_spot_price_of_each_zone_counts():
    client = Spot(
        [spot_entry("us-east-1a", "0.080000", 5), spot_entry("us-east-1b", "0.070000", 1)],
        [spot_entry("us-east-1b", "0.090000", 9), spot_entry("us-east-1a", "0.060000", 2)],
    )

    found = prices.spot(client, "m7i.xlarge", ("us-east-1b", "us-east-1a", "us-east-1e"))

    assert found == {
        "us-east-1b": Price(0.07, "spot history, us-east-1b"),
        "us-east-1a": Price(0.06, "spot history, us-east-1a"),
    }
    assert list(found) == ["us-east-1b", "us-east-1a"]


def test_the_spot_history_is_asked_for_what_holds_now():
    client = Spot([], [])
    before = datetime.now(timezone.utc)

    prices.spot(client, "m7i.xlarge", ("us-east-1a", "us-east-1b"))

    first, second = client.requests
    assert first["InstanceTypes"] == ["m7i.xlarge"]
    assert first["ProductDescriptions"] == ["Linux/UNIX"]
    assert first["Filters"] == [{"Name": "availability-zone", "Values": ["us-east-1a", "us-east-1b"]}]
    assert before <= first["StartTime"] <= datetime.now(timezone.utc)
    assert second == {**first, "NextToken": "1"}


def test_without_zones_nothing_is_asked():
    client = Spot([spot_entry("us-east-1a", "0.08", 1)])

    assert prices.spot(client, "m7i.xlarge", ()) == {}
    assert client.requests == []


def test_requests_are_such_as_boto3_accepts():
    """Checked by botocore's own model, so that no name is misspelled."""
    import botocore.session
    from botocore.validate import validate_parameters

    pricing, spot = Pricing(offer("0.2016000000")), Spot([])
    prices.on_demand(pricing, "m7i.xlarge", "us-east-1")
    prices.spot(spot, "m7i.xlarge", ("us-east-1a",))

    session = botocore.session.get_session()
    for service, operation, request in (
        ("pricing", "GetProducts", pricing.request),
        ("ec2", "DescribeSpotPriceHistory", spot.requests[0]),
    ):
        model = session.get_service_model(service).operation_model(operation)
        validate_parameters(request, model.input_shape)
    assert set(prices.PRICING_API_REGIONS) <= set(session.get_available_regions("pricing"))


def test_a_clusters_price_is_that_of_its_nodes():
    assert prices.per_hour(4, Price(0.2016, TABLE)) == pytest.approx(0.8064)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.8064, "$0.81 an hour"),
        (0.0352, "$0.035 an hour"),
        (0.0996, "$0.10 an hour"),
        (12.0, "$12.00 an hour"),
        (1016.064, "$1,016.06 an hour"),
    ],
)
def test_dollars_are_written_as_a_person_reads_them(usd, text):
    assert prices.dollars(usd) == text
