// Hands what the microphone gives to the page, 128 samples at a time.

registerProcessor(
  "microphone",
  class extends AudioWorkletProcessor {
    process([[samples]]) {
      if (samples) this.port.postMessage(samples.slice());
      return true;
    }
  },
);
