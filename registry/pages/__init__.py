"""HTML pages: the shared frame, style and script of run pages, plans and the site."""
