// Keeps the last second of what is heard in `heard`.
(() => {
  window.heard = [];
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (to, ...more) {
    if (to instanceof AudioDestinationNode && !(this instanceof ScriptProcessorNode)) {
      const tap = to.context.createScriptProcessor(256, 1, 1);
      tap.onaudioprocess = ({ inputBuffer, outputBuffer }) => {
        heard.push(...inputBuffer.getChannelData(0));
        heard.splice(0, heard.length - 24000);
        outputBuffer.copyToChannel(inputBuffer.getChannelData(0), 0);
      };
      connect.call(tap, to);
      return connect.call(this, tap, ...more);
    }
    return connect.call(this, to, ...more);
  };
})();
