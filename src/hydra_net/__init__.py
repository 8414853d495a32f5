"""Hydra's network layer: identities, transports, RPC and streams between peers."""
