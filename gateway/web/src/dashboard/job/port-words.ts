// A job's port by what is typed, and where it opens. Pure.

const PORT_MAX = 65_535;

/** The port that somebody has typed; undefined for what is none. */
export function readPort(text: string): number | undefined {
  const said = text.trim();
  const port = /^\d{1,5}$/.test(said) ? Number(said) : 0;
  return port >= 1 && port <= PORT_MAX ? port : undefined;
}

/** Where the gateway opens it: it sends a browser on to a host of the port's own, where there is one. */
export function addressOfPort(job: number, port: number, rank: number): string {
  return `jobs/${job}${rank === 0 ? "" : `/ranks/${rank}`}/ports/${port}/`;
}
