"""How the jobs of a sweep are started: processes here, Slurm, Ray, a search."""
