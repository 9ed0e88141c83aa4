"""Audio out of the daemon.

reply        segments → the bytes of a reply, off the engine's thread
loudness     a segment's level and true peak
join         cross-fades between segments
encode compress ogg    sample rate and PCM; FLAC, MP3, Opus, μ-law; bare Opus packets
words phrases    word timings; cache of finished replies
"""
