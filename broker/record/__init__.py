"""Step 5: what happened, as append-only truth. Written before anything runs; never changed afterwards."""
