/* What Python asks a library before it calls anything else of it. */
#ifndef DELAYD_LIBRARY_H
#define DELAYD_LIBRARY_H

#include <stdint.h>

/* Changes with every change of a function or structure that Python uses: `delayd.runtime.native` loads no
 * library that was built from another release's source. */
#define DELAYD_INTERFACE 6u

uint32_t delayd_interface(void);

#endif
