// A recording of the microphone or a file: taken, cut, heard, written as WAV.

const LONGEST_S = 20; // the daemon takes 12 s, once silence at the ends is gone
const AS_IT_IS = { echoCancellation: false, noiseSuppression: false, autoGainControl: false, channelCount: 1 };

// Records until `stop` is called, or for LONGEST_S. `level` is called with the peak of each block and the seconds so far.
export class Microphone {
  #blocks = [];
  #count = 0;

  // Throws an Error for a reader where there is no microphone, or none may be used.
  async start(level, full) {
    if (!navigator.mediaDevices)
      throw new Error("A browser records only over HTTPS or at localhost. Choose a file instead.");
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ audio: AS_IT_IS });
    } catch (error) {
      throw new Error(`No microphone: ${error.message}. Choose a file instead.`);
    }
    this.context = new AudioContext();
    await this.context.audioWorklet.addModule("/static/microphone.js");
    const mono = { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" };
    this.tap = new AudioWorkletNode(this.context, "microphone", mono);
    this.tap.port.onmessage = ({ data }) => {
      if (this.#count >= LONGEST_S * this.context.sampleRate) return full();
      this.#blocks.push(data);
      this.#count += data.length;
      level(data.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0), this.#count / this.context.sampleRate);
    };
    this.context.createMediaStreamSource(this.stream).connect(this.tap);
  }

  // Returns the Recording.
  async stop() {
    this.tap.port.onmessage = null;
    for (const track of this.stream.getTracks()) track.stop();
    const rate = this.context.sampleRate;
    await this.context.close();
    const samples = new Float32Array(this.#count);
    let place = 0;
    for (const block of this.#blocks) {
      samples.set(block, place);
      place += block.length;
    }
    return new Recording(samples, rate);
  }
}

export class Recording {
  #context = null;

  // `samples`: mono, −1 to 1.
  constructor(samples, rate) {
    Object.assign(this, { samples, rate, begin: 0, end: samples.length });
  }

  get seconds() {
    return (this.end - this.begin) / this.rate;
  }

  // From 0 to 1 of the whole.
  cut(begin, end) {
    this.begin = Math.round(begin * this.samples.length);
    this.end = Math.max(Math.round(end * this.samples.length), this.begin);
  }

  play() {
    this.silence();
    this.#context = new AudioContext({ sampleRate: this.rate });
    const buffer = this.#context.createBuffer(1, Math.max(this.end - this.begin, 1), this.rate);
    buffer.copyToChannel(this.samples.subarray(this.begin, this.end), 0);
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#context.destination);
    source.start();
  }

  silence() {
    this.#context?.close();
    this.#context = null;
  }

  // Draws the envelope over the width of a canvas; what is cut off is pale.
  draw(canvas) {
    const { width, height } = canvas;
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = getComputedStyle(canvas).color;
    const step = this.samples.length / width;
    for (let x = 0; x < width; x++) {
      const from = Math.floor(x * step);
      let most = 0;
      for (let i = from; i < from + step; i++) most = Math.max(most, Math.abs(this.samples[i] ?? 0));
      pen.globalAlpha = from >= this.begin && from < this.end ? 1 : 0.25;
      pen.fillRect(x, (height * (1 - most)) / 2, 1, Math.max(height * most, 1));
    }
  }

  // 16-bit mono WAV of what is left.
  wav() {
    const count = this.end - this.begin;
    const view = new DataView(new ArrayBuffer(44 + 2 * count));
    const text = (at, letters) => [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
    text(0, "RIFF");
    view.setUint32(4, 36 + 2 * count, true);
    text(8, "WAVEfmt ");
    view.setUint32(16, 16, true);
    view.setUint16(20, 1, true); // PCM
    view.setUint16(22, 1, true);
    view.setUint32(24, this.rate, true);
    view.setUint32(28, 2 * this.rate, true);
    view.setUint16(32, 2, true);
    view.setUint16(34, 16, true);
    text(36, "data");
    view.setUint32(40, 2 * count, true);
    for (let i = 0; i < count; i++)
      view.setInt16(44 + 2 * i, Math.round(32767 * Math.min(Math.max(this.samples[this.begin + i], -1), 1)), true);
    return new Blob([view], { type: "audio/wav" });
  }
}
