"""`delayd recover`: what a disaster of Kafka's leaves behind is mended, each with a command."""
