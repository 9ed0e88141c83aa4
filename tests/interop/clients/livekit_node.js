// LiveKit's Node plugins at another address: node livekit_node.js HOST:PORT NODE_MODULES. Prints JSON.
const [address, modules] = process.argv.slice(2);
const { initializeLogger } = require(`${modules}/@livekit/agents`);
const elevenlabs = require(`${modules}/@livekit/agents-plugin-elevenlabs`);
const openai = require(`${modules}/@livekit/agents-plugin-openai`);

initializeLogger({ pretty: false, level: "fatal" });
const WORDS = ["Hello, ", "my 5 friends. ", "Welcome to ", "the stream."];

async function heard(stream) {
  let [samples, rate, words] = [0, 0, []];
  for await (const event of stream) {
    if (typeof event === "symbol") continue;
    samples += event.frame.samplesPerChannel;
    rate = event.frame.sampleRate;
    words = words.concat(event.timedTranscripts ?? []);
  }
  return { seconds: samples / rate, rate, words: words.map((word) => word.text.trim()) };
}

async function written(tts, words = WORDS) {
  const stream = tts.stream();
  for (const word of words) stream.pushText(word);
  stream.endInput();
  return heard(stream);
}

// A stream that is closed at its first sound.
async function left(tts) {
  const stream = tts.stream();
  stream.pushText("A long story. ".repeat(100));
  stream.flush();
  for await (const event of stream) {
    stream.close();
    return event.frame.samplesPerChannel;
  }
}

(async () => {
  const [apiKey, baseURL] = ["none", `http://${address}/v1`];
  const tts = new elevenlabs.TTS({ baseURL, apiKey, voiceId: "Ann", encoding: "pcm_24000" });
  const told = { voices: (await tts.listVoices()).map((voice) => voice.id) };
  told.whole = await heard(tts.synthesize("Hello, chat. Welcome to the stream."));
  told.written = await written(tts);
  told.together = await Promise.all(Array.from({ length: 8 }, () => written(tts)));
  told.left = await left(tts);
  told.nothing = [(await written(tts, ["..."])).seconds, (await written(tts, ["\u{1F3FB}"])).seconds];
  await tts.close();
  const other = new openai.TTS({ baseURL, apiKey, voice: "ann" });
  told.openai = await heard(other.synthesize("Hello, chat. Welcome to the stream."));
  console.log(JSON.stringify(told));
  process.exit();
})();
