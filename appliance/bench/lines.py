"""English and Chinese lines, and texts of a given length made of them."""

from __future__ import annotations

from random import Random

LINES = (
    "Thanks for the follow, and welcome to the stream.",
    "Has anybody here finished the second level without losing a single life?",
    "That was the best jump I have seen all week, please do it again.",
    "Good evening from Norway, it is snowing and the coffee is ready.",
    "The key is behind the waterfall, you walked past it three times.",
    "My cat has fallen asleep on the keyboard, so I can only watch.",
    "Please drink some water, you have been talking for two hours.",
    "I missed the start, what are we trying to do today?",
    "Could you turn the music down a little, I can hardly hear you.",
    "We are only forty points away from the record, do not give up now.",
    "My brother says that this boss cannot be beaten with a wooden sword.",
    "Happy birthday to everyone in chat who was born on a Tuesday.",
    "The blue door leads back to the garden, and the red one to trouble.",
    "I will be late for work because of you, and it was worth it.",
    "Somebody clip that before it is gone, nobody will believe me otherwise.",
    "How long did it take you to build the bridge over the river?",
    "I learned to play the piano because of your channel, thank you.",
    "Do not forget to save before you open the chest in the tower.",
)


def text_of(words: int, random: Random) -> str:
    """Text of so many words from consecutive lines, starting at a random one."""
    first = random.randrange(len(LINES))
    taken: list[str] = []
    while len(taken) < words:
        taken += LINES[first % len(LINES)].split()
        first += 1
    return " ".join(taken[:words]).rstrip(".,?") + "."


CHINESE = (
    "谢谢大家的关注，欢迎来到直播间。",
    "今天晚上外面下着大雪，家里的咖啡刚刚煮好。",
    "这一关我已经试了三次，再给我一点时间。",
    "钥匙就在瀑布的后面，你从那里走过好几次。",
    "请多喝一点水，你已经说了两个小时的话。",
    "祝今天过生日的朋友身体健康，万事如意。",
    "红色的门通向花园，蓝色的门后面很危险。",
    "别忘了先保存，再打开塔里的那个箱子。",
)


def chinese_of(characters: int, random: Random) -> str:
    """Text of so many characters, punctuation included, from consecutive Chinese lines."""
    first = random.randrange(len(CHINESE))
    text = "".join(CHINESE[(first + number) % len(CHINESE)] for number in range(characters // 12 + 2))
    return text[: characters - 1].rstrip("，。") + "。"
