"""How the loaded model writes what a conversation holds beside text: tools, calls, thoughts. Any
thread."""
