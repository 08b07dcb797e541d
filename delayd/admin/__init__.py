"""The admin port: what a node tells about itself over HTTP. Never needed for delivery."""
