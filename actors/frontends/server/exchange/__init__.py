"""What is asked and answered, whatever the interface: plain records. Any thread."""
