"""Whether watching changes anything: the same training bare, watched and captured, over many architectures."""
