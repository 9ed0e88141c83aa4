// Plays utterances through Web Audio as their samples arrive: those of a line one after the other without a gap.
// Every buffer that is given to Web Audio is announced by an event "scheduled": {id, offset, samples, when, rate}.

const LEAD_S = 0.1; // what has just begun starts so much later, so that its next piece is there in time
const FADE_S = 0.03; // what is stopped while it sounds would click
const REMEMBERED = 200; // ended utterances, of which nothing is played again

export class Player extends EventTarget {
  #lines = new Map();
  #utterances = new Map();
  #ended = new Set();
  #held = new Set(); // channels
  context = null;

  // The context must have the audio's own rate: resampled pieces would not join without a seam.
  open(rate) {
    if (this.context?.sampleRate === rate) return;
    this.context?.close();
    this.context = new AudioContext({ sampleRate: rate });
    this.context.addEventListener("statechange", () => this.dispatchEvent(new Event("state")));
  }

  get blocked() {
    return this.context !== null && this.context.state !== "running";
  }

  resume() {
    this.context?.resume();
  }

  // Silences these channels alone. What sounds on them stops where it is, and goes on from there once they are held no longer.
  hold(channels) {
    this.#held = new Set(channels);
    for (const one of this.#utterances.values()) if (this.#held.has(one.channel)) this.#freeze(one);
    for (const line of this.#lines.keys()) this.#schedule(line);
  }

  // `from`: the first sample that is to be heard. `line`: what is played in order. `channel`: what `hold` names.
  begin(id, { rate, line = "", channel = "", from = 0, info = null }) {
    if (this.#utterances.has(id) || this.#ended.has(id)) return;
    this.open(rate);
    const utterance = { id, rate, line, channel, from, info, next: from, complete: false, begun: false, pieces: [], start: null, end: null, volume: null };
    this.#utterances.set(id, utterance);
    if (!this.#lines.has(line)) this.#lines.set(line, []);
    this.#lines.get(line).push(utterance);
  }

  // Samples that were given before are passed over: who reconnects is sent all of an utterance again.
  audio(id, offset, bytes, last) {
    const utterance = this.#utterances.get(id);
    if (!utterance || utterance.complete) return;
    const skip = Math.max(utterance.next - offset, 0);
    const samples = floats(bytes).subarray(skip);
    if (samples.length) {
      utterance.pieces.push({ offset: offset + skip, samples, source: null });
      utterance.next = offset + skip + samples.length;
    }
    utterance.complete = last;
    this.#schedule(utterance.line);
  }

  // Stops an utterance at once; what follows it on its line moves up.
  stop(id) {
    const utterance = this.#utterances.get(id);
    this.#remember(id);
    if (!utterance) return;
    const line = this.#lines.get(utterance.line);
    const place = line.indexOf(utterance);
    const isPlayed = utterance.end !== null && utterance.end <= this.context.currentTime;
    for (const one of isPlayed ? [utterance] : line.slice(place)) this.#unschedule(one);
    line.splice(place, 1);
    this.#utterances.delete(id);
    this.#schedule(utterance.line);
    this.dispatchEvent(new CustomEvent("stopped", { detail: { id } }));
  }

  stopAll() {
    for (const id of [...this.#utterances.keys()]) this.stop(id);
  }

  // What sounds now or is held, and how many seconds of it have been heard.
  sounding() {
    const now = this.context ? this.context.currentTime - (this.context.outputLatency || 0) : 0;
    this.#forget();
    return [...this.#utterances.values()]
      .map((one) => [one, one.start === null ? -Infinity : now - one.start])
      .filter(([one, played]) => (one.begun || played >= 0) && (one.end === null || now < one.end))
      .map(([one, played]) => ({ id: one.id, info: one.info, isHeld: played < 0, at: one.from / one.rate + Math.max(played, 0) }));
  }

  #schedule(name) {
    const now = this.context.currentTime;
    let free = 0;
    for (const one of this.#lines.get(name) ?? []) {
      if (this.#held.has(one.channel) || (!one.pieces.length && !one.complete)) return;
      one.start ??= Math.max(free, frame(now + LEAD_S, one.rate));
      one.pieces = one.pieces.map((piece) => after(piece, one.from)).filter((piece) => piece.samples.length);
      for (const piece of one.pieces) {
        if (piece.source) continue;
        let when = one.start + (piece.offset - one.from) / one.rate;
        if (when < now) {
          one.start += frame(now + LEAD_S, one.rate) - when; // it came too late
          when = one.start + (piece.offset - one.from) / one.rate;
        }
        this.#play(one, piece, when);
      }
      if (!one.complete) return;
      free = one.end = one.start + (one.next - one.from) / one.rate;
    }
  }

  #play(one, piece, when) {
    const buffer = this.context.createBuffer(1, piece.samples.length, one.rate);
    buffer.copyToChannel(piece.samples, 0);
    piece.source = new AudioBufferSourceNode(this.context, { buffer });
    if (!one.volume) {
      one.volume = new GainNode(this.context);
      one.volume.connect(this.context.destination);
    }
    piece.source.connect(one.volume);
    piece.source.start(when);
    const detail = { id: one.id, offset: piece.offset, samples: piece.samples, when, rate: one.rate };
    this.dispatchEvent(new CustomEvent("scheduled", { detail }));
  }

  #freeze(one) {
    const now = this.context.currentTime;
    if (one.start === null || (one.end !== null && one.end <= now)) return;
    one.begun ||= one.start <= now;
    const heard = Math.round(Math.max(now - one.start, 0) * one.rate);
    one.from = Math.min(one.from + heard, one.next);
    this.#unschedule(one);
  }

  #unschedule(one) {
    const now = this.context?.currentTime;
    const fades = one.start < now && this.context.state === "running"; // else it would be heard when that goes on
    if (fades) one.volume?.gain.setValueAtTime(1, now).linearRampToValueAtTime(0, now + FADE_S);
    else one.volume?.disconnect();
    for (const piece of one.pieces) {
      piece.source?.stop(now + FADE_S);
      piece.source = null;
    }
    one.start = one.end = one.volume = null;
  }

  #forget() {
    for (const line of this.#lines.values())
      while (line.length && line[0].end !== null && line[0].end < this.context.currentTime - 1) {
        const { id } = line.shift();
        this.#utterances.delete(id);
        this.#remember(id);
      }
  }

  #remember(id) {
    this.#ended.add(id);
    if (this.#ended.size > REMEMBERED) this.#ended.delete(this.#ended.values().next().value);
  }
}

function frame(seconds, rate) {
  return Math.ceil(seconds * rate) / rate;
}

// A piece without the samples before `from`.
function after(piece, from) {
  const skip = Math.max(from - piece.offset, 0);
  return skip ? { offset: piece.offset + skip, samples: piece.samples.subarray(skip), source: null } : piece;
}

// 16-bit little-endian → floats, as the daemon made them: ±32767 is full scale.
function floats(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.byteLength >> 1 }, (_, i) => view.getInt16(2 * i, true) / 32767);
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
