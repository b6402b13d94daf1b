"""Make `shared_prefixes.jsonl`: two minutes of a small chat service, invented.

    python examples/traces/make_shared_prefixes.py > examples/traces/shared_prefixes.jsonl

Three assistants, each with a system prompt of its own. Half of the requests are single questions; the rest
are turns of conversations, which begin with everything said before (kvplan's own format, see
`kvplan/traces/own.py`). Two thirds declare a budget of new tokens.
"""

import json
import random

ASSISTANTS = {"support": 1_800, "coding": 3_200, "search": 640}
SINGLE = 100
CONVERSATIONS = 25
SECONDS = 120.0


def main() -> None:
    """Print the trace, a request a line, in arrival order."""
    draw = random.Random(20)
    rows = [single(draw, number) for number in range(SINGLE)]
    for number in range(CONVERSATIONS):
        rows += conversation(draw, number)
    rows.sort(key=lambda row: float(str(row["arrival_s"])))
    for row in rows:
        print(json.dumps(row))


def single(draw: random.Random, number: int) -> dict[str, object]:
    """Return a question on its own: a system prompt and a few hundred tokens."""
    assistant, system = draw.choice(sorted(ASSISTANTS.items()))
    question = round(draw.lognormvariate(5.5, 0.8)) + 1
    return {
        "id": f"q{number}",
        "arrival_s": round(draw.uniform(0, SECONDS), 2),
        "prompt_tokens": system + question,
        "prefix": [{"id": assistant, "tokens": system}],
        **answer(draw),
    }


def conversation(draw: random.Random, number: int) -> list[dict[str, object]]:
    """Return the turns of a conversation, each of which begins with all that was said before it."""
    assistant, system = draw.choice(sorted(ASSISTANTS.items()))
    at = draw.uniform(0, SECONDS / 2)
    said = 0
    turns: list[dict[str, object]] = []
    for turn in range(draw.randint(3, 5)):
        said += round(draw.lognormvariate(5.0, 0.6)) + 1
        reply = answer(draw)
        turns.append(
            {
                "id": f"c{number}-{turn}",
                "arrival_s": round(at, 2),
                "prompt_tokens": system + said,
                "prefix": [{"id": assistant, "tokens": system}, {"id": f"chat {number}", "tokens": said}],
                **reply,
                "session_id": f"c{number}",
            }
        )
        said += int(str(reply["output_tokens"]))
        at += draw.uniform(8, 20)
    return turns


def answer(draw: random.Random) -> dict[str, object]:
    """Return an output length, and for two requests in three the budget that is declared for it."""
    output = min(round(draw.lognormvariate(5.2, 0.7)) + 1, 1_024)
    declared: dict[str, object] = {"max_new_tokens": 1_024} if draw.random() < 2 / 3 else {}
    return {"output_tokens": output} | declared


if __name__ == "__main__":
    main()
