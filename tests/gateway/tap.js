// Keeps what Web Audio is given of each utterance, by offset, in `given`, and the seconds of each buffer that begins in `played`,
// and the utterances that were stopped in `stopped`.
(() => {
  window.given = {};
  window.played = [];
  window.stopped = [];
  player.addEventListener("stopped", ({ detail: { id } }) => stopped.push(id));
  const start = AudioBufferSourceNode.prototype.start;
  AudioBufferSourceNode.prototype.start = function (...when) {
    played.push(this.buffer.duration);
    start.apply(this, when);
  };
  player.addEventListener("scheduled", ({ detail: { id, offset, samples, when, rate } }) => {
    (given[id] ??= {})[offset] = { samples: [...samples], when, rate };
  });
})();
