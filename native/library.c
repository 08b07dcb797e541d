#include "library.h"

uint32_t delayd_interface(void) {
    return DELAYD_INTERFACE;
}
