"""Critic and actor on two devices: the halves of an update and the channels between them."""
