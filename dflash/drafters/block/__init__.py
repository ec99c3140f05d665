"""Block drafters, the DFlash and DSpark families: one forward over mask tokens drafts a whole block."""
