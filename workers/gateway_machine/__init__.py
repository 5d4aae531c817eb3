"""A console's gateway on a machine of its own: joining, keeping HAProxy there, sending back what went through."""
