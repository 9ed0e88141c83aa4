"""Optional changes of what is spoken, each in a file of its own."""

from appliance.speech.rules.announce import announced

RULES = (announced,)
"""Rules in order: (front end, voices, queue, wish, spoken) → what is spoken."""
