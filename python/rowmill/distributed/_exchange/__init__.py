"""The exchange: ids are sent to the ranks that own their rows, rows come back, and gradients return to the owners."""
