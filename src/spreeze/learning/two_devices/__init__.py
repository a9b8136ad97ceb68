"""Critic and actor on two devices: an updater for each, and the channels between them."""
