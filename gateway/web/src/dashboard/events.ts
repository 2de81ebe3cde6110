// Server-sent events, read from a stream of text as it comes.

/** More than this without an end is no event of a gateway's. */
export const EVENT_CHARS_MAX = 40_000_000;

export interface ServerEvent {
  /** "message" for one without a name. */
  readonly name: string;
  readonly data: string;
}

export class EventReader {
  private pieces: string[] = [];
  private length = 0;

  /** The events that are complete with this piece. Throws what is no stream of events. */
  take(piece: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    let rest = piece;
    // An end may be cut in two: what came before is looked at again only where it can be.
    if (this.pieces.at(-1)?.endsWith("\n") === true && rest.startsWith("\n")) {
      this.end(this.pieces.join(""), events);
      rest = rest.slice(1);
    }
    for (let at = rest.indexOf("\n\n"); at >= 0; at = rest.indexOf("\n\n")) {
      this.pieces.push(rest.slice(0, at));
      this.end(this.pieces.join(""), events);
      rest = rest.slice(at + 2);
    }
    if (rest !== "") {
      this.pieces.push(rest);
      this.length += rest.length;
      if (this.length > EVENT_CHARS_MAX) throw new Error("an event without an end");
    }
    return events;
  }

  private end(block: string, events: ServerEvent[]): void {
    this.pieces = [];
    this.length = 0;
    let name = "message";
    const data: string[] = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    }
    if (data.length > 0) events.push({ name, data: data.join("\n") });
  }
}
