/* SPDX-License-Identifier: Apache-2.0 */
/* Private to dscomm_info: its part about the topology. */
#ifndef INFO_TOPO_H
#define INFO_TOPO_H

/* The topology of this host, as one section among others. */
void info_topo_host(void);
/* dscomm_info --topo: argv[0] is "--topo", its options and files follow. Returns the exit code. */
int info_topo(int argc, char **argv);

#endif
