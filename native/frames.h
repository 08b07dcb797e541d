/* Frames: the bytes of one record in a slot's file, as delayd/wheel/frame.py defines them.
 *
 *     frame := length crc version kind flags lane partition offset append_ms due_ms body
 *     bytes    4      4   1       1    2     2    2         8      8         8      to the end
 *
 * All integers are little-endian. `length` counts the whole frame, `crc` is the CRC32C of all behind
 * itself. Version, kind and flags together are the form.
 *
 * What is read here was verified by nobody: every length is checked against the bytes that are there
 * before anything behind it is read.
 */
#ifndef DELAYD_FRAMES_H
#define DELAYD_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#define FRAME_VERSION 1u
#define FRAME_BYTES_MAX (256u * 1024 * 1024)
#define HEADER_BYTES 40u
#define PREFIX_BYTES 8u

enum frame_kind { KIND_MESSAGE = 0, KIND_PENDING_REPLY = 1, KIND_CANCEL_MARKER = 2 };

struct frame_header {
    uint32_t length;
    uint32_t crc;
    uint32_t form;
    uint16_t lane;
    uint16_t partition;
    uint64_t offset;
    uint64_t due_ms;
};

enum frame_reading {
    FRAME_WHOLE,  /* it is there, and its CRC is right */
    FRAME_CUT,    /* it goes on behind the bytes that are there */
    FRAME_BROKEN, /* these bytes are no frame */
};

/* The form of a frame of this kind. */
static inline uint32_t form_of(enum frame_kind kind) {
    return FRAME_VERSION | (uint32_t)kind << 8;
}

/* Read the header of the frame at `data`, where `size` bytes are; verify its length, and its CRC. */
enum frame_reading frame_read(const uint8_t *data, size_t size, struct frame_header *header);

/* Read the header of a frame that `frame_read` has called whole. */
void frame_header_read(const uint8_t *data, struct frame_header *header);

#endif
