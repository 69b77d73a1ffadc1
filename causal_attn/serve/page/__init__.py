"""The page at ``/`` for a person: what is served, what was proved of it, how it does now.

Static files and JSON: the browser draws, nothing is built, and what a model or a prompt says
becomes text in the page, never markup.
"""

from causal_attn.serve.page.routes import FILES, add_page_routes

__all__ = ["FILES", "add_page_routes"]
