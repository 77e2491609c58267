"""What a process gives the protocol: a clock, a journal that is a file, a loop on a thread of its
own, and a transport between nodes of the same process. Knows no Ray."""
