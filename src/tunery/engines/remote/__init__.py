"""Workers on another host, which an agent there starts and watches; both talk over the pipe of any command."""
