"""Chinese numbers in words: whole, decimal, digit by digit."""

from __future__ import annotations

from appliance.text.languages.quantity import LONGEST

_HAN = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_MYRIADS = ("", "万", "亿")


def chinese(number: int) -> str:
    """10500 → "一万零五百"; up to LONGEST digits."""
    if number < 0:
        return f"负{chinese(-number)}"
    if number == 0:
        return "零"
    groups, words = [], ""
    while number:
        number, group = divmod(number, 10_000)
        groups.append(group)
    for place in range(len(groups) - 1, -1, -1):
        group = groups[place]
        if group:
            if words and group < 1_000:
                words += "零"
            words += _chinese_group(group) + _MYRIADS[place]
    return words.removeprefix("一") if words.startswith("一十") else words


def _chinese_group(number: int) -> str:
    """Below 10,000."""
    words = ""
    for place in range(3, -1, -1):
        digit = number // 10**place % 10
        if digit:
            words += _HAN[digit] + _PLACES[place]
        elif words and not words.endswith("零") and number % 10**place:
            words += "零"
    return words


def chinese_digits(digits: str) -> str:
    """Words of each digit, without other characters."""
    return "".join(_HAN[int(digit)] for digit in digits if digit.isdecimal())


def chinese_decimal(number: str) -> str:
    whole, _, part = number.replace(",", "").partition(".")
    sign = "负" if whole.startswith("-") else ""
    whole = whole.lstrip("-+") or "0"
    words = chinese(int(whole)) if len(whole) <= LONGEST else chinese_digits(whole)
    return sign + words + (f"点{chinese_digits(part)}" if part else "")
