package io.delayd;

/** Java's default partitioner: which partition of the buffer an id belongs to. */
final class Murmur2 {
    private static final int SEED = 0x9747b28c;
    private static final int M = 0x5bd1e995;

    private Murmur2() {}

    /** Returns the positive hash of the key modulo the partitions, whatever the producer's own does. */
    static int partitionOf(byte[] key, int partitions) {
        return (hash(key) & 0x7fffffff) % partitions;
    }

    private static int hash(byte[] data) {
        int whole = data.length & ~3;
        int h = SEED ^ data.length;
        for (int i = 0; i < whole; i += 4) {
            int k = little(data, i, 4) * M;
            h = h * M ^ (k ^ k >>> 24) * M;
        }
        if (data.length > whole) {
            h = (h ^ little(data, whole, data.length - whole)) * M;
        }
        h = (h ^ h >>> 13) * M;
        return h ^ h >>> 15;
    }

    private static int little(byte[] data, int from, int count) {
        int number = 0;
        for (int i = 0; i < count; i++) {
            number |= (data[from + i] & 0xff) << 8 * i;
        }
        return number;
    }
}
