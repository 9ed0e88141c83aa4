// Plays what a held line will sound like, for the moderator alone; one at a time.

import { call } from "./api.js";

let context = null;
let stopped = () => {};

export function stopPreview() {
  stopped();
}

// Resolves with the seconds that are made once they have been heard, or `stopPreview` was called; `begun` is called with them.
export async function preview({ channel, request_id: id }, begun) {
  stopped();
  let isStopped = false;
  stopped = () => (isStopped = true);
  context ??= new AudioContext();
  context.resume();
  const answer = await call(`/api/channels/${encodeURIComponent(channel)}/preview?request_id=${encodeURIComponent(id)}`);
  const buffer = await context.decodeAudioData(await answer.arrayBuffer());
  if (isStopped) return;
  begun(buffer.duration);
  const source = new AudioBufferSourceNode(context, { buffer });
  source.connect(context.destination);
  stopped = () => source.stop();
  source.start();
  await new Promise((done) => source.addEventListener("ended", done));
}
