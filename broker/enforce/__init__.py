"""Step 4: an Allow becomes a confined process. The only folder that starts anything."""
