"""Audio out of the daemon.

reply        segments → the bytes of a reply, off the engine's thread
loudness     a segment's level and true peak
join         cross-fades between segments
encode wav compress ogg    sample rate and PCM; WAV; FLAC, MP3, Opus, μ-law; bare Opus packets
marking tags    the mark of synthetic audio, and what holds it in containers and headers
words phrases    word timings; cache of finished replies
"""
