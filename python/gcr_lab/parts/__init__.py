"""The parts of scripts/e2e-real and of scripts/bench. Each module registers its own."""
