"""Tools to test what is built on hydra_net."""
