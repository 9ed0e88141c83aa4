"""Rules that change the spoken text on request, one file each."""

from appliance.speech.rules.announce import announced

RULES = (announced,)
"""Rules in order of use. Each maps (front end, voices, queue, wish, spoken text) to a spoken text."""
