// Workers of vLLM yield without end while they wait. On Linux 6.18 with two cores, two such threads' virtual time was
// seen to run 280 times too fast, and after some seconds nothing else got a core for up to a minute.
#include <time.h>

extern "C" int sched_yield(void)
{
    struct timespec pause = {0, 50000};
    return nanosleep(&pause, nullptr);
}
