"""
The form of a request, read the way Stripe reads it: nested names, strict about unknown ones.

Owns parsing and the bounds of single parameters. Owns no rule between them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from billing_jobs.sandbox.answers import invalid_request, missing_resource
from billing_jobs.sandbox.faults import token_rule

#: Stripe's own: eight digits.
AMOUNT_MAX = 99_999_999
#: Stripe's own bounds of metadata.
_METADATA_ENTRIES_MAX = 50
_METADATA_NAME_MAX = 40
_METADATA_VALUE_MAX = 500
#: More fields than any request we know has.
_FIELDS_MAX = 200
_NESTED = re.compile(r"(?P<name>[a-z_]+)\[(?P<inner>[^\]]*)\]")
_LIMIT_MAX = 100
_LIMIT_DEFAULT = 10
_EPOCH_MAX = 10**11

# The presentment currencies of Stripe; a list of its own, on purpose not shared with our domain.
_CURRENCIES = """
    aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bhd bif bmd bnd bob brl bsd bwp byn bzd
    cad cdf chf clp cny cop crc cve czk djf dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gnf gtq
    gyd hkd hnl htg huf idr ils inr isk jmd jod jpy kes kgs khr kmf krw kwd kyd kzt lak lbp lkr lrd
    lsl mad mdl mga mkd mmk mnt mop mur mvr mwk mxn myr mzn nad ngn nio nok npr nzd omr pab pen pgk
    php pkr pln pyg qar ron rsd rub rwf sar sbd scr sek sgd shp sle sos srd std szl thb tjs tnd top
    try ttd twd tzs uah ugx usd uyu uzs vnd vuv wst xaf xcd xcg xof xpf yer zar zmw
"""


class Parameters:
    """The parameters of one request."""

    def __init__(self, encoded_form: str) -> None:
        try:
            pairs = parse_qsl(
                encoded_form, keep_blank_values=True, errors="replace", max_num_fields=_FIELDS_MAX
            )
        except ValueError as error:
            raise invalid_request(f"More than {_FIELDS_MAX} parameters.") from error
        self._pairs = sorted(pairs)
        self._values = dict(pairs)

    def fingerprint(self, path: str) -> str:
        """Return what must stay the same when an idempotency key is used again."""
        return hashlib.sha256(repr((path, self._pairs)).encode()).hexdigest()

    def allow(self, names: Collection[str]) -> None:
        """Refuse parameters that the operation does not have: a typing error must not pass."""
        for full_name in self._values:
            name = full_name.partition("[")[0]
            if name not in names:
                raise invalid_request(
                    f"Received unknown parameter: {name}", code="parameter_unknown", param=name
                )

    def text(self, name: str) -> str:
        """Return a parameter; empty when it is not there."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """Return a boolean parameter; false when it is not there."""
        value = self.text(name)
        if value not in {"", "true", "false"}:
            raise invalid_request(f"Invalid boolean: {value}", param=name)
        return value == "true"

    def nested(self, name: str) -> dict[str, str]:
        """Return the parameters `name[...]` by their inner name."""
        found: dict[str, str] = {}
        for full_name, value in self._values.items():
            match = _NESTED.fullmatch(full_name)
            if match and match["name"] == name:
                found[match["inner"]] = value
        return found

    def amount(self) -> int:
        """Return the required amount in minor units."""
        amount = self._integer("amount", 0)
        if amount < 1:
            raise invalid_request(
                "This value must be greater than or equal to 1.",
                code="parameter_invalid_integer",
                param="amount",
            )
        if amount > AMOUNT_MAX:
            raise invalid_request(
                f"Amount must be no more than {AMOUNT_MAX}.",
                code="amount_too_large",
                param="amount",
            )
        return amount

    def currency(self) -> str:
        """Return the required currency, in lower case as Stripe shows it."""
        currency = self.text("currency").lower()
        if currency not in _CURRENCIES.split():
            raise invalid_request(f"Invalid currency: {currency}.", param="currency")
        return currency

    def payment_method(self) -> str:
        """Return a payment token that the sandbox knows; empty when there is none."""
        token = self.text("payment_method")
        if token and token_rule(token) is None:
            raise missing_resource("PaymentMethod", token, param="payment_method", status=400)
        return token

    def metadata(self) -> dict[str, str]:
        """Return the metadata within Stripe's bounds."""
        metadata = {name: value for name, value in self.nested("metadata").items() if value}
        if len(metadata) > _METADATA_ENTRIES_MAX:
            raise invalid_request(
                f"Metadata has at most {_METADATA_ENTRIES_MAX} entries.", param="metadata"
            )
        for name, value in metadata.items():
            if len(name) > _METADATA_NAME_MAX or len(value) > _METADATA_VALUE_MAX:
                raise invalid_request(
                    f"Metadata names have at most {_METADATA_NAME_MAX} characters, values "
                    f"{_METADATA_VALUE_MAX}.",
                    param=f"metadata[{name}]",
                )
        return metadata

    def limit(self) -> int:
        """Return how many objects a page shall have."""
        limit = self._integer("limit", _LIMIT_DEFAULT)
        if not 1 <= limit <= _LIMIT_MAX:
            raise invalid_request(
                f"This value must be between 1 and {_LIMIT_MAX}.",
                code="parameter_invalid_integer",
                param="limit",
            )
        return limit

    def created_bounds(self) -> tuple[int, int]:
        """Return the first and the last second of creation that a list shall show."""
        bounds = {
            "gte": self._integer("created[gte]", 0),
            "gt": self._integer("created[gt]", -1),
            "lte": self._integer("created[lte]", _EPOCH_MAX),
            "lt": self._integer("created[lt]", _EPOCH_MAX),
        }
        return max(bounds["gte"], bounds["gt"] + 1), min(bounds["lte"], bounds["lt"] - 1)

    def _integer(self, name: str, default: int) -> int:
        value = self.text(name)
        if not value:
            return default
        if not re.fullmatch(r"-?[0-9]{1,12}", value):
            raise invalid_request(
                f"Invalid integer: {value}", code="parameter_invalid_integer", param=name
            )
        return int(value)
