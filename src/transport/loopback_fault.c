/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection. Costs one relaxed load per message while no fault is armed; a fault strikes
 * once.
 */
#include "transport/loopback_fault.h"

#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct dsc_fault fault; /* guarded by mutex */
static atomic_bool armed;

void dsc_loopback_set_fault(const struct dsc_fault *wanted)
{
    pthread_mutex_lock(&mutex);
    fault = *wanted;
    atomic_store(&armed, wanted->nth >= 0 && wanted->kind != DSC_FAULT_NONE);
    pthread_mutex_unlock(&mutex);
}

int dsc_loopback_take_fault(int rank, int *delay_ms_out)
{
    int kind = DSC_FAULT_NONE;

    if (!atomic_load_explicit(&armed, memory_order_relaxed))
        return kind;
    pthread_mutex_lock(&mutex);
    if (atomic_load(&armed) && rank == fault.rank && fault.nth-- == 0) {
        kind = (int)fault.kind;
        if (fault.kind == DSC_FAULT_DELAY)
            *delay_ms_out = fault.delay_ms;
        atomic_store(&armed, false);
    }
    pthread_mutex_unlock(&mutex);
    return kind;
}
