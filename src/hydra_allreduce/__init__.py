"""Groups that agree, and the ring that reduces."""
