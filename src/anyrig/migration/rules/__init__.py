"""The rules, one small family in a file. `every.RULES` lists them all."""
