"""The data plane: HAProxy's configuration from a frozen description, and what is asked of the running one."""
