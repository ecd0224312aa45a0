/* The search runs in a worker. A browser starts no worker for a page that it opened from the disk, so
   there its script runs in a hidden frame, whose messages go both ways. */
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = inner.document.createElement("script");
      this.loaded = new Promise((resolve) => (script.onload = () => resolve(inner)));
      script.onerror = (error) => this.onerror?.(error);
      script.src = address;
      inner.document.head.append(script);
    }
    postMessage(data) {
      this.loaded.then((inner) => inner.onmessage({ data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
