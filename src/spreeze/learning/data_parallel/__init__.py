"""Several devices that share each batch: the replay is dealt out to them, and they average their gradients."""
