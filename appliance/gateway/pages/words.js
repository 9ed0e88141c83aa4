// What is written about a line of the queue.

const NAMED = 60; // characters of it in a message

// Why it ended.
export function reasonOf({ reason }) {
  return reason.toLowerCase().replaceAll("_", " ");
}

export function factsOf({ user_key: user, channel, voice, voices, length_ms: length, merged }, state) {
  const spoken = voices.length ? voices.join(", ") : voice;
  const count = merged > 1 ? `${merged} in one` : "";
  return [user, channel && `on ${channel}`, spoken, `${(length / 1000).toFixed(1)} s`, count, state].filter(Boolean).join(" · ");
}

// What the text was before it was made speakable; empty where nothing but spaces differs.
export function writtenOf({ text, written }) {
  const bare = (words) => words.replace(/\s+/g, " ").trim();
  return written && bare(written) !== bare(text) ? `Written: ${written}` : "";
}

// Names a line in a message.
export function quoted({ text, user_key: user }) {
  const short = text.length > NAMED ? `${text.slice(0, NAMED)}…` : text;
  return `“${short}”${user ? ` from ${user}` : ""}`;
}
