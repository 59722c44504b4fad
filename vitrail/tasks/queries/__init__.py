"""Masks by queries in a plain ViT (EoMT): what the tasks that answer with them share."""
