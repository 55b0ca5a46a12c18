"""Two assistants of one graph on one thread, through the official SDK: the second sees what the first one said.

Run it against a server: `python examples/two_assistants.py http://127.0.0.1:2024`
"""

import asyncio
import sys

from langgraph_sdk import get_client


async def main(url: str) -> None:
    client = get_client(url=url)
    system = (await client.assistants.search(graph_id="chat", metadata={"created_by": "system"}))[0]
    pirate = await client.assistants.create(
        "chat", config={"configurable": {"model_name": "pirate"}}, name="Pirate", if_exists="do_nothing"
    )
    thread = await client.threads.create()
    print(f"thread {thread['thread_id']}")
    for assistant, text in ((pirate, "Where is the treasure?"), (system, "What was that?")):
        print(f"\n{assistant['name']} is asked: {text}")
        async for part in client.runs.stream(
            thread["thread_id"],
            assistant["assistant_id"],
            input={"messages": [{"role": "user", "content": text}]},
            stream_mode=["updates"],
        ):
            print(f"  {part.event}: {part.data}")
    state = await client.threads.get_state(thread["thread_id"])
    said = [f"{message['type']}: {message['content']}" for message in state["values"]["messages"]]
    print("\nthe thread remembers both:", *said, sep="\n  ")
    assert len(said) == 4, said
    assert "after 2 earlier messages" in said[-1], said


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:2024"))
