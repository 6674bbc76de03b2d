"""Agents and their sessions on top of the stores.

`turn` has what one turn does, `transcript` what a session knows of its history, `workers` what finishes the turns of others;
the modules here are what an application holds, and what opens, finds and serves turns.
"""
