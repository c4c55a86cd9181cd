"""Step 1: what was asked. Values only; nothing here judges or acts."""
