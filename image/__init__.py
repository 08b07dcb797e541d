"""What the image of a node is made of, for builders with a daemon (Dockerfile) and without."""
