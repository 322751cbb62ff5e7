// Search runs in a Worker, which browsers refuse to a page that was opened as a file. There a hidden frame runs the
// Worker's script instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.document.write("<!doctype html><body>");
      inner.document.close();
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => (script.onload = () => resolve(inner)));
      inner.document.body.append(script);
    }

    postMessage(data) {
      this.loaded.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
