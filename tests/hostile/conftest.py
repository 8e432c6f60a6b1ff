from web_tools import serve

__all__ = ["serve"]
