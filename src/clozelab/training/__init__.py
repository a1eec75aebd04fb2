"""What every stage shares on the Lightning side: trainer, checkpoints, callbacks, tracking."""
