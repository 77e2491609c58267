"""Models, tokenizers, engines and an oracle for tests, public."""
