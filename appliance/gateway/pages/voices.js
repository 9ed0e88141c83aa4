// Voices: one is recorded or taken from a file, cut, heard and stored; stored ones are removed.

import { call } from "./api.js";
import { at } from "./dom.js";
import { Microphone, Recording } from "./recording.js";

// About eight seconds, with most sounds of the language.
const SENTENCES = {
  en: "Hello everyone, welcome back to the stream. Tonight we play a few rounds, share some laughs, and maybe break a record.",
  de: "Hallo zusammen, schön, dass ihr da seid. Heute spielen wir ein paar Runden, lachen viel und brechen vielleicht einen Rekord.",
  es: "Hola a todos, qué alegría veros por aquí. Hoy jugaremos unas partidas, nos reiremos mucho y quizá batamos un récord.",
  fr: "Bonjour à tous, quel plaisir de vous revoir. Ce soir, on joue quelques parties, on rit beaucoup, et on bat peut-être un record.",
  it: "Ciao a tutti, che bello rivedervi. Stasera giochiamo qualche partita, ridiamo insieme e forse battiamo un record.",
  pt: "Olá a todos, que bom ver vocês de novo. Hoje jogamos algumas partidas, damos boas risadas e talvez batamos um recorde.",
  ru: "Всем привет, рад снова вас видеть. Сегодня мы сыграем несколько партий, посмеёмся и, может быть, побьём рекорд.",
  zh: "大家好，欢迎回到直播间。今天晚上我们一起玩几局游戏，聊聊天，说不定还能打破一个纪录。",
  ja: "みなさん、こんばんは。今日の配信では、いくつかゲームをして、たくさん笑って、もしかしたら記録も破ります。",
  hi: "सबको नमस्ते, फिर से मिलकर बहुत अच्छा लगा। आज हम कुछ खेल खेलेंगे, खूब हँसेंगे और शायद कोई रिकॉर्ड भी तोड़ेंगे।",
  ar: "مرحبا بالجميع، يسعدني أن أراكم من جديد. سنلعب الليلة بضع جولات، ونضحك كثيرا، وربما نحطم رقما قياسيا.",
};
const READ = "Read the sentence aloud.";
const LOUD = 0.99;
const QUIET = 0.05;
const FILE_RATE = 24000;

let microphone = null;
let recording = null;
let peak = 0;
// True once the warnings of what is in the form were shown.
let warned = false;
let changed = () => {};
let refused = () => {};

// False for what Chromium makes of LANG=C, "en-US@posix", which no part of Intl takes.
function isTag(language) {
  return /^[a-z0-9-]+$/i.test(language);
}

// `whenChanged` is called with the id of a voice that was stored, or nothing; `whenRefused` with an error.
export function startVoices(whenChanged, whenRefused) {
  [changed, refused] = [whenChanged, whenRefused];
  const names = new Intl.DisplayNames(navigator.languages.filter(isTag), { type: "language" });
  at("sentence").replaceChildren(...Object.keys(SENTENCES).map((code) => new Option(names.of(code), code)));
  const own = navigator.language.split("-")[0];
  at("sentence").value = own in SENTENCES ? own : "en";
  at("transcript").value = SENTENCES[at("sentence").value];
}

at("sentence").addEventListener("change", () => {
  at("transcript").value = SENTENCES[at("sentence").value];
});

at("record").addEventListener("click", async () => {
  if (microphone) return finish();
  recording?.silence();
  const own = new Microphone();
  peak = 0;
  try {
    await own.start(showLevel, finish);
  } catch (error) {
    return tell(error.message, true);
  }
  microphone = own;
  at("record").textContent = "Stop";
  tell(READ);
});

async function finish() {
  const own = microphone;
  microphone = null;
  if (!own) return;
  at("record").textContent = "Record again";
  at("level").value = 0;
  const advice = peak >= LOUD ? "Too loud: move back a little." : peak < QUIET ? "Very quiet: come closer." : "";
  take(await own.stop(), advice);
}

function showLevel(most, seconds) {
  peak = Math.max(peak, most);
  at("level").value = most;
  tell(`${READ} ${Math.floor(seconds)} s`);
}

at("file").addEventListener("change", async () => {
  const [file] = at("file").files;
  if (!file) return;
  try {
    const context = new OfflineAudioContext(1, 1, FILE_RATE);
    const sound = await context.decodeAudioData(await file.arrayBuffer());
    const samples = new Float32Array(sound.length);
    for (let channel = 0; channel < sound.numberOfChannels; channel++)
      sound.getChannelData(channel).forEach((sample, i) => (samples[i] += sample / sound.numberOfChannels));
    take(new Recording(samples, sound.sampleRate));
  } catch {
    tell(`${file.name}: this browser cannot read it.`, true);
  }
});

function take(taken, advice = "") {
  recording = taken;
  unwarn();
  at("from").value = 0;
  at("to").value = 1;
  at("cut").hidden = false;
  at("from").dispatchEvent(new Event("input"));
  if (advice) tell(advice, true);
}

for (const end of ["from", "to"])
  at(end).addEventListener("input", () => {
    recording.cut(Number(at("from").value), Number(at("to").value));
    recording.draw(at("wave"));
    tell(`${recording.seconds.toFixed(1)} s`);
  });

at("hear").addEventListener("click", () => recording.play());

at("store").addEventListener("input", unwarn);

function unwarn() {
  warned = false;
  at("save").textContent = "Save";
}

at("store").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!recording) return tell("Record it, or choose a file.", true);
  const form = new FormData();
  for (const name of ["name", "style", "transcript", "consent"]) form.append(name, at(name).value);
  form.append("audio", recording.wav(), "recording.wav");
  at("save").disabled = true;
  tell("…");
  try {
    if (!warned) {
      form.append("validate_only", "true");
      const { warnings } = (await upload(form)).recorded;
      form.delete("validate_only");
      if (warnings.length) {
        warned = true;
        at("save").textContent = "Save anyway";
        return tell(`Not stored yet: ${warnings.join("; ")}.`, true);
      }
    }
    const { id, recorded } = await upload(form);
    unwarn();
    tell([`${recorded.name} is stored.`, recorded.warnings.join("; ")].join(" "), recorded.warnings.length > 0);
    changed(id);
  } catch (error) {
    tell(error.message, true);
    refused(error);
  } finally {
    at("save").disabled = false;
  }
});

// The voice's id, and the voice or style that was recorded.
async function upload(form) {
  const voice = await (await call("/v1/audio/voices", { form })).json();
  const latest = (one, other) => (one.created > other.created ? one : other);
  return { id: voice.id, recorded: form.get("style") ? voice.styles.reduce(latest) : voice };
}

// `voices`: as in /api/status.
export function showStored(voices) {
  const rows = voices.flatMap((voice) => {
    const path = `/v1/audio/voices/${voice.name}`;
    const styles = voice.styles.map((style) => ({ ...style, path: `${path}/styles/${style.name}`, of: `${voice.name} [${style.name}]` }));
    return [{ ...voice, path, of: voice.name }, ...styles];
  });
  const names = JSON.stringify(rows);
  if (at("stored").dataset.names === names) return;
  at("stored").dataset.names = names;
  const focused = at("stored").contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : "";
  at("stored").replaceChildren(
    ...rows.map(({ path, of, display_name: shown, problem }) => {
      const item = document.createElement("li");
      const text = item.appendChild(document.createElement("p"));
      text.textContent = (shown || of) + (problem ? " (damaged)" : "");
      const button = item.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = "Remove";
      button.setAttribute("aria-label", `remove ${of}`);
      button.addEventListener("click", () => remove(path, of));
      return item;
    }),
  );
  if (focused) (at("stored").querySelector(`[aria-label="${CSS.escape(focused)}"]`) ?? at("voices-title")).focus();
}

async function remove(path, of) {
  if (!confirm(`Remove ${of}? What is recorded is deleted.`)) return;
  try {
    await call(path, { method: "DELETE" });
    tell(`${of} is removed.`);
    changed();
  } catch (error) {
    tell(error.message, true);
    refused(error);
  }
}

function tell(text, isBad = false) {
  at("told").className = isBad ? "hint bad" : "hint";
  at("told").textContent = text;
}
