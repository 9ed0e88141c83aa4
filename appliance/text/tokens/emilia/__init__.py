"""Tokens of weights trained on Emilia: espeak's phones of English, initials and finals of Chinese.

tokens   a text's segments by language, and their tokens
words    numbers and abbreviations in words, as these weights were taught them
phones   English to phones, by a process of its own that runs the program `espeak`
espeak   that program, which loads the system's libespeak-ng
marks    the marks between espeak's clauses
"""
