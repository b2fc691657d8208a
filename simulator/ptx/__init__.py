"""PTX text to nodes: what the text says, with names resolved and nothing interpreted."""
