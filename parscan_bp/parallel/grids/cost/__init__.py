"""What training on a process grid costs in communication and memory, before it runs."""
