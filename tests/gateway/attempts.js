// What a page may try with a gateway on another site: each way to speak, its text being its name; to read; to
// moderate; to show the status page in a frame. Resolves when all are answered or refused.
async function attempts(gateway) {
  const until = (element, ...events) =>
    new Promise((done) => events.forEach((name) => element.addEventListener(name, done)));
  const put = (tag, fields) => document.body.appendChild(Object.assign(document.createElement(tag), fields));
  const speech = (text) => JSON.stringify({ input: text, voice: "ann", nfe: 1 });
  const tts = (text) => `${gateway}/tts?text=${text}&ref_audio_path=ann&nfe=1`;
  const ask = (path, options) =>
    fetch(gateway + path, options).then(
      (answer) => (answer.body?.cancel(), answer.status),
      () => "refused",
    );
  const json = { "content-type": "application/json" };
  const post = (path, body, headers) => ask(path, { method: "POST", body, headers });

  const written = new WebSocket(`${gateway.replace("http", "ws")}/v1/text-to-speech/ann/stream-input?nfe=1`);
  written.onopen = () => ["socket. ", ""].forEach((text) => written.send(JSON.stringify({ text })));
  const closed = until(written, "close");

  await until(put("img", { src: tts("image") }), "load", "error");
  await until(put("audio", { src: tts("sound") }), "canplay", "error");
  await until(put("iframe", { src: tts("frame") }), "load");
  const target = put("iframe", { name: "target" });
  const form = put("form", { method: "POST", enctype: "text/plain", target: "target" });
  form.action = `${gateway}/v1/audio/speech`;
  form.append(Object.assign(document.createElement("input"), { name: '{"input":"form","voice":"ann","nfe":1,"x":"', value: '"}' }));
  form.submit();
  await until(target, "load");
  await ask("/v1/audio/speech", { method: "POST", mode: "no-cors", body: speech("blind") });
  const shown = put("iframe", { name: "shown", src: `${gateway}/` });
  await until(shown, "load");
  const events = new EventSource(`${gateway}/api/queue`);
  const state = await until(events, "open", "error");
  events.close();
  const { code } = await closed;
  return {
    socket: code === 1000 ? 200 : "refused",
    simple: await post("/v1/audio/speech", speech("simple")),
    json: await post("/v1/audio/speech", speech("json"), json),
    voices: await ask("/v1/audio/voices"),
    queue: await ask("/api/queue"),
    listen: await ask("/api/listen?channel=x"),
    status: await ask("/api/status"),
    events: state.type === "open" ? 200 : "refused",
    pause: await post("/api/channels/stage/pause", "{}", json),
    cancel: await post("/api/requests/none/cancel", "{}", json),
  };
}
