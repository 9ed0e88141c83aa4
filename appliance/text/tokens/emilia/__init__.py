"""Tokens of weights trained on Emilia: espeak's phones of English, initials and finals of Chinese.

tokens   a text's segments by language, and their tokens
words    numbers and abbreviations in words, as in these weights' training
phones   English → phones, by the program `espeak` in another process
espeak   that program, which loads the system's libespeak-ng
marks    the marks between espeak's clauses
"""
