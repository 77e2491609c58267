"""What the demo's agents are told and asked, in two processes. On the main thread of each."""
