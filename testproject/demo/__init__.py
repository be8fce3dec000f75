"""The demo's parts: server processes, buyers, sales, and the report. The shop itself knows nothing of them."""
