# A script beside its output and no package (INP001), with one place a line (E501), names in scripts
# whose letters look alike (RUF001), and tokens that are test words and no secrets (S105).
# ruff: noqa: E501, INP001, RUF001, S105
"""
Makes the example books: book.csv (200 customers) and book.json (12, for the documentation).

    python examples/make_book.py

The people are made up, their mail goes to domains that nobody owns (RFC 2606), and the same call
always makes the same bytes. A few payment tokens tell the sandbox gateway to misbehave, so that a
demo shows declines, lost answers, retries and a dead letter.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

_HEADER = (
    "customer,name,email,country,timezone,locale,currency,payment_method,gateway,payment_token,"
    "subscription,description,amount_minor,quantity,interval,interval_count,anchor_date,month_end,"
    "bill_from,ends_on,tax_rate_ppm,net_days"
)
COLUMNS = tuple(_HEADER.split(","))

TOKEN_OK = "pm_sandbox_ok"
TOKEN_DECLINED = "pm_sandbox_decline_insufficient_funds"
#: Token, and how many customers pay with it. Each of them has one subscription, so that the
#: numbers of a demo can be read off this table.
SPECIAL_TOKENS = (
    (TOKEN_DECLINED, 8),
    ("pm_sandbox_decline_expired_card", 3),
    ("pm_sandbox_hang_after_charge_x1", 3),
    ("pm_sandbox_error_after_charge_x1", 3),
    ("pm_sandbox_error_before_charge_x1", 3),
    ("pm_sandbox_busy_x2", 6),
    ("pm_sandbox_reset_after_charge_x1", 2),
    ("pm_sandbox_unknown_method", 2),
)
#: The demo's mail catcher answers 451 to this domain for ever.
TEMPFAIL_DOMAIN = "tempfail.example.com"
TEMPFAIL_CUSTOMERS = 2
DOMAINS = ("example.com", "example.org", "example.net")

# Every sixth customer is special, every sixth (another one) has two subscriptions.
_STEP = 6
_SPECIAL_OFFSET = 5
_SECOND_OFFSET = 2
_NAMES_A_PLACE = 4
#: Small, and many scripts.
JSON_CUSTOMERS = (
    "c-0001",
    "c-0002",
    "c-0008",
    "c-0011",
    "c-0020",
    "c-0023",
    "c-0025",
    "c-0034",
    "c-0036",
    "c-0039",
    "c-0040",
    "c-0041",
)

WITH_TWO_METHODS = "c-0040"
WITHOUT_METHOD = "c-0041"

#: Country, zone, locale, currency, minor units for a dollar, tax in ppm; then four names.
PLACES = """
DE Europe/Berlin de_DE EUR 92 190000|Jürgen Größmann|Käthe Möllenhoff|Sören Weißhaupt|Änne Büttgenbach
AT Europe/Vienna de_AT EUR 92 200000|Österreicher Zäzilia|Jörg Prückl|Bärbel Häusl|Günther Söllinger
CH Europe/Zurich de_CH CHF 88 81000|Ueli Rüegsegger|Noëlle Gäumann|Aurélie Bäbler|Flurin Cavegn-Töndury
FR Europe/Paris fr_FR EUR 92 200000|Éloïse Brûlard|François Lefèbure|Anaïs d’Aubépine|Gaël Château-Noir
BE Europe/Brussels nl_BE EUR 92 210000|Maïté Van Hooreweghe|Jérôme Quaegebeur|Zoë Dhaeyer|André Coûteaux
PT Atlantic/Azores pt_PT EUR 92 160000|João Conceição-Serrão|Inês Magalhães Brandão|Estêvão Açor|Graça Simões
ES Europe/Madrid es_ES EUR 92 210000|Íñigo Zubizarreta Ibáñez|María Peñalver|Begoña Agüera|Óscar Núñez-Calvo
PL Europe/Warsaw pl_PL PLN 395 230000|Małgorzata Żółtowicz|Łukasz Śliwkowski|Świętosława Gżegżółka|Błażej Ćwiertnia
CZ Europe/Prague cs_CZ CZK 2300 210000|Přemysl Řeháček|Žofie Křížkovská|Ondřej Šťastníček|Libuše Ďásková
HU Europe/Budapest hu_HU HUF 36000 270000|Szőke Györgyi|Kőműves Ádám|Zsíros Éva|Ürmössy Bálint
RO Europe/Bucharest ro_RO RON 455 210000|Ștefania Crângaru|Răzvan Țugulea|Mădălina Bârsănescu|Ionuț Grădișteanu
SE Europe/Stockholm sv_SE SEK 1050 250000|Åsa Björklundh|Örjan Hägglöv|Märta Sjöqvarn|Håkan Åkerstrøm
DK Europe/Copenhagen da_DK DKK 690 250000|Søren Ærøskov|Mærsk-Løkke Bodil|Åge Nørrebæk|Gyða Højskov
NO Europe/Oslo nb_NO NOK 1070 250000|Bjørnar Skårvåg|Øydis Tveitå|Kåre Sæbønes|Ragnhild Bråthøl
IS Atlantic/Reykjavik is_IS ISK 138 240000|Þórdís Hallgerðardóttir|Guðmundur Æsuson|Ásgeir Snæþórsson|Eyþóra Ýmisdóttir
TR Europe/Istanbul tr_TR TRY 3400 200000|İlknur Gürağaç|Çağrı Şenyüz|Güneş Özışık|Tuğçe Dağdeviroğlu
GB Europe/London en_GB GBP 79 200000|Siân Llwyd-Prŷs|Chloë Ashdowne|Aoife Nic Ruairí|Zachary Penhallow
IE Europe/Dublin ga_IE EUR 92 230000|Caoimhín Ó Súilleabháin-Bán|Síle Ní Mhaolchróin|Pádraig Mac Giolla|Róisín Ní Dhubhda
RS Europe/Belgrade sr_Cyrl_RS RSD 10800 200000|Љубица Ђорђијевска|Његош Ћосинац|Џенана Шљивић|Јагода Чађановић
UA Europe/Kyiv uk_UA UAH 4150 200000|Євгенія Щербина-Ґедзь|Юхим Їжакевич|Орися Забужана|Мусій Шпилевий
BG Europe/Sofia bg_BG EUR 92 200000|Цветелина Жъргова|Йордан Щърбанов|Величка Ямболийска|Асен Дъбравски
KZ Asia/Almaty kk_KZ KZT 48000 120000|Әйгерім Құлжабай|Нұрлан Өтегенұлы|Гүлназ Шәріпқызы|Бекзат Үмбетәлі
GR Europe/Athens el_GR EUR 92 240000|Ευγενία Ψαρομήτη|Θρασύβουλος Ξυλούρας|Χρυσάνθη Ζαφειράκου|Ιάσων Ρουμπέσης
CY Asia/Nicosia el_CY EUR 92 190000|Ανδρονίκη Τσαγγάρη|Ορέστης Κουντουρής|Δέσποινα Γιαλλούρου|Λεύκιος Φράγκος
IL Asia/Jerusalem he_IL ILS 370 180000|נועה שקדיאל|איתמר בן־ערבה|תהילה גפנוביץ|יאיר חרמונאי
AE Asia/Dubai ar_AE AED 367 50000|ميثاء النخيلاوي|راشد الغافري الرملي|شمسة المرجاني|حمدان السدراوي
EG Africa/Cairo ar_EG EGP 4900 140000|ياسمين الزعفراني|شريف القناطري|هبة الدلتاوي|مدحت النيلاوي
LB Asia/Beirut ar_LB USD 100 110000|ريما الأرزي|كمال السندياني|لارا الزيتوني|زياد الجبلاوي
MA Africa/Casablanca ar_MA MAD 990 200000|إيمان الأطلسية|عثمان الزليجي|سكينة الأرغاني|ياسين المرابطي
JO Asia/Amman ar_JO JOD 710 160000|دانا الرمثاوي|ليث الكثبان|رنيم الوردي|فارس الياسميني
KW Asia/Kuwait ar_KW KWD 310 0|دلال اللؤلؤي|بدر الصحراوي|شيخة السدرة|مشعل البحري
BH Asia/Bahrain ar_BH BHD 380 100000|لطيفة المحرقية|سلمان الدانة|مريم النخلاوي|عيسى الموجي
TN Africa/Tunis ar_TN TND 3100 190000|آمنة القرطاجنية|سامي الياسمين|ألفة الزيتونية|نزار الساحلي
IN Asia/Kolkata hi_IN INR 8300 180000|अनन्या चंद्रवंशी|विहान शर्मिष्ठ|इशिता देवधर पाटीलकर|ओमकार वनराज
NP Asia/Kathmandu ne_NP NPR 13300 130000|सृजना हिमाली|विवेक ढुङ्गेल्वा|मञ्जु लेकाली|प्रज्वल तराईवासी
CN Asia/Shanghai zh_CN CNY 720 60000|欧阳晓澄|司徒慕岚|钟离沐舟|林霁寒
TW Asia/Taipei zh_TW TWD 3200 50000|歐陽曉澄|諸葛語晴|范姜沐恩|簡聿齊
HK Asia/Hong_Kong zh_HK HKD 780 0|區凱嵐|司徒詠霖|鄺梓晞|霍倬謙
KR Asia/Seoul ko_KR KRW 1380 100000|남궁하늘솔|선우가온별|독고이든|제갈보람
JP Asia/Tokyo ja_JP JPY 150 100000|たかなし みお|カミシロ アオイ|九十九 さつき|四月一日 レン
TH Asia/Bangkok th_TH THB 3600 70000|กัญญาวีร์ ดอกแก้วทอง|ธนภูมิ ศิลาแลง|พิมพ์ลภัส ริมธาร|ณัฐวุฒิ ป่าสนเขียว
VN Asia/Ho_Chi_Minh vi_VN VND 25000 80000|Nguyễn Thị Hương Trầm|Đặng Quốc Vượng|Lê Ngọc Ánh Dương|Trần Bảo Khuê
ID Asia/Jakarta id_ID IDR 1580000 110000|Ayu Kirana Wulandewi|Bagus Prasetyahadi|Citra Laksmiwangi|Dimas Pramudityo
US America/New_York en_US USD 100 88750|Renée Thornbury-Ochs|José Kowalczewski|Zoë Abernethy-Nuñez|Malik Farrowdale
US America/Los_Angeles es_US USD 100 107500|Xóchitl Armendáriz-Lowe|Håkon Petrakis|Nhung Castellanos|Dmitri O’Rourke-Sato
CA America/St_Johns fr_CA CAD 136 150000|Geneviève Bélanger-Snow|Étienne Gagnonville|Noémie Thériaultin|Loïc Saint-Onge-Roy
BR America/Sao_Paulo pt_BR BRL 545 0|Conceição Guimarãesa|Thaís Assunção-Prado|Antônio Brandãozinho|Luísa Magalhãesinha
CL America/Santiago es_CL CLP 940 190000|Ñancupil Ailén|Begoña Quiñenao|Tomás Huenumán|Inés Peñaflorida
PY America/Asuncion es_PY PYG 7500 100000|Óga Ñemitỹ Benítez|Tupã Villalbaí|Ysyry Güemes|Ka’aguy Acuñada
UG Africa/Kampala sw_UG UGX 3700 180000|Nakirya Babiryezzi|Okellowoth Odoki|Nsubugaye Kato|Achiengo Apiyolla
"""

#: Description, price in cents of a dollar, interval, interval_count, quantity.
PLANS = (
    ("Team plan, per seat", 1999, "month", 1, 5),
    ("Basic plan", 999, "month", 1, 1),
    ("Backup storage, per 100 GB", 450, "month", 1, 12),
    ("Support contract", 24900, "quarter", 1, 1),
    ("Annual licence", 18000, "year", 1, 3),
    ("Weekly produce box", 2350, "week", 1, 1),
    ("Newspaper, fortnightly", 1475, "week", 2, 1),
    ("Domain and mailbox", 3120, "month", 6, 1),
    ("Fibre line", 4990, "month", 1, 1),
)

#: The anchors on which naive calendars fail come first; (date, month_end).
MONTHLY_ANCHORS = (
    ("2025-01-31", False),
    ("2024-02-29", False),
    ("2025-02-28", True),
    ("2025-04-30", True),
    ("2025-08-31", False),
    ("2024-11-30", False),
    ("2025-03-01", False),
    ("2025-05-15", False),
    ("2025-06-29", False),
    ("2024-12-24", False),
)
WEEKLY_ANCHORS = ("2025-01-06", "2025-03-30", "2025-10-26", "2024-12-29")
NET_DAYS = (0, 7, 14, 14, 30, 60)


class Dice:
    """Knuth's 64-bit linear congruential generator: the same rolls on every Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def roll(self, sides: int) -> int:
        """A number from 0 up to but not including `sides`."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % sides


@dataclass(frozen=True)
class Place:
    """Where four of the customers live."""

    country: str
    timezone: str
    locale: str
    currency: str
    minor_a_dollar: int
    tax_rate_ppm: int
    names: tuple[str, ...]


def places() -> list[Place]:
    """The table above, parsed."""
    found = []
    for line in PLACES.strip().splitlines():
        head, *names = line.split("|")
        country, timezone, locale, currency, minor_a_dollar, tax = head.split()
        found.append(
            Place(country, timezone, locale, currency, int(minor_a_dollar), int(tax), tuple(names))
        )
    return found


def lines() -> list[dict[str, str]]:
    """The lines of the CSV book: by customer, one or two subscriptions each."""
    dice = Dice(4217)
    special_payers = _special_payers()
    found = []
    for number, (place, name) in enumerate(_people(), start=1):
        token, domain = TOKEN_OK, DOMAINS[number % len(DOMAINS)]
        if number % _STEP == _SPECIAL_OFFSET:
            token, domain = next(special_payers, (token, domain))
        customer = {
            "customer": f"c-{number:04}",
            "name": name,
            "email": f"customer.{number:04}@{domain}",
            "country": place.country,
            "timezone": place.timezone,
            "locale": place.locale,
            "currency": place.currency,
            "payment_method": f"pm-{number:04}",
            "gateway": "sandbox",
            "payment_token": token,
        }
        subscriptions = 2 if number % _STEP == _SECOND_OFFSET else 1
        found += [
            customer | _subscription(f"s-{number:04}-{at + 1}", place, dice)
            for at in range(subscriptions)
        ]
    return found


def book_csv() -> str:
    """The text of book.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines())
    return text.getvalue()


def book_json() -> str:
    """The text of book.json: some of the same customers, without what is a default anyway."""
    chosen = [line for line in lines() if line["customer"] in JSON_CUSTOMERS]
    customers = []
    for reference, group in groupby(chosen, key=itemgetter("customer")):
        of_customer = list(group)
        customer = _json_customer(of_customer[0])
        subscriptions = [_json_subscription(line) for line in of_customer]
        # What a line of CSV cannot say: no way of paying, and a second one.
        if reference == WITHOUT_METHOD:
            del customer["payment_methods"]
        if reference == WITH_TWO_METHODS:
            customer["payment_methods"] = [
                {"reference": "pm-card", "gateway": "sandbox", "token": TOKEN_OK},
                {"reference": "pm-debit", "gateway": "sandbox", "token": TOKEN_OK},
            ]
            subscriptions[0]["payment_method"] = "pm-debit"
        customers.append(customer | {"subscriptions": subscriptions})
    return json.dumps({"customers": customers}, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write both books beside this script."""
    here = Path(__file__).resolve().parent
    for name, text in (("book.csv", book_csv()), ("book.json", book_json())):
        (here / name).write_text(text, encoding="utf-8", newline="")


def _people() -> Iterator[tuple[Place, str]]:
    # One of each place, then the second of each: neighbours in the book live far apart.
    for at in range(_NAMES_A_PLACE):
        for place in places():
            yield place, place.names[at]


def _special_payers() -> Iterator[tuple[str, str]]:
    """Token and mail domain of each special customer, in turn, so that kinds are spread out."""
    for turn in range(max(payers for _, payers in SPECIAL_TOKENS)):
        for token, payers in SPECIAL_TOKENS:
            if turn < payers:
                yield token, DOMAINS[turn % len(DOMAINS)]
    for _ in range(TEMPFAIL_CUSTOMERS):
        yield TOKEN_DECLINED, TEMPFAIL_DOMAIN


def _subscription(reference: str, place: Place, dice: Dice) -> dict[str, str]:
    description, cents, interval, interval_count, quantity_max = PLANS[dice.roll(len(PLANS))]
    anchor, month_end = MONTHLY_ANCHORS[dice.roll(len(MONTHLY_ANCHORS))]
    if interval == "week":
        anchor, month_end = WEEKLY_ANCHORS[dice.roll(len(WEEKLY_ANCHORS))], False
    # Gateways want the third decimal of dinars to be 0.
    amount = max(1, cents * place.minor_a_dollar // 1000) * 10
    return {
        "subscription": reference,
        "description": description,
        "amount_minor": str(amount),
        "quantity": str(1 + dice.roll(quantity_max)),
        "interval": interval,
        "interval_count": str(interval_count),
        "anchor_date": anchor,
        "month_end": "true" if month_end else "false",
        "bill_from": "",
        "ends_on": "2099-12-31" if dice.roll(20) == 0 else "",
        "tax_rate_ppm": str(place.tax_rate_ppm),
        "net_days": str(NET_DAYS[dice.roll(len(NET_DAYS))]),
    }


def _json_customer(line: dict[str, str]) -> dict[str, object]:
    plain = ("name", "email", "country", "timezone", "locale", "currency")
    method = {
        "reference": line["payment_method"],
        "gateway": line["gateway"],
        "token": line["payment_token"],
    }
    return {
        "reference": line["customer"],
        **{column: line[column] for column in plain},
        "payment_methods": [method],
    }


def _json_subscription(line: dict[str, str]) -> dict[str, object]:
    element: dict[str, object] = {
        "reference": line["subscription"],
        "description": line["description"],
        "amount_minor": int(line["amount_minor"]),
        "quantity": int(line["quantity"]),
        "interval": line["interval"],
        "interval_count": int(line["interval_count"]),
        "anchor_date": line["anchor_date"],
        "month_end": line["month_end"] == "true",
        "ends_on": line["ends_on"],
        "tax_rate_ppm": int(line["tax_rate_ppm"]),
        "net_days": int(line["net_days"]),
    }
    defaults = {
        "quantity": 1,
        "interval_count": 1,
        "month_end": False,
        "ends_on": "",
        "tax_rate_ppm": 0,
        "net_days": 0,
    }
    return {key: value for key, value in element.items() if value != defaults.get(key)}


if __name__ == "__main__":
    main()
