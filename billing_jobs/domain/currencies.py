"""
The currencies of ISO 4217 and how many decimals their minor unit has.

Owns the table of exponents. Not here: how an amount is printed for a locale (CLDR prints IDR and
HUF without decimals, which is a display rule and no exponent), and the exponents that a payment
gateway has of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from billing_jobs.domain.errors import UnknownCurrency

# ISO 4217 list one as of 1 January 2026, the day on which BGN left it for the euro.
_WITHOUT_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
_TWO_DECIMALS = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD "
    "CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP "
    "GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK "
    "LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO "
    "NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS "
    "SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST "
    "XAD XCD XCG YER ZAR ZMW ZWG"  # codespell:ignore zar
)
_THREE_DECIMALS = "BHD IQD JOD KWD LYD OMR TND"
_FOUR_DECIMALS = "CLF UYW"

_WITHOUT_MINOR_UNIT = "XAG XAU XBA XBB XBC XBD XDR XPD XPT XSU XTS XUA XXX"

#: Metals, drawing rights, bond units and tests: ISO gives them no minor unit, nothing is billed.
WITHOUT_MINOR_UNIT = frozenset(_WITHOUT_MINOR_UNIT.split())

#: Decimals of the minor unit of each active currency.
EXPONENTS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(_WITHOUT_DECIMALS.split(), 0)
    | dict.fromkeys(_TWO_DECIMALS.split(), 2)
    | dict.fromkeys(_THREE_DECIMALS.split(), 3)
    | dict.fromkeys(_FOUR_DECIMALS.split(), 4),
)

# Withdrawn codes still stand in old books; the successor helps more than a code spelled alike.
_SUCCESSORS: Mapping[str, str] = MappingProxyType(
    {
        "ANG": "XCG",
        "BGN": "EUR",
        "BYR": "BYN",
        "CUC": "CUP",
        "HRK": "EUR",
        "LTL": "EUR",
        "LVL": "EUR",
        "MRO": "MRU",
        "SLL": "SLE",
        "STD": "STN",
        "VEF": "VES",
        "ZMK": "ZMW",
        "ZWL": "ZWG",
    },
)

# How much of a wrong code is quoted back; a whole pasted paragraph would bury the message.
_QUOTED_CHARACTERS_MAX = 20
_SUGGESTIONS_MAX = 3


def exponent(code: str) -> int:
    """Decimals of the currency's minor unit: 0 for JPY, 2 for EUR, 3 for KWD, 4 for CLF."""
    known = EXPONENTS.get(code)
    if known is None:
        raise UnknownCurrency(_refusal(code))
    return known


def _refusal(code: str) -> str:
    quoted = repr(code)[:_QUOTED_CHARACTERS_MAX]
    if code in WITHOUT_MINOR_UNIT:
        return f"{quoted} has no minor unit in ISO 4217, so nothing can be billed in it"
    said = f"{quoted} is not an ISO 4217 currency"
    suggestions = _suggestions(code)
    if suggestions:
        return f"{said}; did you mean {' or '.join(suggestions)}?"
    return f"{said}; write its three capital letters, for example EUR"


def _suggestions(code: str) -> list[str]:
    spelled = code.strip().upper()[:_QUOTED_CHARACTERS_MAX]
    if spelled in EXPONENTS:
        return [spelled]
    if spelled in _SUCCESSORS:
        return [_SUCCESSORS[spelled]]
    return get_close_matches(spelled, sorted(EXPONENTS), n=_SUGGESTIONS_MAX)
