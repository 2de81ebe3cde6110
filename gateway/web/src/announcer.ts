// What is said aloud and what the tab's title shows, from one state of the session to the next.

import type { Speech } from "./speech.ts";
import type { Session } from "./state.ts";
import { clock, ending, people, spokenSpan } from "./words.ts";

export class Announcer {
  private readonly speech: Speech;

  constructor(speech: Speech) {
    this.speech = speech;
  }

  /** Say what is new. */
  changed(before: Session, now: Session, at: number): void {
    if (before.link !== "lost" && now.link === "lost") this.speech.warn("The connection is lost. Trying again.");
    if (before.link === "lost" && now.link === "open") this.speech.warn("The connection is back.");
    const [was, is] = [before.phase, now.phase];
    if (is.kind === "waiting" && (was.kind !== "waiting" || was.place !== is.place)) {
      if (is.place === null) this.speech.warn(is.why);
      else this.speech.say(placeWords(is.place, is.lineLength, is.estimateAt, at));
    }
    if (is.kind === "turn" && was.kind !== "turn") this.speech.warn("Your turn begins.");
    if (is.kind === "ended" && was.kind !== "ended") this.speech.warn(`${ending(is.reason).title}.`);
    if (was.kind === "turn" && was.limit !== null && (is.kind !== "turn" || is.limit === null)) this.speech.forget("limit");
    if (was.kind === "turn" && was.idle !== null && (is.kind !== "turn" || is.idle === null)) this.speech.forget("idle");
    if (was.kind === "turn" && is.kind === "turn") {
      if (was.limit !== null && is.limit === null && now.link === "open" && before.link === "open") {
        this.speech.say("Your turn has no end any more.");
      }
      if (was.limit === null && is.limit !== null) {
        this.speech.warn(`Somebody waits. Your turn ends in ${spokenSpan((is.limit.endsAt - at) / 1_000)}.`);
        this.speech.isDue("limit", (is.limit.endsAt - at) / 1_000);
      }
    }
  }

  /** Say how long there is, at the moments at which that is said. */
  ticked(session: Session, at: number): void {
    if (session.phase.kind !== "turn" || session.link !== "open") return;
    const { limit, idle } = session.phase;
    if (idle !== null) {
      const seconds = (idle.endsAt - at) / 1_000;
      if (seconds > 0 && this.speech.isDue("idle", seconds)) {
        this.speech.warn(`Still there? Without input your turn ends in ${spokenSpan(seconds)}.`);
      }
    } else if (limit !== null) {
      const seconds = (limit.endsAt - at) / 1_000;
      if (seconds > 0 && this.speech.isDue("limit", seconds)) this.speech.warn(`Your turn ends in ${spokenSpan(seconds)}.`);
    }
  }

  /** The tab's title: it tells from afar. */
  title(session: Session | null, at: number): string {
    if (session === null) return "gpufleet";
    const { phase, model } = session;
    switch (phase.kind) {
      case "joining":
        return `${model} · gpufleet`;
      case "waiting":
        return phase.place === null ? `In front · ${model}` : `Place ${phase.place} · ${model}`;
      case "turn": {
        const end = phase.idle ?? phase.limit;
        return end === null ? `Your turn · ${model}` : `${clock((end.endsAt - at) / 1_000)} left · ${model}`;
      }
      case "ended":
        return `${ending(phase.reason).title} · gpufleet`;
    }
  }
}

function placeWords(place: number, length: number, estimateAt: number | null, at: number): string {
  const where = place === 1 ? "You are next in line." : `Place ${place} of ${people(length)} in line.`;
  return estimateAt === null ? where : `${where} About ${spokenSpan((estimateAt - at) / 1_000)}.`;
}
