/* Search in pages that are opened from a disk.

A browser starts no Worker from a file, so the search of Material runs in a hidden frame there.
Material would load a script of a server for this. On a web server this file does nothing. */

class FrameWorker extends EventTarget {
  constructor(address) {
    super()
    const frame = document.createElement("iframe")
    frame.hidden = true
    frame.srcdoc = "<body></body>"
    this.started = new Promise((resolve) => {
      frame.onload = () => resolve(this.start(frame.contentWindow, address))
    })
    document.body.append(frame)
  }

  /* What the worker's script calls in its own window, and that script itself. */
  start(inner, address) {
    inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
    const script = inner.document.createElement("script")
    script.src = new URL(address, document.baseURI)
    return new Promise((resolve) => {
      script.onload = () => resolve(inner)
      inner.document.body.append(script)
    })
  }

  postMessage(data) {
    this.started.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })))
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker
