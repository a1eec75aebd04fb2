"""What pre-training optimises, one file each: instance, head, loss. Plain torch."""
