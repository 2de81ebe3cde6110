// A clock in a worker: the timers of a page in the background come once a minute, and its connection would be lost.

const TICK_MS = 250;

setInterval(() => postMessage(null), TICK_MS);
