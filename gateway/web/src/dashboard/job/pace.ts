// Asks again when something has changed, but never twice at once, nor more often than it is worth.

/** What it answers makes `act` run soon: at once when it has not for `ms`, and once more when it was wanted meanwhile. */
export function paced(act: () => Promise<void>, ms: number, until: AbortSignal): () => void {
  let isBusy = false, isWanted = false;
  const run = async (): Promise<void> => {
    isBusy = true;
    while (isWanted && !until.aborted) {
      isWanted = false;
      await act();
      await pause(ms, until);
    }
    isBusy = false;
  };
  return () => {
    isWanted = true;
    if (!isBusy) void run();
  };
}

/** Sleep; a view that is left wakes up at once. */
export function pause(ms: number, until: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      until.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    until.addEventListener("abort", done);
    if (until.aborted) done();
  });
}
