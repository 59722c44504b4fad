/** @file Requests to the server: errors with a remedy, the token, retries after 503, and event streams. */

const RETRIES = 5;
const LONGEST_WAIT = 30; // maximum seconds between two attempts

/** An error of the server or the connection: what is wrong and how to fix it. */
export class Refusal extends Error {
  /**
   * @param {number} status of the reply; 0 without a reply
   * @param {string} code
   * @param {string} message
   * @param {string} remedy
   */
  constructor(status, code, message, remedy) {
    super(message);
    Object.assign(this, { status, code, remedy });
  }
}

/** The server. The token is stored in this object only, until the page is closed. */
export class Api {
  #token = "";
  /** @type {Promise<string> | null} */
  #asking = null;

  /**
   * @param {(again: boolean) => Promise<string>} askToken asks the user for the token
   * @param {(seconds: number) => void} waiting called before a retry
   */
  constructor(askToken, waiting) {
    this.askToken = askToken;
    this.waiting = waiting;
  }

  get usesToken() {
    return this.#token !== "";
  }

  /**
   * Returns a successful reply. Retries after 401 with a token, and after 503 when the Retry-After time has passed.
   * @param {string} path relative to the page
   * @param {RequestInit} [options]
   * @returns {Promise<Response>}
   * @throws {Refusal}
   */
  async request(path, options = {}) {
    for (let tries = 0; ; ) {
      const used = this.#token;
      const response = await this.#send(path, options, used);
      if (response.ok) return response;
      if (response.status === 401) {
        await this.#renew(used);
      } else if (response.status === 503 && ++tries <= RETRIES) {
        const seconds = Math.min(Number(response.headers.get("Retry-After")) || 2, LONGEST_WAIT);
        this.waiting(seconds);
        await pause(seconds, options.signal);
      } else {
        throw await refusal(response);
      }
    }
  }

  async #send(path, options, token) {
    const headers = token ? { ...options.headers, Authorization: `Bearer ${token}` } : options.headers;
    try {
      return await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (/** @type {Error} */ (error).name === "AbortError") throw error;
      throw new Refusal(0, "unreachable", "the server does not respond", "check that `vitrail serve` is running, then try again");
    }
  }

  /** Asks for the token once for all waiting requests. Does nothing if the token has changed since the request. */
  async #renew(used) {
    if (this.#token !== used) return;
    this.#asking ??= this.askToken(used !== "").finally(() => { this.#asking = null; });
    const token = await this.#asking;
    if (!token) {
      throw new Refusal(401, "unauthorised", "the server requires a token", "get the token from the operator of the server, then reload the page");
    }
    this.#token = token;
  }

  /**
   * @param {string} path
   * @param {RequestInit} [options]
   */
  async json(path, options) {
    return (await this.request(path, options)).json();
  }

  /**
   * Sends a picture file unchanged.
   * @param {string} path
   * @param {File} file
   * @param {AbortSignal} [signal]
   */
  async send(path, file, signal) {
    const body = new FormData();
    body.append("file", file, file.name);
    return this.json(path, { method: "POST", body, signal });
  }

  /**
   * Yields server-sent events. They are parsed here because EventSource cannot send a token.
   * @param {string} path
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<{event: string, data: any, id: string}>}
   */
  async *events(path, signal) {
    const response = await this.request(path, { signal });
    const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split("\n\n");
      text = /** @type {string} */ (blocks.pop());
      for (const block of blocks) {
        const fields = Object.fromEntries(block.split("\n").map((line) => line.match(/^(\w+): (.*)$/)?.slice(1) ?? ["", ""]));
        if (fields.data) yield { event: fields.event, data: JSON.parse(fields.data), id: fields.id };
      }
    }
  }
}

/** @param {Response} response */
async function refusal(response) {
  try {
    const { error } = await response.json();
    return new Refusal(response.status, error.code, error.message, error.remedy);
  } catch {
    return new Refusal(response.status, "unknown", `the server answered ${response.status}`, "try again");
  }
}

/**
 * @param {number} seconds
 * @param {AbortSignal | null} [signal]
 */
function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}
