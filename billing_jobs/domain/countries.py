"""
The country codes of ISO 3166-1, two letters.

Owns which codes exist. Not here: names of countries, their currencies, languages or taxes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from billing_jobs.domain.errors import InputError

_CODES = (
    "AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH "
    "BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ CA CC CD CF CG CH CI CK CL "
    "CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET "
    "FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU "  # codespell:ignore fo
    "GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE "
    "KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC "
    "MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC "
    "NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT "
    "PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR "
    "SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA "
    "UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW"
)

# Kosovo has no ISO code yet; banks and the EU bill it under this user-assigned one.
_USER_ASSIGNED = "XK"

#: Every code a customer may have.
COUNTRIES = frozenset(_CODES.split()) | {_USER_ASSIGNED}

# What people write for a country whose ISO code is another one.
_MEANT: Mapping[str, str] = MappingProxyType({"EL": "GR", "UK": "GB"})

# How much of a wrong code is quoted back.
_QUOTED_CHARACTERS_MAX = 20


def country(code: str) -> str:
    """The code itself, if the country exists; else InputError with the code that was meant."""
    if code in COUNTRIES:
        return code
    said = f"{repr(code)[:_QUOTED_CHARACTERS_MAX]} is not an ISO 3166-1 country"
    spelled = code.strip().upper()
    meant = _MEANT.get(spelled, spelled)
    if meant in COUNTRIES:
        raise InputError(f"{said}; did you mean {meant}?")
    raise InputError(f"{said}; write its two capital letters, for example DE")
