"""Audio into the daemon and out of it.

in    decode       file → integer samples
      reference    → Features: trimmed, levelled, resampled, log-mel; with warnings about the recording
      recording silence background    cuts with pydub's rounding, silences, the voice's background
out   reply        segments → the bytes of a reply, off the engine's thread
      join         cross-fades between segments
      encode compress ogg    sample rate and PCM; FLAC, MP3, Opus, μ-law; bare Opus packets
"""
