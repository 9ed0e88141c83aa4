// Our interface from Node: node grpc_js.js ADDRESS PROTO NODE_MODULES. Prints JSON.
const [address, proto, modules] = process.argv.slice(2);
const grpc = require(`${modules}/@grpc/grpc-js`);
const loader = require(`${modules}/@grpc/proto-loader`);

const { appliance } = grpc.loadPackageDefinition(loader.loadSync(proto));
const credentials = grpc.credentials.createInsecure();
const box = new appliance.v1.Synthesizer(address, credentials);
const request = { text: "Hello, chat.", voice: "ann", seed: 5, segmentation: "UPSTREAM" };
const pcm = { ...request, audioConfig: { encoding: "PCM16" } };

const unary = () => new Promise((done, fail) => box.Synthesize(pcm, (e, r) => (e ? fail(e) : done(r))));

async function stream() {
  const parts = [];
  for await (const message of box.StreamSynthesize(pcm)) if (message.audio) parts.push(message.audio.data);
  return Buffer.concat(parts);
}

async function session() {
  const call = box.Session();
  call.write({ configure: { voice: "ann" } });
  for (const text of ["Hello, ", "chat. Good", "bye."]) call.write({ text });
  call.end();
  let bytes = 0;
  let ends = 0;
  for await (const message of call) {
    if (message.audio) bytes += message.audio.data.length;
    if (message.end) ends += 1;
  }
  return { bytes, ends };
}

async function refusal() {
  return new Promise((done) => box.Synthesize({ ...request, voice: "foo" }, (error) => done([error.code, error.details])));
}

(async () => {
  const [whole, streamed] = [(await unary()).audio, await stream()];
  const told = { bytes: whole.length, same: whole.equals(streamed), session: await session(), refusal: await refusal() };
  console.log(JSON.stringify(told));
  box.close();
})();
